"""What tests of the local provider wait for and put around it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from holdfast.adapters.providers.local.provider import LocalProvider

TIMEOUT_S = 30.0


async def soon(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await holds():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {TIMEOUT_S:g} s: {what}") from None


@asynccontextmanager
async def supervised(provider: LocalProvider) -> AsyncIterator[None]:
    task = asyncio.create_task(provider.supervise())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def end(last: LocalProvider, others: Iterable[LocalProvider]) -> None:
    """Everything that they started."""
    asyncio.run(last.stop_all(0))
    for provider in others:
        asyncio.run(provider.close())
