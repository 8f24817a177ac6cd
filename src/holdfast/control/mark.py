"""What a control plane's folder remembers of its fleet: which one it is, and how far its journal had come.

A database can be removed, emptied, or replaced by an older copy while no control plane looks. The journal
itself cannot tell: an empty one looks like a fleet that begins. So the folder keeps a mark beside it, renewed
every few seconds. A fleet is known by what its launch secret hashes to: every database has had one since the
first, and a copy of it has the same.
"""

import contextlib
import hashlib
from pathlib import Path

import msgspec

from holdfast.model.event import JournalBehind
from holdfast.model.units import Instant
from holdfast.model.world import World

FILE = "fleet"
EVERY_S = 5.0
EPOCHS_LOST = 1_000  # more than any seat is likely to have got since a copy was made


class Mark(msgspec.Struct, frozen=True):
    fleet: str
    generation: int = 0  # of the last leader
    length: int = 0  # of the journal
    epoch: int = 0  # the highest of any seat


class Behind(msgspec.Struct, frozen=True):
    """The database may be older than what was done by it."""

    why: str
    generation: int = 0
    epoch: int = 0

    def told(self, world: World, at: Instant) -> JournalBehind:
        """Epochs were given out that neither the database nor this folder knows of."""
        known = max((slot.epoch for slot in world.slots.values()), default=0)
        return JournalBehind(at=at, why=self.why, epoch=max(known, self.epoch) + EPOCHS_LOST)


def fleet_of(secret: bytes) -> str:
    return hashlib.sha256(b"fleet " + secret).hexdigest()[:16]


def read(state: Path) -> Mark | None:
    """None: this folder has had no fleet; or the mark is damaged, and another will be made."""
    try:
        return msgspec.json.decode((state / FILE).read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None


def keep(state: Path, mark: Mark) -> None:
    """A full disk is no reason to stop: the mark only helps."""
    fresh = state / f"{FILE}.new"
    try:
        fresh.write_bytes(msgspec.json.encode(mark) + b"\n")
        fresh.replace(state / FILE)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()


def drop(state: Path) -> None:
    with contextlib.suppress(OSError):
        (state / FILE).unlink()


def of(world: World, fleet: str, length: int) -> Mark:
    epoch = max((slot.epoch for slot in world.slots.values()), default=0)
    return Mark(fleet, world.leader.generation, length, max(epoch, world.epoch_least))


def compare(mark: Mark | None, generation: int, length: int, *, led: bool) -> Behind | None:
    """Is the database older than what this folder remembers? `led`: somebody leads on it right now."""
    if mark is None:
        if not length or led:
            return None
        return Behind("this folder has not seen this database before: it may be a copy")
    if generation >= mark.generation and length >= mark.length:
        return None
    has = f"it has {length:,} entries of leaders up to generation {generation}"
    seen = f"this folder has seen {mark.length:,}, up to generation {mark.generation}"
    return Behind(f"{has}, {seen}: it was restored from a copy", mark.generation, mark.epoch)
