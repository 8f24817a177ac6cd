"""Many random stories, and for each that fails the smallest one that still does.

How large a story is may differ from seed to seed: between two sizes it is drawn so that each doubling is as
likely as any other. Small fleets are what most people run, and they have most of the corners.

Shrinking takes away faults, changes and workloads one by one (and then nodes), as long as the run still fails
in the same way. What is left is the story a person reads.
"""

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool

import msgspec
from msgspec.structs import replace

from holdfast.model.policy import Policy
from holdfast.sim.random import scenarios
from holdfast.sim.result import Result, tell
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import Scenario

SHRINK_SECONDS = 60.0
CHUNK = 2


class Failure(msgspec.Struct, frozen=True):
    seed: int
    what: tuple[str, ...]
    story: str
    nodes: int = 0  # how large it was, and how long
    hours: float = 0.0


class SweepResult(msgspec.Struct, frozen=True):
    seeds: int
    violations: int
    failed_liveness: int
    false_failovers: int
    sim_node_hours: float
    nodes_lost: int
    turns: int
    unsettled: int  # stories that ended too soon to ask whether all is well: must be none
    seconds: float
    failures: tuple[Failure, ...] = ()

    @property
    def fine(self) -> bool:
        return not (self.violations or self.failed_liveness or self.unsettled)


class Range(msgspec.Struct, frozen=True):
    """From the least to the most; each doubling in between is as likely as any other."""

    least: float
    most: float

    def draw(self, dice: random.Random) -> float:
        return float(self.least * (self.most / self.least) ** dice.random())

    def __str__(self) -> str:
        return f"{self.least:g}" if self.least == self.most else f"{self.least:g}..{self.most:g}"


class Job(msgspec.Struct, frozen=True):
    seed: int
    nodes: int
    hours: float
    policy: Policy | None


class Outcome(msgspec.Struct, frozen=True):
    seed: int
    violations: tuple[str, ...]
    unmet: tuple[str, ...]
    false_failovers: int
    node_hours: float
    nodes_lost: int
    turns: int
    settled: bool


def one(job: Job) -> Outcome:
    scenario = scenarios.draw(job.seed, job.nodes, job.hours, job.policy)
    result = attempt(scenario)
    return Outcome(
        job.seed,
        result.violations,
        result.unmet,
        result.false_failovers,
        result.node_hours,
        result.nodes_lost,
        result.turns,
        result.settled,
    )


def attempt(scenario: Scenario) -> Result:
    return Simulation(scenario, history=False).run()


def sweep(
    seeds: int,
    first_seed: int = 1,
    nodes: int | Range = 50,
    hours: float | Range = 2.0,
    jobs: int = 0,
    policy: Policy | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> SweepResult:
    began = time.perf_counter()
    work = [job(seed, nodes, hours, policy) for seed in range(first_seed, first_seed + seeds)]
    outcomes = []
    for outcome in _run(work, jobs or multiprocessing.cpu_count()):
        outcomes.append(outcome)
        on_progress(len(outcomes))
    outcomes.sort(key=lambda outcome: outcome.seed)
    bad = [outcome for outcome in outcomes if outcome.violations or outcome.unmet]
    failures = tuple(_failure(o, job(o.seed, nodes, hours, policy), tells=n < 3) for n, o in enumerate(bad))
    return SweepResult(
        seeds=seeds,
        violations=sum(len(outcome.violations) for outcome in outcomes),
        failed_liveness=sum(bool(outcome.unmet) for outcome in outcomes),
        false_failovers=sum(outcome.false_failovers for outcome in outcomes),
        sim_node_hours=round(sum(outcome.node_hours for outcome in outcomes), 1),
        nodes_lost=sum(outcome.nodes_lost for outcome in outcomes),
        turns=sum(outcome.turns for outcome in outcomes),
        unsettled=sum(not outcome.settled for outcome in outcomes),
        seconds=round(time.perf_counter() - began, 2),
        failures=failures,
    )


def helpers(count: int) -> Pool:
    """Processes to simulate in. Ctrl-C is for the one who waits, not for them."""
    return multiprocessing.get_context("spawn").Pool(count, signal.signal, (signal.SIGINT, signal.SIG_IGN))


def _run(work: list[Job], jobs: int) -> Iterator[Outcome]:
    if jobs <= 1 or len(work) <= 1:
        yield from map(one, work)
        return
    with helpers(min(jobs, len(work))) as pool:
        yield from pool.imap_unordered(one, work, chunksize=CHUNK)


def job(seed: int, nodes: int | Range, hours: float | Range, policy: Policy | None = None) -> Job:
    """The same for a seed whatever is swept beside it. Whole nodes, and tenths of an hour."""
    dice = random.Random(f"size/{seed}")
    size = round(nodes.draw(dice)) if isinstance(nodes, Range) else nodes
    lasts = round(hours.draw(dice), 1) if isinstance(hours, Range) else hours
    return Job(seed, size, lasts, policy)


def _failure(outcome: Outcome, drawn: Job, *, tells: bool) -> Failure:
    what = (*outcome.violations, *outcome.unmet)
    if not tells:
        return Failure(outcome.seed, what, "", drawn.nodes, drawn.hours)
    sim = Simulation(shrink(scenarios.draw(drawn.seed, drawn.nodes, drawn.hours, drawn.policy)))
    result = sim.run()
    assert sim.story is not None
    return Failure(outcome.seed, what, sim.story.text() + tell(result), drawn.nodes, drawn.hours)


def fails(scenario: Scenario) -> bool:
    return not attempt(scenario).fine


def shrink(scenario: Scenario, seconds: float = SHRINK_SECONDS) -> Scenario:
    """The smallest scenario found within the time that still fails."""
    until = time.perf_counter() + seconds
    smaller = True
    while smaller and time.perf_counter() < until:
        smaller = False
        for candidate in _smaller(scenario):
            if time.perf_counter() >= until:
                break
            if fails(candidate):
                scenario, smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for field in ("troubles", "changes", "workloads"):
        items = getattr(scenario, field)
        if len(items) > 3:
            half = len(items) // 2
            yield replace(scenario, **{field: items[:half]})
            yield replace(scenario, **{field: items[half:]})
        for number in range(len(items)):
            yield replace(scenario, **{field: items[:number] + items[number + 1 :]})
    if scenario.control_planes > 1:
        yield replace(scenario, control_planes=scenario.control_planes - 1)
    for number, setup in enumerate(scenario.pools):
        if setup.nodes > 3:
            pool = replace(setup.pool, min=min(setup.pool.min, setup.nodes // 2), max=setup.pool.max)
            fewer = replace(setup, nodes=setup.nodes // 2, pool=pool)
            yield replace(scenario, pools=(*scenario.pools[:number], fewer, *scenario.pools[number + 1 :]))
