"""What to expect of a fleet: several runs of one scenario, each with its own luck, summed up.

Means say what is usual, the worst run what to be ready for. A handful of runs proves no rare event, so the
conclusion says how many there were.
"""

import multiprocessing
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.model.units import DAY, Millis, many, seconds, usd
from holdfast.model.workload import Service
from holdfast.reliability.availability import percent
from holdfast.sim.random.sweep import helpers
from holdfast.sim.result import Result, WorkloadResult
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import Scenario

MONTH_DAYS = 30


class Outlook(msgspec.Struct, frozen=True):
    """One workload over all runs."""

    name: str
    kind: str
    target: float  # 0: none
    availability_mean: float
    availability_worst: float
    downtime_ms_mean: Millis
    outages_mean: float
    longest_outage_ms: Millis
    runs_below_target: int
    done_mean: float
    slots: int


class Forecast(msgspec.Struct, frozen=True):
    scenario: str
    seeds: int
    sim_ms: Millis
    workloads: tuple[Outlook, ...]
    cost_usd_mean: float
    cost_usd_most: float
    node_hours_mean: float
    nodes_lost_mean: float
    false_failovers: int
    failed_seeds: tuple[int, ...]
    failures: tuple[str, ...]
    unsettled: int = 0  # runs that ended too soon after their last fault to ask whether all is well
    reasons: tuple[str, ...] = ()  # how many copies each promise takes, and what one more nine would cost


def run_all(first: Simulation, seeds: int, jobs: int, on_progress: Callable[[int], None]) -> list[Result]:
    """The first run stays here, with its history, for the picture; the others go to other processes."""
    scenario = first.scenario
    others = range(scenario.seed + 1, scenario.seed + seeds)
    jobs = jobs or multiprocessing.cpu_count()
    if jobs == 1 or not others:
        results = [first.run()]
        for seed in others:
            on_progress(len(results))
            results.append(one(scenario, seed))
        return results
    with helpers(min(jobs, len(others))) as pool:
        coming = pool.imap(partial(one, scenario), others)
        results = [first.run()]
        for result in coming:
            on_progress(len(results))
            results.append(result)
    return results


def one(scenario: Scenario, seed: int) -> Result:
    return Simulation(scenario, seed, history=False).run()


def forecast(scenario: Scenario, results: list[Result], reasons: tuple[str, ...] = ()) -> Forecast:
    bad = [result for result in results if not result.fine]
    return Forecast(
        scenario=scenario.name,
        seeds=len(results),
        sim_ms=scenario.lasts_ms,
        workloads=tuple(_outlook(scenario, results, number) for number in range(len(scenario.workloads))),
        cost_usd_mean=round(_mean([result.cost_usd for result in results]), 2),
        cost_usd_most=round(max(result.cost_usd for result in results), 2),
        node_hours_mean=round(_mean([result.node_hours for result in results]), 1),
        nodes_lost_mean=round(_mean([float(result.nodes_lost) for result in results]), 1),
        false_failovers=sum(result.false_failovers for result in results),
        failed_seeds=tuple(result.seed for result in bad),
        failures=tuple(f"seed {r.seed}: {what}" for r in bad for what in (*r.violations, *r.unmet)),
        unsettled=sum(not result.settled for result in results),
        reasons=reasons,
    )


def _outlook(scenario: Scenario, results: list[Result], number: int) -> Outlook:
    workload = scenario.workloads[number].workload
    rows = [_row(result, workload.name) for result in results]
    target = workload.shape.availability if isinstance(workload.shape, Service) else 0.0
    return Outlook(
        name=workload.name,
        kind=rows[0].kind,
        target=target,
        availability_mean=_mean([row.availability for row in rows]),
        availability_worst=min(row.availability for row in rows),
        downtime_ms_mean=round(_mean([float(row.downtime_ms) for row in rows])),
        outages_mean=_mean([float(row.outages) for row in rows]),
        longest_outage_ms=max(row.longest_outage_ms for row in rows),
        runs_below_target=sum(row.availability < target for row in rows),
        done_mean=_mean([float(row.slots_done) for row in rows]),
        slots=max(row.slots for row in rows),
    )


def _row(result: Result, name: str) -> WorkloadResult:
    return next(row for row in result.workloads if row.name == name)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def tell(told: Forecast) -> str:
    lines = [*_table(told), *_fleet(told), *(("", *told.reasons) if told.reasons else ())]
    lines += ["", conclusion(told)]
    if told.unsettled:
        lines += [
            "",
            f"{many(told.unsettled, 'run')} ended too soon after a fault to ask if all was well again",
        ]
    if told.failures:
        lines += ["", f"NOT WELL at the end of seeds {', '.join(map(str, told.failed_seeds))}:"]
        lines += [f"  {failure}" for failure in told.failures]
    return "\n".join(lines)


def _table(told: Forecast) -> list[str]:
    rows = [("workload", "kind", "available", "worst run", "down", "outages", "longest", "done")]
    for w in told.workloads:
        done = "-" if w.kind == "service" else f"{w.done_mean:g} of {w.slots}"
        if w.kind in ("service", "training"):
            shares = percent(w.availability_mean), percent(w.availability_worst)
            times = seconds(w.downtime_ms_mean), f"{w.outages_mean:.1f}", seconds(w.longest_outage_ms)
            rows.append((w.name, w.kind, *shares, *times, done))
        else:
            rows.append((w.name, w.kind, *("-",) * 5, done))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _fleet(told: Forecast) -> list[str]:
    return [
        "",
        f"cost        {_dollars(told.cost_usd_mean)} on average, {_dollars(told.cost_usd_most)} at most",
        f"node-hours  {told.node_hours_mean:,.1f}",
        f"nodes lost  {told.nodes_lost_mean:g} on average, {told.false_failovers} wrongly in all runs",
    ]


def conclusion(told: Forecast) -> str:
    """What somebody who reads only one sentence should know."""
    days = told.sim_ms / DAY
    monthly = told.cost_usd_mean * MONTH_DAYS / days
    runs = "one run" if told.seeds == 1 else f"{told.seeds} runs"
    parts = [_promise(w, told.seeds) for w in told.workloads if w.kind == "service"]
    parts.append(f"the fleet costs about {_dollars(monthly)} in {MONTH_DAYS} days")
    return f"In {runs} of {_length(told.sim_ms)}, " + "; ".join(parts) + "."


def _promise(w: Outlook, seeds: int) -> str:
    usual = f"{percent(w.availability_mean)} on average and {percent(w.availability_worst)} at worst"
    if not w.target:
        return f"{w.name} was up {usual}"
    if not w.runs_below_target:
        return f"{w.name} kept its target of {percent(w.target)}, with {usual}"
    return (
        f"{w.name} missed its target of {percent(w.target)} in {w.runs_below_target} of {seeds}, with {usual}"
    )


def _length(ms: Millis) -> str:
    return f"{ms / DAY:g} days" if ms >= 2 * DAY else seconds(ms)


def _dollars(amount: float) -> str:
    return usd(round(amount * 1_000_000))
