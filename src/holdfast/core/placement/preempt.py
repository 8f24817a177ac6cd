"""Who must stop so that something more important fits?

Only replicas of strictly lower priority: two equals would take turns for ever. Of the nodes where stopping
some of them makes room, the one is chosen whose victims have the lowest priority, then are the fewest, then
lose the least work. A member of a gang costs the whole gang, for the others cannot go on without it; so all
of it is named. Replicas that are stopping already count as room to come: when they suffice, nobody else has
to go, and the answer is nobody.

Work lost is the restart itself (`move_cost_ms`), and for exclusive work what it did since its last
checkpoint, or since it started if it makes none; a service loses nothing but the restart.

Refused: the exact minimum over sets of victims. It is a knapsack on every node; here the victims of one node
are taken largest first and the ones that turn out unnecessary are let go, most important first. Refused:
looking at every node. Replicas of low priority are looked through in the order of their priority, until
NODES_MAX nodes are known where they give enough: later ones could only offer victims of the same or a higher
priority. Measured at 10,000 nodes and 40,000 replicas: tens of milliseconds for an ask the size of a node,
two when no node could ever hold it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec
import numpy as np

from holdfast.core.placement.placement import (
    Ask,
    Spot,
    allowed,
    broken,
    crowded,
    place,
)
from holdfast.model.replica import LIVE, Replica
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Bools, Room
from holdfast.model.units import Instant, Millis
from holdfast.model.workload import Spread, Workload
from holdfast.model.world import World

NODES_MAX = 64


class Unit(msgspec.Struct, frozen=True):
    """What stops together: one replica, or a gang."""

    priority: int
    members: tuple[str, ...]
    here: tuple[Replica, ...]  # those of them on the node in question
    lost_ms: Millis
    youth: int  # the later it started the smaller: decides when no `now` is known

    @property
    def weight(self) -> tuple[int, int, Millis, int, tuple[str, ...]]:
        return (self.priority, len(self.members), self.lost_ms, self.youth, self.members)


def may_find(world: World, priority: int) -> bool:
    """Is anybody of a lower priority at all?"""
    return min(world.of_priority, default=priority) < priority


def victims(
    world: World,
    room: Room,
    ask: Ask,
    priority: int,
    spoken_for: frozenset[str] = frozenset(),
    now: Instant = 0,
) -> list[str]:
    """The replicas that must stop so that one replica of the ask fits. `room` is left as it is."""
    if not may_find(world, priority):
        return []
    one = msgspec.structs.replace(ask, count=1, at_least=1)
    trial = _with_leaving(world, room, spoken_for)
    if broken(ask.needs.resources) or place(trial.copy(), one):
        return []
    return _victims_for_one(world, trial, one, priority, spoken_for, now)


def victims_for_gang(
    world: World,
    room: Room,
    ask: Ask,
    priority: int,
    spoken_for: frozenset[str] = frozenset(),
    now: Instant = 0,
    may: Callable[[list[Spot]], bool] = lambda spots: True,
) -> list[str]:
    """The replicas that must stop so that `at_least` members fit, or nobody. `room` is left as it is. `may`
    it have all these places together?"""
    trial = _with_leaving(world, room, spoken_for)
    chosen: list[str] = []
    one = msgspec.structs.replace(ask, count=1, at_least=1)
    seated: list[Spot] = []
    while len(seated) < ask.at_least:
        spots = place(trial, one)
        if spots:
            seated += spots
            one = msgspec.structs.replace(one, beside=(*one.beside, spots[0].node))
            continue
        more = _victims_for_one(world, trial, one, priority, spoken_for | set(chosen), now)
        if not more:
            return []
        chosen += more
        _give_back(world, trial, more)
    return chosen if may(seated) else []


def _with_leaving(world: World, room: Room, spoken_for: Collection[str]) -> Room:
    """The room as it will be when those that are stopping have stopped."""
    trial = room.copy()
    _give_back(world, trial, (name for name in world.stopping if name not in spoken_for))
    return trial


def _give_back(world: World, room: Room, names: Iterable[str]) -> None:
    for name in names:
        replica = world.replicas[name]
        if replica.node in room.row:
            room.give(room.row[replica.node], replica.needs, replica.devices)


def _victims_for_one(
    world: World, room: Room, ask: Ask, priority: int, spoken_for: frozenset[str], now: Instant
) -> list[str]:
    offers = []
    for row in _promising_rows(world, room, ask, priority, spoken_for):
        chosen = _choose(room, row, ask.needs.resources, _units(world, room, row, priority, spoken_for, now))
        if chosen:
            count = sum(len(unit.members) for unit in chosen)
            lost = sum(unit.lost_ms for unit in chosen), sum(unit.youth for unit in chosen)
            offers.append((max(unit.priority for unit in chosen), count, lost, row, chosen))
    if not offers:
        return []
    best = min(offers, key=lambda offer: offer[:4])
    return [member for unit in best[4] for member in unit.members]


# ---- which nodes


def _promising_rows(
    world: World, room: Room, ask: Ask, priority: int, spoken_for: frozenset[str]
) -> list[int]:
    """Rows where lower priorities together hold enough, the lowest first."""
    possible = _possible(room, ask)
    if not possible.any():
        return []
    lacks: dict[int, list[int]] = {}
    found: dict[int, None] = {}
    for replica in _lower(world, priority):
        row = room.row.get(replica.node, -1)
        if row < 0 or not possible[row] or replica.id in spoken_for:
            continue
        lack = lacks.get(row) or _lack(room, row, ask.needs.resources)
        freed = replica.needs
        lacks[row] = lack = [lack[0] - freed.cpu_milli, lack[1] - freed.memory_mib, lack[2] - freed.gpu_milli]
        if max(lack) <= 0:
            found[row] = None
            if len(found) >= NODES_MAX:
                break
    return list(found)


def _lack(room: Room, row: int, needs: Resources) -> list[int]:
    free = int(room.cpu[row]), int(room.memory[row]), int(room.gpu_free[row])
    wanted = needs.cpu_milli, needs.memory_mib, needs.gpu_milli
    return [want - have for want, have in zip(wanted, free, strict=True)]


def _possible(room: Room, ask: Ask) -> Bools:
    """Rows that would do if they were empty."""
    needs = ask.needs.resources
    rows = allowed(room, ask.needs) & room.open & (room.cpu_all >= needs.cpu_milli)
    rows &= (room.memory_all >= needs.memory_mib) & (room.gpu_all * GPU >= needs.gpu_milli)
    if not ask.use_standby:
        rows &= ~room.standby
    for node in (*ask.avoid, *(ask.beside if ask.one_per_node else ())):
        if node in room.row:
            rows[room.row[node]] = False
    return rows if ask.needs.spread is not Spread.REQUIRE else rows & ~crowded(room, ask)


def _lower(world: World, priority: int) -> Iterator[Replica]:
    lower = sorted((w.priority, w.name) for w in world.workloads.values() if w.priority < priority)
    for _, name in lower:
        for slot in world.of_workload.get(name, ()):
            for replica_id in world.of_slot.get(slot, ()):
                if world.replicas[replica_id].state in LIVE:
                    yield world.replicas[replica_id]


# ---- which replicas of a node


def _units(
    world: World, room: Room, row: int, priority: int, spoken_for: frozenset[str], now: Instant
) -> list[Unit]:
    found: dict[tuple[str, ...], Unit] = {}
    for name in world.on_node.get(room.ids[row], ()):
        replica = world.replicas[name]
        owner = world.workloads.get(replica.workload)
        if owner is None or owner.priority >= priority or replica.state not in LIVE or name in spoken_for:
            continue
        gang = gang_of(world, replica)
        if not any(member.id in spoken_for for member in gang):
            unit = _unit(owner, gang, replica.node, now)
            found[unit.members] = unit
    return sorted(found.values(), key=lambda unit: unit.weight)


def gang_of(world: World, replica: Replica) -> list[Replica]:
    """What stops with it: the live members of its gang, or itself alone."""
    if not replica.gang:
        return [replica]
    slots = world.of_workload.get(replica.workload, ())
    copies = (world.replicas[name] for slot in slots for name in world.of_slot.get(slot, ()))
    return [copy for copy in copies if copy.gang == replica.gang and copy.state in LIVE]


def _unit(owner: Workload, members: list[Replica], node: str, now: Instant) -> Unit:
    return Unit(
        priority=owner.priority,
        members=tuple(member.id for member in members),
        here=tuple(member for member in members if member.node == node),
        lost_ms=sum(lost_ms(owner, member, now) for member in members),
        youth=-sum(member.ready_at or member.since for member in members),
    )


def lost_ms(owner: Workload, replica: Replica, now: Instant) -> Millis:
    """Work that a stop now throws away."""
    if not owner.exclusive or not replica.ready_at:
        return owner.move_cost_ms
    done = max(0, now - replica.ready_at)
    return owner.move_cost_ms + (min(done, owner.checkpoint_ms) if owner.checkpoint_ms else done)


def _choose(room: Room, row: int, needs: Resources, units: list[Unit]) -> list[Unit]:
    """The lowest priorities that suffice; of those as few as a simple search finds."""
    for highest in sorted({unit.priority for unit in units}):
        low = [unit for unit in units if unit.priority <= highest]
        if not _fits_without(room, row, needs, low):
            continue
        for unit in sorted(low, key=lambda unit: unit.weight[1:]):
            if _fits_without(room, row, needs, [unit]):
                return [unit]
        return _let_go(room, row, needs, low)
    return []


def _let_go(room: Room, row: int, needs: Resources, units: list[Unit]) -> list[Unit]:
    """Without those that are not needed, smallest help and most important first."""
    kept = list(units)
    for unit in sorted(units, key=lambda unit: (_help(unit, needs), *(-part for part in unit.weight[:3]))):
        rest = [other for other in kept if other is not unit]
        if _fits_without(room, row, needs, rest):
            kept = rest
    return kept


def _help(unit: Unit, needs: Resources) -> float:
    """How much of the ask it frees, in the resource where it frees the most."""
    freed = [replica.needs for replica in unit.here]
    return max(
        sum(each.cpu_milli for each in freed) / max(1, needs.cpu_milli),
        sum(each.memory_mib for each in freed) / max(1, needs.memory_mib),
        sum(each.gpu_milli for each in freed) / needs.gpu_milli if needs.gpu_milli else 0.0,
    )


def _fits_without(room: Room, row: int, needs: Resources, units: list[Unit]) -> bool:
    stopped = [replica for unit in units for replica in unit.here]
    cpu = int(room.cpu[row]) + sum(replica.needs.cpu_milli for replica in stopped)
    memory = int(room.memory[row]) + sum(replica.needs.memory_mib for replica in stopped)
    if cpu < needs.cpu_milli or memory < needs.memory_mib:
        return False
    free = room.devices[row].copy()
    for replica in stopped:
        for device in replica.devices:
            free[device] += replica.needs.gpu_milli // len(replica.devices)
    if needs.gpu_milli >= GPU:
        return int(np.count_nonzero(free == GPU)) >= needs.gpu_milli // GPU
    return int(free.max()) >= needs.gpu_milli
