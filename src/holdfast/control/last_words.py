"""What replicas wrote last, kept for when their node is gone.

Of running ones it comes every few seconds, and is written every few seconds, all of them together: a store
that commits for each node would be slow for the journal.

It comes with the report that a replica ended and is queued for the store before the turn that reads the
report, so it is written before anybody decides to let the node go. Nobody waits for it: if the store takes
none, the log stays with its node and nowhere else.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import NamedTuple

import structlog

from holdfast.control.session import Gone
from holdfast.ports.errors import PortError
from holdfast.ports.store import TAIL_COSTS, Store, Tail

WAITING_BYTES_MAX = 16 << 20  # counted as the store counts them
RUNNING_BYTES_MAX = 4 << 20  # of running replicas, that wait
RUNNING_EVERY_S = 2.0
CLOSE_S = 2.0

Parts = AsyncGenerator[bytes, None]

log = structlog.get_logger("holdfast.hub")


class LastWords:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, Tail] = {}
        self._going: dict[str, Tail] = {}  # to the store, just now
        self._size = 0  # of those that wait
        self._writing: asyncio.Task[None] | None = None
        self._running: dict[str, Tail] = {}
        self._running_size = 0
        self._soon: asyncio.TimerHandle | None = None

    def keep(self, tails: Iterable[Tail]) -> None:
        for tail in tails:
            self._running.pop(tail.replica, None)  # it has ended
            self._size += len(tail.data) + TAIL_COSTS
            if self._size > WAITING_BYTES_MAX:
                log.warning("last words dropped", replica=tail.replica, why="too many at once")
                break
            self._waiting[tail.replica] = tail
        self._begin()

    def keep_running(self, tails: Iterable[Tail]) -> None:
        """More than there is room for is dropped: it comes again as it grows."""
        for tail in tails:
            size = len(tail.data) + TAIL_COSTS
            if self._running_size + size <= RUNNING_BYTES_MAX:
                self._running[tail.replica] = tail
                self._running_size += size
        if self._running and self._soon is None:
            loop = asyncio.get_running_loop()
            self._soon = loop.call_later(RUNNING_EVERY_S, self._write_running)

    def _write_running(self) -> None:
        self._soon = None
        for name, tail in self._running.items():
            if name not in self._waiting:
                self._waiting[name] = tail
                self._size += len(tail.data) + TAIL_COSTS
        self._running, self._running_size = {}, 0
        self._begin()

    def _begin(self) -> None:
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._waiting:
            self._going, self._waiting, self._size = self._waiting, {}, 0
            try:
                await self._store.keep_tails(tuple(self._going.values()))
            except PortError as error:
                log.warning("last words dropped", count=len(self._going), why=str(error))
        self._going = {}

    async def of(self, replica: str) -> Tail | None:
        here = self._running.get(replica) or self._waiting.get(replica) or self._going.get(replica)
        return here or await self._store.tail(replica)

    async def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._write_running()
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=CLOSE_S)
            self._writing.cancel()


class Log(NamedTuple):
    """What a replica wrote, from where it was asked for."""

    parts: Parts
    note: str = ""  # what is to be known about it
    start: int | None = None  # offset of its first byte in all that was ever written; None: not known
    close: Callable[[], None] = lambda: None  # to be called, also if no part was ever taken


class NotKept(Exception):
    """A part of the log that was asked for is no longer kept anywhere."""


def kept(tail: Tail, offset: int | None, last: int, why: str, *, follow: bool) -> Log:
    """From an offset, or the `last` bytes, or (0) all. `why`: it is not read from its node. What a replica
    that was running has written since is not known: whoever wants all of it gets an error after the rest."""
    first = tail.written - len(tail.data)
    broken = "" if tail.ended else f"{why}, and what {tail.replica} wrote after that is not known"
    if offset is not None:
        if offset < first:
            raise NotKept(missing(tail.replica, offset, first, f"{why}, and only the end of its log is kept"))
        if broken and offset >= tail.written:
            raise Gone(broken)
        return Log(_of(tail.data[offset - first :], broken), start=min(offset, tail.written))
    all_of_it = tail.written <= len(tail.data)
    what = "all that it wrote" if all_of_it else f"the last {len(tail.data):,} of {tail.written:,} bytes"
    data = tail.data[-last:]
    note = f"{tail.replica} has ended and {why}; this is {what}"
    if not tail.ended:
        note = f"{why}; this is {what} up to some seconds before, the rest is not known"
    return Log(_of(data, broken if follow else ""), note, tail.written - len(data))


def missing(replica: str, offset: int, start: int, why: str) -> str:
    return f"bytes {offset:,} to {start:,} of the log of {replica} are gone: {why}"


async def _of(data: bytes, broken: str) -> Parts:
    """Gone: that is not all of it."""
    if data:
        yield data
    if broken:
        raise Gone(broken)
