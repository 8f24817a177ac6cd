"""Why does a service have as many replicas as it has: what was heard, expected and decided, and what else
could have been done, at which cost?

The leader answers from its ears: the signals with their age, the forecast and the alternatives of the last
look. Others have what was journalled with the last decision, and say so. Nothing is worked out anew, so an
explanation cannot disagree with the decision.

What a replica costs is its part of its node's price: the largest part that it takes of any resource, because
that is what nobody else can use. Refused: dividing a node's price by the replicas on it. Then a service would
get dearer because its neighbour left.
"""

from collections.abc import Iterator

from holdfast.core.scaling import demand
from holdfast.core.scaling.demand import Ear
from holdfast.core.scaling.load_signals import Heard
from holdfast.core.scaling.replica_count import Alternative
from holdfast.model.demand import Demand
from holdfast.model.node import Node
from holdfast.model.replica import LIVE, Replica
from holdfast.model.resources import Resources
from holdfast.model.scale import Scale, Signal
from holdfast.model.units import HOUR, Instant, MicroUsd, many, seconds, usd
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World

CENT = 10_000  # less an hour is not worth a line


def scale_of(workload: Workload | None) -> Scale | None:
    shape = workload.shape if workload is not None else None
    return shape.scale if isinstance(shape, Service) else None


# how many, and why


def size(world: World, ear: Ear | None, workload: Workload, now: Instant) -> Iterator[str]:
    """Nothing for what does not scale. `ear`: the leader's, if we are it."""
    scale, known = scale_of(workload), world.demands.get(workload.name)
    if scale is None:
        return
    if known is None:
        yield f"scales from {scale.min} to {scale.max}: nothing was decided yet"
    else:
        why = _why(ear, known, scale, now)
        since = seconds(max(0, now - known.since))
        yield f"{many(known.wanted, 'replica')} wanted for {since} ({scale.min} to {scale.max}): {why}"
    if ear is None or ear.size is None:
        yield from _journalled(known, now)
        return
    yield f"signals: {', '.join(_signals(ear, scale, now))}"
    price = replica_micro_usd(world, workload)
    if known is None or ear.size.wanted != known.wanted:
        yield f"at the last look {ear.size.wanted}: {ear.size.why}"
    elif ear.size.why != known.why:
        yield f"decided so {seconds(max(0, now - known.at))} ago: {known.why}"
    expected = demand.expectation(ear.size)
    if expected:
        yield f"expected: {expected}"
    yield from _alternatives(ear, price, scale)


def _why(ear: Ear | None, known: Demand, scale: Scale, now: Instant) -> str:
    """By the last look, if it came to the same: the reason for which it was first decided may have passed."""
    if ear is None or ear.size is None or ear.size.wanted != known.wanted:
        return known.why
    told = ((signal, ear.signals.last(signal, now - scale.stale_ms)) for signal in ear.reading.missing)
    fresh = [str(signal) for signal, last in told if last is not None and last.at > ear.looked_at]
    if not fresh:
        return ear.size.why
    ago, verb = seconds(max(0, now - ear.looked_at)), "counts" if len(fresh) == 1 else "count"
    return f"{ear.size.why}; {', '.join(fresh)} came after the last look, {ago} ago, and {verb} from the next"


def helps(ear: Ear | None, workload: Workload, now: Instant) -> Iterator[str]:
    """What is missing can be told."""
    scale = scale_of(workload)
    if scale is None or ear is None or workload.paused:
        return
    told = ((signal, ear.signals.last(signal, now - scale.stale_ms)) for signal in scale.per_replica)
    missing = [f"{signal}=N" for signal, last in told if last is None or not last.sources]
    if missing:
        yield f"its signals, told again and again: holdfast signal {workload.name} {' '.join(missing)}"


def _journalled(known: Demand | None, now: Instant) -> Iterator[str]:
    if known is None:
        return
    yield f"signals when that was decided, {seconds(max(0, now - known.at))} ago: {known.said}"
    if known.expected:
        yield f"expected then: {known.expected}"
    yield from (f"instead, {line}" for line in known.instead)


