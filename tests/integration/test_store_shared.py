"""Several processes on one SQLite file."""

import subprocess
import sys
from pathlib import Path

from holdfast.adapters.stores import open_store
from holdfast.model.event import LinkClosed

VISIT = """
import asyncio, sys
from holdfast.adapters.stores import open_store

async def visit():
    store, registry = await open_store(sys.argv[1])
    print(len(await store.read()))
    await store.close()

asyncio.run(visit())
"""


def visit(url: str) -> int:
    return int(subprocess.run([sys.executable, "-c", VISIT, url], check=True, capture_output=True).stdout)


async def test_a_visitor_that_leaves_does_not_take_the_log_away(tmp_path: Path) -> None:
    """It once did: what was written after the first visit was seen by nobody else, and lost at the end."""
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    store, _ = await open_store(url)
    held = await store.lead("cp-1", "", 60_000)
    await store.leader()  # the reading connection is open too
    for number in range(3):
        await store.append(held.generation, number, (LinkClosed(at=number, node="n"),))
        assert visit(url) == number + 1
    await store.close()
    assert visit(url) == 3
