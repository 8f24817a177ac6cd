"""Fold: what is known of a node after it joined, was judged, gave notice or went.

A dead node is revived only by saying hello again, never by a late beat; when it does, what it really runs is
compared with what we thought it runs. A verdict of dead loses its replicas in the same step, so that no turn
sees the one without the other. An event about a node that is not known changes nothing.
"""

from msgspec.structs import replace

from holdfast.core import timeouts
from holdfast.core.agent.desired_set import is_complete, members_of
from holdfast.core.state import (
    accounts,
    fold_brake,
    fold_offers,
    fold_outcomes,
    fold_pools,
    fold_replicas,
    index,
)
from holdfast.model import event as ev
from holdfast.model.node import COMING, JOINED, Clues, Node, NodeState, Repair, Step
from holdfast.model.place import Level as Domain
from holdfast.model.replica import Phase, Replica, State
from holdfast.model.units import Instant
from holdfast.model.verdict import Doubt, Evidence, Level, Said, Verdict
from holdfast.model.world import World, Zone

ZONE_NODES_MIN = 3  # fewer say nothing about their zone
FLAPS_KEPT = 16


def alive(at: Instant, why: str) -> Verdict:
    return Verdict(Level.ALIVE, why, Evidence(), at)


def clue(world: World, name: str, **changes: object) -> None:
    node = world.nodes.get(name)
    if node is not None:
        index.put_node(world, replace(node, clues=replace(node.clues, **changes)))


def joined(world: World, event: ev.NodeJoined) -> None:
    node = world.nodes.get(event.node)
    if node is None:
        node = _newcomer(world, event)
        if node is None:
            return
        accounts.open_node(world, node, event.at)
    elif node.state is NodeState.TERMINATING:
        index.put_node(world, replace(node, answered=True))  # it is there, and will not be for long
        return
    elif _left_by_itself(world, node):
        node = replace(node, state=NodeState.BOOTING, deadline=0)  # it had left of its own accord
    if node.state in COMING and not node.joined_at and node.launched_at < event.at:
        fold_offers.joined(world, node, event.at)
        if node.hedge in world.nodes:
            world.agenda.note("node", node.hedge)
    state = NodeState.READY if node.state in COMING else node.state  # a reset ends when its provider says so
    rebooted = event.boot not in ("", node.boot)
    node = replace(
        node,
        state=state,
        since=event.at if state is not node.state else node.since,
        verdict=alive(event.at, "it said hello"),
        repair=node.repair if node.verdict.level is Level.ALIVE else _flapped(world, node, event.at),
        clues=Clues(said=Said.NOTICE if _is_noticed(world, node) else Said.NOTHING),
        heard_at=event.at,
        joined_at=event.at if node.verdict.level is Level.DEAD or not node.joined_at else node.joined_at,
        idle_since=node.idle_since or event.at,
        address=event.address or node.address,
        probe_port=event.probe_port or node.probe_port,
        fencing=event.fencing,
        boot=event.boot,
        limits=event.limits,
        isolation=event.isolation,
        kept_at=0,
        generation=max(node.generation, event.told),
    )
    index.put_node(world, _as_it_came_back(world, node, event))
    _zone_seen(world, node, event.at)
    world.agenda.at(node.idle_since + world.pools[node.pool].idle_ms, "pool", node.pool)
    for replica_id in list(world.on_node[node.id]):
        _reconcile(world, world.replicas[replica_id], event, rebooted=rebooted)


def _left_by_itself(world: World, node: Node) -> bool:
    """Its drain was its own wish, and is over when it comes back."""
    leaves = node.state is NodeState.DRAINING and node.clues.said is Said.GOODBYE
    return leaves and not node.by_hand and not world.pool_states[node.pool].deleted_at


def _is_noticed(world: World, node: Node) -> bool:
    """A spot notice outlives a goodbye and a silence, and so does the end of its pool. A drain of our own has
    a deadline too, but is none."""
    taken = node.spot or world.pool_states[node.pool].deleted_at > 0
    return bool(node.deadline) and taken and not node.releasing


