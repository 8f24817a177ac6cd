"""Where was the beginning of this prompt worked out before?

A replica keeps the work of the prompts it has seen, so a prompt that begins like an earlier one is answered
sooner where that one went. Two things are needed: names for the beginnings of a prompt, and a memory of
where they went.

Names (`blocks`): a chained hash at each of up to 16 ends, 1 KiB apart at first and further apart later, up
to 256 KiB: agents share tens of KiB of tools before they differ. Of each block only every eighth byte or
fewer is hashed (128 to 256 bytes): a text that was edited is shifted, so what comes after differs, and a
wrong name costs a cache miss, nothing more. The hash is crc32: `hash()` differs between processes, and they
must agree.

Memory (`Places`): a block's name leads to a place: the key under which this beginning lies on the ring, and
the last few replicas that served it. The deepest known block decides. A prompt that is new gets a place
under its first unknown block, so processes that never spoke to one another choose the same replica for it,
and a conversation that moves from one process to another may still find its replica: four processes that
know nothing of one another have 72 % of the possible hits (bench prefix), and would have 53 % if new prompts
went to the less loaded of two.

Siblings, processes of one gateway, tell one another: which beginning went where (`Went`), and what they have
in flight. What is told is the place as it is known there, its key, from which block on it holds, and whether
it is common: told only prompt and replica, each would cut the same prompts into places of its own, and know
less than if it had been told nothing (68 %). So four of them have 91 %.

A beginning that everybody shares must not draw everybody to one replica. One that did not fit on the
replicas that know it four times is common: those who share it are told apart by what comes after it. By
then several replicas know it, and each other one learns it at the price of once.

The memory is two generations of a bounded size: what is used moves to the younger, and the older is dropped
when the younger is full. That is LRU within a factor of two, without touching a list on each use; a peer's
prefix tree that nothing is removed from grows for ever. A prompt puts all of its blocks into the younger
generation, so the known blocks of a prompt are always its first ones, and a binary search finds how many.

Refused: a tree of the prompts' text for each replica (memory in proportion to all text ever seen, and a
walk over it on each request); sending what matches nothing to the replica with the smallest tree (a peer's
stampede).
"""

import zlib
from typing import TYPE_CHECKING

from holdfast.core.gateway.routing.updates import Went

if TYPE_CHECKING:
    from holdfast.core.gateway.routing.endpoints import Replica

KIB = 1024
ENDS = tuple(kib * KIB for kib in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256))
BLOCKS_MAX = len(ENDS)
# A power of two a block, at least 8, so that some 128 to 256 bytes of it are hashed.
CUTS = tuple((start, end, max(8, (end - start) // 256)) for start, end in zip((0, *ENDS), ENDS, strict=False))
HEAD_MAX = 2 * KIB  # what stands before the messages in a body

MIX = 0x9E3779B97F4A7C15  # spreads names, which may be small numbers, over the ring
MIX_MASK = (1 << 64) - 1

PLACES_MAX = 100_000
REPLICAS_MAX = 3
COMMON_AFTER = 4


def blocks(body: bytes | bytearray) -> tuple[int, ...]:
    """Names of the beginnings of a prompt: of its messages, as far as what stands before them can be told."""
    start = body.find(b'"messages"', 0, HEAD_MAX)
    if start < 0:
        start = max(0, body.find(b'"prompt"', 0, HEAD_MAX))
    length = len(body) - start
    if length < KIB:
        return (zlib.crc32(body[start:]),)
    name = 0
    found = []
    for begin, end, stride in CUTS:
        if end > length:
            break
        name = zlib.crc32(body[start + begin : start + end : stride], name)
        found.append(name)
    return tuple(found)


class Place:
    __slots__ = ("key", "replicas", "spills")

    def __init__(self, key: int) -> None:
        self.key = key
        self.replicas: tuple[Replica, ...] = ()  # the last few that served it, the latest first
        self.spills = 0  # how often none of them had room

    def served_by(self, replica: "Replica") -> None:
        known = self.replicas
        if known and known[0] is replica:
            return
        if replica not in known and len(known) == REPLICAS_MAX:
            known = known[:-1]
        self.replicas = (replica, *(other for other in known if other is not replica))


class Places:
    __slots__ = ("_old", "_young", "size_max")

    def __init__(self, size_max: int = PLACES_MAX) -> None:
        self.size_max = size_max
        self._young: dict[int, Place] = {}
        self._old: dict[int, Place] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, prefix: tuple[int, ...]) -> Place | None:
        """Its place, made if need be; None: all of it is common, and it belongs nowhere."""
        young = self._young
        size = min(len(prefix), BLOCKS_MAX)
        fresh = _known(young, prefix, 0, size)
        if fresh == size:
            place = young[prefix[size - 1]]
            return place if place.spills < COMMON_AFTER else None
        known = _known(self._old, prefix, fresh, size) if self._old else fresh
        found: Place | None = None
        if known:
            found = self._old[prefix[known - 1]] if known > fresh else young[prefix[known - 1]]
            if found.spills >= COMMON_AFTER:
                found = None
        if found is None and known < size:
            found = Place(prefix[known])
        self._remember(prefix, fresh, known, size, found)
        return found

    def find_session(self, name: int) -> Place:
        """A session is never common: who asks for one wants it kept together."""
        place = self._young.get(name)
        if place is None:
            place = self._old.get(name) or Place(name)
            self._make_room()
            self._young[name] = place
        return place

    def went(self, prefix: tuple[int, ...], replica: "Replica") -> Went | None:
        """What to tell of a prompt that was just sent there."""
        young = self._young
        prefix = prefix[:BLOCKS_MAX]
        place = young.get(prefix[-1])
        if place is None or not place.replicas or place.replicas[0] is not replica:
            return None
        first = len(prefix) - 1
        while first and young.get(prefix[first - 1]) is place:
            first -= 1
        return Went(prefix, first, place.key, place.spills, replica.id)

    def told(self, went: Went, replica: "Replica") -> None:
        self._make_room()
        young = self._young
        place = young.get(went.prefix[went.first])
        if place is None or place.key != went.key:
            place = Place(went.key)
        place.spills = max(place.spills, went.spills)
        for name in went.prefix[went.first :]:
            young[name] = place
        place.served_by(replica)

    def _remember(
        self, prefix: tuple[int, ...], fresh: int, known: int, size: int, place: Place | None
    ) -> None:
        old = self._old
        if len(self._young) >= self.size_max // 2:
            self._make_room()
            old = old | self._old  # rare: once in thousands of prompts
            fresh = 0
        young = self._young
        if fresh < known:
            for name in prefix[fresh:known]:
                kept = old.get(name)
                if kept is not None:
                    young[name] = kept
        if place is not None:
            for name in prefix[known:size]:
                young[name] = place

    def _make_room(self) -> None:
        if len(self._young) >= self.size_max // 2:
            self._old, self._young = self._young, {}


def _known(generation: dict[int, Place], prefix: tuple[int, ...], low: int, high: int) -> int:
    """How many of the first blocks it holds, between these two."""
    while low < high:
        middle = (low + high + 1) // 2
        if prefix[middle - 1] in generation:
            low = middle
        else:
            high = middle - 1
    return low
