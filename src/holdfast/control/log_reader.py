"""One reader of a replica's log, on its way from an agent's link to an answer of the API.

The agent sends no more than a window ahead of what the reader has taken (`LogTaken`), so a slow reader costs
a window of memory here and holds up nobody else on the link. The simpler rules were refused: a queue that
drops loses bytes, and a link that is not read holds up heartbeats. An older agent does not count: it is
bounded by cutting its reader off, with an error.

A log that ends early ends with `Gone`, never as if that had been all.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from holdfast.control.session import Gone, Session
from holdfast.wire.messages import LogPart, LogTaken, ReadLog, StopLog

WINDOW = 256 << 10
UNREAD_MAX = 4 << 20  # bytes that wait for the reader: more are only sent by an agent without windows
PART_COSTS = 64  # bytes that each counts besides its own
LOOK_EVERY_S = 1.0  # whether its node is still there
WHY_MAX = 200


class LogReader:
    def __init__(
        self, number: int, session: Session, lost: Callable[[], str], closed: Callable[[int], object]
    ):
        """`lost`: why nothing can come any more, or empty."""
        self.number, self.session = number, session
        self.start: int | None = None  # offset of its first byte in all that was ever written
        self._lost, self._closed = lost, closed
        self._parts: deque[LogPart] = deque()
        self._unread = 0
        self._news = asyncio.Event()
        self._taken = self._told = 0
        self._open, self.full = True, False

    def ask(self, replica: str, offset: int, *, follow: bool) -> None:
        self.session.send(ReadLog(self.number, replica, offset, follow, WINDOW))

    def put(self, part: LogPart) -> None:
        """What the agent sent."""
        if self.full:
            return
        if self.start is None and part.offset >= 0:
            self.start = part.offset
        self._unread += len(part.data) + PART_COSTS
        if self._unread > UNREAD_MAX:
            self.full = True
            self._parts.clear()
            part = LogPart(
                self.number, b"", end=True, why="it was read too slowly for its agent, an older one"
            )
        self._parts.append(part)
        self._news.set()

    def end(self, why: str) -> None:
        self._parts.append(LogPart(self.number, b"", end=True, why=why))
        self._news.set()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._closed(self.number)
            self.session.send(StopLog(self.number))

    async def begun(self, within_s: float) -> bool:
        """Waits for the first part. False: the time is up. Gone: there is nothing to read."""
        try:
            async with asyncio.timeout(within_s):
                while not self._parts:
                    await self._wait()
        except TimeoutError:
            return False
        if self._parts[0].end and self._parts[0].why:
            raise Gone(plain(self._parts[0].why))
        return True

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """To its end. Gone: that is not all of it."""
        try:
            while True:
                while not self._parts:
                    await self._wait()
                part = self._parts.popleft()
                self._unread -= len(part.data) + PART_COSTS
                if part.data:
                    yield part.data
                    self._take(len(part.data))
                if part.end and part.why:
                    raise Gone(plain(part.why))
                if part.end:
                    return
        finally:
            self.close()

    def _take(self, size: int) -> None:
        self._taken += size
        if self.start is not None and self._taken - self._told >= WINDOW // 4:
            self._told = self._taken
            self.session.send(LogTaken(self.number, self._taken))

    async def _wait(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._news.wait()
        except TimeoutError:
            if why := self._lost():
                self.end(why)


def plain(text: str) -> str:
    """What a node says for a reason goes into the head of an answer, where not everything may stand."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text[:WHY_MAX])
