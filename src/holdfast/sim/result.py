"""What a simulation came to."""

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.replica import Phase, Role
from holdfast.model.units import HOUR, Instant, many, seconds, usd
from holdfast.model.workload import Service
from holdfast.reliability.availability import percent
from holdfast.sim.checks.liveness import can_be_asked
from holdfast.sim.traffic.counts import Asked
from holdfast.sim.traffic.counts import tell as tell_asked
from holdfast.sim.traffic.fluid_gateway import Served

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

LEAST_SHARE = 0.0001  # that is told: what was lost was not nothing


class WorkloadResult(msgspec.Struct, frozen=True):
    name: str
    kind: str
    availability: float = 1.0  # share of the time since first up, and until done, with enough of it ready
    downtime_ms: int = 0
    outages: int = 0
    longest_outage_ms: int = 0
    slots_done: int = 0
    slots: int = 0
    slots_failed: int = 0
    served: Served | None = None  # of a service that scales with its load
    asked: Asked | None = None  # of a service that answers with tokens


class Result(msgspec.Struct, frozen=True):
    scenario: str
    seed: int
    sim_ms: int
    violations: tuple[str, ...]
    unmet: tuple[str, ...]
    settled: bool  # the story went on long enough after its last fault to ask whether all is well
    false_failovers: int
    workloads: tuple[WorkloadResult, ...]
    cost_usd: float
    node_hours: float
    nodes_lost: int
    turns: int
    journal_entries: int

    @property
    def fine(self) -> bool:
        return not self.violations and not self.unmet


def sum_up(sim: "Simulation", goals: list[str]) -> Result:
    bill = sim.bill()
    return Result(
        scenario=sim.scenario.name,
        seed=sim.seed,
        sim_ms=sim.kernel.now,
        violations=tuple(f"{_at(v.at)}: {v.what}" for v in sim.truth.violations),
        unmet=tuple(goals),
        settled=can_be_asked(sim),
        false_failovers=len(sim.truth.false_failovers),
        workloads=tuple(_workload(sim, name) for name in sim.fleet.workloads),
        cost_usd=round(bill.micro_usd / 1e6, 4),
        node_hours=round(bill.node_ms / HOUR, 3),
        nodes_lost=len(sim.deaths),
        turns=sim.turns,
        journal_entries=len(sim.store.entries),
    )


def _at(instant: Instant) -> str:
    return f"{instant / 1000:.1f}s"


def _workload(sim: "Simulation", name: str) -> WorkloadResult:
    workload = sim.fleet.workloads[name]
    kind = type(workload.shape).__name__.lower()
    mind = sim.leader.mind if sim.leader else None
    slots = []
    if mind is not None:
        slots = [mind.world.slots[s] for s in mind.world.of_workload.get(name, ())]
    active = [slot for slot in slots if slot.role is Role.ACTIVE]
    gateway = sim.gateways.get(name)
    tally = sim.traffic.tallies.get(name) if sim.traffic is not None else None
    counts: dict[str, Any] = {
        "served": gateway.result() if gateway is not None else None,
        "asked": tally.result() if tally is not None else None,
        "slots": len(active),
        "slots_done": sum(slot.phase is Phase.DONE for slot in active),
        "slots_failed": sum(slot.phase is Phase.FAILED for slot in active),
    }
    stretch = sim.truth.stretches.get(name)
    if isinstance(workload.shape, Service) and (stretch is None or stretch.first_up < 0):
        waited = sim.kernel.now - next(w.at for w in sim.scenario.workloads if w.workload.name == name)
        return WorkloadResult(name, kind, 0.0, waited, 1, waited, **counts)
    if stretch is None:
        return WorkloadResult(name, kind, **counts)
    watched = stretch.up_ms + stretch.down_ms
    longest = max((end - start for start, end in stretch.outages), default=0)
    return WorkloadResult(
        name,
        kind,
        availability=stretch.up_ms / watched if watched else 0.0,
        downtime_ms=stretch.down_ms,
        outages=len(stretch.outages),
        longest_outage_ms=longest,
        **counts,
    )


def _down(w: WorkloadResult) -> str:
    return f"down {seconds(w.downtime_ms)} in {many(w.outages, 'outage')}" if w.outages else "never down"


def _served(served: Served) -> str:
    """A service that scales is as good as what was lost, and as dear as its replicas."""
    share = max(served.lost_share, LEAST_SHARE)
    lost = f"{share:.2%} unserved" if served.lost else "nothing unserved"
    text = f"{lost}, {served.replica_hours:.2f} replica-hours, {many(served.turns, 'turn')} of direction"
    text += f" ({served.turns_a_day:.1f} a day)" if served.turns else ""
    if served.waited:
        text += f", {served.waited:.0f} of {served.requests:.0f} requests waited"
        text += f", at most {seconds(served.longest_wait_ms)}"
    return f"{text}, {served.waiting:.0f} still wait" if served.waiting >= 1 else text


def tell(result: Result) -> str:
    """The summary under a transcript."""
    lines = ["---"]
    for w in result.workloads:
        if w.served is not None:
            text = _served(w.served)
        elif w.kind == "service":
            text = f"available {percent(w.availability)}, {_down(w)}"
        else:
            text = f"{w.slots_done} of {w.slots} done"
            text += f", {w.slots_failed} given up" if w.slots_failed else ""
            text += f", at work {percent(w.availability)} of the time, {_down(w)}" if w.outages else ""
        lines.append(f"{w.kind:<9} {w.name:<16} {text}")
        if w.asked is not None:
            lines.append(f"{'requests':<9} {w.name:<16} {tell_asked(w.asked)}")
    lines.append(
        f"{'fleet':<9} {'':<16} {result.node_hours:.1f} node-hours, {usd(int(result.cost_usd * 1e6))},"
        f" nodes called dead {many(result.nodes_lost, 'time')}, {result.false_failovers} wrongly"
    )
    lines.append(f"safety    {'kept' if not result.violations else 'BROKEN'}")
    lines += [f"  {violation}" for violation in result.violations]
    asked = "met" if result.settled else "not asked: the story ends too soon after its last fault"
    lines.append(f"liveness  {asked if not result.unmet else 'NOT MET'}")
    lines += [f"  {goal}" for goal in result.unmet]
    return "\n".join(lines) + "\n"
