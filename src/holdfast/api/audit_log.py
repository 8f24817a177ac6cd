"""The audit log of a control plane: what is written into it, and how.

Nobody waits for it. A record goes into a queue of bounded length, and one task takes what has come to a file
of this control plane and to the registry, which all of them share, so each shows the records of all. A disk
that is full or a database that does not answer holds up no order: what finds no room in the queue is counted,
and the count is written as a record of its own (`lost`) when there is room again. An order is in the journal
besides, with the token and the origin, before it is answered.

Strangers can make failures as fast as they like, so failures are not written one by one: the first of an
address (of a token, for what it may not do) is written at once, the others of the same minute as one record
with their count. In a minute there are at most KINDS_MAX different ones, and OF_ONE_MAX of one token or
address; the rest is counted together. So nobody drives what others did out of the log within a day.
"""

import asyncio
import contextlib
import itertools
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace
from starlette.requests import Request

from holdfast.api.access import Admitted, Expired, Forbidden, client_of
from holdfast.api.problems import Refused
from holdfast.core.explain import history
from holdfast.model.event import TokenMade, TokenRevoked, UserMade
from holdfast.model.units import Instant
from holdfast.ports.audit import Kind, Record, Sink
from holdfast.ports.errors import PortError
from holdfast.ports.registry import Registry
from holdfast.wire.address import counted_as

QUEUE_MAX = 10_000
BATCH_MAX = 200
AGAIN_S = 1.0
COUNTED_FOR_S = 60.0
KINDS_MAX = 128
OF_ONE_MAX = 8
SEEN_MAX = 4_096  # tokens that were noted as used
TEXT_MAX = 500
CLOSE_S = 2.0
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

log = structlog.get_logger("holdfast.audit")

_encode = msgspec.json.Encoder().encode


