"""A gateway behind a control plane: what it follows, borrows and tells, side by side.

None of the three is needed to serve: with the control plane away, the services, keys and limits that were
last known hold, and quota is a matter of policy.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator

import msgspec

from holdfast.gateway.borrow import Borrow
from holdfast.gateway.keeper import Keeper
from holdfast.gateway.load import Load
from holdfast.gateway.plane import ControlPlane
from holdfast.gateway.watch import Watch


class Behind(msgspec.Struct, frozen=True):
    """Which control plane, and who we are to it."""

    urls: tuple[str, ...]
    token: str = ""
    ca: str = ""
    name: str = ""  # empty: made of the machine's name and the port
    authority: str = ""  # the file with the certificate of the fleet's own
    ca_pin: str = ""  # by which it is found


@contextlib.asynccontextmanager
async def following(keeper: Keeper, behind: Behind, stop: asyncio.Event) -> AsyncIterator[None]:
    """When the block begins, the keeper knows what it leads to; while it lasts, it is told what changes."""
    plane = ControlPlane(
        behind.urls,
        behind.token,
        behind.ca,
        authority=behind.authority,
        ca_pin=behind.ca_pin,
        kept=keeper.wanted.state / "ca.pem",
    )
    watch = Watch(keeper, plane)
    try:
        await watch.begin(stop)
        name = behind.name or socket.gethostname()
        borrow = Borrow(plane, f"{name}.{secrets.token_hex(4)}")
        keeper.borrow = borrow.asked
        load = Load(keeper, plane, behind.name)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run()) for each in (watch, borrow, load)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except ExceptionGroup as group:
        (error,) = group.exceptions if len(group.exceptions) == 1 else (group,)
        raise error from None  # whoever runs us need not know that we do several things at once
    finally:
        watch.save()
        await plane.close()
