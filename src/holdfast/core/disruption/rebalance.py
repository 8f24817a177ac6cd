"""Which running replicas would be better off elsewhere, and is it worth the move?

Two things get better with time and are worth a restart. The spread: when a zone comes back, copies that were
pushed together may part again. The load: a node that is asked for far more than another of its sort may
hand a replica over. Only replicas of services move, only those that have been ready for a while, and only a
few a round: a rebalancing that causes an incident has failed.

Copies that stand together are one failure away from an outage, so parting them does not wait for the round
that looks at the load: it follows the change, `part_ms` after room opened or a copy became ready. A workload
parts one copy at a time; when that one is ready, it is looked at again.

A move must pay within `gain_horizon_ms`. Mending the spread gains the share of the workload that no longer
falls with the domain, load gains the share of a node by which the busier of the two nodes is relieved; each
times the horizon, against `move_cost_ms`.

Nothing moves back and forth. A move for the spread lowers the sum of squares of copies in the domains (the
domain it leaves has at least two more than the one it enters). A move for the load never raises that sum, and
both nodes end up with less than the busier had, so the loads in falling order get smaller as a word in a
dictionary does. Each round goes down in that pair, and there are only so many states: it ends. A test applies
rounds until nothing moves.

Nothing leaves a node that costs nothing for one that costs, but a spread that has more than half of the
copies in one domain (`placement` says why half), or that was promised.

Refused: balancing GPU nodes by load. A GPU belongs to its replica alone, so sharing out gains nothing, and it
cuts up the machines that placement kept whole; replicas with GPUs move for their spread only, and no load is
moved onto a GPU node. Refused: moving load onto an empty node that its pool keeps as a standby. The pool
would launch another, and a node that was paid for to stand ready would be paid for twice. Refused: asking for
the best set of moves. One good move a round, looked at again after it has happened, needs no forecast.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.core.placement.placement import (
    Ask,
    Spot,
    allowed,
    lanes,
    most_in_one,
    place,
)
from holdfast.core.plan import reserve
from holdfast.core.provisioning import boot_times
from holdfast.model.place import Level
from holdfast.model.replica import LIVE, Replica, State
from holdfast.model.resources import Resources
from holdfast.model.room import Bools, Ints, Room
from holdfast.model.units import Instant, Millis
from holdfast.model.workload import Service, Spread, Workload
from holdfast.model.world import World

Floats = NDArray[np.float64]

WORKLOADS_A_ROUND = 500  # looked at for their spread
SEATS_A_ROUND = 10_000  # of these: some 50 ms
STRIDE = 499  # workloads, from where one round begins to where the next does; a prime, so that all come first
BUSIEST_NODES = 16  # looked at in one round
GAIN_MIN = 0.001  # of a node: less is rounding


class Move(msgspec.Struct, frozen=True):
    replica: str
    to: str
    devices: tuple[int, ...]
    why: str


def moves(world: World, room: Room, now: Instant, load: Mapping[str, float] | None = None) -> list[Move]:
    """Of the whole fleet, the spread first. Takes the room they need from `room`.

    `load` by node, as a share of it, replaces what is asked for of a node by what is measured there.
    """
    chosen = partings(world, room, now, in_turn(world, now, world.policy.balance.every_ms))
    used = {world.replicas[move.replica].workload for move in chosen}
    eased = _load_moves(world, room, now, load or {}, used)
    return chosen + list(islice(eased, world.policy.balance.moves_max))


def partings(world: World, room: Room, now: Instant, names: Iterable[str]) -> list[Move]:
    """Of these workloads, at most `parts_max`."""
    return list(islice(_spread_moves(world, room, now, names), world.policy.balance.parts_max))


def _may_move(replica: Replica, now: Instant, after: Millis) -> bool:
    """Ready for a while, and not already on its way: a slot with two live replicas is moving."""
    ripe = replica.ready_at and now - replica.ready_at >= after
    return bool(ripe) and replica.state is State.READY and not replica.exclusive


def _pays(world: World, workload: Workload, gain: float) -> bool:
    return gain * world.policy.balance.gain_horizon_ms > workload.move_cost_ms


def _settled(world: World, workload: Workload) -> list[Replica]:
    """Its live replicas, or none at all while one of its slots is on the move."""
    found = []
    for slot in world.of_workload.get(workload.name, ()):
        live = [world.replicas[name] for name in world.of_slot.get(slot, ())]
        live = [replica for replica in live if replica.state in LIVE and replica.node in world.room.row]
        if len(live) > 1:
            return []
        found += live
    return found


# ---- the spread


def _spread_moves(world: World, room: Room, now: Instant, names: Iterable[str]) -> Iterator[Move]:
    open_lanes: dict[Level, Ints] = {}
    seats = 0
    for name in names:
        workload = world.workloads.get(name)
        if workload is None or not isinstance(workload.shape, Service) or workload.paused:
            continue
        needs = workload.needs
        if needs.spread is Spread.NONE:
            continue
        if seats > SEATS_A_ROUND:
            return
        seats += len(world.of_workload.get(name, ()))
        copies = _settled(world, workload)
        lane = lanes(room, needs).lane_of_row
        crowd = Counter(int(lane[room.row[copy.node]]) for copy in copies)
        if max(crowd.values(), default=0) < 2:
            continue
        if needs.spread_over not in open_lanes:
            open_lanes[needs.spread_over] = np.unique(lane[room.open & ~room.standby])
        if max(crowd.values()) - min((crowd[int(x)] for x in open_lanes[needs.spread_over]), default=0) >= 2:
            yield from _mend_spread(world, room, workload, copies, crowd, now)


def in_turn(world: World, now: Instant, every: Millis) -> list[str]:
    """Not always from the beginning, because a round may end before it has looked at all of them."""
    names = list(world.workloads)
    start = now // max(1, every) * STRIDE % max(1, len(names))
    return (names[start:] + names[:start])[:WORKLOADS_A_ROUND]


def _mend_spread(
    world: World, room: Room, workload: Workload, copies: list[Replica], crowd: Counter[int], now: Instant
) -> Iterator[Move]:
    lane = lanes(room, workload.needs).lane_of_row
    fullest = max(crowd, key=lambda index: (crowd[index], -index))
    there = [
        copy
        for copy in copies
        if lane[room.row[copy.node]] == fullest and _may_move(copy, now, world.policy.balance.part_ms)
    ]
    if not there or not _pays(world, workload, 1 / len(copies)):
        return
    leaver = min(there, key=lambda copy: (-copy.ready_at, copy.id))  # the youngest has the least to lose
    beside = tuple(copy.node for copy in copies if copy is not leaver)
    avoid = (leaver.node, *reserve.kept_now(world, workload.priority))
    even = workload.name in world.promised
    spots = place(room, Ask(workload.needs, beside=beside, avoid=avoid, even=even))
    for spot in spots:
        row = room.row[spot.node]
        few = crowd[fullest] <= most_in_one(len(copies)) and not even
        if crowd[fullest] - crowd[int(lane[row])] < 2 or (few and _is_dear(room, leaver, copies, spot)):
            room.give(row, workload.needs.resources, spot.devices)
            continue
        here, other = (_domain_name(room, workload, node) for node in (leaver.node, spot.node))
        why = f"{workload.name} has {crowd[fullest]} copies in {here} and {crowd[int(lane[row])]} in {other}"
        yield Move(leaver.id, spot.node, spot.devices, why)


def _is_dear(room: Room, leaver: Replica, copies: list[Replica], spot: Spot) -> bool:
    """It would leave a node that costs nothing, and holds no other copy, for one that costs; `placement`
    would not have done that for its spread."""
    price, now = (int(room.price[room.row[node]]) for node in (spot.node, leaver.node))
    return price > 0 and not now and sum(copy.node == leaver.node for copy in copies) == 1


def _domain_name(room: Room, workload: Workload, node: str) -> str:
    level = workload.needs.spread_over
    if level is Level.NODE:
        return node
    return room.domains[level].value[int(room.domain[level][room.row[node]])][0]


# ---- the load


class Loads(msgspec.Struct, frozen=True):
    share: Floats  # of each row
    measured: Bools  # rather than asked for
    plain: Bools  # rows that may still give or take in this round


def _load_moves(
    world: World, room: Room, now: Instant, measured: Mapping[str, float], used: set[str]
) -> Iterator[Move]:
    """A node gives or takes once in a round: what it is worth afterwards is seen in the next."""
    loads = _loads(room, measured)
    loads.plain[list(_standbys(world, room, now))] = False
    busy = np.flatnonzero(loads.plain)
    for row in busy[np.argsort(-loads.share[busy], kind="stable")][:BUSIEST_NODES].tolist():
        best = max(_handovers(world, room, row, now, loads, used), default=None)
        if best is not None:
            _, _, to, replica = best
            full, idle = loads.share[row], loads.share[to]
            why = f"{room.ids[row]} is {full:.0%} full, {room.ids[to]} is {idle:.0%} full"
            room.take(to, world.replicas[replica].needs, ())
            loads.plain[[row, to]] = False
            used.add(world.replicas[replica].workload)
            yield Move(replica, room.ids[to], (), why)


def _loads(room: Room, measured: Mapping[str, float]) -> Loads:
    share, is_measured = requested(room), np.zeros(len(room.ids), np.bool_)
    for node, value in measured.items():
        if node in room.row:
            share[room.row[node]], is_measured[room.row[node]] = value, True
    return Loads(share, is_measured, plain(room))


def _standbys(world: World, room: Room, now: Instant) -> Iterator[int]:
    """The rows of empty nodes, as many of each pool as it wants to stand ready."""
    for name, pool in world.pools.items():
        open_ = [node for node in world.in_pool[name] if node in room.row and room.open[room.row[node]]]
        empty = [node for node in open_ if not world.on_node[node]]
        wanted = boot_times.standbys_of(world, pool, len(open_) - len(empty), now) if empty else 0
        yield from (room.row[node] for node in empty[:wanted])


def plain(room: Room) -> Bools:
    """The rows between which load is moved."""
    rows: Bools = room.open & ~room.standby & (room.gpu_all == 0)
    return rows


def requested(room: Room) -> Floats:
    """The larger of the shares of CPU and memory that are asked for."""
    return np.maximum(
        1 - room.cpu / np.maximum(room.cpu_all, 1), 1 - room.memory / np.maximum(room.memory_all, 1)
    )


Handover = tuple[
    float, int, int, str
]  # gain, minus the row (the lowest is the largest), the row, the replica


def _handovers(
    world: World, room: Room, row: int, now: Instant, loads: Loads, used: set[str]
) -> Iterator[Handover]:
    """What each replica of the row would gain by its best move."""
    if not loads.plain[row]:
        return
    ripe = world.policy.balance.every_ms
    idler = loads.plain & (loads.share[row] - loads.share > world.policy.balance.imbalance)
    for name in world.on_node.get(room.ids[row], ()):
        replica = world.replicas[name]
        workload = world.workloads.get(replica.workload)
        if workload is None or workload.name in used or not _may_move(replica, now, ripe):
            continue
        rows = _targets(world, room, row, workload, idler)
        if not len(rows):
            continue
        after = _load_with(room, rows, replica.needs, loads, +1)
        best = int(after.argmin())
        left = float(_load_with(room, np.array([row]), replica.needs, loads, -1)[0])
        gain = float(loads.share[row]) - max(left, float(after[best]))
        if gain > GAIN_MIN and _pays(world, workload, gain):
            yield (gain, -int(rows[best]), int(rows[best]), name)


def _targets(world: World, room: Room, row: int, workload: Workload, among: Bools) -> Ints:
    """Rows that can take it and do not crowd its copies more than they are."""
    copies = _settled(world, workload)
    asked = workload.needs.resources
    if not copies or asked.gpu_milli:
        return np.array([], np.int64)
    may = among & allowed(room, workload.needs)
    if not room.price[row]:  # it costs nothing to stay
        may &= room.price == 0
    may &= (room.cpu >= asked.cpu_milli) & (room.memory >= asked.memory_mib)
    kept = [room.row[name] for name in reserve.kept_now(world, workload.priority) if name in room.row]
    may[kept] = False
    rows = np.flatnonzero(may)
    if workload.needs.spread is Spread.NONE:
        return rows
    lane = lanes(room, workload.needs)
    crowd: Ints = np.bincount(
        lane.lane_of_row[[room.row[copy.node] for copy in copies]], minlength=len(lane.starts)
    )
    home, there = int(lane.lane_of_row[row]), lane.lane_of_row[rows]
    keeps: Bools = (there == home) | (crowd[there] < crowd[home])
    if (
        workload.needs.spread is Spread.REQUIRE
    ):  # none where another is, though two may share a domain already
        keeps = np.where(there == home, crowd[home] == 1, crowd[there] == 0)
    return rows[keeps]


def _load_with(room: Room, rows: Ints, needs: Resources, loads: Loads, sign: int) -> Floats:
    """The load with the replica there (+1) or gone (-1). Its part of a measured load is guessed."""
    cpu_all, memory_all = room.cpu_all[rows], room.memory_all[rows]
    cpu, memory = sign * needs.cpu_milli, sign * needs.memory_mib
    asked = np.maximum(1 - (room.cpu[rows] - cpu) / cpu_all, 1 - (room.memory[rows] - memory) / memory_all)
    guess = loads.share[rows] + sign * np.maximum(abs(cpu) / cpu_all, abs(memory) / memory_all)
    return np.where(loads.measured[rows], guess, asked)
