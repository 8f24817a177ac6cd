"""What the world is after we decided: each action takes effect before anyone carries it out.

An action here either creates an entry in its first state (LAUNCHING, PLACED), moves one to the state that
says "asked for" (TERMINATING, STOPPING, asked), or removes one that is provably gone. Nothing here asks
whether the action is wise or safe: `decide` chose it, `check` allowed it.
"""

from typing import assert_never

from msgspec.structs import replace

from holdfast.core.evidence import peers_say
from holdfast.core.state import (
    accounts,
    fold_brake,
    fold_offers,
    fold_outcomes,
    fold_pools,
    index,
)
from holdfast.core.state.fold_nodes import alive, healthy
from holdfast.core.state.fold_replicas import new_set, slot_down, wake_dependants
from holdfast.model import action as do
from holdfast.model.node import Node, NodeState, Repair, Step
from holdfast.model.plan import SEATS_AT_ONCE, Plan
from holdfast.model.replica import Phase, Replica, Role, Slot, State
from holdfast.model.units import Instant
from holdfast.model.verdict import Peers, Said, Word
from holdfast.model.world import Gang, World


def accept(world: World, plan: Plan) -> None:
    look, policy = world.agenda.look(plan.at), world.policy.balance
    fleet = look["fleet"]
    world.agenda.settle(plan.at)
    for name in look["pool"]:
        accounts.watch(world, name, plan.at, looked=True)
    if "balance" in fleet:
        world.agenda.at(plan.at + policy.every_ms, "fleet", "balance")
    if "opened" in fleet or ("spread" in fleet and len(plan.actions) >= policy.parts_max):
        world.agenda.at(index.part_at(world, plan.at), "fleet", "spread")
    world.plans = plan.number
    if sum(isinstance(action, do.SEATING) for action in plan.actions) >= SEATS_AT_ONCE:
        seated = {_whose(world, action) for action in plan.actions if isinstance(action, do.SEATING)}
        for name in look["workload"]:  # others may have had no share: they come first in the next turn
            if name not in seated:
                world.agenda.note("workload", name)
    for action in plan.actions:
        _accept(world, action, plan.at)
    for held in plan.held:
        if isinstance(held.action, do.DISRUPTIVE):
            again = plan.at + world.policy.brake.hold_ms
            node = world.nodes.get(held.action.node)
            if node is not None:
                index.put_node(world, replace(node, retry_at=again))
            world.agenda.at(again, "node", held.action.node)


def _whose(world: World, seating: do.AddSlot | do.CloseSlot | do.RemoveSlot) -> str:
    return seating.workload if isinstance(seating, do.AddSlot) else world.slots[seating.slot].workload


def _accept(world: World, action: do.Action, at: Instant) -> None:
    match action:
        case do.ListPool(pool=pool):
            world.pool_states[pool] = replace(world.pool_states[pool], listed_at=at)
            world.agenda.at(at + world.policy.capacity.list_every_ms, "pool", pool)
            fold_offers.watch_queue(world, pool, at)
        case do.ListOffers(pool=pool):
            world.pool_states[pool] = replace(world.pool_states[pool], offers_at=at)
            world.agenda.at(at + world.policy.capacity.offers_every_ms, "pool", pool)
        case do.ForgetPool(pool=pool):
            fold_pools.forget(world, pool)
        case do.AskPeers() | do.AskProvider() | do.LaunchNode() | do.TerminateNode():
            _supply(world, action, at)
        case (
            do.WatchNode()
            | do.CordonNode()
            | do.UncordonNode()
            | do.DrainNode()
            | do.GiveNotice()
            | do.ResetNode()
            | do.QuarantineNode()
            | do.RaiseFinding()
            | do.ClearFinding()
        ):
            _care(world, action, at)
        case do.PlaceReplica() | do.StopReplica() | do.PromoteStandby() | do.RegroupGang() | do.DeclareGone():
            _work(world, action, at)
        case do.AddSlot() | do.CloseSlot() | do.RemoveSlot() | do.GiveUpSlot():
            _seats(world, action, at)
        case do.TakeWay(workload=name, way=way, safe_until=safe, ask_at=ask_at):
            ask_at, known = max(ask_at, at + 1), world.courses[name]
            since = known.since if known.since and known.way is way else at
            world.courses[name] = replace(
                known, way=way, since=since, why=action.why, safe_until=safe, ask_at=ask_at
            )
            world.agenda.at(ask_at, "workload", name)
        case do.DeclareLate(workload=name, deadline=deadline):
            world.courses[name] = replace(world.courses[name], missed=deadline)
        case do.EngageBrake() | do.NarrowBrake() | do.ReleaseBrake():
            fold_brake.accept(world, action, at)
        case _:
            assert_never(action)


