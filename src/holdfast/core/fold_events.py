"""What the world is after something happened.

Each event has one small function. The rules that matter: a dead node is revived only by saying hello again,
never by a late beat; when it does, what it really runs is compared with what we thought; the end of a replica
counts against its program only if the program itself failed; and an event about something we do not know
changes nothing.
"""

from typing import assert_never

from msgspec.structs import replace

from holdfast.core import (
    books,
    fold_brake,
    fold_gateway,
    fold_market,
    fold_outcomes,
    fold_supply,
    fold_workloads,
    index,
)
from holdfast.core.desired import is_complete, members_of
from holdfast.model import event as ev
from holdfast.model.demand import Demand, Start
from holdfast.model.node import COMING, JOINED, Clues, Node, NodeState, Repair, Step
from holdfast.model.place import Level as Domain
from holdfast.model.replica import LIVE, Phase, Replica, State
from holdfast.model.units import Instant
from holdfast.model.verdict import Doubt, Evidence, Level, Link, Said, Verdict, Word
from holdfast.model.workload import Restart, Workload
from holdfast.model.world import Leader, World, Zone

ZONE_NODES_MIN = 3  # fewer say nothing about their zone
FLAPS_KEPT = 16
STARTS_KEPT = 8
BACKOFF_DOUBLINGS_MAX = 30


def alive(at: Instant, why: str) -> Verdict:
    return Verdict(Level.ALIVE, why, Evidence(), at)


def observe(world: World, event: ev.Event) -> None:
    match event:
        case ev.NodeJoined():
            _joined(world, event)
        case ev.NodeSaidGoodbye(node=name):
            _clue(world, name, said=Said.GOODBYE)
        case ev.SpotNoticed():
            _spot_noticed(world, event)
        case ev.LinkClosed(node=name):
            _clue(world, name, link=Link.CLOSED)
        case ev.PeerAnswered(node=name, peer=peer, answer=answer):
            if (node := world.nodes.get(name)) and peer in node.clues.asked:
                _clue(world, name, answers={**node.clues.answers, peer: answer})
        case ev.ProviderAnswered(node=name, word=word, at=at):
            if (node := world.nodes.get(name)) and node.clues.word is not Word.UNASKED:
                _clue(world, name, word=word, word_at=at)  # else it is about a life that is over
        case ev.NodeJudged():
            _judged(world, event)
        case ev.NodeLaunched():
            fold_supply.launched(world, event)
        case ev.NodeTerminated():
            _terminated(world, event)
        case ev.NodeReset(node=name, at=at):
            if (node := world.nodes.get(name)) and node.state is NodeState.RESETTING:
                index.put_node(world, replace(node, state=NodeState.BOOTING, since=at))
                fold_outcomes.clear_findings(world, name)  # what is still wrong will be found again
        case ev.PoolListed():
            fold_supply.pool_listed(world, event)
        case ev.OffersListed():
            fold_supply.listed(world, event)
        case ev.ActionFailed():
            fold_supply.action_failed(world, event)
        case ev.ReplicaStarted() | ev.ReplicaReady() | ev.ReplicaEnded() | ev.CheckpointSaved():
            _replica(world, event)
        case ev.DemandJudged():
            _demand_judged(world, event)
        case ev.FindingRaised(finding=finding):
            if finding.node in world.nodes:
                fold_outcomes.raise_finding(world, finding)
        case ev.FindingCleared(node=name, name=finding_name):
            if world.findings.pop((name, finding_name), None):
                world.agenda.note("node", name)
        case ev.KeyPut() | ev.KeyDeleted() | ev.LimitsSet() | ev.BudgetDrawn():
            fold_gateway.observe(world, event)
        case ev.ProjectApplied(project=project):
            fold_workloads.limited(world, project)
        case ev.TokenMade() | ev.TokenRevoked():
            pass  # the registry has them
        case _:
            _configured(world, event)