def _signals(ear: Ear, scale: Scale, now: Instant) -> Iterator[str]:
    """All that it scales by, and whoever waits."""
    for signal in dict.fromkeys((*scale.per_replica, Signal.QUEUE, Signal.OLDEST_WAIT)):
        last = ear.signals.last(signal, now - scale.stale_ms)
        if last is not None or signal in scale.per_replica:
            yield _signal(signal, last, scale, now)


def _signal(signal: Signal, last: Heard | None, scale: Scale, now: Instant) -> str:
    if last is None:
        return f"{signal} missing, never heard"
    ago = f"{seconds(max(0, now - last.at))} ago"
    if not last.sources:
        return f"{signal} missing, last heard {ago}"
    takes = scale.per_replica.get(signal)
    of = f" at {takes:g} a replica" if takes else ""
    return f"{signal} {last.value:g}{of} ({ago}{f', {last.sources} sources' if last.sources > 1 else ''})"


def _alternatives(ear: Ear, price: MicroUsd | None, scale: Scale) -> Iterator[str]:
    """What else was possible, each number once. In doubt nobody can say how likely it is enough."""
    size = ear.size
    if size is None or size.demand is None:
        return
    names: dict[int, list[str]] = {size.wanted: []}
    for other in size.alternatives:
        if scale.min <= other.replicas <= scale.max:
            names.setdefault(other.replicas, []).append(other.name)
    for other in size.alternatives:
        called = names.pop(other.replicas, [])
        if called:
            what = "as decided" if other.replicas == size.wanted else f"instead, {' or '.join(called)}"
            yield f"{what}: {other.replicas} ({_cost(other, price, scale)})"


def _cost(of: Alternative, price: MicroUsd | None, scale: Scale) -> str:
    hours = f"{of.replica_hours:.1f} replica-hours"
    dollars = f", {usd(round(price * of.replica_hours))}" if price else ""
    over = "" if scale.down_window_ms == HOUR else f" in {seconds(scale.down_window_ms)}"
    return f"{hours}{dollars}{over}, {of.enough:.0%} sure to be enough"


# what it costs


def live(world: World, workload: str) -> list[Replica]:
    slots = world.of_workload.get(workload, ())
    found = (world.replicas[name] for slot in slots for name in world.of_slot.get(slot, ()))
    return [replica for replica in found if replica.state in LIVE and replica.node in world.nodes]


def replica_micro_usd(world: World, workload: Workload) -> MicroUsd | None:
    """What one more would cost an hour, by those that there are. None: there are none, or nobody says."""
    parts = [_part(world.nodes[replica.node], replica) for replica in live(world, workload.name)]
    return round(sum(parts) / len(parts)) if parts and any(parts) else None


def cost(world: World, workload: Workload) -> Iterator[str]:
    """What its nodes cost an hour, and its part of that. Nothing is said of what costs nothing."""
    replicas = live(world, workload.name)
    nodes = [world.nodes[name] for name in dict.fromkeys(replica.node for replica in replicas)]
    whole = sum(node.price_micro_usd for node in nodes)
    if whole >= CENT:
        own = round(sum(_part(world.nodes[replica.node], replica) for replica in replicas))
        theirs = f"its {many(len(nodes), 'node')} cost{'s' if len(nodes) == 1 else ''} {usd(whole)}/h"
        yield f"{theirs}; its part of that is {usd(own)}/h"


def _part(node: Node, replica: Replica) -> float:
    return node.price_micro_usd * _share(replica.needs, node.capacity)


def _share(asked: Resources, has: Resources) -> float:
    pairs = (
        (asked.cpu_milli, has.cpu_milli),
        (asked.memory_mib, has.memory_mib),
        (asked.gpu_milli, has.gpu_milli),
    )
    return min(1.0, max((of / whole for of, whole in pairs if whole > 0), default=1.0))
