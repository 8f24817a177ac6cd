"""A small sweep is clean; and when a bug is planted the checkers find it, so being clean means something."""

from functools import partial

import pytest
from msgspec.structs import replace

from holdfast.core import check, decide
from holdfast.core.plan.draft import Draft
from holdfast.core.workloads import schedule
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.units import MINUTE, SECOND
from holdfast.model.workload import Job, Service, Spread, Workload
from holdfast.sim.random import random_requests
from holdfast.sim.random import sweep as sweeping
from holdfast.sim.random.scenarios import draw
from holdfast.sim.random.sweep import Job as Draw
from holdfast.sim.random.sweep import (
    Range,
    attempt,
    fails,
    one,
    shrink,
    sweep,
)
from holdfast.sim.random.sweep import job as size_of
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    Fault,
    PoolSetup,
    Program,
    Scenario,
    Trouble,
    WorkloadSetup,
)

SEEDS = range(1, 13)
EXCLUSIVE = check.an_exclusive_seat_is_filled_only_when_nothing_else_can_run_in_it


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_story_ends_well(seed: int) -> None:
    outcome = one(Draw(seed, nodes=20, hours=0.5, policy=None))
    assert outcome.settled, "it went on long enough to ask whether all is well"
    assert (outcome.violations, outcome.unmet) == ((), ())


@pytest.mark.parametrize(
    ("seed", "nodes", "hours"),
    [
        (
            78,
            20,
            0.5,
        ),  # a node that hung behind a cut, was called dead, and is well again when its time is over
        (156, 12, 0.5),  # a pool is deleted, and a node of it was drained by hand
        (458, 12, 0.5),  # a pool is forgotten in the turn in which something was noted of its offers
        (40013, 8, 1.0),  # a request waits, is asked for longer than its patience, and would wait again
        (70247, 8, 0.5),  # there is room for more copies just before the end, and they have to start
        (40051, 8, 1.0),  # a member of a gang fails once more at the very end
        (8100184, 12, 1.0),  # a member of a gang is done while another one is replaced
        (8100343, 12, 1.0),  # the rest of the month's money pays for one node, and a gang needs two
        (8100483, 12, 1.0),  # a service that had grown is deleted and applied again
        (61000026, 14, 1.1),  # prices change while a launch is not answered
        (61000439, 16, 1.3),  # a replica fails at the very end, and the report of it is lost once
        (41264, 8, 1.0),  # a wall clock is an hour ahead, and a budget is for the month
        (77100423, 12, 0.5),  # a member is declared gone while its node is only unreachable
        (7000278, 40, 2.0),  # spot becomes dearer after the last list of prices
        (91002018, 108, 0.7),  # load is to leave a zone in which two copies stand that must be apart
        (91008005, 15, 1.5),  # a service is ready because the copy that was missing is not wanted any more
        (91010062, 50, 0.6),  # a node is taken away in the middle of its reset, and cannot be terminated
        (91016019, 74, 4.0),  # the next leader's wall clock is behind the journal's time
    ],
)
def test_a_drawn_story_that_once_ended_badly_ends_well(seed: int, nodes: int, hours: float) -> None:
    outcome = one(Draw(seed, nodes=nodes, hours=hours, policy=None))
    assert (outcome.violations, outcome.unmet, outcome.settled) == ((), (), True)


