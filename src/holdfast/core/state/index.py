"""Writing one entry of the world, with everything that is derived from it.

The question: how can a turn at 100,000 nodes cost nothing when nothing happened? By never searching: whoever
writes an entry also moves it between the indexes that decisions ask for, notes it on the agenda, and notes
when it will need a look by itself. All of that is here, once, and only `fold` may call it (a test holds
that), so an index cannot disagree with its entry.
"""

from holdfast.core import timeouts
from holdfast.model.market import OfferRecord
from holdfast.model.node import COMING, JOINED, Node, NodeState
from holdfast.model.place import Level
from holdfast.model.pool import Offer
from holdfast.model.replica import LIVE, Phase, Replica, Role, Slot, State, line_of
from holdfast.model.units import NEVER, Instant
from holdfast.model.verdict import Level as Belief
from holdfast.model.workload import Workload
from holdfast.model.world import World

REPAIRED = (NodeState.DRAINING, NodeState.RESETTING, NodeState.QUARANTINED)


def put_node(world: World, node: Node) -> None:
    old = world.nodes.get(node.id)
    world.nodes[node.id] = node
    if old is None:
        world.in_pool.setdefault(node.pool, {})[node.id] = None
        world.on_node[node.id] = {}
    _count_joined(world, old, -1)
    _count_joined(world, node, +1)
    if node.verdict.level is Belief.ALIVE or node.state not in JOINED:
        world.doubtful.pop(node.id, None)
    else:
        world.doubtful[node.id] = None
    _keep(world.kept, node.id, node.id in world.doubtful and node.kept_at > 0)
    _keep(world.draining, node.id, node.state is NodeState.DRAINING)
    _keep(world.cordoned, node.id, node.state is NodeState.CORDONED)
    if old is not None and old.state in REPAIRED and node.state not in REPAIRED:
        for name in world.cordoned:  # somebody may have waited for the repair budget
            world.agenda.note("node", name)
    if old is not None and (old.capacity, old.place) != (node.capacity, node.place):
        if node.id in world.room.row:
            world.room.remove(node.id)
    _keep_room(world, node)
    world.agenda.note("node", node.id)
    if node.verdict.level is not Belief.ALIVE:
        world.agenda.at(timeouts.lease_over_at(world, node.id), "node", node.id)
    for due in timeouts.node_dues(node, world.policy):
        world.agenda.at(due, "node", node.id)
    if old is None or old.state is not node.state:
        world.agenda.note("pool", node.pool)


def put_record(world: World, record: OfferRecord) -> None:
    world.records[record.key] = record
    world.market.changed[record.key] = None


def put_offers(world: World, pool: str, offers: tuple[Offer, ...]) -> None:
    """What can be had there, or what holds for all of it."""
    world.offers[pool] = offers
    world.market.outdated = True


def drop_node(world: World, node_id: str) -> None:
    node = world.nodes.pop(node_id)
    _count_joined(world, node, -1)
    world.in_pool[node.pool].pop(node_id, None)
    world.on_node.pop(node_id)
    world.doubtful.pop(node_id, None)
    world.kept.pop(node_id, None)
    world.draining.pop(node_id, None)
    world.cordoned.pop(node_id, None)
    if node_id in world.room.row:
        world.room.remove(node_id)
    for key in [key for key in world.findings if key[0] == node_id]:
        del world.findings[key]
    world.agenda.note("pool", node.pool)


def _count_joined(world: World, node: Node | None, by: int) -> None:
    if node is None or node.state not in JOINED:
        return
    zone = node.place.domain(Level.ZONE)
    world.joined += by
    world.joined_in[zone] = world.joined_in.get(zone, 0) + by
    if node.verdict.level is Belief.DEAD:
        world.dead_in[zone] = world.dead_in.get(zone, 0) + by
    else:
        count, joined_at = world.serving.get(node.pool, (0, 0))
        world.serving[node.pool] = (count + by, joined_at + by * node.joined_at)


