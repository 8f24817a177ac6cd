"""Answers that go on: events as they happen, logs as they are written.

Nothing is buffered here: the next piece is fetched when the last one is on its way, so a slow reader slows
its own source down and nobody else. A reader that takes nothing for a minute is let go. Streams end when the
reader leaves or its token is good no longer, and when the control plane closes: `close` must be called before
the server waits for its open connections, or it would wait for these.

What must be whole (`whole`: a log) and is not ends without the last chunk of its body, so that a client can
tell it from the end: the connection is closed in the middle of the answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from holdfast.api.problems import Refused
from holdfast.control.front import CUT

OPEN_MAX = 256
STUCK_S = 60.0

log = structlog.get_logger("holdfast.api")


class Cut(Exception):
    """The source ends, and that is not all of it."""


class Streams:
    """All that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.closing = asyncio.Event()

    def close(self) -> None:
        """Let all of them end."""
        self.closing.set()

    def check_room(self) -> None:
        if self.open >= OPEN_MAX or self.closing.is_set():
            why = "the control plane is closing" if self.closing.is_set() else f"{OPEN_MAX} streams are open"
            raise Refused(503, why, "try again in a moment", headers={"Retry-After": "5"})


class Stream(StreamingResponse):
    def __init__(
        self,
        streams: Streams,
        source: AsyncGenerator[bytes],
        media_type: str,
        lapsed: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        whole: bool = False,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`lapsed` returns when the reader may read no longer. `whole`: an end before the source's own is an
        error. `closed` is called at the end, also if the source was never begun."""
        self.streams, self.source, self.lapsed = streams, source, lapsed
        self.whole, self.closed = whole, closed
        self._pieces = self._until_closing()
        self._tasks: set[asyncio.Task[Any]] = set()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._pieces, media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        except TimeoutError:
            log.warning("reader stuck", path=scope["path"])
            cut(scope)
        except Cut as error:
            log.warning("answer cut short", path=scope["path"], why=str(error))
            cut(scope)
        finally:
            self.streams.open -= 1
            await self._finish()

    async def stream_response(self, send: Send) -> None:
        async def patiently(message: Message) -> None:
            async with asyncio.timeout(STUCK_S):
                await send(message)

        await super().stream_response(patiently)

    async def _until_closing(self) -> AsyncGenerator[bytes]:
        """The pieces of the source, up to its end or the closing of the house."""
        over = {self._begin(self.streams.closing.wait())}
        if self.lapsed is not None:
            over.add(self._begin(self.lapsed()))
        while True:
            piece = self._begin(self._next())
            await asyncio.wait({piece, *over}, return_when=asyncio.FIRST_COMPLETED)
            if any(end.done() for end in over):
                if self.whole:
                    raise Cut(
                        "the control plane closes" if self.streams.closing.is_set() else "its token lapsed"
                    )
                return
            data = piece.result()
            if data is None:
                return
            yield data

    async def _next(self) -> bytes | None:
        return await anext(self.source, None)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish(self) -> None:
        """Here and not in the generators: they may have been cancelled where they cannot wait any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._pieces.aclose()
        await self.source.aclose()
        self.closed()


def cut(scope: Scope) -> None:
    """Closes the connection: without an end of the body. Another server than ours does so by itself."""
    if (found := scope.get("extensions", {}).get(CUT)) is not None:
        found["close"]()
