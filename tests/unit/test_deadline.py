"""A job with a deadline is never late, and cheap where that can be."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.spot import deadline_policy
from holdfast.core.spot.deadline_policy import (
    Choice,
    Outlook,
    Standing,
    Terms,
    after_step,
    is_certain,
)
from holdfast.model.course import Way
from holdfast.reliability import onoff
from holdfast.reliability.onoff import SPOT_GRID, Belief

STEP = 0.5
PRICES = {Way.WAIT: 0.0, Way.SPOT: 1.0, Way.ON_DEMAND: 3.0}


@functools.cache
def outlook(work: float = 10.0, time: float = 14.0, restart: float = 0.1) -> Outlook:
    return Outlook(Terms(work, time, restart, STEP, PRICES[Way.SPOT], PRICES[Way.ON_DEMAND]))


def standing(
    work_left: float, time_left: float, way: Way = Way.WAIT, *, there: bool, restart_left: float = 0.0
) -> Standing:
    return Standing(work_left, time_left, way, restart_left, there)


def lived(plan: Outlook, there: str) -> tuple[list[Way], float]:
    """The ways taken until the work is done, and what is left of it at the deadline."""
    terms, belief = plan.terms, Belief()
    work, restart, way = terms.work, 0.0, Way.WAIT
    ways: list[Way] = []
    for step in range(round(terms.time / terms.step)):
        spot = there[step % len(there)] == "1"
        if way is Way.SPOT and not spot:
            way, restart = Way.WAIT, 0.0
        belief.see(step * STEP, spot)
        now = standing(work, terms.time - step * STEP, way, there=spot, restart_left=restart)
        chosen = plan.choose(now, belief.weights()).way
        work, restart = after_step(terms, now, chosen)
        way = chosen
        ways.append(way)
        if work <= 1e-9:
            break
    return ways, work


def cost(ways: list[Way]) -> float:
    return sum(PRICES[way] * STEP for way in ways)


@settings(max_examples=150, deadline=None)
@given(
    st.text("01", min_size=1, max_size=60),
    st.sampled_from([(10.0, 11.0), (10.0, 14.0), (3.0, 20.0)]),
    st.sampled_from([0.0, 0.1, 0.4, 0.9]),
)
def test_it_is_never_late(there: str, job: tuple[float, float], restart: float) -> None:
    work, time = job
    if restart > 0.4 and work + 2 * restart > time:
        time += 2
    _, left = lived(outlook(work, time, restart), there)
    assert left <= 1e-9


def test_with_spot_all_the_time_it_never_pays_more() -> None:
    ways, _ = lived(outlook(), "1")
    assert set(ways) == {Way.SPOT}


def test_without_spot_it_costs_what_on_demand_costs() -> None:
    ways, _ = lived(outlook(), "0")
    assert ways.count(Way.ON_DEMAND) == 21, "ten hours, and a restart"
    assert Way.SPOT not in ways


def test_short_gaps_are_waited_out_and_long_ones_are_not() -> None:
    short, _ = lived(outlook(10.0, 20.0), "1110")
    assert Way.ON_DEMAND not in short
    long, _ = lived(outlook(10.0, 14.0), "11" + "0" * 26)
    assert long.index(Way.ON_DEMAND) < 8, "it does not wait until there is no other way"


def test_the_net_counts_the_restart_and_whole_steps() -> None:
    terms = outlook(10.0, 14.0, 0.1).terms
    assert is_certain(terms, standing(1.0, 2.0, there=False), Way.WAIT)
    assert not is_certain(terms, standing(1.0, 1.5, there=False), Way.WAIT), "three steps are needed then"
    assert is_certain(terms, standing(1.0, 1.5, there=False), Way.ON_DEMAND)
    assert not is_certain(terms, standing(0.4, 2.0, there=False), Way.SPOT), "there is none"
    assert is_certain(terms, standing(0.5, 0.5, Way.SPOT, there=True), Way.SPOT), "it is done then"


def test_what_can_no_longer_be_kept_is_kept_as_well_as_can_be() -> None:
    assert outlook().choose(standing(9.0, 2.0, there=True), Belief().weights()) == Choice(Way.ON_DEMAND, {})


def test_a_choice_tells_what_the_others_would_cost() -> None:
    found = outlook().choose(standing(10.0, 14.0, there=True), Belief().weights())
    assert found.way is Way.SPOT
    assert set(found.costs) == set(Way)
    assert found.costs[Way.SPOT] == min(found.costs.values())
    assert 10.0 <= found.costs[Way.SPOT] <= 30.3


@pytest.mark.parametrize("there", ["10", "1100", "111111000000", "0001"])
def test_it_is_cheaper_than_on_demand_wherever_spot_comes_now_and_then(there: str) -> None:
    ways, _ = lived(outlook(10.0, 20.0), there)
    assert cost(ways) < 30.0


def test_several_jobs_are_told_what_each_would_be_told_alone() -> None:
    plan, dice = outlook(), np.random.default_rng(1)
    jobs = [
        standing(work, left, way, there=there)
        for work, left in ((10.0, 14.0), (9.0, 2.0), (0.4, 1.0), (3.0, 3.5))
        for way in Way
        for there in (way is Way.SPOT, True)
    ]
    weights = dice.dirichlet(np.ones(20), len(jobs))
    together = plan.choose_each(jobs, weights)
    for job, its, found in zip(jobs, weights, together, strict=True):
        alone = plan.choose(job, its)
        assert found.way is alone.way
        assert found.costs == pytest.approx(alone.costs)


def test_slack_is_worth_something_in_a_gap_that_seems_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is over, or tomorrow, the market may be one in which it is worth much."""
    endless = (SPOT_GRID.aways == SPOT_GRID.aways.max()) / 4

    def hour_of_slack() -> float:
        plan = Outlook(Terms(40.0, 46.0, 0.1, STEP, PRICES[Way.SPOT], PRICES[Way.ON_DEMAND]))
        most, less = (
            min(plan.choose(standing(40.0, left, there=False), endless).costs.values())
            for left in (46.0, 45.0)
        )
        return less - most

    worth = hour_of_slack()
    monkeypatch.setattr(onoff, "ANEW", 0.0)
    monkeypatch.setattr(deadline_policy, "FADES_HOURS", 1e9)
    assert worth > 2 * hour_of_slack(), "if the hypothesis held for ever"