def _as_it_came_back(world: World, node: Node, event: ev.NodeJoined) -> Node:
    """A machine may come back larger or smaller, or with a place that was put right; that counts when nothing
    runs there. One that was launched has no more than its offer has, whatever it reports (it would attract
    all the work), and is where its offer is."""
    if world.on_node.get(node.id):
        return node
    pool, capacity, place = world.pools.get(node.pool), event.capacity or node.capacity, node.place
    if pool is not None and pool.can_launch:
        offer = next((each for each in world.offers[pool.name] if each.name == node.offer), None)
        capacity = capacity.bounded_by(offer.capacity) if offer and event.capacity else capacity
    else:
        place = event.place or node.place
    same = (capacity, place) == (node.capacity, node.place)
    return node if same else replace(node, capacity=capacity, place=place)


def _newcomer(world: World, event: ev.NodeJoined) -> Node | None:
    """A node we did not launch: it may join a pool that does not launch its own."""
    pool = world.pools.get(event.pool)
    if pool is None or event.place is None or event.capacity is None:
        return None
    if world.pool_states[pool.name].deleted_at:
        return None
    offer = next((offer for offer in world.offers[pool.name] if offer.name == event.offer), None)
    return Node(
        id=event.node,
        pool=pool.name,
        offer=event.offer,
        place=event.place,
        capacity=event.capacity,
        price_micro_usd=offer.price_micro_usd if offer else 0,
        spot=offer.spot if offer else False,
        state=NodeState.BOOTING,
        since=event.at,
        verdict=alive(event.at, "it said hello"),
        labels=pool.labels,
        taints=pool.taints,
        launched_at=event.at,
    )


def _reconcile(world: World, replica: Replica, event: ev.NodeJoined, *, rebooted: bool) -> None:
    """What does the node really run, against what we thought? What it does not name does not run: an agent
    takes sets only from the connection it said hello on, so nothing sent before can still start something.
    What it could not prove to have ended is gone only when its machine was restarted."""
    if replica.id in event.running:
        slot = world.slots.get(replica.slot)
        if replica.state is State.LOST:
            if slot is not None and slot.epoch == replica.epoch and slot.phase is Phase.OPEN:
                index.put_replica(
                    world, replace(replica, state=State.STARTING, since=event.at, unproven=False)
                )
                world.agenda.note("workload", replica.workload)  # it may have been paused meanwhile
                if replica.ready_at:  # it told us so long ago, and will not tell again
                    fold_replicas.ready(world, world.replicas[replica.id], event.at)
                _whole_again(world, replica)
            else:
                fold_replicas.stop(world, replica, event.at)
    elif rebooted or not replica.unproven:
        fold_replicas.gone(world, replica, event.at, "it was not running when its node came back")


def _whole_again(world: World, replica: Replica) -> None:
    """Members that waited for it may start their programs now."""
    members = members_of(world, replica)
    if is_complete(world, members):
        for member in members:
            fold_replicas.new_set(world, member.node)


def spot_noticed(world: World, event: ev.SpotNoticed) -> None:
    node = world.nodes.get(event.node)
    if node is not None and node.state is not NodeState.TERMINATING:
        if not event.own:
            fold_offers.taken(world, node, event.at)
        clues = replace(node.clues, said=Said.NOTICE)
        index.put_node(world, replace(node, clues=clues, deadline=event.deadline, releasing=False))
        if not event.own and node.clues.said is not Said.NOTICE:  # it is told again on every link
            fold_pools.note_pool(world, node.pool, notices=world.pool_states[node.pool].notices + 1)


def judged(world: World, event: ev.NodeJudged) -> None:
    node = world.nodes.get(event.node)
    if node is None or node.state not in JOINED or node.verdict.level is Level.DEAD:
        return
    repair, clues = node.repair, node.clues
    if event.verdict.level is Level.ALIVE and node.verdict.level is not Level.ALIVE:
        repair = _flapped(world, node, event.at)
        clues = Clues(said=clues.said)
        for name in world.on_node[node.id]:  # what timed out while we could not hear it
            world.agenda.note("slot", world.replicas[name].slot)
    index.put_node(
        world, replace(node, verdict=event.verdict, heard_at=event.heard_at, repair=repair, clues=clues)
    )
    if event.verdict.level is Level.DEAD:
        fold_offers.taken(world, node, event.at)
        state = world.pool_states[node.pool]
        served = max(0, event.at - node.joined_at)
        fold_pools.note_pool(world, node.pool, deaths=state.deaths + 1, served_ms=state.served_ms + served)
        _zone_lost(world, node, event.at)
        for replica_id in list(world.on_node[node.id]):
            replica = world.replicas[replica_id]
            index.put_replica(world, replace(replica, state=State.LOST, since=event.at))
            fold_replicas.slot_down(world, replica, event.heard_at, f"{node.id} is dead")


