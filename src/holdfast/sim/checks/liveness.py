"""After the faults have stopped and some time has passed: is all well again?

Safety says that nothing bad ever happens; liveness that the good thing does happen. Every goal here is
something a user would ask for: what is wanted runs, and really works. What cannot be met because there is no
room (asked of the same placement and packing the core uses) is not held against it. What must not be left
behind is in `leftovers`.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core import timeouts
from holdfast.core.check_quota import Held
from holdfast.core.placement import placement, preempt
from holdfast.core.placement.bin_packing import Apart, Bin, Bins
from holdfast.core.workloads import slots as workload_slots
from holdfast.model.market import key_of
from holdfast.model.node import COMING
from holdfast.model.pool import Offer, Pool
from holdfast.model.replica import LIVE, Phase, Replica, Role, Slot, State
from holdfast.model.units import MINUTE, SECOND, Instant, seconds
from holdfast.model.workload import Needs, Service, Spread, Sweep, Training, Workload, wanted
from holdfast.model.world import World
from holdfast.sim.checks.billing import Launch, may_be_paid
from holdfast.sim.checks.leaks import left_behind

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

JUST_NOW_MS = 2 * MINUTE
A_MOMENT_MS = 15 * SECOND


def can_be_asked(sim: "Simulation") -> bool:
    """A story that ends in the middle of trouble promises nothing yet."""
    return sim.faults.last_end + sim.scenario.settle_ms <= sim.kernel.now


def unmet_goals(sim: "Simulation") -> list[str]:
    if not can_be_asked(sim):
        return []
    leader = sim.listening()
    if leader is None or leader.mind is None:
        return ["nobody leads"]
    world, now = leader.mind.world, leader.now()
    found = [goal for workload in world.workloads.values() for goal in _work_unmet(sim, world, workload, now)]
    return [*found, *_requests_unmet(sim), *left_behind(sim, world, now)]


def _requests_unmet(sim: "Simulation") -> list[str]:
    """Nobody waits where somebody has room, and no gateway is closed that the leader can be reached from."""
    if sim.traffic is None:
        return []
    found = []
    for front in sim.traffic.fronts.values():
        for service in front.services.values():
            for_long = service.queue.oldest_wait_s(front.now_s) * SECOND > A_MOMENT_MS
            if front.alive and for_long and service.pool.room(front.now_s):
                waiting = f"{service.waiting} wait for {service.name} at {front.name}"
                found.append(f"{waiting}, though there is room")
        if front.alive and front.closed and front.exchanges:
            found.append(f"{front.name} is closed, and its control plane is there")
    return found


def _work_unmet(sim: "Simulation", world: World, workload: Workload, now: Instant) -> list[str]:
    if workload.paused:
        return []
    slots = [world.slots[name] for name in world.of_workload.get(workload.name, ())]
    found = _seats_unmet(world, workload, slots)
    for slot in slots:
        if slot.phase is Phase.OPEN:
            found += _slot_unmet(sim, world, workload, slot, now)
    if isinstance(workload.shape, Training):
        found += _gang_unmet(sim, world, workload, now)
    return found


def _seats_unmet(world: World, workload: Workload, slots: list[Slot]) -> list[str]:
    """Does it have the seats that were asked for?"""
    if not workload_slots.may_start(world, workload):
        return []
    active = [slot for slot in slots if slot.role is Role.ACTIVE and slot.phase is not Phase.CLOSED]
    least = _wanted(world, workload) if isinstance(workload.shape, Service | Sweep) else 1
    if getattr(workload.shape, "availability", 0):
        least = 1
    too_many = isinstance(workload.shape, Service) and not workload.shape.availability and len(active) > least
    if len(active) < least or too_many:
        return [f"{workload.name} has {len(active)} seats of {_wanted(world, workload)}"]
    return []


def _wanted(world: World, workload: Workload) -> int:
    """As it is written, or as its load was judged, within its bounds."""
    count, shape = wanted(workload), workload.shape
    if not isinstance(shape, Service) or shape.scale is None:
        return count
    scale = shape.scale
    judged = world.demands.get(workload.name)
    return min(max(count if judged is None else judged.wanted, scale.min), scale.max)


def _slot_unmet(sim: "Simulation", world: World, workload: Workload, slot: Slot, now: Instant) -> list[str]:
    copies = [world.replicas[name] for name in world.of_slot[slot.id]]
    live = [copy for copy in copies if copy.state in LIVE]
    if not live:
        excused = _excuse(sim, world, workload, slot, now)
        return [] if excused else [f"{slot.id} is not running: {slot.why or 'no reason known'}"]
    if any(copy.state is State.READY for copy in live):
        return []
    program = sim.fleet.programs[workload.name]
    just_now = slot.down_since > now - JUST_NOW_MS  # it failed by itself a moment ago
    starts = any(copy.placed_at > now - program.start_ms - A_MOMENT_MS for copy in live)  # there was no room
    if isinstance(workload.shape, Service) and not (program.fails_at_start or just_now or starts):
        return [f"{slot.id} is not ready"]
    return [f"{c.id} has been {c.state} for {seconds(now - c.since)}" for c in live if _stuck(world, c, now)]


def _stuck(world: World, replica: Replica, now: Instant) -> bool:
    """Has it been placed or starting for longer than anybody should wait for it?"""
    return now - replica.since > timeouts.start_timeout(replica, world.policy) + JUST_NOW_MS


def _gang_unmet(sim: "Simulation", world: World, workload: Workload, now: Instant) -> list[str]:
    """A training whose members are all ready works, unless one that failed by itself is waited for."""
    slots = [world.slots[name] for name in world.of_workload[workload.name]]
    active = [slot for slot in slots if slot.role is Role.ACTIVE]
    if any(slot.failures and now < slot.retry_at + A_MOMENT_MS for slot in active):
        return []
    copies = [world.replicas[name] for slot in active for name in world.of_slot[slot.id]]
    ready = [copy for copy in copies if copy.state is State.READY and copy.since < now - JUST_NOW_MS]
    if not copies or len(ready) < len(copies):
        return []
    if any(process.work_since for process in sim.fleet.members(workload.name)):
        return []
    return [f"{workload.name} stands still, though all its {len(ready)} members are ready"]


# excuses


def _excuse(sim: "Simulation", world: World, workload: Workload, slot: Slot, now: Instant) -> str:
    """Why nobody could run it now."""
    gang = isinstance(workload.shape, Training) and slot.role is Role.ACTIVE
    peers = [world.slots[name] for name in world.of_workload[workload.name]] if gang else [slot]
    if any(peer.failures and now < peer.retry_at + A_MOMENT_MS for peer in peers):
        return "its program fails by itself"
    if slot.down_since > now - A_MOMENT_MS:
        return "it went down a moment ago"
    if not workload_slots.may_start(world, workload):
        return "it waits for another workload"
    parallel = getattr(workload.shape, "parallel", 0)
    if parallel and len(world.held.get(workload.name, ())) >= parallel:
        return "as many tasks as allowed run already"
    least = 1
    if isinstance(workload.shape, Training) and gang:
        filled = {world.replicas[r].slot for p in peers for r in world.of_slot[p.id] if p.role is Role.ACTIVE}
        if len(filled) >= workload.shape.nodes_min:
            return "the gang is large enough"
        least = workload.shape.nodes_min
    if _beyond_quota(world, workload, least):
        return "it is beyond the quota of its project"
    return _no_room(sim, world, workload, slot, least, now)


def _beyond_quota(world: World, workload: Workload, least: int) -> bool:
    quota = world.projects.get(workload.project)
    if quota is None:
        return False
    cpu, memory, gpu, hour, nodes = Held(world, quota.name).sums
    asked = workload.needs.resources
    dear = max((node.price_micro_usd for node in world.nodes.values()), default=0)
    over = (
        (quota.cpu_milli, cpu + least * asked.cpu_milli),
        (quota.memory_mib, memory + least * asked.memory_mib),
        (quota.gpu_milli, gpu + least * asked.gpu_milli),
        (quota.nodes, nodes + least),
        (quota.hour_micro_usd, hour + least * dear),
    )
    return any(most is not None and most < there for most, there in over)


def _no_room(
    sim: "Simulation", world: World, workload: Workload, slot: Slot, least: int, now: Instant
) -> str:
    """Could `least` be placed now, or on what can be launched, or in the place of what matters less?"""
    needs = workload.needs
    if isinstance(workload.shape, Sweep):
        needs = replace(needs, spread=Spread.NONE)
    beside = [
        world.replicas[r].node
        for s in world.of_workload[workload.name]
        for r in world.of_slot[s]
        if world.replicas[r].state in LIVE
    ]
    ask = placement.Ask(
        needs=needs,
        count=least,
        at_least=1,
        beside=() if needs.spread is Spread.NONE else tuple(beside),
        use_standby=bool(slot.epoch),
        one_per_node=least > 1,
    )
    spots = placement.place(world.room.copy(), ask)
    apart = Apart.of(world, needs, [*beside, *(spot.node for spot in spots)])
    left = least - len(spots)
    if left <= 0:
        return ""
    left -= Bins(_coming(world)).fill(needs, left, one_each=least > 1, apart=apart)
    if left <= 0:
        return "a node is on its way"
    if left <= _launchable(sim, world, needs, apart, left, now):
        return ""
    may_preempt = least == 1 and world.policy.replicas.preempt and not world.brakes
    if may_preempt and preempt.victims(world, world.room.copy(), ask, workload.priority, frozenset(), now):
        return ""
    return "there is no room"


def _coming(world: World) -> list[Bin]:
    return [Bin.of(node) for node in world.nodes.values() if node.state in COMING]


def _launchable(
    sim: "Simulation", world: World, needs: Needs, apart: Apart | None, most: int, now: Instant
) -> int:
    """How many more would fit on new nodes, one each, the cheapest first, and all of them paid together."""
    chosen: list[Launch] = []
    while len(chosen) < most:
        for launch in _new(sim, world, chosen, now):
            if Bins([Bin.new(*launch)]).fill(needs, 1, one_each=True, apart=apart):
                chosen.append(launch)
                break
        else:
            break
    return len(chosen)


def _new(sim: "Simulation", world: World, chosen: list[Launch], now: Instant) -> list[Launch]:
    """What may be paid for beside what is chosen, is to be had, and did not fail a moment ago."""
    found = [
        (pool, offer)
        for pool in world.pools.values()
        if _has_a_place(world, pool, chosen, now)
        for offer in world.offers[pool.name]
        if may_be_paid(sim, world, pool, offer, chosen, now)
        and sim.providers[pool.provider].left(pool.name, offer.name) > chosen.count((pool, offer))
        and not _failed_lately(world, pool, offer, now)
    ]
    return sorted(found, key=lambda launch: launch[1].price_micro_usd)


def _has_a_place(world: World, pool: Pool, chosen: list[Launch], now: Instant) -> bool:
    if not pool.can_launch or now < world.pool_states[pool.name].retry_at + A_MOMENT_MS:
        return False
    return len(world.in_pool[pool.name]) + sum(one is pool for one, _ in chosen) < pool.max


def _failed_lately(world: World, pool: Pool, offer: Offer, now: Instant) -> bool:
    record = world.records.get(key_of(pool.name, offer.name))
    return record is not None and now < record.retry_at + A_MOMENT_MS
