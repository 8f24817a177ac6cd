"""How many copies would a promise take, by the rates that a scenario states, and do its runs bear that out?

The rule: `core.workloads.redundancy` works it out for given rates, times and domains, as it does in a live
fleet. There they are measured and a prior stands in for what was not seen yet; a scenario states them
(`mtbf`, `preempt_every`, `domain_mtbf`, the boot of a provider), so no prior is asked. A scenario that states
none is asked what its runs showed. Domains are the zones that the pools really have: whatever a workload is
spread over within them, a zone fails as a whole.

How long a lost copy is away is read off the fleet as well. Nodes that are there and have room take over (they
count as warm ones that cost nothing more); else a node is launched; where none can be, the lost one is waited
for. A zone that fails is waited for only if there is no other: of a fleet that is silent as a whole nothing
is known, and nothing is launched for it, unless something beside it has new nodes launched; which of the two
it was, the runs say. A node that is taken after notice is away for what the notice is too
short by.

Then the runs are asked. If what ran should, by the same sums, have been up as long as it was (within the
spread that outages at random have), the advice is given. If not, something else takes it down (a fault of
the story, no room, a brake), more copies are no answer to it, and the sums are withdrawn.

Refused: to scale the sums until they agree, because that is no reason to believe them of another
number of copies; and to run the scenario again with the number advised, which doubles the time.
"""

import math

import msgspec

from holdfast.core.placement import placement
from holdfast.core.placement.bin_packing import Bin
from holdfast.core.workloads import redundancy, redundancy_inputs
from holdfast.model.pool import Offer, Pool
from holdfast.model.replica import LIVE, Phase, Role
from holdfast.model.units import HOUR, Millis, many
from holdfast.model.workload import Service, Spread, Workload
from holdfast.model.world import World
from holdfast.reliability.availability import percent
from holdfast.reliability.rates import Rates
from holdfast.sim.result import Result
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import PoolSetup, Scenario
from holdfast.sim.twins.provider import ProviderTraits

FREE_MAX = 6  # nodes with room that are counted
PROMOTE_MS = 1_000
ERRORS = 3.0  # standard errors within which the runs agree
ALIKE = 3.0  # as well as a factor: rates differ by more from one month to the next


class Stated(msgspec.Struct, frozen=True):
    """What a scenario says of the pools that suit one workload."""

    rates: Rates
    times: redundancy.Times
    by: str


def advice(sim: Simulation, results: list[Result]) -> tuple[str, ...]:
    """For each service with a promise. `sim` is the first run."""
    if sim.leader is None or sim.leader.mind is None:
        return ()
    world = sim.leader.mind.world
    promised = [w for w in world.workloads.values() if isinstance(w.shape, Service) and w.shape.availability]
    return tuple(f"{w.name}: {_advice(sim, world, w, results)}" for w in promised)


def _advice(sim: Simulation, world: World, workload: Workload, results: list[Result]) -> str:
    assert isinstance(workload.shape, Service)
    setups = [s for s in sim.scenario.pools if s.pool.name in world.pools and _suiting(workload, s.pool)]
    offers = tuple(offer for setup in setups for offer in _suiting(workload, setup.pool))
    if not offers:
        return "no pool has nodes that suit it"
    domains, free = redundancy_inputs.domains_of(workload, offers), _free_nodes(world, workload)
    readings = _stated(sim.scenario, workload, setups, domains, results)
    if not any(one.rates.node_failures_per_hour + one.rates.domain_failures_per_hour for one in readings):
        return "no node that suits it ever fails here; give its pools an mtbf to see what its target takes"
    most = sum(setup.pool.max if setup.pool.can_launch else setup.nodes for setup in setups)
    shown = [1.0 - row.availability for r in results for row in r.workloads if row.name == workload.name]
    sums: list[tuple[float, str]] = []
    for stated in readings:
        need = redundancy.need_of(
            workload.shape, offers, domains, stated.rates, stated.times, free_nodes=free
        )
        ran = _as_it_ran(world, workload, need, free)
        expected = 1.0 - redundancy.Scale(need).weigh(ran).availability
        choice = redundancy.choose(need)
        limit = f", and its pools have {many(most, 'node')} at most" if choice.option.nodes > most else ""
        told = f"{choice.why}{limit}. The runs had {many(ran.replicas, 'replica')}"
        if _agree(expected, shown, stated.times, results):
            return f"{stated.by}: {told}"
        sums.append((expected, told))
    (most_down, told), (least_down, _) = max(sums), min(sums)
    if least_down < sum(shown) / len(shown) < most_down:
        waits, anew = percent(1.0 - most_down), percent(1.0 - least_down)
        return f"{stated.by}: {waits} up if a failed zone is waited for, {anew} up if not. At worst: {told}"
    found = f"{percent(1.0 - sums[0][0])}, and the runs show {percent(1.0 - sum(shown) / len(shown))}"
    return (
        f"{stated.by}, {many(ran.replicas, 'replica')} should be up {found}. So something else decides, and "
        "more replicas are no answer to it: `holdfast sim run` tells what"
    )


