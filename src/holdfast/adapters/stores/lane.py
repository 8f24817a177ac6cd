"""One thread, one connection: where blocking calls of a database are made, one after the other.

A store has two: writes queue up behind one another anyway (each locks the same row), and reads must not wait
for them. A thread of our own rather than the loop's default pool, where a slow name lookup of somebody else
could delay the leader's renewal.

What keeps the leadership and the journal is asked by few; those who join, follow history or bring a token may
be a crowd. Only so many of a crowd may wait, so that it never keeps the leader from writing.

Nobody waits for ever. A call that has not begun in time is taken back: it did not happen. One that runs is
interrupted, and its error says what became of it; if not even that helps, nobody can know.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.ports.errors import OutcomeUnknown, Throttled, Unreachable

T = TypeVar("T")

WAITING_MAX = 256
CALL_S = 10.0  # connecting (2 s) and a statement (5 s), with room to spare
GRACE_S = 2.0  # for an interrupted call to say what became of it
BUSY_RETRY_MS = 200


class Lane:
    def __init__(self, name: str, interrupt: Callable[[], None], crowd_max: int) -> None:
        self._interrupt, self._crowd_max = interrupt, crowd_max
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._waiting = 0
        self._closed = False

    async def call(self, job: Callable[[], T], timeout_s: float = 0.0, *, crowd: bool = False) -> T:
        """`timeout_s`: if it takes longer than others."""
        if self._closed:
            raise Unreachable("the store is closed")
        if self._waiting >= (self._crowd_max if crowd else WAITING_MAX):
            raise Throttled(f"{self._waiting} calls wait for the database already", BUSY_RETRY_MS)
        self._waiting += 1
        try:
            return await self._call(job, max(timeout_s, CALL_S))
        finally:
            self._waiting -= 1

    async def _call(self, job: Callable[[], T], timeout_s: float) -> T:
        future = self._thread.submit(job)
        answer = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({answer}, timeout=timeout_s)
            if not done:
                if future.cancel():
                    raise Unreachable(f"the database has been busy for {timeout_s:.0f} s: try again")
                self._interrupt()
                done, _ = await asyncio.wait({answer}, timeout=GRACE_S)
            if not done:
                raise OutcomeUnknown(f"the database has not answered for {timeout_s + GRACE_S:.0f} s")
            return answer.result()
        finally:
            answer.cancel()  # if we were cancelled, or gave up: nobody will ask for the result

    async def close(self, last: Callable[[], None]) -> None:
        """Does `last` on the thread, after everything that waits, and ends the thread."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._call(last, CALL_S)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
