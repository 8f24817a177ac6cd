"""How does work leave a node, or a version, without a gap?

A slot may for a while hold two copies of an interchangeable replica: the one that serves and its successor,
which has the higher epoch. The successor is placed first; when it is ready, the older copy is stopped. That
one mechanism serves drains, rolling updates, moves for balance, and nodes that nobody of us can hear although
they live (after a long patience: the old copy goes on serving whoever can reach it).

A node that is drained only to be released (`consolidate`) is well and in no hurry: nothing there is stopped
before it has a place elsewhere, no node is ordered for it, and no warm standby node is used up.

Exclusive work cannot overlap: it is stopped (with its grace, so that it can save a checkpoint) as soon as
there is room for it elsewhere, or at the last call before the deadline; then `schedule` finds its seat empty.
"""

from msgspec.structs import replace

from holdfast.core import timeouts
from holdfast.core.disruption import rebalance
from holdfast.core.placement import placement
from holdfast.core.plan.draft import Draft, Unmet
from holdfast.core.plan.request import ask_for
from holdfast.core.provisioning import launch
from holdfast.core.timeouts import last_call
from holdfast.model.node import Node, NodeState
from holdfast.model.replica import LIVE, Phase, Replica, Role, Slot, State
from holdfast.model.resources import Resources
from holdfast.model.units import seconds
from holdfast.model.verdict import Level
from holdfast.model.workload import Training, Workload
from holdfast.model.world import World


def update(draft: Draft) -> None:
    _finish(draft)
    _roll(draft)
    _leave_nodes(draft)
    if not draft.world.brakes:
        for move in _moves(draft):
            _move(draft, move)


def newer(draft: Draft, replica: Replica) -> list[Replica]:
    """Live copies of the same slot with a higher epoch."""
    world = draft.world
    others = (world.replicas[name] for name in world.of_slot.get(replica.slot, ()))
    return [other for other in others if other.epoch > replica.epoch and other.state in LIVE]


def _finish(draft: Draft) -> None:
    """Stops copies whose successor is ready, and copies that never started."""
    world = draft.world
    for slot_id in draft.look["slot"]:
        for name in list(world.of_slot.get(slot_id, ())):
            replica = world.replicas[name]
            if replica.state not in LIVE:
                continue
            workload = world.workloads.get(replica.workload)
            if any(other.state is State.READY for other in newer(draft, replica)):
                draft.stop(replica, workload, f"{slot_id} has been taken over")
            elif (
                replica.state is not State.READY
                and draft.now - replica.since >= timeouts.start_timeout(replica, world.policy)
                and world.nodes[replica.node].verdict.level is Level.ALIVE
            ):
                waited = seconds(draft.now - replica.since)
                draft.stop(replica, workload, f"it has been {replica.state} for {waited}: try another node")


def _roll(draft: Draft) -> None:
    """One seat at a time, and only while all others are up."""
    world = draft.world
    if not world.outdated:
        return
    rolling = dict.fromkeys(world.replicas[name].workload for name in world.outdated)
    for name in rolling if world.agenda.room_freed else draft.workloads():
        workload = world.workloads.get(name)
        if name not in rolling or workload is None or workload.paused:
            continue
        for replica in next_to_roll(world, workload):
            why = f"version {workload.version} replaces {replica.version}"
            if workload.exclusive:
                draft.stop(replica, workload, why)
            elif not _succeed(draft, replica, workload, why) and _fits_only_instead(draft, replica, workload):
                draft.stop(replica, workload, f"{why}: there is no room for both")


def next_to_roll(world: World, workload: Workload) -> list[Replica]:
    """Copies of an older version whose turn it is. What is exclusive cannot serve in two versions."""
    slots = [world.slots[slot] for slot in world.of_workload.get(workload.name, ())]
    old = [world.replicas[r] for slot in slots for r in world.of_slot[slot.id] if r in world.outdated]
    if not old or workload.exclusive:
        return old
    busy = sum(bool(slot.down_since) or _is_changing(world, slot) for slot in slots)
    return old[: max(0, world.policy.replicas.rolling_unavailable - busy)]