def test_what_a_deleted_pool_has_cost_is_not_there_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget of the fleet was used up, and those who ask whether all is well did not know."""
    monkeypatch.setattr(random_requests, "SHARE", 1.0)
    outcome = one(Draw(50080, nodes=8, hours=0.5, policy=None))
    assert (outcome.violations, outcome.unmet, outcome.settled) == ((), (), True)


def test_the_drawn_stories_are_eventful() -> None:
    """Or else that they end well would say nothing."""
    outcomes = [one(Draw(seed, nodes=20, hours=0.2, policy=None)) for seed in (1, 3, 5, 7)]
    assert sum(outcome.nodes_lost for outcome in outcomes) > 5


def test_everything_that_can_go_wrong_and_that_people_do_is_drawn() -> None:
    stories = [draw(seed) for seed in range(1, 301)]
    faults = {trouble.fault for story in stories for trouble in story.troubles}
    assert faults == set(Fault)
    done = {change.do for story in stories for change in story.changes}
    given = {"delete", "update", "pause", "resume", "scale", "drain", "cordon", "uncordon", "release brake"}
    assert done == given | {"delete pool"}
    setups = [setup for story in stories for setup in story.workloads]
    assert any(setup.program.fails_at_start for setup in setups)
    assert {setup.workload.needs.spread for setup in setups} == set(Spread)
    assert any(len({s.workload.name for s in story.workloads}) < len(story.workloads) for story in stories)
    crashes = {t.step for story in stories for t in story.troubles if t.fault is Fault.CONTROL_CRASH}
    assert max(crashes) >= 12


def test_a_sweep_sums_up_its_stories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "shrink", lambda scenario: scenario)  # what fails here is told elsewhere
    told: list[int] = []
    result = sweep(3, first_seed=4, nodes=9, hours=0.2, jobs=1, on_progress=told.append)
    each = [one(Draw(seed, 9, 0.2, None)) for seed in (4, 5, 6)]
    assert told == [1, 2, 3]
    assert result.turns == sum(outcome.turns for outcome in each)
    assert result.nodes_lost == sum(outcome.nodes_lost for outcome in each)
    assert result.seeds == 3


# planted bugs


def test_in_a_mixed_sweep_small_fleets_are_as_likely_as_large_ones_and_a_seed_keeps_its_size() -> None:
    nodes, hours = Range(3, 200), Range(0.5, 6)
    drawn = [size_of(seed, nodes, hours) for seed in range(4_000)]
    assert drawn == [size_of(seed, nodes, hours) for seed in range(4_000)]
    sizes, lengths = [each.nodes for each in drawn], [each.hours for each in drawn]
    assert (min(sizes), max(sizes), min(lengths), max(lengths)) == (3, 200, 0.5, 6.0)
    assert 0.3 < sum(size <= 12 for size in sizes) / len(sizes) < 0.4
    assert size_of(7, 20, 0.5) == Draw(7, 20, 0.5, None)


def test_a_failure_of_a_mixed_sweep_says_how_large_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(Simulation(small_story()).run(), violations=("it broke",))
    monkeypatch.setattr(sweeping, "attempt", lambda _: broken)
    monkeypatch.setattr(sweeping, "shrink", lambda scenario: scenario)
    (failure,) = sweep(1, first_seed=5, nodes=Range(3, 9), hours=Range(0.1, 0.2), jobs=1).failures
    drawn = size_of(5, Range(3, 9), Range(0.1, 0.2))
    assert (failure.nodes, failure.hours) == (drawn.nodes, drawn.hours)


def small_story() -> Scenario:
    """A job whose node is cut off, a service, and two faults that have nothing to do with it."""
    offers = tuple(
        Offer(zone, Place("east", "r1", zone, f"{zone}1"), Resources(8_000, 32_768)) for zone in "abc"
    )
    pool = Pool("pool", "east", offers, max=9, can_launch=False, can_terminate=False)
    forever = Program(run_ms=10 * MINUTE)
    return Scenario(
        "planted",
        lasts_ms=4 * MINUTE,
        settle_ms=1 * MINUTE,
        pools=(PoolSetup(pool, 9),),
        workloads=(
            WorkloadSetup(Workload("web", Service(2))),
            WorkloadSetup(Workload("job", Job(), checkpoint_ms=10 * SECOND), forever),
            WorkloadSetup(Workload("other", Service(3))),
        ),
        troubles=(
            Trouble(at=20 * SECOND, fault=Fault.SLOW, nodes=("pool-h",), lasts_ms=10 * SECOND),
            Trouble(at=30 * SECOND, fault=Fault.PARTITION, nodes=("runs:job",), lasts_ms=50 * SECOND),
            Trouble(at=40 * SECOND, fault=Fault.AGENT_RESTART, nodes=("pool-i",), lasts_ms=SECOND),
        ),
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that forgets to wait until the old copy is provably gone."""
    monkeypatch.setattr(Draft, "may_run", lambda draft, slot: False)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple(invariant for invariant in check.INVARIANTS if invariant is not EXCLUSIVE)
    monkeypatch.setattr(check, "INVARIANTS", kept)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is down is ever filled again after the first minute."""
    before = schedule.recover

    def forgetful(draft: Draft) -> None:
        if draft.now < MINUTE:
            before(draft)

    stages = tuple(forgetful if stage is before else stage for stage in decide.STAGES)
    monkeypatch.setattr(decide, "STAGES", stages)


def test_the_small_story_ends_well_without_a_bug() -> None:
    result = attempt(small_story())
    assert (result.violations, result.unmet, result.settled) == ((), (), True)


@pytest.mark.usefixtures("impatient")
def test_a_planted_bug_is_refused_by_the_invariant_and_reported() -> None:
    result = attempt(small_story())
    assert any(check.sentence(EXCLUSIVE) in violation for violation in result.violations)
    assert not any("runs twice" in violation for violation in result.violations)


@pytest.mark.usefixtures("impatient", "unchecked")
def test_a_planted_bug_that_gets_through_is_seen_in_what_really_runs() -> None:
    result = attempt(small_story())
    assert any("job/0 runs twice" in violation for violation in result.violations)


@pytest.mark.usefixtures("idle")
def test_a_planted_bug_that_leaves_work_undone_is_seen_at_the_end() -> None:
    result = attempt(small_story())
    assert any(goal.startswith("job/0 is not running") for goal in result.unmet)
    assert result.violations == ()


@pytest.mark.usefixtures("impatient", "unchecked")
def test_what_fails_is_shrunk_to_what_matters() -> None:
    shrunk = shrink(small_story(), seconds=15.0)
    assert fails(shrunk)
    assert [trouble.fault for trouble in shrunk.troubles] == [Fault.PARTITION]
    assert [setup.workload.name for setup in shrunk.workloads] == ["job"]
    assert sum(setup.nodes for setup in shrunk.pools) < 9


def test_what_does_not_fail_is_not_shrunk() -> None:
    assert shrink(small_story(), seconds=15.0) == small_story()


@pytest.mark.usefixtures("impatient", "unchecked")
def test_a_sweep_finds_a_planted_bug_and_tells_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "shrink", partial(shrink, seconds=1.0))
    result = sweep(2, first_seed=3, nodes=20, hours=0.3, jobs=1)
    assert not result.fine
    assert result.violations > 0
    assert result.failures
    assert "runs twice" in result.failures[0].story


def test_a_story_can_be_told_from_a_simulation_that_kept_its_history() -> None:
    sim = Simulation(small_story())
    sim.run()
    assert sim.story is not None
    assert "job/0" in sim.story.text()


def test_a_story_in_which_our_own_code_breaks_is_told_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(draft: Draft) -> None:
        raise ValueError("no such seat")

    monkeypatch.setattr(decide, "STAGES", (broken,))
    result = Simulation(small_story()).run()
    (what,) = result.violations
    assert "it broke down at test_sweep.py" in what
    assert "ValueError: no such seat" in what