def _supply(
    world: World,
    action: do.AskPeers | do.AskProvider | do.LaunchNode | do.TerminateNode,
    at: Instant,
) -> None:
    match action:
        case do.AskPeers(node=name, peers=peers):
            node = world.nodes[name]
            says = peers_say(node.clues, world.policy.detection)
            disputed = says in (Peers.DISPUTED, Peers.OUTVOTED)
            clues = replace(
                node.clues,
                asked=peers,
                asked_at=at,
                answers={},
                concluded=says,
                disputed_at=(node.clues.disputed_at or at) if disputed else 0,
            )
            index.put_node(world, replace(node, clues=clues))
        case do.AskProvider(node=name):
            node = world.nodes[name]
            before = node.clues.word_before if node.clues.word is Word.WAITING else node.clues.word
            clues = replace(node.clues, word=Word.WAITING, word_at=at, word_before=before)
            index.put_node(world, replace(node, clues=clues))
        case do.LaunchNode():
            world.launched += 1
            node = _launching(world, action, at)
            accounts.open_node(world, node, at)
            fold_offers.asked(world, node, at)
            index.put_node(world, node)
            other = world.nodes.get(action.hedge)
            if other is not None and other.hedge not in world.nodes:  # it waits, and this one may be sooner
                index.put_node(world, replace(other, hedge=node.id))
        case do.TerminateNode(node=name):
            world.orphans.pop(name, None)
            if name in world.nodes:
                fold_offers.given_up(world, world.nodes[name], at)
                index.put_node(
                    world, replace(world.nodes[name], state=NodeState.TERMINATING, since=at, retry_at=0)
                )


def _launching(world: World, action: do.LaunchNode, at: Instant) -> Node:
    pool = world.pools[action.pool]
    return Node(
        id=action.node,
        pool=action.pool,
        offer=action.offer,
        place=action.place,
        capacity=action.capacity,
        price_micro_usd=action.price_micro_usd,
        spot=action.spot,
        state=NodeState.LAUNCHING,
        since=at,
        verdict=alive(at, "not joined yet"),
        labels=pool.labels,
        taints=pool.taints,
        standby=action.standby,
        hedge=action.hedge,
        launched_at=at,
        price_max_micro_usd=action.price_max_micro_usd,
    )


def _care(
    world: World,
    action: do.WatchNode
    | do.CordonNode
    | do.UncordonNode
    | do.DrainNode
    | do.GiveNotice
    | do.ResetNode
    | do.QuarantineNode
    | do.RaiseFinding
    | do.ClearFinding,
    at: Instant,
) -> None:
    if isinstance(action, do.RaiseFinding):
        fold_outcomes.raise_finding(world, action.finding)
        return
    node = world.nodes[action.node]
    step, why = node.repair, action.why
    match action:
        case do.WatchNode(repeats=repeats):
            node = replace(node, repair=replace(step, step=Step.WATCHED, why=why, since=at, repeats=repeats))
        case do.CordonNode():
            repair = replace(step, step=max(step.step, Step.CORDONED), why=why, since=at)
            node = replace(
                node, state=NodeState.CORDONED, since=at, deadline=0, repair=repair, releasing=False
            )
        case do.UncordonNode():
            node = replace(
                node, state=NodeState.READY, since=at, deadline=0, repair=healthy(step), releasing=False
            )
        case do.DrainNode(deadline=deadline, step=to, release=release):
            repair = replace(step, step=to, why=why, since=at) if to else step
            node = replace(
                node,
                state=NodeState.DRAINING,
                since=at,
                deadline=deadline,
                repair=repair,
                releasing=release,
            )
        case do.GiveNotice(deadline=deadline):
            clues = replace(node.clues, said=Said.NOTICE)
            node = replace(node, clues=clues, deadline=deadline, releasing=False, by_hand=False)
        case do.ResetNode():
            repair = Repair(step=Step.RESET, why=why, since=at, repeats=step.repeats + 1)
            node = replace(
                node, state=NodeState.RESETTING, since=at, deadline=0, repair=repair, releasing=False
            )
        case do.QuarantineNode():
            repair = replace(step, step=Step.QUARANTINED, why=why, since=at, repeats=step.repeats + 1)
            node = replace(
                node, state=NodeState.QUARANTINED, since=at, deadline=0, repair=repair, releasing=False
            )
        case do.ClearFinding(name=name):
            world.findings.pop((node.id, name), None)
            node = replace(node, repair=replace(step, failed=(), flaps=()))  # it was made of these
    index.put_node(world, node)


def _work(
    world: World,
    action: do.PlaceReplica | do.StopReplica | do.PromoteStandby | do.RegroupGang | do.DeclareGone,
    at: Instant,
) -> None:
    match action:
        case do.PlaceReplica():
            _place(world, action, at)
        case do.StopReplica(replica=name, deadline=deadline):
            replica = world.replicas[name]
            index.put_replica(world, replace(replica, state=State.STOPPING, since=at, deadline=deadline))
            slot_down(world, replica, at, action.why, struck=False)
            new_set(world, replica.node)
        case do.PromoteStandby():
            _promote(world, action, at)
        case do.RegroupGang(generation=generation, members=members, restart=restart):
            for name in members:
                if restart:
                    _restart(world, world.replicas[name], at, action.why)
                replica = world.replicas[name]
                index.put_replica(world, replace(replica, gang=generation))
                new_set(world, replica.node)
                _join_gang(world, world.slots[replica.slot], generation, at)
        case do.DeclareGone(replica=name):
            replica = index.drop_replica(world, name)
            slot_down(world, replica, at, action.why)
            if replica.node in world.nodes:
                new_set(world, replica.node)  # should its node come back, it is told so


