"""Follows what the control plane says, and goes on by the last of it when there is none.

The view is always whole, so nothing can be missed: what changed is found by comparing it with the one before.
It is kept on disk, and a gateway that starts while the control plane is away starts from there.
"""

import asyncio
import contextlib
import random
from pathlib import Path

import msgspec
import structlog

from holdfast.gateway.keeper import Keeper
from holdfast.gateway.keyring import write_whole
from holdfast.gateway.plane import Away, ControlPlane, Denied
from holdfast.gateway.view import View, together
from holdfast.model.gateway import Grade, Key, Limits

FIRST_WITHIN_S = 3.0
AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0)
DENIED_AGAIN_S = 5.0
KEEP_EVERY_S = 1.0

log = structlog.get_logger("holdfast.gateway")


class Stopped(Exception):
    """Somebody ended us before we knew anything to go by."""


class Watch:
    def __init__(self, keeper: Keeper, plane: ControlPlane) -> None:
        self.keeper, self.plane = keeper, plane
        self.file: Path = keeper.wanted.state / "view.json"
        self.view = View()
        self._kept = True
        self._trouble = ""

    async def begin(self, stop: asyncio.Event) -> None:
        """Not before there is something to go by. Denied: it will not have us, and we know of nothing."""
        tries = 0
        while not stop.is_set():
            try:
                self.apply(await self.plane.view(FIRST_WITHIN_S))
                return
            except (Away, Denied) as error:
                if self._from_disk():
                    log.warning("starting with what was last known", why=str(error))
                    return
                if isinstance(error, Denied):
                    raise
                if not tries:
                    log.warning("waiting for the control plane", why=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_again(tries)):
                    await stop.wait()
            tries += 1
        raise Stopped

    def _from_disk(self) -> bool:
        try:
            self.apply(msgspec.json.decode(self.file.read_bytes(), type=View))
        except FileNotFoundError:
            return False
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("what was last known cannot be read", why=str(error))
            return False
        return True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._keep())

    async def _follow(self) -> None:
        tries = 0
        while True:
            wait = _again(tries)
            tries += 1
            try:
                async for view in self.plane.views():
                    self.apply(view)
                    self._say("")
                    tries = 0
            except Away as away:
                self._say(str(away))
            except Denied as denied:
                self._say(str(denied))
                wait = DENIED_AGAIN_S
            await asyncio.sleep(wait)

    def _say(self, trouble: str) -> None:
        """Once, until it is over."""
        if bool(trouble) != bool(self._trouble):
            if trouble:
                log.warning("the control plane is away; going on without it", why=trouble)
            else:
                log.info("the control plane is back")
        self._trouble = trouble

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await asyncio.to_thread(self.save)

    def save(self) -> None:
        if self._kept:
            return
        try:
            self._kept = True
            write_whole(self.file, msgspec.json.encode(self.view))
        except OSError as error:
            self._kept = False
            log.error("what the control plane says cannot be kept", why=error.strerror)

    # what changed

    def apply(self, view: View) -> None:
        before, self.view = self.view, view
        if view == before:
            return
        self._kept = False
        self._keys(before, view)
        keeper = self.keeper
        for scope in before.limits.keys() | view.limits.keys():
            limits = view.limits.get(scope, Limits())
            if before.limits.get(scope, Limits()) != limits:
                keeper.put_limits(scope, limits)
        for key in before.clamps.keys() | view.clamps.keys():
            share = view.clamps.get(key, 1.0)
            if before.clamps.get(key, 1.0) != share:
                keeper.clamp(key, share)
        services = together(view.services, keeper.wanted.services)
        if services != keeper.services:
            keeper.put_services(services)

    def _keys(self, before: View, view: View) -> None:
        keeper = self.keeper
        old, new = {key.id: key for key in before.keys}, {key.id: key for key in view.keys}
        keeper.ring.fixed = new
        for id in old.keys() - new.keys():
            keeper.drop_key(id)
            keeper.watch.forget(id)
        for id, key in new.items():
            if old.get(id) != key:
                self._put(old.get(id), key)

    def _put(self, before: Key | None, key: Key) -> None:
        if before is not None and before.hash != key.hash:  # another key under an old name
            self.keeper.drop_key(key.id)
            self.keeper.watch.forget(key.id)
        elif before is not None and before.grade is not Grade.FINE and key.grade is Grade.FINE:
            self.keeper.watch.restore(key.id)
        self.keeper.put_key(key)


def _again(tries: int) -> float:
    return AGAIN_S[min(tries, len(AGAIN_S) - 1)] * (0.5 + random.random())
