"""Answers that go on: events as they happen, logs as they are written.

Nothing is buffered here: the next piece is fetched when the last one is on its way, so a slow reader slows
its own source down and nobody else. A reader that takes nothing for a minute is let go. Streams end when the
reader leaves or its token is good no longer, and when the control plane closes: `close` must be called before
the server waits for its open connections, or it would wait for these.

There are so many streams and no more, and each token has its share of them: else one that reads could keep
everybody else out. The last places are kept for gateways, which serve by what their stream says.

What must be whole (`whole`: a log) and is not ends without the last chunk of its body, so that a client can
tell it from the end: the connection is closed in the middle of the answer.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from holdfast.api import problems
from holdfast.api.problems import Refused
from holdfast.api.token_limits import TokenLimits
from holdfast.control.front import CUT

OPEN_MAX = 256
KEPT_FOR_GATEWAYS = 64
WATCHES_PER_TOKEN = 128  # several gateways may have one token
STUCK_S = 60.0
SOON = {"Retry-After": "5"}

log = structlog.get_logger("holdfast.api")


class Cut(Exception):
    """The source ends, and that is not all of it."""


class Streams:
    """All that are open."""

    def __init__(self, per_token: int = TokenLimits.streams) -> None:
        self.per_token = per_token
        self.open = self.watches = 0
        self.of_token: Counter[tuple[str, bool]] = Counter()
        self.closing = asyncio.Event()

    def close(self) -> None:
        """Let all of them end."""
        self.closing.set()

    def check_room(self, token: str = "", *, watch: bool = False) -> None:
        """Refused: not another one for this token (its id; empty: tokens are not asked for). `watch`: of a
        gateway."""
        if self.closing.is_set():
            raise Refused(503, "the control plane is closing", "try again in a moment", headers=SOON)
        most = WATCHES_PER_TOKEN if watch else self.per_token
        if token and self.of_token[token, watch] >= most:
            hint = "end some of them, or use a token of its own for each program"
            raise Refused(429, f"{most} streams are open with this token", hint, headers=SOON)
        free_for_all = OPEN_MAX - max(0, KEPT_FOR_GATEWAYS - self.watches)
        if self.open >= (OPEN_MAX if watch else free_for_all):
            raise Refused(503, f"{self.open} streams are open", "try again in a moment", headers=SOON)

    @contextlib.contextmanager
    def place(self, token: str, *, watch: bool) -> Iterator[None]:
        """One of them, for as long as the block lasts."""
        self.check_room(token, watch=watch)
        self.open += 1
        self.watches += watch
        self.of_token[token, watch] += 1
        try:
            yield
        finally:
            self.open -= 1
            self.watches -= watch
            self.of_token[token, watch] -= 1
            self.of_token += Counter()  # forgets those that have none


class Stream(StreamingResponse):
    def __init__(
        self,
        streams: Streams,
        source: AsyncGenerator[bytes],
        media_type: str,
        lapsed: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        token: str = "",
        watch: bool = False,
        whole: bool = False,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`lapsed` returns when the reader may read no longer. `token` and `watch`: as in `check_room`.
        `whole`: an end before the source's own is an error. `closed` is called at the end, also if the source
        was never begun."""
        self.streams, self.source, self.lapsed = streams, source, lapsed
        self.token, self.watch, self.whole, self.closed = token, watch, whole, closed
        self._pieces = self._until_closing()
        self._tasks: set[asyncio.Task[Any]] = set()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._pieces, media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self.streams.place(self.token, watch=self.watch):
                await super().__call__(scope, receive, send)
        except Refused as full:  # since we looked
            await problems.refused(full)(scope, receive, send)
        except TimeoutError:
            log.warning("reader stuck", path=scope["path"])
            cut(scope)
        except Cut as error:
            log.warning("answer cut short", path=scope["path"], why=str(error))
            cut(scope)
        finally:
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