def _is_changing(world: World, slot: Slot) -> bool:
    """Two copies are there. One that was lost with its node is not: it would hold up everything for as long
    as nobody knows what became of it."""
    return sum(world.replicas[name].state is not State.LOST for name in world.of_slot[slot.id]) > 1


def _fits_only_instead(draft: Draft, replica: Replica, workload: Workload) -> bool:
    """Nowhere beside it, but in its place; and no node will come that could make it two."""
    slot = draft.world.slots[replica.slot]
    if slot.phase is not Phase.OPEN or draft.now < slot.retry_at or newer(draft, replica):
        return False
    room = draft.room.copy()
    room.give(room.row[replica.node], replica.needs, replica.devices)
    fits = placement.place(room, successors(draft, replica, workload)[-1])
    return bool(fits) and not launch.may_grow(draft, workload)


def _leave_nodes(draft: Draft) -> None:
    world = draft.world
    names = dict.fromkeys(draft.look["node"])
    if world.agenda.room_freed:
        names.update(world.draining)
    kept = _keep_room_for_the_stopping(draft) if any(name in world.draining for name in names) else []
    for name in names:
        node = world.nodes.get(name)
        if node is None or name in draft.reopened:
            continue
        if node.state is NodeState.DRAINING:
            _drain(draft, node)
        elif _unheard_too_long(draft, node):
            why = f"{node.id} lives but we have not heard it for {seconds(draft.now - node.heard_at)}"
            for replica in _on(draft, node):
                if not replica.exclusive and replica.role is Role.ACTIVE:
                    _succeed(draft, replica, world.workloads.get(replica.workload), why)
    for needs, spot in kept:
        draft.room.give(draft.room.row[spot.node], needs, spot.devices)


def _unheard_too_long(draft: Draft, node: Node) -> bool:
    patience = draft.world.policy.detection.unreachable_patience_ms
    return node.verdict.level is Level.UNREACHABLE and draft.now - node.verdict.since >= patience


def _on(draft: Draft, node: Node) -> list[Replica]:
    replicas = (draft.world.replicas[name] for name in draft.world.on_node[node.id])
    return [replica for replica in replicas if replica.state in LIVE and replica.id not in draft.ended]


def _drain(draft: Draft, node: Node) -> None:
    world = draft.world
    reason = "by hand" if node.by_hand else node.repair.why or node.leaves_because
    why = f"{node.id} is being drained: {reason}"
    for replica in _on(draft, node):
        workload = world.workloads.get(replica.workload)
        over = draft.now >= last_call(node, world.policy, exclusive=replica.exclusive) and not node.releasing
        if workload is None or replica.role is Role.STANDBY or over:
            draft.stop(replica, workload, why)
        elif replica.exclusive:
            if _room_elsewhere(draft, workload, replica):
                draft.stop(replica, workload, why)
            elif not node.releasing and draft.quotas.new_nodes(workload, replica.slot) != 0:
                draft.unmet.append(Unmet(workload, 1))
        else:
            _succeed(draft, replica, workload, why)


def _keep_room_for_the_stopping(draft: Draft) -> list[tuple[Resources, placement.Spot]]:
    """What was told to leave a node because there was room for it elsewhere still counts on that room."""
    world = draft.world
    kept = []
    for name in world.stopping:
        replica = world.replicas[name]
        workload = world.workloads.get(replica.workload)
        if workload is not None and replica.exclusive and replica.node in world.draining:
            kept += [(replica.needs, spot) for spot in _places_elsewhere(draft, workload, replica)]
    return kept


