"""The audit log of a control plane: what is written into it, and how.

Nobody waits for it. A record goes into a queue of bounded length, and one task takes what has come to a file
of this control plane and to the registry, which all of them share, so each shows the records of all. A disk
that is full or a database that does not answer holds up no order: what finds no room in the queue is counted,
and the count is written as a record of its own (`lost`) when there is room again. An order is in the journal
besides, with the token and the origin, before it is answered.

Strangers can make failures as fast as they like, so failures are not written one by one: the first of an
address (of a token, for what it may not do) is written at once, the others of the same minute as one record
with their count. In a minute there are at most KINDS_MAX different ones, and OF_ONE_MAX of one token or
address; the rest is counted together.

An order is one record, however many workloads it changes, and one token has so many records of orders
(ORDERS, and ORDERS_PER_S more); what it orders beyond that is counted in the same way, and is in the journal.
The registry keeps orders apart from what is refused. So nobody drives what others did out of the log within
days.
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
from holdfast.control.enrol import Joining
from holdfast.core.explain import history
from holdfast.model.event import TokenMade, TokenRevoked, UserMade
from holdfast.model.units import Instant
from holdfast.ports.audit import Kind, Record, Sink
from holdfast.ports.errors import PortError
from holdfast.ports.registry import Registry
from holdfast.wire.address import counted_as

QUEUE_MAX = 10_000
ORDERS = 500  # records of one token
ORDERS_PER_S = 0.2
NAMED_MAX = 8  # things that one order changes
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
        self._ordered: dict[str, tuple[float, Instant]] = {}  # by token: records of its share, and when
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
        """What one request of a user made happen, as one record."""
        made = [event for event in events if isinstance(event, UserMade)]
        lines = [line for event in made for line in history.lines(0, event)]  # type: ignore[arg-type]
        if not lines:
            return
        kind = Kind.TOKEN if isinstance(made[0], TokenMade | TokenRevoked) else Kind.ORDER
        record = Record(self.wall(), kind, actor=made[0].actor, token=made[0].actor_id, origin=made[0].origin)
        if len(lines) == 1:
            record = replace(record, subject=lines[0].subject, text=lines[0].text + remark)
        else:
            said = "; ".join(f"{line.subject} {line.text}" for line in lines[:NAMED_MAX])
            more = f"; and {len(lines) - NAMED_MAX} more" if len(lines) > NAMED_MAX else ""
            said = said if len(said) + len(more) <= TEXT_MAX else f"{said[: TEXT_MAX - len(more) - 40]}..."
            subject = f"{lines[0].subject} and {len(lines) - 1} more"
            record = replace(record, subject=subject, text=f"{said}{more}{remark}", count=len(lines))
        if kind is Kind.TOKEN or self._has_share(record):
            self.note(record)
        else:
            self._count(replace(record, subject=MORE_ORDERS, text="in the journal", count=1))

    def _has_share(self, record: Record) -> bool:
        used, at = self._ordered.pop(record.token, (0.0, record.at))
        used = max(0.0, used - ORDERS_PER_S * max(0, record.at - at) / 1000)
        fits = used + 1 <= ORDERS
        self._ordered[record.token] = (used + fits, record.at)
        if len(self._ordered) > SEEN_MAX:
            self._ordered.pop(next(iter(self._ordered)))
        return fits

    def joined(self, joining: Joining) -> None:
        """Somebody brought a join token."""
        token, record = joining.token, Record(self.wall(), Kind.LOGIN, origin=joining.origin)
        if token is not None:
            kind = Kind.DENIED if joining.why else Kind.TOKEN
            record = replace(record, kind=kind, actor=token.name, token=token.id)
        if joining.why:
            self._count(replace(record, subject=f"join as {joining.node}", text=joining.why))
        elif token is not None:
            self.note(replace(record, subject=f"token:{token.id}", text=f"enrolled the node {joining.node}"))

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
        self._count(made)

    def _count(self, record: Record) -> None:
        """Written at once, or with others like it."""
        if self._failures.add(record):
            self.note(record)
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    # how it is written

    async def close(self) -> None:
        """What is known now is still written, if that is quick."""
        for record in self._failures.over(None, self.wall()):
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
                now = self.wall()
                for record in self._failures.over(now, now):
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

    def over(self, now: Instant | None, at: Instant | None = None) -> list[Record]:
        """Records of those whose minute is over; without `now`, of all. `at`: they are told at this instant,
        after what was told meanwhile."""
        done = [
            key
            for key, (since, _, _) in self.counted.items()
            if now is None or abs(now - since) >= COUNTED_FOR_S * 1000
        ]
        found = [self.counted.pop(key) for key in done]
        told = [replace(record, count=count) for _, record, count in found if count]
        return told if at is None else [replace(record, at=at) for record in told]


OTHERS = ("", "", "others")
MORE_ORDERS = "more orders"