def _keep_room(world: World, node: Node) -> None:
    row = world.room.row.get(node.id)
    if row is None:
        if node.state in COMING or node.state is NodeState.TERMINATING:
            return
        row = world.room.add(node, open_=False)
        for replica_id in world.on_node[node.id]:  # a node can be given up and come back with its replicas
            replica = world.replicas[replica_id]
            world.room.take(row, replica.needs, replica.devices)
    elif node.state is NodeState.TERMINATING:
        world.room.open[row] = False
        return
    open_ = node.is_open
    if open_ and not world.room.open[row]:
        world.agenda.room_freed = True
        world.agenda.note("fleet", "opened")
    world.room.open[row] = open_
    world.room.standby[row] = node.standby


def put_slot(world: World, slot: Slot) -> None:
    if slot.id not in world.slots:
        _number(world, slot, 1)
    world.slots[slot.id] = slot
    world.of_workload.setdefault(slot.workload, {})[slot.id] = None
    world.of_slot.setdefault(slot.id, {})
    keep_waiting(world, slot)
    undone = slot.role is Role.ACTIVE and slot.phase is not Phase.DONE
    _keep(world.undone.setdefault(slot.workload, {}), slot.id, undone)
    struck = slot.role is Role.ACTIVE and slot.phase is Phase.OPEN and slot.struck and slot.down_since > 0
    _keep(world.struck.setdefault(slot.workload, {}), slot.id, struck)
    if slot.phase is Phase.CLOSED or slot.workload in world.closed:
        _keep_of(world.closed, slot.workload, slot.id, slot.phase is Phase.CLOSED)
    world.agenda.note("slot", slot.id)
    if slot.retry_at:
        world.agenda.at(slot.retry_at, "slot", slot.id)


def drop_slot(world: World, slot_id: str) -> None:
    slot = world.slots.pop(slot_id)
    _number(world, slot, -1)
    _keep_of(world.closed, slot.workload, slot_id, False)
    world.of_workload[slot.workload].pop(slot_id, None)
    world.waiting.get(slot.workload, {}).pop(slot_id, None)
    world.undone.get(slot.workload, {}).pop(slot_id, None)
    world.struck.get(slot.workload, {}).pop(slot_id, None)
    if not world.of_slot[slot_id]:
        del world.of_slot[slot_id]
    world.agenda.note("workload", slot.workload)


def _number(world: World, slot: Slot, by: int) -> None:
    line = line_of(slot.workload, slot.role)
    count, total = world.numbered.get(line, (0, 0))
    if count + by:
        world.numbered[line] = count + by, total + by * slot.index
    else:
        del world.numbered[line]


def keep_waiting(world: World, slot: Slot) -> None:
    """A slot waits while it is open and holds no live replica."""
    waiting = world.waiting.setdefault(slot.workload, {})
    filled = any(world.replicas[r].state in LIVE for r in world.of_slot.get(slot.id, ()))
    if slot.phase is Phase.OPEN and not filled:
        waiting[slot.id] = None
    else:
        waiting.pop(slot.id, None)


def put_replica(world: World, replica: Replica) -> None:
    old = world.replicas.get(replica.id)
    world.replicas[replica.id] = replica
    if old is None:
        world.on_node.setdefault(replica.node, {})[replica.id] = None
        row = world.room.row.get(replica.node)
        if row is not None:
            world.room.take(row, replica.needs, replica.devices)
    if old is None or old.slot != replica.slot:
        if old is not None:
            world.of_slot[old.slot].pop(replica.id, None)
            _slot_changed(world, old.slot, old.workload)
        world.of_slot.setdefault(replica.slot, {})[replica.id] = None
    _keep(world.lost, replica.id, replica.state is State.LOST)
    _keep(world.stopping, replica.id, replica.state is State.STOPPING)
    _keep_outdated(world, replica)
    warm = replica.role is Role.STANDBY and replica.state is State.READY
    if warm or replica.workload in world.warm:
        _keep_of(world.warm, replica.workload, replica.id, warm)
    _slot_changed(world, replica.slot, replica.workload)
    match replica.state:
        case State.PLACED | State.STARTING:
            due = replica.since + timeouts.start_timeout(replica, world.policy)
        case State.STOPPING:
            due = NEVER
        case State.READY:
            due = NEVER
            if old is not None and old.state is not State.READY and not replica.exclusive:
                world.agenda.at(part_at(world, replica.ready_at), "spread", replica.workload)
        case State.LOST:
            due = timeouts.lease_over_at(world, replica.node)
    world.agenda.at(due, "slot", replica.slot)