def _zone_lost(world: World, node: Node, at: Instant) -> None:
    """When half of a zone is dead at once, it is the zone that was lost, until somebody there says hello."""
    name = node.place.domain(Domain.ZONE)
    zone, dead = world.zones.get(name, Zone(since=at)), world.dead_in[name]
    if not zone.down_since and dead >= ZONE_NODES_MIN and 2 * dead >= world.joined_in[name]:
        world.zones[name] = replace(zone, outages=zone.outages + 1, down_since=at)


def _zone_seen(world: World, node: Node, at: Instant) -> None:
    name = node.place.domain(Domain.ZONE)
    zone = world.zones.setdefault(name, Zone(since=at))
    if zone.down_since:
        world.zones[name] = replace(zone, down_ms=zone.down_ms + at - zone.down_since, down_since=0)


def _flapped(world: World, node: Node, at: Instant) -> Repair:
    """It is back from a silence of its own. One lost beat is no flapping, nor is a link that only we cannot
    use (peers reached it), nor a doubt about ourselves."""
    own = node.verdict.level is not Level.UNREACHABLE and node.verdict.evidence.doubt is Doubt.NONE
    if own and at - node.verdict.since >= 2 * world.policy.detection.beat_ms:
        return replace(node.repair, flaps=(*node.repair.flaps, at)[-FLAPS_KEPT:])
    return node.repair


def healthy(repair: Repair) -> Repair:
    return Repair(repeats=repair.repeats, since=repair.since, step=Step.HEALTHY)


def terminated(world: World, event: ev.NodeTerminated) -> None:
    world.orphans.pop(event.node, None)
    if event.node not in world.nodes or (not event.found and fold_pools.may_come(world, event)):
        return
    for replica_id in list(world.on_node[event.node]):
        fold_replicas.gone(world, world.replicas[replica_id], event.at, f"{event.node} is gone")
    node = world.nodes[event.node]
    if node.joined_at and node.verdict.level is not Level.DEAD:
        state = world.pool_states[node.pool]
        fold_pools.note_pool(world, node.pool, served_ms=state.served_ms + max(0, event.at - node.joined_at))
    fold_offers.gone(world, node, event.at)
    accounts.close_node(world, node, event.at)
    index.drop_node(world, event.node)


def ordered(world: World, event: ev.OperatorOrdered) -> None:
    if event.order is ev.Order.RELEASE_BRAKE:
        fold_brake.released_by_hand(world, event.at)
        return
    node = world.nodes.get(event.node)
    if node is None or event.order is ev.Order.CHAOS:
        return
    if node.state not in JOINED and not (event.order is ev.Order.FORGET and fold_pools.is_unproven(node)):
        return
    if event.order is ev.Order.FORGET:
        if may_be_forgotten(world, node, event.at):
            terminated(world, ev.NodeTerminated(at=event.at, node=node.id))
        return
    node = replace(node, releasing=False)
    match event.order:
        case ev.Order.CORDON:
            node = replace(node, state=NodeState.CORDONED, since=event.at, by_hand=True)
        case ev.Order.DRAIN:
            node = replace(
                node, state=NodeState.DRAINING, since=event.at, deadline=event.deadline, by_hand=True
            )
        case ev.Order.UNCORDON:
            fold_outcomes.clear_findings(world, node.id)  # only what comes after this counts
            node = replace(
                node, state=NodeState.READY, since=event.at, deadline=0, by_hand=False, repair=Repair()
            )
    index.put_node(world, node)


def may_be_forgotten(world: World, node: Node, now: Instant) -> bool:
    """Nothing exclusive can be running there any more, and we do not hear it. Where no lease proves that, the
    operator who asks for it does. One that nobody has ever seen, of a pool that goes away, is theirs to
    strike off: its provider may never answer."""
    if node.state is NodeState.TERMINATING and fold_pools.is_unproven(node):
        return world.pool_states[node.pool].deleted_at > 0
    return node.verdict.level is Level.DEAD and now >= timeouts.lease_over_at(world, node.id)
