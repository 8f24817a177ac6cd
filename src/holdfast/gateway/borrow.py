"""Carries the asks of workers to the control plane, together, and the answers back.

What is not answered in time is dropped: the worker has its own clock, and goes by its policy for that
(closed, or `fail_open`). Two carriers, so that one answer that does not come holds up nobody else.
"""

import asyncio

import msgspec
import structlog

from holdfast.core.gateway.quota.broker import Ask, Grants
from holdfast.gateway import messages
from holdfast.gateway.link import Link
from holdfast.gateway.plane import Away, ControlPlane, Denied
from holdfast.wire.gateway import as_meant

PATH = "/v1/gateway/lease"
WITHIN_S = 1.5  # the worker waits two seconds
CARRIERS = 2
WAITING_MAX = 1_000

log = structlog.get_logger("holdfast.gateway")


class Borrow:
    def __init__(self, plane: ControlPlane, name: str) -> None:
        """`name`: of this life of this gateway; no other has one of its holders."""
        self.plane, self.name = plane, name
        self._waiting: list[tuple[Link, Ask]] = []
        self._wake = asyncio.Event()
        self._away = False

    def asked(self, link: Link, ask: Ask) -> None:
        if len(self._waiting) < WAITING_MAX:
            holder = f"{self.name}/{ask.holder}"
            self._waiting.append((link, msgspec.structs.replace(ask, holder=holder)))
            self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CARRIERS):
                group.create_task(self._carry())

    async def _carry(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # what comes in together goes together
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            if batch:
                await self._ask(batch)

    async def _ask(self, batch: list[tuple[Link, Ask]]) -> None:
        try:
            body = await self.plane.post(PATH, msgspec.json.encode([ask for _, ask in batch]), WITHIN_S)
            answers = as_meant(msgspec.json.decode(body, type=list[Grants]))
        except (Away, Denied, msgspec.MsgspecError) as error:
            if not self._away:
                log.warning("no quota can be borrowed", why=str(error))
            self._away = True
            return
        self._away = False
        for (link, _), grants in zip(batch, answers, strict=False):
            link.send(messages.Granted(grants))
