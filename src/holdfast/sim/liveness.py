"""After the faults have stopped and some time has passed: is all well again?

Safety says that nothing bad ever happens; liveness that the good thing does happen. Every goal here is
something a user would ask for. What cannot be met because there is no room (asked of the same placement the
core uses) is not held against it.
"""

from typing import TYPE_CHECKING

from holdfast.core import placement
from holdfast.core.packing import Bin
from holdfast.model.node import JOINED, NodeState
from holdfast.model.replica import LIVE, Phase, Role, Slot, State
from holdfast.model.units import MINUTE, Instant
from holdfast.model.verdict import Level
from holdfast.model.workload import Service, Training, Workload
from holdfast.model.world import World

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

JUST_NOW_MS = 2 * MINUTE


def can_be_asked(sim: "Simulation") -> bool:
    """A story that ends in the middle of trouble promises nothing yet."""
    return sim.faults.last_end + sim.scenario.settle_ms <= sim.kernel.now


def unmet_goals(sim: "Simulation") -> list[str]:
    if not can_be_asked(sim):
        return []
    leader = sim.listening()
    if leader is None or leader.mind is None:
        return ["nobody leads"]
    world = leader.mind.world
    return [*_work_unmet(sim, world, leader.now()), *_nodes_unmet(sim, world, leader.now())]


def _work_unmet(sim: "Simulation", world: World, now: Instant) -> list[str]:
    found = []
    for name, workload in world.workloads.items():
        if workload.paused:
            continue
        for slot_id in world.of_workload.get(name, ()):
            slot = world.slots[slot_id]
            copies = [world.replicas[r] for r in world.of_slot[slot_id]]
            if slot.phase is Phase.OPEN and not any(c.state in LIVE for c in copies):
                why = _excuse(world, workload, slot)
                if not why:
                    found.append(f"{slot_id} is not running: {slot.why or 'no reason known'}")
            elif isinstance(workload.shape, Service) and slot.phase is Phase.OPEN:
                broken = sim.fleet.programs[name].fails_at_start
                just_now = slot.down_since > now - JUST_NOW_MS  # it failed by itself a moment ago
                if not (broken or just_now or any(c.state is State.READY for c in copies)):
                    found.append(f"{slot_id} is not ready")
    return found


def _excuse(world: World, workload: Workload, slot: Slot) -> str:
    """Why nobody could run it now."""
    if slot.retry_at and slot.failures:
        return "its program fails by itself"
    if isinstance(workload.shape, Training) and slot.role is Role.ACTIVE:
        active = [s for s in world.of_workload[workload.name] if world.slots[s].role is Role.ACTIVE]
        live = sum(any(world.replicas[r].state in LIVE for r in world.of_slot[s]) for s in active)
        if live >= workload.shape.nodes_min:
            return "the gang is large enough"
        at_least = workload.shape.nodes_min
    else:
        at_least = 1
    parallel = getattr(workload.shape, "parallel", 0)
    if parallel and len(world.held.get(workload.name, ())) >= parallel:
        return "as many tasks as allowed run already"
    if any(other not in world.workloads or _unfinished(world, other) for other in workload.after):
        return "it waits for another workload"
    beside = tuple(
        world.replicas[r].node
        for s in world.of_workload[workload.name]
        for r in world.of_slot[s]
        if world.replicas[r].state in LIVE
    )
    ask = placement.Ask(
        needs=workload.needs,
        count=at_least,
        at_least=at_least,
        beside=beside,
        use_standby=bool(slot.epoch),
        one_per_node=at_least > 1,
    )
    if placement.place(world.room.copy(), ask):
        return ""
    return "" if _could_launch(world, workload) else "there is no room"


def _could_launch(world: World, workload: Workload) -> bool:
    """Is there a pool that would make room, has not reached its maximum and has not failed lately?"""
    return any(
        pool.can_launch
        and len(world.in_pool[pool.name]) < pool.max
        and not world.pool_states[pool.name].failures_in_a_row
        and any(Bin.new(pool, offer).suits(workload.needs) for offer in pool.offers)
        for pool in world.pools.values()
    )


def _unfinished(world: World, name: str) -> bool:
    return any(world.slots[slot].phase is not Phase.DONE for slot in world.of_workload.get(name, ()))


def _nodes_unmet(sim: "Simulation", world: World, leader_now: Instant) -> list[str]:
    found = []
    for name, node in world.nodes.items():
        host = sim.fleet.hosts.get(name)
        if node.state not in JOINED or node.state in (NodeState.QUARANTINED, NodeState.RESETTING):
            continue
        well = host is not None and host.speaks
        doubted_long = (
            leader_now - node.verdict.since > JUST_NOW_MS
        )  # a lost packet in the last minute is nothing
        if well and doubted_long and node.verdict.level is not Level.ALIVE:
            found.append(f"{name} is well, but believed to be {node.verdict.level}")
        pool = world.pools[node.pool]
        if (
            not well
            and node.verdict.level is Level.ALIVE
            and node.state is NodeState.READY
            and pool.can_terminate
        ):
            found.append(f"{name} is gone, but believed to be alive")
    for provider in sim.providers.values():
        for name in provider.machines:
            if name not in world.nodes and name not in world.orphans:
                age = sim.kernel.now - provider.machines[name].since
                if age > 2 * world.policy.capacity.list_every_ms:
                    found.append(f"{name} is an orphan: it costs money and nobody knows it")
    for name, replica in world.replicas.items():
        if replica.state is State.LOST and replica.exclusive:
            found.append(f"{name} is lost and was never resolved")
    return found
