"""Fold: what a replica's report changes in the world, and what the end of a replica leaves behind.

The end of a replica counts against its program only if the program itself failed: losing a node never does.
A report about a replica that we do not know, or that has ended, changes nothing. Whatever leaves a slot
without a ready copy notes since when it is down, and every change of what a node is told to run raises the
generation of its desired set.
"""

from msgspec.structs import replace

from holdfast.core.agent.desired_set import is_complete, members_of
from holdfast.core.state import fold_offers, fold_outcomes, index
from holdfast.model import event as ev
from holdfast.model.demand import Start
from holdfast.model.replica import LIVE, Phase, Replica, State
from holdfast.model.units import Instant
from holdfast.model.workload import Restart, Workload
from holdfast.model.world import World

STARTS_KEPT = 8
BACKOFF_DOUBLINGS_MAX = 30


def observe(
    world: World, event: ev.ReplicaStarted | ev.ReplicaReady | ev.ReplicaEnded | ev.CheckpointSaved
) -> None:
    replica = world.replicas.get(event.replica)
    if replica is None or (event.node and event.node != replica.node):
        return  # a node speaks for its own replicas only
    match event:
        case ev.ReplicaStarted(incarnation=incarnation) | ev.ReplicaReady(incarnation=incarnation) if (
            incarnation != replica.incarnation
        ):
            pass  # of a program that has been stopped since, to be started anew
        case ev.ReplicaStarted(at=at, port=port):
            if replica.state is State.PLACED:
                index.put_replica(world, replace(replica, state=State.STARTING, since=at, port=port))
            elif port and not replica.port and replica.state in LIVE:
                index.put_replica(world, replace(replica, port=port))
            if port and replica.gang:
                _port_known(world, world.replicas[replica.id], at)
        case ev.ReplicaReady(at=at):
            if replica.state in LIVE:
                ready(world, replica, at)
        case ev.ReplicaEnded():
            _ended(world, replica, event)
        case ev.CheckpointSaved(progress_ms=progress):
            _save(world, replica, progress)


def _port_known(world: World, replica: Replica, at: Instant) -> None:
    """The last port that was missing lets the programs of all members start: from now on they have their time
    to become ready."""
    members, gang = members_of(world, replica), world.gangs[replica.workload]
    if gang.complete or not is_complete(world, members):
        return
    world.gangs[replica.workload] = replace(gang, complete=True)
    for member in members:
        if member.state is not State.READY:
            index.put_replica(world, replace(member, since=at))
        new_set(world, member.node)


def new_set(world: World, node_id: str) -> None:
    """The node's desired set changed: number it anew."""
    node = world.nodes[node_id]
    index.put_node(world, replace(node, generation=node.generation + 1))


def _started(world: World, replica: Replica, at: Instant) -> None:
    """How long it takes, for whoever must know beforehand: the last few count."""
    took = max(0, at - replica.placed_at)
    known = world.starts.get(replica.workload, Start(took, 0))
    count = min(known.count + 1, STARTS_KEPT)
    mean = known.mean_ms + (took - known.mean_ms) // count
    world.starts[replica.workload] = Start(mean, count)


def ready(world: World, replica: Replica, at: Instant) -> None:
    if replica.workload in world.scaled and not replica.ready_at:
        _started(world, replica, at)
    if replica.state is not State.READY:
        index.put_replica(world, replace(replica, state=State.READY, since=at, ready_at=at))
    slot = world.slots.get(replica.slot)
    if slot is not None and slot.down_since:
        index.put_slot(world, replace(slot, down_since=0, struck=False, why=""))
    fold_offers.counted(world, replica.workload, at)
    wake_dependants(world, replica.workload)


def wake_dependants(world: World, workload: str) -> None:
    for name in world.after.get(workload, ()):
        world.agenda.note("workload", name)


def _save(world: World, replica: Replica, progress_ms: int) -> None:
    slot = world.slots.get(replica.slot)
    workload = world.workloads.get(replica.workload)
    if slot and workload and workload.checkpoint_ms and progress_ms > slot.progress_ms:
        world.slots[slot.id] = replace(slot, progress_ms=progress_ms)  # changes no index, wakes nobody


