"""The world as it stands in the journal, read again and again: what a control plane shows while another
leads, and what it begins with when it leads itself.

A long journal takes its time, in which others must have their turns: agents are heard, probes are answered,
and a leadership is renewed. So folding pauses every few milliseconds, between two entries. A snapshot is read
on a thread: nobody else knows it yet.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterable, Iterator

import structlog

from holdfast.core.state import fold, snapshot
from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.units import Instant
from holdfast.model.world import World
from holdfast.ports.store import Store

BATCH = 5_000  # entries read at once
FOLD_S = 0.02  # at a stretch

Entry = Event | Plan

log = structlog.get_logger("holdfast.follow")


@contextlib.contextmanager
def no_collecting() -> Iterator[None]:
    """Everything that is read is kept: looking for garbage in it again and again doubles the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def settle() -> None:
    """What is known by now stays for long: the collector need not walk through it, which would stop the loop
    for a good part of a second in a large fleet."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Follower:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.world = World()
        self.length = 0
        self.saved = 0  # length of the snapshot it began with
        self.anew = False  # it was read from a snapshot, and nobody has looked at it since
        self.last_at: Instant = 0  # of the newest entry

    async def begin(self) -> None:
        """From the newest snapshot that can be read, if there is one. The journal is kept back to the one
        before the newest, so one that is damaged costs time and nothing else."""
        before = 0
        while (found := await self.store.latest(before)) is not None and found.length:
            try:
                with no_collecting():
                    world = await asyncio.to_thread(snapshot.load, found.body)
                self.world, self.length = world, found.length
            except snapshot.UnknownSnapshot as error:
                log.warning("a snapshot cannot be read", length=found.length, why=str(error))
                before = found.length
                continue
            self.saved, self.anew = found.length, True
            for entry in await self.store.read(self.length - 1, 1):
                self.last_at = entry.at  # our clock must not begin before it
            return

    async def catch_up(self) -> bool:
        """Reads what is new. False: there was nothing."""
        found = False
        while True:
            with no_collecting():
                entries = await self.store.read(self.length, BATCH)
                await self._fold(entries)
            found = found or bool(entries)
            if len(entries) < BATCH:
                return found

    async def _fold(self, entries: Iterable[Entry]) -> None:
        """Entry by entry, so that whoever looks meanwhile, or ends it, finds the world as long as it says."""
        until = time.perf_counter() + FOLD_S
        for entry in entries:
            fold.apply(self.world, entry)
            self.length += 1
            self.anew = self.anew and not isinstance(entry, Plan)
            self.last_at = max(self.last_at, entry.at)
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + FOLD_S
