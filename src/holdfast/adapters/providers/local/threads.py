"""Work that blocks, done beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from holdfast.adapters.providers.local import tree

P = ParamSpec("P")
T = TypeVar("T")


async def seen_through(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a thread, and waited for even when we are cancelled: half-done work must not go on behind a lock
    that was given back."""
    work = asyncio.get_running_loop().run_in_executor(None, lambda: function(*args, **kwargs))
    try:
        await asyncio.wait({work})
    except asyncio.CancelledError:
        await asyncio.wait({work})
        work.exception()  # looked at, so that nobody complains
        raise
    return work.result()


class Survey:
    """`tree.survey` for many at once: whoever asks while one is under way shares the next one.

    When a hundred nodes fall silent together, all their processes are looked at twice and not a hundred
    times.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._begun = self._done = 0  # their numbers
        self._last: dict[str, list[int]] = {}

    async def __call__(self) -> dict[str, list[int]]:
        asked = self._begun
        async with self._lock:
            if self._done <= asked:  # none that began after we asked has come to its end
                self._begun += 1
                self._last = await asyncio.to_thread(tree.survey)
                self._done = self._begun
            return self._last