def _configured(
    world: World,
    event: ev.WorkloadApplied
    | ev.WorkloadDeleted
    | ev.WorkloadRetried
    | ev.WorkloadRestarted
    | ev.PoolApplied
    | ev.PoolDeleted
    | ev.PolicyApplied
    | ev.LeaderChanged
    | ev.JournalBehind
    | ev.OperatorOrdered,
) -> None:
    match event:
        case ev.JournalBehind():
            fold_workloads.behind(world, event)
        case ev.WorkloadApplied(workload=workload):
            fold_workloads.applied(world, workload, event.at)
        case ev.WorkloadRetried(workload=name, at=at):
            fold_workloads.retried(world, name, at)
        case ev.WorkloadRestarted(workload=name, at=at):
            fold_workloads.restarted(world, name, at)
        case ev.WorkloadDeleted(workload=name):
            if name in world.workloads:
                fold_workloads.deleted(world, name)
                fold_outcomes.dropped(world, name)
                wake_dependants(world, name)
        case ev.PoolApplied():
            fold_supply.applied(world, event)
        case ev.PoolDeleted():
            fold_supply.deleted(world, event)
        case ev.PolicyApplied(policy=policy, at=at):
            before = (at, world.policy.leases.lease_ms)
            world.lease_before = max(world.lease_before, before, key=sum)  # the one that ends last
            world.policy = policy
            index.look_at_all(world)
            for name in world.pools:
                books.watch(world, name, at)
        case ev.LeaderChanged(generation=generation, anew=anew, at=at):
            fold_gateway.led(world, generation)
            if event.stepped_ms:
                fold_supply.stepped(world, event)
            if not world.leader.generation:
                world.agenda.at(at + world.policy.balance.every_ms, "fleet", "balance")  # and on from there
            world.leader = Leader(event.leader, event.generation, at, event.era, event.offset)
            if anew:
                world.agenda.forget()
                index.look_at_all(world)
            world.agenda.at(at + world.policy.detection.grace_ms, "fleet", "grace")
        case ev.OperatorOrdered():
            _ordered(world, event)
        case _:
            assert_never(event)


# nodes


def _clue(world: World, name: str, **changes: object) -> None:
    node = world.nodes.get(name)
    if node is not None:
        index.put_node(world, replace(node, clues=replace(node.clues, **changes)))


def _joined(world: World, event: ev.NodeJoined) -> None:
    node = world.nodes.get(event.node)
    if node is None:
        node = _newcomer(world, event)
        if node is None:
            return
        books.open_node(world, node, event.at)
    elif node.state is NodeState.TERMINATING:
        index.put_node(world, replace(node, answered=True))  # it is there, and will not be for long
        return
    elif _left_by_itself(world, node):
        node = replace(node, state=NodeState.BOOTING, deadline=0)  # it had left of its own accord
    if node.state in COMING and not node.joined_at and node.launched_at < event.at:
        fold_market.joined(world, node, event.at)
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
    index.put_node(world, _resized(world, node, event))
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


def _resized(world: World, node: Node, event: ev.NodeJoined) -> Node:
    """A machine may come back larger or smaller; that counts when nothing of the old size runs there. One
    that was launched has no more than its offer has, whatever it reports: it would attract all the work."""
    if event.capacity is None or world.on_node.get(node.id):
        return node
    pool, capacity = world.pools.get(node.pool), event.capacity
    if pool is not None and pool.can_launch:
        offer = next((each for each in world.offers[pool.name] if each.name == node.offer), None)
        capacity = capacity.bounded_by(offer.capacity) if offer else capacity
    return node if capacity == node.capacity else replace(node, capacity=capacity)


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
                    _ready(world, world.replicas[replica.id], event.at)
                _whole_again(world, replica)
            else:
                _stop(world, replica, event.at)
    elif rebooted or not replica.unproven:
        _gone(world, replica, event.at, "it was not running when its node came back")


def _whole_again(world: World, replica: Replica) -> None:
    """Members that waited for it may start their programs now."""
    members = members_of(world, replica)
    if is_complete(world, members):
        for member in members:
            new_set(world, member.node)


def _stop(world: World, replica: Replica, at: Instant) -> None:
    index.put_replica(world, replace(replica, state=State.STOPPING, since=at, deadline=at))
    new_set(world, replica.node)


def new_set(world: World, node_id: str) -> None:
    """The node's desired set changed: number it anew."""
    node = world.nodes[node_id]
    index.put_node(world, replace(node, generation=node.generation + 1))


def _spot_noticed(world: World, event: ev.SpotNoticed) -> None:
    node = world.nodes.get(event.node)
    if node is not None and node.state is not NodeState.TERMINATING:
        if not event.own:
            fold_market.taken(world, node, event.at)
        clues = replace(node.clues, said=Said.NOTICE)
        index.put_node(world, replace(node, clues=clues, deadline=event.deadline, releasing=False))
        if not event.own and node.clues.said is not Said.NOTICE:  # it is told again on every link
            fold_supply.note_pool(world, node.pool, notices=world.pool_states[node.pool].notices + 1)


