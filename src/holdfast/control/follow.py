"""The world as it stands in the journal, read again and again: what a control plane shows while another
leads, and what it begins with when it leads itself.
"""

import contextlib
import gc
from collections.abc import Iterator

import structlog

from holdfast.core.state import fold, snapshot
from holdfast.model.plan import Plan
from holdfast.model.units import Instant
from holdfast.model.world import World
from holdfast.ports.store import Store

BATCH = 5_000  # entries read at once

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
                    self.world, self.length = snapshot.load(found.body), found.length
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
                for entry in entries:
                    fold.apply(self.world, entry)
                    self.anew = self.anew and not isinstance(entry, Plan)
                    self.last_at = max(self.last_at, entry.at)
            self.length += len(entries)
            found = found or bool(entries)
            if len(entries) < BATCH:
                return found
