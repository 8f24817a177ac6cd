"""From signals to the size of a service: who is looked at when, and what comes of it.

Signals are a sense, like heartbeats: they are kept in memory and never journalled. What they come to is an
event, `DemandJudged`, as a verdict is: it says how many replicas are wanted and why, it is journalled in the
same append as the plan that follows from it, and replay uses it as it stands. A new leader has no signals at
first; it keeps the size it finds, because missing signals never take anything away. What it needs to know of
the load of days (`forecast.Summary`) is journalled with an event now and then.

Each service is looked at every `EVERY_MS`, at once if somebody waits while it has nothing to answer with, and
at the instant at which it will have been idle for as long as it may before it goes to zero. That counts from
the last word that asked for anything, so what comes and goes between two looks keeps it up as well.

The lead time is measured: what its replicas took from being placed to being ready, and, unless there is room
for a few more on nodes that are there, what nodes of the offers that suit took to join.
"""

import heapq
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Final

import msgspec

from holdfast.core.placement import placement
from holdfast.core.provisioning.boot_times import boot_ms
from holdfast.core.scaling import replica_count
from holdfast.core.scaling.forecast import Summary, Tracker
from holdfast.core.scaling.load_signals import Reading, Signals, asking
from holdfast.core.scaling.replica_count import Size, Standing, Wishes
from holdfast.model.event import DemandJudged
from holdfast.model.replica import Phase, Role, State
from holdfast.model.scale import Scale, Signal
from holdfast.model.units import HOUR, MINUTE, NEVER, SECOND, Instant, Millis, seconds
from holdfast.model.workload import Service, Workload, wanted
from holdfast.model.world import World

EVERY_MS: Final = 15 * SECOND
MEMORY_EVERY_MS: Final = 4 * HOUR  # 25 kB each time
START_MS: Final = 10 * SECOND  # until one was seen
SPARE_ROOM: Final = 2  # so many more fit at once: then growing does not wait for nodes

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Summary).decode


class Ear:
    """What is heard of one service."""

    def __init__(self, memory: bytes, now: Instant) -> None:
        self.signals, self.tracker, self.wishes = Signals(), recalled(memory), Wishes()
        self.remembered_at = now
        self.due: Instant = now
        self.looked_at: Instant = 0
        self.sizes: list[tuple[Instant, int]] = []  # wanted within the last minute
        self.size: Size | None = None  # as last decided
        self.reading = Reading()


def recalled(memory: bytes) -> Tracker:
    """What cannot be read is forgotten: a forecast begins anew."""
    try:
        return Tracker.restore(_unpack(memory)) if memory else Tracker()
    except (msgspec.DecodeError, ValueError):
        return Tracker()


class Ears:
    def __init__(self) -> None:
        self._ears: dict[str, Ear] = {}
        self._dues: list[tuple[Instant, str]] = []

    def of(self, workload: str) -> Ear | None:
        return self._ears.get(workload)

    def alone(self, workload: str) -> "Ears":
        """A copy that knows this one, for whoever looks at it on another thread."""
        found, ear = Ears(), self._ears.get(workload)
        if ear is not None:
            found._ears[workload] = deepcopy(ear)
        return found

    def hear(
        self, world: World, workload: str, source: str, said: Mapping[Signal, float], at: Instant
    ) -> list[Signal]:
        """The signals that were not taken."""
        ear = self._ear(world, workload, at)
        taken = {signal: ear.signals.hear(source, signal, value, at) for signal, value in said.items()}
        demand = world.demands.get(workload)
        if demand is not None and demand.wanted == 0 and any(said.values()):
            self._look_at(workload, ear, at)
        scale = _may_go_to_zero(world, workload)
        if scale is not None and any(said[signal] for signal in asking(scale) if taken.get(signal)):
            ear.tracker.asked(at)
        elif scale is not None:
            self._look_when_idle(world, workload, ear, scale, at)
        return [signal for signal, was in taken.items() if not was]

    def next_look(self) -> Instant:
        return self._dues[0][0] if self._dues else NEVER

    def judge(self, world: World, now: Instant) -> Iterator[DemandJudged]:
        for name in world.scaled:
            if name not in self._ears:
                self._ear(world, name, now)
        while self._dues and self._dues[0][0] <= now:
            due, name = heapq.heappop(self._dues)
            ear = self._ears.get(name)
            if ear is None or ear.due != due:
                continue  # it was looked at meanwhile
            if name not in world.scaled:
                del self._ears[name]
                continue
            ear.looked_at = now
            self._look_at(name, ear, now + EVERY_MS)
            yield from _judge(world, world.workloads[name], ear, now)
            scale = _may_go_to_zero(world, name)
            if scale is not None:
                self._look_when_idle(world, name, ear, scale, now)

    def _ear(self, world: World, workload: str, now: Instant) -> Ear:
        if workload not in self._ears:
            known = world.demands.get(workload)
            ear = self._ears[workload] = Ear(known.memory if known else b"", now)
            heapq.heappush(self._dues, (ear.due, workload))
        return self._ears[workload]

    def _look_when_idle(self, world: World, workload: str, ear: Ear, scale: Scale, now: Instant) -> None:
        """At the instant at which it will have been idle for long enough, if nothing more is asked for."""
        known, due = world.demands.get(workload), ear.tracker.busy_at + scale.idle_ms
        up = known is not None and known.wanted > 0
        if up and ear.looked_at < due < ear.due and ear.signals.are_zero(scale):
            self._look_at(workload, ear, max(now, due))

    def _look_at(self, workload: str, ear: Ear, due: Instant) -> None:
        ear.due = due
        heapq.heappush(self._dues, (due, workload))