def _judged(world: World, event: ev.NodeJudged) -> None:
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
        fold_market.taken(world, node, event.at)
        state = world.pool_states[node.pool]
        served = max(0, event.at - node.joined_at)
        fold_supply.note_pool(world, node.pool, deaths=state.deaths + 1, served_ms=state.served_ms + served)
        _zone_lost(world, node, event.at)
        for replica_id in list(world.on_node[node.id]):
            replica = world.replicas[replica_id]
            index.put_replica(world, replace(replica, state=State.LOST, since=event.at))
            slot_down(world, replica, event.heard_at, f"{node.id} is dead")


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


def _terminated(world: World, event: ev.NodeTerminated) -> None:
    world.orphans.pop(event.node, None)
    if event.node not in world.nodes or (not event.found and fold_supply.may_come(world, event)):
        return
    for replica_id in list(world.on_node[event.node]):
        _gone(world, world.replicas[replica_id], event.at, f"{event.node} is gone")
    node = world.nodes[event.node]
    if node.joined_at and node.verdict.level is not Level.DEAD:
        state = world.pool_states[node.pool]
        fold_supply.note_pool(world, node.pool, served_ms=state.served_ms + max(0, event.at - node.joined_at))
    fold_market.gone(world, node, event.at)
    books.close_node(world, node, event.at)
    index.drop_node(world, event.node)


def _ordered(world: World, event: ev.OperatorOrdered) -> None:
    if event.order is ev.Order.RELEASE_BRAKE:
        fold_brake.released_by_hand(world, event.at)
        return
    node = world.nodes.get(event.node)
    if node is None or event.order is ev.Order.CHAOS:
        return
    if node.state not in JOINED and not (event.order is ev.Order.FORGET and fold_supply.is_unproven(node)):
        return
    if event.order is ev.Order.FORGET:
        if may_be_forgotten(world, node, event.at):
            _terminated(world, ev.NodeTerminated(at=event.at, node=node.id))
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
    if node.state is NodeState.TERMINATING and fold_supply.is_unproven(node):
        return world.pool_states[node.pool].deleted_at > 0
    return node.verdict.level is Level.DEAD and now >= index.lease_over_at(world, node.id)


# replicas


def _replica(
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
                _ready(world, replica, at)
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


def _demand_judged(world: World, event: ev.DemandJudged) -> None:
    workload = world.workloads.get(event.workload)
    if workload is None or event.workload not in world.scaled:
        return
    old = world.demands.get(event.workload)
    same = old is not None and old.wanted == event.wanted
    kept = old.memory if old is not None else b""
    world.demands[event.workload] = Demand(
        workload=event.workload,
        wanted=event.wanted,
        since=old.since if old is not None and same else event.at,
        at=event.at,
        why=event.why,
        said=event.said,
        expected=event.expected,
        instead=event.instead,
        memory=kept if event.memory is None else event.memory,
    )
    if not same:
        world.agenda.note("workload", event.workload)


def _started(world: World, replica: Replica, at: Instant) -> None:
    """How long it takes, for whoever must know beforehand: the last few count."""
    took = max(0, at - replica.placed_at)
    known = world.starts.get(replica.workload, Start(took, 0))
    count = min(known.count + 1, STARTS_KEPT)
    mean = known.mean_ms + (took - known.mean_ms) // count
    world.starts[replica.workload] = Start(mean, count)


def _ready(world: World, replica: Replica, at: Instant) -> None:
    if replica.workload in world.scaled and not replica.ready_at:
        _started(world, replica, at)
    if replica.state is not State.READY:
        index.put_replica(world, replace(replica, state=State.READY, since=at, ready_at=at))
    slot = world.slots.get(replica.slot)
    if slot is not None and slot.down_since:
        index.put_slot(world, replace(slot, down_since=0, struck=False, why=""))
    fold_market.counted(world, replica.workload, at)
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
        _gone(world, replica, event.at, event.why or f"it was {event.how}")
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
        _gone(world, replica, event.at, event.why or f"it was {event.how}")
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


def _gone(world: World, replica: Replica, at: Instant, why: str) -> None:
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
        fold_market.counted(world, slot.workload, at)


def _maybe_idle(world: World, node_id: str, at: Instant) -> None:
    node = world.nodes.get(node_id)
    if node is not None and not world.on_node[node_id] and not node.idle_since:
        index.put_node(world, replace(node, idle_since=at))
        pool = world.pools.get(node.pool)
        if pool is not None:
            world.agenda.at(at + pool.idle_ms, "pool", node.pool)


def healthy(repair: Repair) -> Repair:
    return Repair(repeats=repair.repeats, since=repair.since, step=Step.HEALTHY)