def _place(world: World, action: do.PlaceReplica, at: Instant) -> None:
    slot = world.slots[action.slot]
    node = world.nodes[action.node]
    if node.idle_since:
        world.agenda.note("pool", node.pool)  # one spare node fewer
    node = replace(node, generation=node.generation + 1, idle_since=0, standby=False)
    index.put_node(world, node)
    index.put_replica(
        world,
        Replica(
            id=action.replica,
            slot=slot.id,
            workload=slot.workload,
            node=node.id,
            epoch=action.epoch,
            needs=action.needs,
            exclusive=action.exclusive,
            role=action.role,
            state=State.PLACED,
            since=at,
            placed_at=at,
            devices=action.devices,
            gang=action.gang,
            version=action.version,
            progress_ms=action.resume_ms,
            grace_ms=action.grace_ms,
        ),
    )
    slot = replace(slot, epoch=action.epoch, last_node=node.id, last_replica=action.replica, retry_at=0)
    index.put_slot(world, slot)
    if action.gang:
        _join_gang(world, slot, action.gang, at)


def _restart(world: World, replica: Replica, at: Instant, why: str) -> None:
    """Its program will be stopped and started anew where it is, under a new epoch, with another port."""
    slot = world.slots[replica.slot]
    epoch = max(slot.epoch, replica.epoch) + 1
    index.put_slot(world, replace(slot, epoch=epoch))
    index.put_replica(world, replace(_anew(replica, at), epoch=epoch, progress_ms=slot.progress_ms))
    slot_down(world, replica, at, why, struck=False)


def _anew(replica: Replica, at: Instant) -> Replica:
    again = replica.incarnation + 1
    return replace(replica, state=State.PLACED, since=at, ready_at=0, port=0, incarnation=again)


def _promote(world: World, action: do.PromoteStandby, at: Instant) -> None:
    replica, slot = world.replicas[action.replica], world.slots[action.slot]
    if action.restart:
        replica = _anew(replica, at)
    ready = replica.state is State.READY
    if ready:
        slot = replace(slot, down_since=0, struck=False)
    slot = replace(slot, epoch=action.epoch, last_node=replica.node, last_replica=replica.id)
    index.put_slot(world, slot)
    index.put_replica(
        world,
        replace(
            replica,
            slot=slot.id,
            role=Role.ACTIVE,
            epoch=action.epoch,
            gang=action.gang,
            progress_ms=action.resume_ms,
        ),
    )
    seat = world.slots.get(replica.slot)
    if seat is not None:  # the standby's own seat is empty now
        index.put_slot(world, replace(seat, down_since=at, why=f"{replica.id} was promoted"))
    new_set(world, replica.node)
    fold_offers.counted(world, replica.workload, at)
    if action.gang:
        _join_gang(world, slot, action.gang, at)
    wake_dependants(world, replica.workload)


def _join_gang(world: World, slot: Slot, generation: int, at: Instant) -> None:
    gang = world.gangs.get(slot.workload, Gang())
    if gang.generation != generation:
        gang = Gang(generation=generation, since=at)
        world.agenda.at(at + world.policy.replicas.gang_grow_ms, "workload", slot.workload)
    world.gangs[slot.workload] = replace(gang, members=(*gang.members, slot.id))


def _seats(
    world: World, action: do.AddSlot | do.CloseSlot | do.RemoveSlot | do.GiveUpSlot, at: Instant
) -> None:
    match action:
        case do.AddSlot(slot=name, workload=workload, index=number, role=role):
            floor = world.epoch_floor.get(workload, 0)
            index.put_slot(world, Slot(name, workload, number, role, epoch=floor, down_since=at))
            world.agenda.note("workload", workload)  # there may be more to add
        case do.CloseSlot(slot=name):
            index.put_slot(world, replace(world.slots[name], phase=Phase.CLOSED, why=action.why))
            fold_offers.counted(world, world.slots[name].workload, at)
            world.agenda.note("workload", world.slots[name].workload)
        case do.RemoveSlot(slot=name):
            slot = world.slots[name]
            world.epoch_floor[slot.workload] = max(slot.epoch, world.epoch_floor.get(slot.workload, 0))
            index.drop_slot(world, name)
            wake_dependants(world, slot.workload)  # what is left may be done, or ready
        case do.GiveUpSlot(slot=name):
            slot = replace(world.slots[name], phase=Phase.FAILED, why=action.why)
            index.put_slot(world, slot)
            fold_offers.counted(world, slot.workload, at)
            wake_dependants(world, slot.workload)
