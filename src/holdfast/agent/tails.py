"""Logs of replicas, sent while somebody reads them; and the end of each with the report that it ended.

In parts, and the next only when the one before has left: a log of gigabytes takes no more memory here than a
short one, and beats go between the parts.

The end goes in the same message as the report: whoever has heard of the end has the last words too, and may
let the node go. They are short, because reports and beats wait behind them; many that end together share.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.core.node import Report
from holdfast.wire.messages import LogPart, Message, ReadLog, Wrote

PART_BYTES = 64 << 10
LAST_BYTES = 64 << 10  # of each
LAST_BYTES_ALL = 512 << 10  # of all that end together
LOOK_AGAIN_S = 0.2
READERS_MAX = 32


class Logs(Protocol):
    def read_log(self, replica: str, offset: int, size: int) -> tuple[bytes, int]: ...


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


class Tails:
    """All that is read over one link."""

    def __init__(self, logs: Logs, outlet: Outlet, runs: Callable[[str], bool]) -> None:
        self._logs, self._outlet, self._runs = logs, outlet, runs
        self._readers: dict[int, asyncio.Task[None]] = {}

    def begin(self, wanted: ReadLog) -> None:
        if len(self._readers) >= READERS_MAX or wanted.request in self._readers:
            self._outlet.send(LogPart(wanted.request, b"", end=True, why="too many read logs here"))
            return
        task = asyncio.get_running_loop().create_task(self._read(wanted))
        self._readers[wanted.request] = task
        task.add_done_callback(lambda _: self._readers.pop(wanted.request, None))

    def end(self, request: int) -> None:
        if task := self._readers.get(request):
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._readers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, wanted: ReadLog) -> None:
        why = ""
        try:
            if not await self._send_parts(wanted):
                why = f"nothing of {wanted.replica} is here"
        except OSError as error:
            why = f"its log cannot be read: {error.strerror or error}"
        await self._outlet.writable()
        self._outlet.send(LogPart(wanted.request, b"", end=True, why=why))

    async def _send_parts(self, wanted: ReadLog) -> bool:
        """Was there anything?"""
        offset, ran = wanted.offset, False
        while True:
            await self._outlet.writable()
            running = self._runs(wanted.replica)  # asked first: what it wrote before it ended is read
            data, offset = self._logs.read_log(wanted.replica, offset, PART_BYTES)
            ran = ran or running or bool(data)
            if data:
                self._outlet.send(LogPart(wanted.request, data))
                await asyncio.sleep(0)  # others have a turn
            elif wanted.follow and running:
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                return ran