class AuditLog:
    def __init__(
        self,
        registry: Registry,
        plane: str,
        wall: Callable[[], Instant],
        sink: Sink | None = None,
        dropped: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`dropped` is told how many records were lost."""
        self.registry, self.plane, self.wall, self.sink, self._dropped = registry, plane, wall, sink, dropped
        self._queue: deque[Record] = deque()
        self._lost = 0  # since the last record of that
        self._unwritten = 0  # lines that the file did not take
        self._failures = Failures()
        self._seen: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    # what is noted

    def note(self, record: Record) -> None:
        if len(self._queue) >= QUEUE_MAX:
            self._lost += 1
            self._dropped(1)
            return
        subject, text = _printable(record.subject), _printable(record.text)
        made = replace(record, subject=subject, text=text, plane=self.plane, id=secrets.token_hex(8))
        self._queue.append(made)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    def orders(self, events: Iterable[object], remark: str = "") -> None:
        """What users made happen."""
        for event in events:
            if not isinstance(event, UserMade):
                continue
            kind = Kind.TOKEN if isinstance(event, TokenMade | TokenRevoked) else Kind.ORDER
            for line in history.lines(0, event):  # type: ignore[arg-type]
                made = Record(self.wall(), kind, subject=line.subject, text=line.text + remark)
                self.note(replace(made, actor=event.actor, token=event.actor_id, origin=event.origin))

    def used(self, who: Admitted) -> None:
        """A token was brought, and was good."""
        if not who.unused or who.token in self._seen:
            return
        self._seen[who.token] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.pop(next(iter(self._seen)))
        record = Record(self.wall(), Kind.TOKEN, subject=f"token:{who.token}", text=USED_FIRST)
        self.note(replace(record, actor=who.name, token=who.token, origin=who.origin))

    def refused(self, request: Request, error: Refused) -> None:
        """A failed log-in, or what a token is not for."""
        if error.status_code not in (401, 403, 429):
            return
        who: Admitted | None = getattr(request.state, "admitted", None)
        match error:
            case Forbidden(who=who) | Expired(who=who):
                pass
        made = Record(self.wall(), Kind.LOGIN, origin=client_of(request), text=error.detail)
        if who is not None:
            kind = Kind.TOKEN if isinstance(error, Expired) else Kind.DENIED
            what = f"{request.method} {request.url.path}"
            made = replace(made, kind=kind, actor=who.name, token=who.token, subject=what)
        if self._failures.add(made):
            self.note(made)
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    # how it is written

    async def close(self) -> None:
        """What is known now is still written, if that is quick."""
        for record in self._failures.over(None):
            self.note(record)
        if self._task is not None:
            task = self._task
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.shield(task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _drain(self) -> None:
        """Until there is nothing to write or to count."""
        try:
            while self._queue or self._failures.counted:
                if not self._queue:
                    await asyncio.sleep(AGAIN_S)
                for record in self._failures.over(self.wall()):
                    self.note(record)
                if self._queue:
                    await self._write(list(itertools.islice(self._queue, BATCH_MAX)))
        finally:
            self._task = None

    async def _write(self, batch: list[Record]) -> None:
        await self._to_file(batch)
        todo, fresh = deque(batch), list[Record]()
        while True:
            try:
                while todo:
                    if todo[0].text != USED_FIRST or await self._is_first(todo[0]):
                        fresh.append(todo[0])
                    todo.popleft()
                await self.registry.record(tuple(fresh))
                break
            except PortError as error:
                log.warning("the audit log waits for the registry", why=str(error), waiting=len(self._queue))
                await asyncio.sleep(AGAIN_S)
        for _ in batch:
            self._queue.popleft()
        if self._lost:
            lost, self._lost = self._lost, 0
            self.note(Record(self.wall(), Kind.LOST, text="records that found no room", count=lost))

    async def _is_first(self, record: Record) -> bool:
        """All control planes see a token; one of them is the first."""
        return await self.registry.first_use(record.token, record.at)

    async def _to_file(self, batch: list[Record]) -> None:
        if self.sink is None:
            return
        lines = [_encode(_named(record)) for record in batch]
        try:
            await asyncio.to_thread(self.sink.write, lines)
            self._unwritten = 0
        except OSError as error:
            if not self._unwritten:
                log.error("the audit file takes no more lines", why=error.strerror or str(error))
            self._unwritten += len(lines)
            self._dropped(len(lines))


USED_FIRST = "used first"


def _printable(text: str) -> str:
    """Strangers choose paths: what would move the cursor of a terminal is not written."""
    text = CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def _named(record: Record) -> dict[str, Any]:
    """As a line of the file: without what is empty."""
    fields = msgspec.structs.asdict(record)
    return {name: value for name, value in fields.items() if value not in ("", 0)}


class Failures:
    """What failed, counted: one record at the beginning, and one for the others of the minute."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, str, str], tuple[Instant, Record, int]] = {}

    def add(self, record: Record) -> bool:
        """False: it was counted, and is written with others."""
        whose = record.token or counted_as(record.origin)
        key = (record.kind.value, whose, record.subject)
        if key not in self.counted and sum(other == whose for _, other, _ in self.counted) >= OF_ONE_MAX:
            key, record = (record.kind.value, whose, OTHERS[2]), replace(record, subject=OTHERS[2])
        if key not in self.counted and len(self.counted) >= KINDS_MAX:
            key, record = OTHERS, replace(record, origin="", actor="", token="", subject=OTHERS[2])
        found = self.counted.get(key)
        if found is None:
            self.counted[key] = (record.at, record, 0)
            return True
        self.counted[key] = (found[0], record, found[2] + 1)
        return False

    def over(self, now: Instant | None) -> list[Record]:
        """Records of those whose minute is over; without `now`, of all."""
        done = [
            key
            for key, (since, _, _) in self.counted.items()
            if now is None or abs(now - since) >= COUNTED_FOR_S * 1000
        ]
        found = [self.counted.pop(key) for key in done]
        return [replace(record, count=count) for _, record, count in found if count]


OTHERS = ("", "", "others")