def _may_go_to_zero(world: World, workload: str) -> Scale | None:
    shape = world.workloads[workload].shape if workload in world.workloads else None
    scale = shape.scale if isinstance(shape, Service) else None
    return scale if scale is not None and scale.min == 0 else None


def _judge(world: World, workload: Workload, ear: Ear, now: Instant) -> Iterator[DemandJudged]:
    shape = workload.shape
    if not isinstance(shape, Service) or shape.scale is None:
        return
    scale, known = shape.scale, world.demands.get(workload.name)
    if workload.paused:
        ear.signals.forget(now - scale.stale_ms)
        return
    at = standing(world, workload, ear, now)
    ear.reading = ear.signals.read(scale, at.ready, now)
    at = msgspec.structs.replace(
        at,
        pending=round(ear.reading.waiting),
        oldest_wait_ms=round(ear.reading.oldest_wait_ms),
        missing=ear.reading.missing,
        others=bool(ear.reading.known),
    )
    if not ear.reading.missing:
        ear.tracker.see(now, ear.reading.demand)
    size = _decide(scale, at, ear, now)
    ear.size = replica_count.weigh(scale, at, ear.tracker, size)
    late = now - ear.remembered_at >= MEMORY_EVERY_MS
    if known is None or known.wanted != size.wanted or late:
        ear.sizes.append((now, size.wanted))
        memory = None
        if late or known is None:
            ear.remembered_at, memory = now, _pack(ear.tracker.summary())
        yield _told(workload.name, ear, now, memory)


def _decide(scale: Scale, at: Standing, ear: Ear, now: Instant) -> Size:
    """Where only some signals are there they may ask for more, and for nothing else."""
    size = replica_count.decide(scale, at, ear.tracker, ear.wishes, now)
    if not ear.reading.missing or ear.reading.demand <= size.wanted:
        return size
    asked = min(-int(-ear.reading.demand // 1), scale.max)
    return msgspec.structs.replace(size, wanted=max(asked, size.wanted), why=f"{ear.reading} ask for it")


def _told(name: str, ear: Ear, now: Instant, memory: bytes | None) -> DemandJudged:
    size = ear.size
    assert size is not None
    return DemandJudged(
        at=now,
        workload=name,
        wanted=size.wanted,
        why=size.why,
        said=str(ear.reading),
        expected=expectation(size),
        instead=tuple(alternatives(size)),
        memory=memory,
    )


def standing(world: World, workload: Workload, ear: Ear, now: Instant) -> Standing:
    slots = [world.slots[name] for name in world.of_workload.get(workload.name, ())]
    active = [slot for slot in slots if slot.role is Role.ACTIVE and slot.phase is Phase.OPEN]
    ready = sum(
        any(world.replicas[name].state is State.READY for name in world.of_slot[slot.id]) for slot in active
    )
    known = world.demands.get(workload.name)
    have = max(len(active), known.wanted if known is not None else wanted(workload))
    ear.sizes = [size for size in ear.sizes if size[0] > now - MINUTE]
    before = ear.sizes[0][1] if ear.sizes else have
    return Standing(
        ready=ready,
        coming=max(0, have - ready),
        lead_ms=lead_ms(world, workload),
        added_lately=max(0, have - before),
        removed_lately=max(0, before - have),
    )


def lead_ms(world: World, workload: Workload) -> Millis:
    """From wanting one more to its being ready."""
    known = world.starts.get(workload.name)
    start = known.mean_ms if known is not None else START_MS
    ask = placement.Ask(needs=workload.needs, count=SPARE_ROOM, at_least=SPARE_ROOM)
    return start + (0 if placement.place(world.room.copy(), ask) else boot_ms(world, workload.needs))


# in words


def expectation(size: Size) -> str:
    if size.lead is None or size.window is None:
        return ""
    sure, soon = f"{size.lead.confidence:.0%} sure", seconds(size.window.ahead_ms)
    lead = f"at most {size.lead.peak:.1f} replicas' worth before more could be ready ({sure})"
    return f"{lead}, {size.window.peak:.1f} within {soon}"


def alternatives(size: Size) -> Iterator[str]:
    for other in size.alternatives:
        if other.name != "as decided":
            hours = f"{other.replica_hours:.1f} replica-hours"
            yield f"{other.name}: {other.replicas} ({hours}, {other.enough:.0%} sure to be enough)"