def _suiting(workload: Workload, pool: Pool) -> list[Offer]:
    return [offer for offer in pool.offers if Bin.new(pool, offer).suits(workload.needs)]


# what the scenario states


def _stated(
    scenario: Scenario, workload: Workload, setups: list[PoolSetup], domains: int, results: list[Result]
) -> list[Stated]:
    """The likelier reading first. Of a fleet that fell silent in its only zone nothing is launched for what
    is not exclusive; where jobs beside it have some launched, those tell the dead from the silent."""
    program = next(s.program for s in scenario.workloads if s.workload.name == workload.name)
    detect_ms = scenario.policy.detection.silent_min_ms
    boot_ms = round(_mean([_replaced_ms(scenario, setup) for setup in setups]))
    times = redundancy.Times(detect_ms, program.start_ms, boot_ms, PROMOTE_MS)
    away_ms = detect_ms + boot_ms + program.start_ms
    waits, launches = scenario.domain_repair_ms, any(setup.pool.can_launch for setup in setups)
    anew = min(waits, away_ms) if launches else waits
    nodes = _mean([_per_hour(setup.mtbf_ms) + _taken_per_hour(scenario, setup, away_ms) for setup in setups])
    zones, by = _per_hour(scenario.domain_mtbf_ms), "By the rates in this file"
    if not nodes + zones:
        hours = sum(result.node_hours for result in results)
        nodes, by = sum(result.nodes_lost for result in results) / max(hours, 1.0), "By what the runs lost"
    readings = [anew] if domains > 1 else dict.fromkeys((waits, anew))
    return [Stated(Rates(nodes, zones, domain_ms), times, by) for domain_ms in readings]


def _per_hour(every_ms: Millis) -> float:
    return HOUR / every_ms if every_ms else 0.0


def _replaced_ms(scenario: Scenario, setup: PoolSetup) -> float:
    traits = scenario.providers.get(setup.pool.provider, ProviderTraits())
    return traits.boot_ms + traits.queue_ms if setup.pool.can_launch else setup.repair_ms


def _taken_per_hour(scenario: Scenario, setup: PoolSetup, away_ms: Millis) -> float:
    """As if they failed, and fewer of them: the work leaves while there is notice."""
    spot = any(offer.spot for offer in setup.pool.offers)
    notice_ms = scenario.providers.get(setup.pool.provider, ProviderTraits()).notice_ms
    return _per_hour(setup.preempt_every_ms) * max(0.0, 1.0 - notice_ms / away_ms) if spot else 0.0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# what ran


def _homes(world: World, workload: Workload) -> tuple[str, ...]:
    slots = world.of_workload.get(workload.name, ())
    copies = [world.replicas[name] for slot in slots for name in world.of_slot[slot]]
    return tuple(copy.node for copy in copies if copy.state in LIVE)


def _free_nodes(world: World, workload: Workload) -> int:
    """Nodes without it that have room for it, at the end of the first run."""
    homes = _homes(world, workload)
    needs = msgspec.structs.replace(workload.needs, spread=Spread.NONE)
    ask = placement.Ask(needs=needs, count=FREE_MAX, beside=homes, one_per_node=True)
    return len(placement.place(world.room.copy(), ask))


def _as_it_ran(world: World, workload: Workload, need: redundancy.Need, free: int) -> redundancy.Option:
    """What there was at the end of the first run, as one of the options."""
    slots = [world.slots[name] for name in world.of_workload.get(workload.name, ())]
    open_ = [slot.role for slot in slots if slot.phase is Phase.OPEN]
    warm, first = open_.count(Role.STANDBY), need.candidates[0]
    kind = redundancy.Standby.REPLICA if warm else redundancy.Standby.NODE
    count = max(open_.count(Role.ACTIVE), need.serving)
    return redundancy.Option(first.name, first.spot, count, need.domains, kind, warm or free, 0)


def _agree(expected: float, shown: list[float], times: redundancy.Times, results: list[Result]) -> bool:
    """Two shares of time down. The spread is that of outages that come at random, and one more or less is no
    news."""
    mean = _mean(shown)
    one_outage = (times.detect_ms + times.boot_ms + times.restart_ms) / sum(r.sim_ms for r in results)
    alike = max(expected, mean) <= ALIKE * min(expected, mean)
    return alike or abs(expected - mean) <= ERRORS * math.sqrt(expected * one_outage) + one_outage
