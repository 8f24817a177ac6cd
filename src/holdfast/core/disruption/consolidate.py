"""Which node could go, because its work fits on the others, and does that pay?

When demand falls, what is left stands scattered over more nodes than it needs, and none of them is empty, so
`pools` releases none. Here one node at a time is emptied on purpose: it is drained, and terminated as soon
as nothing is there any more.

It must pay. Saved is the node's price over `gain_horizon_ms`. Against it stand the restart of each replica
and the work it loses by it (for a member of a gang, of the whole gang), at the price of the share of its node
that it uses; and the time of the drain, in which both homes are paid for. Exclusive work without checkpoints
would begin anew: somebody waits for it, and the price of the machine does not say what that is worth, so its
node stays.

It must fit. Every replica is placed by the real `placement`, on a copy of the room without the node, with the
asks that `migrate` and `schedule` will use and in the order in which they will: what cannot overlap comes
last, because it is stopped first. (Sums done with other places than those it gets are void: a test found jobs
that filled a node so far that `rebalance` went on to fill the standby.) The failure domains that a workload
is spread over may not get more crowded. Copies may come to share a node in such a domain, but never more than
half of them, and not at all if availability was promised: the sums behind that promise count on nodes that
fail one by one. Nothing that stands on a lasting node may end up on spot, and no empty node may be filled:
those are standbys, or released by themselves.

It must not flap. A pool is left alone as long as anything waits for room, a node comes, a tenth of it is
younger than the horizon (it grows, or it breaks), or it has empty nodes to release first, or this very plan
fills one (the next is about to be ordered). A node is left alone until it has served for the horizon: so it
has been worth its launch, and no pool orders and releases a node more often than that. Room for one more copy
of each service that moves must be left, if there was before, so that the next step up does not order again
what was just released. And no node may be filled so far above the idlest that `rebalance` would move the work
on (a test found the two taking turns about a warm node).

The drain is a courtesy, so it yields to everything: to a brake, to work that waits for such room, to the
pool's minimum, to a replica that finds no place after all, and to its deadline. Then the node is given back,
with whatever is still there; nothing is ever stopped for it that has no other place.

Refused: asking for the best set of nodes to empty. One, looked at again in the next round, needs no forecast.
Refused: ordering a smaller node to move onto. It is the market's question what to order, and it can be wrong
about the stock; here nothing is bought. Refused: a threshold of use ("below 50 %"): the sums decide.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec.structs import replace

from holdfast.core.disruption import migrate, rebalance
from holdfast.core.health import brake
from holdfast.core.placement import placement, preempt
from holdfast.core.placement.bin_packing import Bin
from holdfast.core.placement.placement import Floats
from holdfast.core.plan.draft import Draft
from holdfast.core.plan.request import ask_for
from holdfast.core.provisioning import boot_times
from holdfast.core.provisioning.launch import Tally
from holdfast.core.timeouts import last_call
from holdfast.core.workloads import schedule
from holdfast.model import action as do
from holdfast.model.node import Node, NodeState, Step
from holdfast.model.place import Level
from holdfast.model.pool import Pool
from holdfast.model.replica import LIVE, Replica, Role, State
from holdfast.model.resources import GPU
from holdfast.model.room import Bools, Room
from holdfast.model.units import HOUR, MicroUsd, Millis, many, seconds, usd
from holdfast.model.verdict import Level as Belief
from holdfast.model.verdict import Said
from holdfast.model.workload import Service, Spread, Sweep, Workload
from holdfast.model.world import World

TRIES = 16  # nodes looked at in one round, the least used first
GROWING = 0.1  # of a pool that is younger than the horizon: it is still finding its size

Move = tuple[Replica, Workload]


class Bargain(msgspec.Struct, frozen=True):
    """What emptying a node saves within the horizon, and what the moves cost."""

    node: str
    replicas: int
    saving_micro_usd: MicroUsd
    cost_micro_usd: MicroUsd


def update(draft: Draft) -> None:
    _give_back(draft)
    if "balance" in draft.look["fleet"] and _is_calm(draft):
        bargain = next(bargains(draft), None)
        if bargain is not None:
            _begin(draft, bargain)


def _begin(draft: Draft, bargain: Bargain) -> None:
    policy = draft.world.policy
    why = (
        f"what runs there ({many(bargain.replicas, 'replica')}) fits elsewhere: the moves cost "
        f"{usd(bargain.cost_micro_usd)}, without the node {usd(bargain.saving_micro_usd)} are saved "
        f"in {seconds(policy.balance.gain_horizon_ms)}"
    )
    draft.add(
        do.DrainNode(
            node=bargain.node,
            deadline=draft.now + policy.repair.drain_ms,
            step=Step.HEALTHY,
            release=True,
            why=why,
            cause="consolidation",
        )
    )


# ---- whether to begin


def _is_calm(draft: Draft) -> bool:
    """Nobody waits, nothing comes, and no other node is being emptied."""
    world = draft.world
    if not world.policy.balance.consolidate or world.brakes or world.draining or draft.unmet:
        return False
    return not any(schedule.waits(world, workload) for workload in world.workloads.values())


def bargains(draft: Draft) -> Iterator[Bargain]:
    """The nodes that could go, the least used first."""
    world = draft.world
    tallies = {name: Tally(world, name) for name in world.pools}
    if any(tally.coming for tally in tallies.values()):
        return
    ready = [
        node
        for name, tally in tallies.items()
        if _has_too_many(draft, world.pools[name], tally)
        for node in tally.usable
        if _may_go(draft, node)
    ]
    used = used_share(draft.room)
    row = draft.room.row
    ready.sort(key=lambda node: (float(used[row[node.id]]), -node.price_micro_usd, node.id))
    for node in ready[:TRIES]:
        bargain = bargain_for(draft, node)
        if bargain is not None:
            yield bargain


def _has_too_many(draft: Draft, pool: Pool, tally: Tally) -> bool:
    if not (pool.can_launch and pool.can_terminate) or tally.count <= pool.min:
        return False
    horizon = draft.world.policy.balance.gain_horizon_ms
    young = sum(draft.now - node.joined_at < horizon for node in tally.usable)
    standby = boot_times.standbys_of(draft.world, pool, len(tally.usable) - len(tally.empty), draft.now)
    filling = {node.id for node in tally.empty} & {*draft.filled.values()}
    return len(tally.empty) <= standby and not filling and young <= GROWING * len(tally.usable)


def _may_go(draft: Draft, node: Node) -> bool:
    world = draft.world
    served_ms = draft.now - max(node.joined_at, node.since)
    return (
        node.state is NodeState.READY
        and node.verdict.level is Belief.ALIVE
        and node.price_micro_usd > 0
        and served_ms >= world.policy.balance.gain_horizon_ms
        and not (node.by_hand or node.standby or node.deadline or node.repair.step)
        and node.clues.said is Said.NOTHING
        and draft.now >= node.retry_at
        and bool(world.on_node[node.id])
        and node.id not in draft.filled.values()
        and not brake.engaged_for(world, node, draft.now)
    )


def used_share(room: Room) -> Floats:
    """The largest of the shares of CPU, memory and GPU that are taken, by row."""
    cpu = 1 - room.cpu / np.maximum(room.cpu_all, 1)
    memory = 1 - room.memory / np.maximum(room.memory_all, 1)
    gpu = 1 - room.gpu_free / np.maximum(room.gpu_all * GPU, 1)
    return np.maximum(np.maximum(cpu, memory), np.where(room.gpu_all > 0, gpu, 0.0))


def bargain_for(draft: Draft, node: Node) -> Bargain | None:
    moves = _moves(draft, node)
    if not moves:
        return None
    policy = draft.world.policy
    saving = _rent(node.price_micro_usd, policy.balance.gain_horizon_ms)
    cost = _rent(node.price_micro_usd, policy.repair.drain_ms)
    cost += sum(_cost(draft, replica, workload) for replica, workload in moves)
    if cost >= saving or not _fits_elsewhere(draft, node, moves):
        return None
    return Bargain(node.id, len(moves), saving, cost)


def _moves(draft: Draft, node: Node) -> list[Move]:
    """What is there, or nothing if one of them is not to be disturbed now."""
    world, found = draft.world, []
    for name in world.on_node[node.id]:
        replica = world.replicas[name]
        workload = world.workloads.get(replica.workload)
        settled = replica.state is State.READY and name not in draft.ended and name not in world.outdated
        busy = replica.slot in draft.filled or migrate.newer(draft, replica)
        slot = world.slots.get(replica.slot)
        if workload is None or slot is None or not settled or busy or draft.now < slot.retry_at:
            return []
        if workload.exclusive and replica.role is Role.ACTIVE and not workload.checkpoint_ms:
            return []
        found.append((replica, workload))
    return found


# ---- what it costs


def _rent(price_micro_usd: MicroUsd, for_ms: Millis) -> MicroUsd:
    return price_micro_usd * for_ms // HOUR


def _cost(draft: Draft, replica: Replica, workload: Workload) -> MicroUsd:
    """Everything that is lost when it moves, at the price of what it uses; rounded up."""
    total = 0
    for member in preempt.gang_of(draft.world, replica):
        home = draft.world.nodes[member.node]
        lost = _rent(home.price_micro_usd, preempt.lost_ms(workload, member, draft.now))
        total += int(lost * _share(member, home)) + 1
    return total


def _share(replica: Replica, home: Node) -> float:
    needs, have = replica.needs, home.capacity
    pairs = (
        (needs.cpu_milli, have.cpu_milli),
        (needs.memory_mib, have.memory_mib),
        (needs.gpu_milli, have.gpu_milli),
    )
    return max(want / of if of else 0.0 for want, of in pairs)


# ---- whether it fits


def _fits_elsewhere(draft: Draft, node: Node, moves: list[Move]) -> bool:
    room = draft.room.copy()
    room.open[room.row[node.id]] = False
    empty = room.replicas == 0
    spots = _spots(draft, room, moves)
    at = {workload.name: list(draft.copies_at(workload.name)) for _, workload in moves}
    for replica, workload in moves:
        to = spots[replica.id].node if replica.id in spots else ""
        if (
            not to
            or empty[room.row[to]]
            or not _as_good(draft, room, workload, at[workload.name], node.id, to)
        ):
            return False
        at[workload.name].remove(node.id)
        at[workload.name].append(to)
    if not _is_level(draft, room, spots):
        return False
    services = {workload.name: workload for _, workload in moves if isinstance(workload.shape, Service)}
    return all(_leaves_room(draft, room, empty, each, at[name]) for name, each in services.items())


def _spots(draft: Draft, room: Room, moves: list[Move]) -> dict[str, placement.Spot]:
    """Where each will go, if all find a place. `migrate` looks for all of them in this order; what it stops
    first gives its place up again and is placed by `schedule` when it is gone, after the others."""
    spots: dict[str, placement.Spot] = {}
    late = [move for move in moves if move[0].exclusive or move[0].role is Role.STANDBY]
    if not _take(draft, room, moves, spots):
        return {}
    for replica, workload in late:
        spot = spots.pop(replica.id)
        room.give(room.row[spot.node], workload.needs.resources, spot.devices)
    late.sort(key=lambda move: (-move[1].priority, move[1].name))
    return spots if _take(draft, room, late, spots) else {}


def _take(draft: Draft, room: Room, moves: list[Move], spots: dict[str, placement.Spot]) -> bool:
    for replica, workload in moves:
        others = [
            spot for other, spot in spots.items() if draft.world.replicas[other].workload == workload.name
        ]
        ask = placement.beside(_ask(draft, replica, workload), others)
        found = placement.place(room, replace(ask, use_standby=False))
        if not found:
            return False
        spots[replica.id] = found[0]
    return True


def _ask(draft: Draft, replica: Replica, workload: Workload) -> placement.Ask:
    """The same that `migrate` will ask."""
    if replica.exclusive and replica.role is Role.ACTIVE:
        return migrate.elsewhere(draft, workload, replica)
    return migrate.successors(draft, replica, workload)[0]


def _as_good(draft: Draft, room: Room, workload: Workload, copies: list[str], home: str, to: str) -> bool:
    """No riskier than where it is: not from a lasting node onto spot, and its copies not closer together."""
    needs = workload.needs
    if room.spot[room.row[to]] and not room.spot[room.row[home]]:
        return False
    if needs.spread is Spread.NONE or isinstance(workload.shape, Sweep):
        return True
    crowd = Counter(_domain(draft.world, copy, needs.spread_over) for copy in copies)
    here, there = (_domain(draft.world, node, needs.spread_over) for node in (home, to))
    if there != here and crowd[there] >= crowd[here]:
        return False
    promised = workload.name in draft.world.promised
    return copies.count(to) < max(copies.count(home), 0 if promised else len(copies) // 2)


def _domain(world: World, node: str, level: Level) -> str:
    return node if level is Level.NODE else world.nodes[node].place.domain(level)


def _is_level(draft: Draft, room: Room, spots: dict[str, placement.Spot]) -> bool:
    """Would what moved be left alone by the balancing of load?"""
    load, plain = rebalance.requested(room), rebalance.plain(room)
    idlest = float(load[plain].min(initial=1.0))
    rows = [room.row[spot.node] for spot in spots.values()]
    most = idlest + draft.world.policy.balance.imbalance
    return all(float(load[row]) <= most for row in rows if plain[row])


def _leaves_room(draft: Draft, after: Room, empty: Bools, workload: Workload, copies: list[str]) -> bool:
    """Is there still room for one more, on nodes in use, if there is now?"""
    ask = ask_for(draft, workload, 1, (), again=False)
    moved = replace(ask, beside=tuple(copies) if ask.beside else ())
    now, then = draft.room.copy(), after.copy()
    now.open &= ~empty
    then.open &= ~empty
    return bool(placement.place(then, moved)) or not placement.place(now, ask)


# ---- whether to go on


def _give_back(draft: Draft) -> None:
    for name in draft.world.draining:
        node = draft.world.nodes[name]
        why = _why_give_back(draft, node) if node.releasing and name not in draft.reopened else ""
        if why:
            draft.add(do.UncordonNode(node=name, why=why, cause="consolidation"))
            draft.room.open[draft.room.row[name]] = node.verdict.level is Belief.ALIVE


def _why_give_back(draft: Draft, node: Node) -> str:
    world = draft.world
    if world.brakes:
        return "a brake is engaged: nothing is released now"
    wants = _who_wants_it(draft, node)
    if wants:
        return f"{wants} needs room"
    pool = world.pools.get(node.pool)
    if pool is None or not pool.can_terminate:
        return "its pool releases no nodes any more"
    if pool.name in draft.look["pool"] and Tally(world, pool.name, draft.reopened).count < pool.min:
        return f"{pool.name} would have fewer than {pool.min}"
    if not world.on_node[node.id]:
        return ""
    if draft.now >= last_call(node, world.policy, exclusive=True):
        return "it did not get empty in time"
    stuck = _stuck(draft, node)
    return f"{stuck} has no other place after all" if stuck else ""


def _who_wants_it(draft: Draft, node: Node) -> str:
    """Who waits for room and finds none elsewhere. What was just stopped on this node does."""
    room = draft.room.copy()
    for unmet in draft.unmet:
        ask = ask_for(draft, unmet.workload, unmet.count, (), again=unmet.again, moves=unmet.moves)
        fits = unmet.at_least == 1 and len(placement.place(room, ask)) >= unmet.count
        if not fits and Bin.of(node).suits(unmet.workload.needs):
            return unmet.workload.name
    return ""


def _stuck(draft: Draft, node: Node) -> str:
    for name in draft.world.on_node[node.id]:
        replica = draft.world.replicas[name]
        leaves = name in draft.ended or replica.slot in draft.filled or migrate.newer(draft, replica)
        if replica.state in LIVE and not leaves:
            return name
    return ""
