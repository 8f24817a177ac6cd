"""After the faults have stopped and some time has passed: is anything left behind?

A wrong belief about a node, a machine that costs money and that nobody knows, a process that nobody wants, a
state that nobody ends, a brake that nobody lets go. Each is a small thing that a long-lived fleet dies of.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.core.health import brake
from holdfast.model.node import COMING, JOINED, Node, NodeState
from holdfast.model.policy import Policy
from holdfast.model.replica import LIVE, Replica, State
from holdfast.model.units import MINUTE, Instant, Millis, seconds
from holdfast.model.verdict import Level, Said
from holdfast.model.world import World

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

JUST_NOW_MS = 2 * MINUTE
LONG_MS = 5 * MINUTE


def left_behind(sim: "Simulation", world: World, now: Instant) -> list[str]:
    checks = (_beliefs, _orphans, _pools, _pairs, _money, _replicas, _processes, _states, _brakes)
    return [goal for check in checks for goal in check(sim, world, now)]


def _beliefs(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """Every verdict is true."""
    for name, node in world.nodes.items():
        if node.state not in JOINED or node.state in (NodeState.QUARANTINED, NodeState.RESETTING):
            continue
        well = _well(sim, name)
        doubted_long = now - node.verdict.since > JUST_NOW_MS  # a lost packet in the last minute is nothing
        if well and doubted_long and node.verdict.level is not Level.ALIVE:
            yield f"{name} is well, but believed to be {node.verdict.level}"
        replaceable = node.state is NodeState.READY and world.pools[node.pool].can_terminate
        if not well and node.verdict.level is Level.ALIVE and replaceable:
            yield f"{name} is gone, but believed to be alive"


def _well(sim: "Simulation", node: str) -> bool:
    host = sim.fleet.hosts.get(node)
    return host is not None and host.speaks


def _orphans(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """Every machine is known."""
    for provider in sim.providers.values():
        for name, machine in provider.machines.items():
            age = sim.kernel.now - machine.since
            known = name in world.nodes or name in world.orphans
            if not known and age > 2 * world.policy.capacity.list_every_ms:
                yield f"{name} is an orphan: it costs money and nobody knows it"
            pool = world.pools.get(machine.pool)
            ends = pool is None or pool.can_terminate
            if name in world.orphans and ends and age > 3 * world.policy.capacity.list_every_ms:
                yield f"{name} is an orphan, and nobody ends it"


def _pools(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """What was deleted is gone, nodes and all, when its drain is over."""
    for name, pool in world.pools.items():
        deleted_at = world.pool_states[name].deleted_at
        left = len(world.in_pool[name])
        gone_by = deleted_at + world.policy.repair.drain_ms + LONG_MS
        if deleted_at and pool.can_terminate and now > gone_by:
            yield f"{name} was deleted {seconds(now - deleted_at)} ago, and is still there with {left} nodes"


def _pairs(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """Of two that were asked for at once one went when the other was ready. Were both, both may be used."""
    for name, node in world.nodes.items():
        other = world.nodes.get(node.hedge)
        if other is None or other.state is not NodeState.READY or now - other.since < JUST_NOW_MS:
            continue
        if node.state in COMING:
            yield f"{name} is still to come, though {other.id} is there in its place"
        elif node.state is NodeState.READY and name < other.id and not world.on_node[name]:
            idle_ms = world.pools[node.pool].idle_ms
            if now - node.idle_since > idle_ms + LONG_MS and not world.on_node[other.id]:
                yield f"{name} and {other.id} are both kept, and one was asked for"


def _money(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """Nothing goes on to cost when the money of the month is used up."""
    for what in sim.ledger.overdrawn:
        pools = [pool for pool in world.pools.values() if what in ("the fleet", pool.name)]
        for node in (world.nodes[name] for pool in pools for name in world.in_pool[pool.name]):
            if node.price_micro_usd and world.pools[node.pool].can_terminate:
                yield f"{node.id} still costs money, and that of {what} is used up"


def _runs(sim: "Simulation", replica: Replica) -> bool:
    """Or it ended a moment ago, and the report of that is on its way, perhaps for the second time."""
    host = sim.fleet.hosts[replica.node]
    just_now = sim.kernel.now - host.reporting_since <= JUST_NOW_MS
    unreported = any(report.replica == replica.id for report in host.machine.reports)
    return replica.id in host.processes or (host.reporting and just_now and unreported)


def _replicas(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """Every replica is what we believe it to be, and none is of something unwanted."""
    for name, replica in world.replicas.items():
        workload = world.workloads.get(replica.workload)
        if replica.state is State.LOST:
            if replica.exclusive:
                yield f"{name} is lost and was never resolved"
            continue
        if now - replica.since <= LONG_MS or not _well(sim, replica.node):
            continue
        if replica.state is State.STOPPING:
            yield f"{name} has been stopping for {seconds(now - replica.since)}"
        elif replica.state in LIVE and (workload is None or workload.paused):
            yield f"{name} is kept, though its workload is {'paused' if workload else 'deleted'}"
        elif replica.state is State.READY and not _runs(sim, replica):
            yield f"{name} is believed to run on {replica.node}, and does not"


def _processes(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """Nothing really runs that nobody knows."""
    for host in sim.fleet.hosts.values():
        for name, process in host.processes.items():
            replica = world.replicas.get(name)
            known = replica is not None and replica.node == host.id
            if host.speaks and not known and sim.kernel.now - process.started_at > LONG_MS:
                yield f"{name} runs on {host.id}, and nobody knows it"


def _states(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """No node is stuck in a state that somebody should have ended."""
    for name, node in world.nodes.items():
        longest = _longest(node, world.policy)
        if longest and now - node.since > longest + LONG_MS:
            yield f"{name} has been {node.state} for {seconds(now - node.since)}"
        if node.by_hand or node.clues.said is not Said.NOTHING or node.verdict.level is not Level.ALIVE:
            continue
        in_repair = node.state in (NodeState.CORDONED, NodeState.DRAINING)
        if in_repair and now - node.since > LONG_MS and not any(key[0] == name for key in world.findings):
            yield f"{name} is left {node.state}, and no finding stands against it"
        if node.state is NodeState.DRAINING and now > node.deadline + LONG_MS:
            yield f"{name} is still draining {seconds(now - node.deadline)} after its deadline"
        if node.state is NodeState.READY and node.deadline:
            yield f"{name} is ready, and has a deadline nobody sees to"


def _longest(node: Node, policy: Policy) -> Millis:
    """How long it may be in such a state; 0: for ever."""
    limits = {
        NodeState.LAUNCHING: policy.capacity.launch_timeout_ms,
        NodeState.BOOTING: policy.capacity.boot_timeout_ms,
        NodeState.RESETTING: policy.repair.reset_ms,
        NodeState.TERMINATING: policy.capacity.backoff_max_ms,
    }
    return limits.get(node.state, 0)


def _brakes(sim: "Simulation", world: World, now: Instant) -> Iterator[str]:
    """No brake holds when those who made us doubt are heard again, or are dead and the rest has long been
    well."""
    policy = world.policy.brake
    sizes = brake.sizes(world)
    for scope, engaged in world.brakes.items():
        silent = [
            name
            for name, node in world.nodes.items()
            if node.state in JOINED
            and not _well(sim, name)
            and scope in (brake.FLEET, node.place.domain(policy.domain_level))
        ]
        calm = len(silent) < brake.lets_go_below(policy, scope, sizes.get(scope, 0))
        if calm and now - engaged.since > policy.hold_ms + LONG_MS:
            yield f"the brake on {scope} has held for {seconds(now - engaged.since)}: {engaged.why}"
        elif now - engaged.since > policy.quiet_ms + LONG_MS and _long_quiet(sim, world):
            yield f"the brake on {scope} is not narrowed: {engaged.why}"


def _long_quiet(sim: "Simulation", world: World) -> bool:
    """Nothing happened for so long that a burst is over, and what it left is dead, and no majority."""
    quiet_since = sim.kernel.now - world.policy.brake.quiet_ms - LONG_MS
    doubted = [world.nodes[name] for name in world.doubtful]
    all_dead = all(node.verdict.level is Level.DEAD and not _well(sim, node.id) for node in doubted)
    few = len(doubted) < world.policy.detection.majority * world.joined
    return all_dead and few and max(sim.faults.last_end, sim.led_since) < quiet_since
