"""Things that live and end together.

Not `asyncio.TaskGroup`: in Python 3.11 a group that fails while it waits for its tasks leaves its caller
marked as cancelled, and one that is cancelled while it fails forgets the cancelling. Terms fail as a matter
of course here, and a control plane must still end when it is told to.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs all until one ends, by itself or by an error, which is raised here; then the others are
    cancelled. When it returns or raises, none of them runs any more."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