def _room_elsewhere(draft: Draft, workload: Workload, replica: Replica) -> bool:
    """Takes the room in the draft, so that two drained replicas do not both count on the same gap."""
    if isinstance(workload.shape, Training) and draft.standby_of(workload.name):
        return True
    return bool(_places_elsewhere(draft, workload, replica))


def _places_elsewhere(draft: Draft, workload: Workload, replica: Replica) -> list[placement.Spot]:
    return placement.place(draft.room, elsewhere(draft, workload, replica))


def elsewhere(draft: Draft, workload: Workload, replica: Replica) -> placement.Ask:
    """What to ask for, for exclusive work that leaves its node: what `schedule` will ask when it is gone."""
    again = not draft.world.nodes[replica.node].releasing
    ask = ask_for(draft, workload, 1, (replica.node,), again=again, without=replica.slot)
    ask = _without_itself(draft, replica, ask)
    if isinstance(workload.shape, Training):
        ask = replace(ask, avoid=(*ask.avoid, *draft.copies_at(workload.name)))
    return ask


def _without_itself(draft: Draft, replica: Replica, ask: placement.Ask) -> placement.Ask:
    """A copy that goes is none to keep away from."""
    beside = list(ask.beside)
    if replica.node in beside and replica.state in LIVE and replica.id not in draft.ended:
        beside.remove(replica.node)
    return replace(ask, beside=tuple(beside))


def _succeed(draft: Draft, replica: Replica, workload: Workload | None, why: str) -> bool:
    """Places a successor beside a copy that is to go. Is there one now?"""
    slot = draft.world.slots.get(replica.slot)
    if workload is None or slot is None:
        return False
    if newer(draft, replica) or slot.id in draft.filled:
        return True
    if slot.phase is not Phase.OPEN or draft.now < slot.retry_at:
        return False
    if not draft.quotas.admit(workload, [slot]):
        return False  # it asks for more than before
    for ask in successors(draft, replica, workload):
        for spot in placement.place(draft.room, ask):
            draft.place(slot, workload, spot, why)
            return True
    if not draft.world.nodes[replica.node].releasing:
        draft.unmet.append(Unmet(workload, 1, moves=True))
    return False


def successors(draft: Draft, replica: Replica, workload: Workload) -> list[placement.Ask]:
    """What to ask for in place of a copy that goes, the best first. A new version may be where the old one
    is, if its node is well and there is no room elsewhere: beside itself a program may find its files locked
    or its port taken."""
    home = draft.world.nodes[replica.node]
    stays = replica.version < workload.version and home.is_open
    asks = [
        ask_for(draft, workload, 1, avoid, again=not home.releasing, moves=True)
        for avoid in (((home.id,), ()) if stays else ((home.id,),))
    ]
    return [_without_itself(draft, replica, ask) for ask in asks]


def _moves(draft: Draft) -> list[rebalance.Move]:
    world, fleet = draft.world, draft.look["fleet"]
    if "balance" in fleet:
        return rebalance.moves(world, draft.room, draft.now)
    names = dict.fromkeys(draft.look["spread"])
    if "spread" in fleet:
        names.update(dict.fromkeys(rebalance.in_turn(world, draft.now, world.policy.balance.part_ms)))
    return rebalance.partings(world, draft.room, draft.now, names)


def _move(draft: Draft, move: rebalance.Move) -> None:
    replica = draft.world.replicas[move.replica]
    workload, slot = draft.world.workloads.get(replica.workload), draft.world.slots.get(replica.slot)
    if workload is None or slot is None or slot.id in draft.filled:
        return
    nodes = draft.world.nodes
    if workload.name in draft.world.mixed and nodes[move.to].spot is not nodes[replica.node].spot:
        return  # which of its copies are on spot is for `service_mix` to say
    settled = replica.id not in draft.world.outdated and draft.now >= slot.retry_at
    if slot.phase is Phase.OPEN and settled and not newer(draft, replica):
        draft.place(slot, workload, placement.Spot(move.to, move.devices), move.why)