def _ended(world: World, replica: Replica, event: ev.ReplicaEnded) -> None:
    _save(world, replica, event.progress_ms)
    workload = world.workloads.get(replica.workload)
    slot = world.slots.get(replica.slot)
    if replica.exclusive and not event.proven:
        index.put_replica(world, replace(replica, state=State.LOST, since=event.at, unproven=True))
        slot_down(world, replica, event.at, f"{event.why}, and nothing proves that all of it ended")
        return
    by_itself = event.how is ev.Ended.FAILED and not _failed_with_its_gang(world, replica)
    if by_itself or event.how is not ev.Ended.FAILED:
        fold_outcomes.ended(world, replica, event)
    if slot is None or workload is None or slot.epoch != replica.epoch:
        gone(world, replica, event.at, event.why or f"it was {event.how}")
    elif event.how is ev.Ended.DONE:
        index.drop_replica(world, replica.id)
        index.put_slot(
            world,
            replace(world.slots[slot.id], phase=Phase.DONE, down_since=0, struck=False, failures=0, why=""),
        )
        if not world.undone[replica.workload]:  # the last one: its standbys can go, and others may begin
            world.agenda.note("workload", replica.workload)
            wake_dependants(world, replica.workload)
    elif by_itself:
        _failed(world, replica, workload, event)
    else:
        gone(world, replica, event.at, event.why or f"it was {event.how}")
    _maybe_idle(world, replica.node, event.at)


def _failed_with_its_gang(world: World, replica: Replica) -> bool:
    """Another member was missing already: then connections break, and the program is not to blame."""
    gang = world.gangs.get(replica.workload)
    if not replica.gang or gang is None or replica.gang != gang.generation:
        return False
    others = (world.slots.get(slot) for slot in gang.members if slot != replica.slot)
    return any(
        slot is not None
        and slot.phase is Phase.OPEN
        and not any(world.replicas[name].state in LIVE for name in world.of_slot[slot.id])
        for slot in others
    )


def _failed(world: World, replica: Replica, workload: Workload, event: ev.ReplicaEnded) -> None:
    """The program failed by itself: back off."""
    slot = world.slots[replica.slot]
    restart = workload.restart
    steady = replica.ready_at and event.at - replica.ready_at >= restart.steady_ms
    failures = 1 if steady else slot.failures + 1
    index.drop_replica(world, replica.id)
    index.put_slot(
        world,
        replace(
            world.slots[slot.id],
            failures=failures,
            retry_at=event.at + backoff(restart, failures),
            why=event.why or "its program failed",
        ),
    )
    slot_down(world, replica, event.at, event.why or "its program failed")


def backoff(restart: Restart, failures: int) -> int:
    return min(restart.backoff_ms << min(failures - 1, BACKOFF_DOUBLINGS_MAX), restart.backoff_max_ms)


def gone(world: World, replica: Replica, at: Instant, why: str) -> None:
    """It does not run any more, and it was not its own fault."""
    index.drop_replica(world, replica.id)
    slot_down(world, replica, at, why)
    _maybe_idle(world, replica.node, at)


def slot_down(world: World, replica: Replica, at: Instant, why: str, *, struck: bool = True) -> None:
    """Nothing in the slot is ready any more, since now (or since before)."""
    slot = world.slots.get(replica.slot)
    if slot is None or slot.phase is not Phase.OPEN:
        return
    if not any(world.replicas[name].state is State.READY for name in world.of_slot[slot.id]):
        before = slot.down_since
        struck = slot.struck if before else struck
        index.put_slot(world, replace(slot, down_since=before or at, struck=struck, why=why))
        fold_offers.counted(world, slot.workload, at)


def stop(world: World, replica: Replica, at: Instant) -> None:
    index.put_replica(world, replace(replica, state=State.STOPPING, since=at, deadline=at))
    new_set(world, replica.node)


def _maybe_idle(world: World, node_id: str, at: Instant) -> None:
    node = world.nodes.get(node_id)
    if node is not None and not world.on_node[node_id] and not node.idle_since:
        index.put_node(world, replace(node, idle_since=at))
        pool = world.pools.get(node.pool)
        if pool is not None:
            world.agenda.at(at + pool.idle_ms, "pool", node.pool)