def part_at(world: World, at: Instant) -> Instant:
    """When to see whether copies may part, after what happened at that time: all that happens at about the
    same time is one look."""
    pause = max(1, world.policy.balance.part_ms)
    return (at // pause + 2) * pause


def _keep_outdated(world: World, replica: Replica) -> None:
    workload = world.workloads.get(replica.workload)
    old = workload is not None and replica.version < workload.version
    _keep(world.outdated, replica.id, old and replica.state in LIVE)


def drop_replica(world: World, replica_id: str) -> Replica:
    replica = world.replicas.pop(replica_id)
    world.on_node.get(replica.node, {}).pop(replica_id, None)
    world.of_slot[replica.slot].pop(replica_id, None)
    if replica.slot not in world.slots and not world.of_slot[replica.slot]:
        del world.of_slot[replica.slot]
    world.lost.pop(replica_id, None)
    world.stopping.pop(replica_id, None)
    world.outdated.pop(replica_id, None)
    _keep_of(world.warm, replica.workload, replica_id, False)
    row = world.room.row.get(replica.node)
    if row is not None:
        world.room.give(row, replica.needs, replica.devices)
        world.agenda.room_freed = True
    if replica.node in world.nodes:
        world.agenda.note("node", replica.node)
    slot = world.slots.get(replica.slot)
    if slot is not None and slot.phase is not Phase.OPEN:
        world.agenda.note("workload", replica.workload)  # an emptied seat may now be removed
    _slot_changed(world, replica.slot, replica.workload)
    return replica


def _slot_changed(world: World, slot_id: str, workload: str) -> None:
    _keep(world.held.setdefault(workload, {}), slot_id, bool(world.of_slot.get(slot_id)))
    slot = world.slots.get(slot_id)
    if slot is None:
        world.agenda.note("workload", workload)
        return
    keep_waiting(world, slot)
    world.agenda.note("slot", slot_id)


def _keep(names: dict[str, None], name: str, keep: bool) -> None:
    if keep:
        names[name] = None
    else:
        names.pop(name, None)


def _keep_of(groups: dict[str, dict[str, None]], group: str, name: str, keep: bool) -> None:
    """Groups that have nothing are not there."""
    if keep:
        groups.setdefault(group, {})[name] = None
    elif group in groups:
        groups[group].pop(name, None)
        if not groups[group]:
            del groups[group]


def look_at_all(world: World) -> None:
    """The rules have changed: everything gets a look, and its dues anew."""
    for node in list(world.nodes.values()):
        put_node(world, node)
    for replica in list(world.replicas.values()):
        put_replica(world, replica)
    for pool in world.pools:
        world.agenda.note("pool", pool)


def put_workload(world: World, workload: Workload) -> None:
    if workload.name in world.workloads:
        drop_workload(world, workload.name)
    world.workloads[workload.name] = workload
    world.of_workload.setdefault(workload.name, {})
    _keep(world.promised, workload.name, bool(getattr(workload.shape, "availability", 0)))
    _keep(world.mixed, workload.name, getattr(workload.shape, "mix", None) is not None)
    _keep(world.scaled, workload.name, getattr(workload.shape, "scale", None) is not None)
    _keep(world.fronted, workload.name, getattr(workload.shape, "serves", None) is not None)
    _look_at_versions(world, workload.name)
    for name in workload.after:
        world.after.setdefault(name, {})[workload.name] = None
    world.of_priority.setdefault(workload.priority, {})[workload.name] = None
    world.agenda.note("workload", workload.name)


def drop_workload(world: World, name: str) -> None:
    workload = world.workloads.pop(name)
    equals = world.of_priority[workload.priority]
    equals.pop(name)
    if not equals:
        del world.of_priority[workload.priority]
    world.promised.pop(name, None)
    world.scaled.pop(name, None)
    world.fronted.pop(name, None)
    world.mixed.pop(name, None)
    _look_at_versions(world, name)
    for other in workload.after:
        world.after.get(other, {}).pop(name, None)
    world.agenda.note("workload", name)


def _look_at_versions(world: World, name: str) -> None:
    for slot in world.of_workload.get(name, ()):
        for replica in world.of_slot.get(slot, ()):
            _keep_outdated(world, world.replicas[replica])
