"""Logs of replicas, sent while somebody reads them; and the end of each with the report that it ended.

In parts, and the next only when the one before has left and the reader has room for it: a log of gigabytes
takes no more memory here, or anywhere on the way, than a short one. Beats go between the parts, and a slow
reader holds up nobody else on the link. Where the link were left full for the slow one instead (the simpler
rule), beats would wait behind its log.

Nothing is left out in silence: a part says where in the log it is, and a reader that rotation has overtaken
is ended with a reason.

The end goes in the same message as the report: whoever has heard of the end has the last words too, and may
let the node go. They are short, because reports and beats wait behind them; many that end together share.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.core.agent.machine import Report
from holdfast.wire.messages import LogPart, Message, ReadLog, Wrote

PART_BYTES = 64 << 10
LAST_BYTES = 64 << 10  # of each
LAST_BYTES_ALL = 512 << 10  # of all that end together
LOOK_AGAIN_S = 0.2
READERS_MAX = 32
FAR = 1 << 62  # beyond the end of any log


class Logs(Protocol):
    def read_log(self, replica: str, offset: int, size: int) -> tuple[bytes, int]: ...

    def has_log(self, replica: str) -> bool: ...


class Outlet(Protocol):
    def send(self, message: Message) -> None: ...

    async def writable(self) -> None: ...


def last_words(logs: Logs, reports: Sequence[Report]) -> dict[str, Wrote]:
    ended = [report.replica for report in reports if report.what == "ended"]
    size = min(LAST_BYTES, LAST_BYTES_ALL // max(1, len(ended)))
    found = {}
    for replica in ended:
        with contextlib.suppress(OSError):  # that it ended is told all the same
            data, written = logs.read_log(replica, -size, size)
            if data:
                found[replica] = Wrote(data, written)
    return found


class Reader:
    """How far one reader is, in bytes since it began. `window` 0: an older control plane, which says nothing
    of what it has taken."""

    def __init__(self, wanted: ReadLog) -> None:
        self.wanted = wanted
        self._sent = self._taken = 0
        self._news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def room(self) -> int:
        """For how many bytes there is room, once there is some."""
        while True:
            left = self.wanted.window + self._taken - self._sent if self.wanted.window else PART_BYTES
            if left > 0:
                return min(left, PART_BYTES)
            self._news.clear()
            await self._news.wait()

    def sent(self, size: int) -> None:
        self._sent += size

    def taken(self, size: int) -> None:
        self._taken = max(self._taken, min(size, self._sent))
        self._news.set()


class Tails:
    """All that is read over one link."""

    def __init__(self, logs: Logs, outlet: Outlet, runs: Callable[[str], bool]) -> None:
        self._logs, self._outlet, self._runs = logs, outlet, runs
        self._readers: dict[int, Reader] = {}

    def begin(self, wanted: ReadLog) -> None:
        if len(self._readers) >= READERS_MAX or wanted.request in self._readers:
            self._outlet.send(LogPart(wanted.request, b"", end=True, why="too many read logs here"))
            return
        reader = self._readers[wanted.request] = Reader(wanted)
        reader.task = asyncio.get_running_loop().create_task(self._read(reader))
        reader.task.add_done_callback(lambda _: self._readers.pop(wanted.request, None))

    def taken(self, request: int, size: int) -> None:
        if reader := self._readers.get(request):
            reader.taken(size)

    def end(self, request: int) -> None:
        if (reader := self._readers.get(request)) and reader.task is not None:
            reader.task.cancel()

    async def close(self) -> None:
        tasks = [reader.task for reader in self._readers.values() if reader.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, reader: Reader) -> None:
        wanted = reader.wanted
        try:
            why = await self._send_parts(reader)
        except OSError as error:
            why = f"its log cannot be read: {error.strerror or error}"
        await self._outlet.writable()
        self._outlet.send(LogPart(wanted.request, b"", end=True, why=why))

    async def _send_parts(self, reader: Reader) -> str:
        """Up to what was there when it began or, followed, up to the replica's end. Why that is not all of
        it, or empty."""
        wanted, replica = reader.wanted, reader.wanted.replica
        end = self._end(replica)
        offset = min(wanted.offset, end) if wanted.offset >= 0 else max(0, end + wanted.offset)
        begun = stalled = False
        while True:
            running = self._runs(replica)  # asked first: what it wrote before it ended is read
            if wanted.follow:
                end = FAR if running else self._end(replica)
            if begun and offset >= end:
                return ""
            room = await reader.room()
            await self._outlet.writable()
            data, after = self._logs.read_log(replica, offset, min(room, end - offset))
            at = after - len(data)
            if begun and at > offset:
                return overtaken(replica, offset, at)
            if not begun and not running and not self._logs.has_log(replica):
                return f"nothing of {replica} is here"
            if data or not begun:
                self._outlet.send(LogPart(wanted.request, data, offset=at))
                reader.sent(len(data))
            offset, begun = after, True
            if data:
                stalled = False
                await asyncio.sleep(0)  # others have a turn
            elif wanted.follow and running:
                await asyncio.sleep(LOOK_AGAIN_S)
            elif offset < end:  # a piece was removed as it was to be opened: look once more
                if stalled:
                    return f"the log of {replica} is removed from byte {offset:,} on"
                stalled = True

    def _end(self, replica: str) -> int:
        return self._logs.read_log(replica, FAR, 0)[1]


def overtaken(replica: str, offset: int, at: int) -> str:
    """Why a log that went on at `at` was not whole: no more is kept of it than its last pieces."""
    return (
        f"bytes {offset:,} to {at:,} of the log of {replica} are gone: it was written faster than it was read"
    )
