"""How long until a new leader knows everything?

The journal of a fleet of 10,000 nodes and 50,000 replicas, as its own loop wrote it, in a SQLite file. A
control plane that has just started reads it: once as in life, from the newest snapshot and what came after
it, and once from the very first entry, as if every snapshot had been lost.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from time import perf_counter

from bench._world import Bench
from holdfast.adapters.stores import SqlStore, open_store
from holdfast.control.follow import Follower
from holdfast.control.term import SNAPSHOT_EVERY
from holdfast.core.state import snapshot
from holdfast.core.turn import Mind
from holdfast.ports.store import Snapshot

BATCH = 2_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=50_000)


def run(args: argparse.Namespace) -> dict[str, object]:
    fleet = Bench(args.nodes, args.replicas)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        return asyncio.run(measure(fleet, f"sqlite:///{Path(folder) / 'journal.db'}"))


async def measure(fleet: Bench, url: str) -> dict[str, object]:
    await written(fleet, url)
    first, whole = await recovered(url, snapshots=False)
    seconds, world = await recovered(url, snapshots=True)
    same = all(
        getattr(whole.world, name) == getattr(world.world, name) == getattr(fleet.world, name)
        for name in ("nodes", "workloads", "slots", "replicas", "gangs", "pools")
    )
    return {
        "seconds": round(seconds, 2),
        "without_snapshots_s": round(first, 2),
        "entries": whole.length,
        "entries_after_the_snapshot": SNAPSHOT_EVERY,
        "nodes": len(world.world.nodes),
        "replicas": len(world.world.replicas),
        "same_world": same,
    }


async def written(fleet: Bench, url: str) -> None:
    """With a snapshot as old as they get before the next one is made."""
    store, _ = await open_store(url)
    held = await store.lead("bench", "", 600_000)
    cut = max(0, len(fleet.journal) - SNAPSHOT_EVERY)
    for at in range(0, len(fleet.journal), BATCH):
        await store.append(held.generation, at, tuple(fleet.journal[at : at + BATCH]))
    body = snapshot.dump(Mind.from_journal(fleet.journal[:cut]).world)
    await store.save(held.generation, Snapshot(cut, body))
    await store.close()


async def recovered(url: str, *, snapshots: bool) -> tuple[float, Follower]:
    start = perf_counter()
    store, _ = await open_store(url)
    follower = Follower(store if snapshots else Forgetful(store))
    await follower.begin()
    await follower.catch_up()
    took = perf_counter() - start
    await store.close()
    return took, follower


class Forgetful(SqlStore):
    """The same store, its snapshots lost."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store.database)

    async def latest(self, before: int = 0) -> Snapshot | None:
        return None
