"""A job with a deadline, in instants: which way, why, and until when it may be left alone."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.spot.deadline_policy import Outlook
from holdfast.core.spot.deadline_safety import (
    Course,
    Job,
    Progress,
    course,
    outlook_of,
    safe_until,
)
from holdfast.model.course import Way
from holdfast.model.units import HOUR, MINUTE
from holdfast.reliability.onoff import Belief

JOB = Job(
    work_ms=10 * HOUR,
    begun=HOUR,
    deadline=15 * HOUR,
    restart_ms=3 * MINUTE,
    on_demand_ready_ms=5 * MINUTE,
    checkpoint_ms=30 * MINUTE,
    spot_price=1_000_000,
    on_demand_price=3_000_000,
)


@functools.cache
def outlook() -> Outlook:
    return outlook_of(JOB)


def at(now: int, saved: int = 0, unsaved: int = 0, way: Way = Way.WAIT, *, there: bool = True) -> Course:
    belief = Belief()
    belief.see(now / HOUR, there)
    return course(JOB, Progress(saved, unsaved, way, 0, there), now, outlook(), belief.weights())


def test_the_net_counts_work_restart_time_to_ready_and_margin() -> None:
    assert safe_until(JOB, 0) == 15 * HOUR - 10 * HOUR - 3 * MINUTE - 5 * MINUTE - MINUTE
    assert safe_until(JOB, 2 * HOUR) == safe_until(JOB, 0) + 2 * HOUR


def test_work_since_the_last_checkpoint_does_not_count() -> None:
    assert at(3 * HOUR, HOUR, 20 * MINUTE, Way.SPOT).safe_until == at(3 * HOUR, HOUR, 0, Way.SPOT).safe_until


def test_with_time_and_spot_it_runs_on_spot_and_says_what_else_would_cost() -> None:
    found = at(JOB.begun)
    assert found.way is Way.SPOT
    assert found.costs[Way.SPOT] == min(found.costs.values())
    assert found.why.startswith("$"), "the way itself is told by the action"
    assert "on demand $" in found.why


def test_it_is_to_be_asked_again_before_it_is_too_late() -> None:
    found = at(safe_until(JOB, 0) - MINUTE)
    assert found.ask_at <= found.safe_until or found.way is Way.ON_DEMAND


def test_at_the_last_instant_it_goes_on_demand() -> None:
    found = at(safe_until(JOB, 0))
    assert found.way is Way.ON_DEMAND
    assert found.why == "10.0 h of work left, 10.2 h to the deadline"


BRIEF = Job(
    work_ms=90_000,
    begun=0,
    deadline=8 * MINUTE,
    restart_ms=2_000,
    on_demand_ready_ms=3 * MINUTE,
    checkpoint_ms=5_000,
    spot_price=300_000,
    on_demand_price=1_000_000,
    margin_ms=101_000,
)


def test_a_job_of_minutes_is_planned_in_seconds_but_asked_once_a_minute() -> None:
    job = replace(BRIEF, deadline=11 * MINUTE)
    plan, progress = outlook_of(job), Progress(0, 0, Way.WAIT, 0, spot_there=True)
    found = course(job, progress, 0, plan, Belief().weights())
    assert found.way is Way.SPOT
    assert found.costs[Way.SPOT] < 30_000, (
        "a minute and a half of work, and a start: not a dozen steps of a minute"
    )
    assert found.ask_at == MINUTE


@settings(deadline=None)
@given(st.integers(0, 8 * MINUTE), st.integers(0, 90), st.sampled_from(Way), st.booleans())
def test_nobody_is_told_a_cost_that_cannot_be(now: int, saved: int, way: Way, there: bool) -> None:
    """Close to the net the outlook, which counts in whole steps, may think that nothing works out."""
    progress = Progress(saved * 1000, 0, way, 0, there or way is Way.SPOT)
    found = course(BRIEF, progress, now, brief_outlook(), Belief().weights())
    assert all(cost <= 1_000_000 for cost in found.costs.values())
    assert "$" not in found.why or found.way in found.costs


@functools.cache
def brief_outlook() -> Outlook:
    return outlook_of(BRIEF)


class Life:
    """A job that is asked when it wants to be asked and when spot goes, in a market that does as it likes."""

    def __init__(self, gaps: list[tuple[int, int]]) -> None:
        self.now, self.saved, self.unsaved = JOB.begun, 0, 0
        self.way, self.idle = Way.WAIT, 0  # until work is done
        self.gaps, self.belief = gaps, Belief()

    def there(self) -> bool:
        minute, at = (self.now - JOB.begun) // MINUTE, 0
        for there, away in self.gaps * 999:
            if minute < at + there + away:
                return minute < at + there
            at += there + away
        return False

    def minute(self) -> None:
        if self.way is not Way.WAIT:
            worked = max(0, MINUTE - self.idle)
            self.idle = max(0, self.idle - MINUTE)
            self.unsaved += worked
            if self.unsaved >= JOB.checkpoint_ms or self.saved + self.unsaved >= JOB.work_ms:
                self.saved, self.unsaved = self.saved + self.unsaved, 0
        self.now += MINUTE

    def turn(self) -> int:
        there = self.there()
        if self.way is Way.SPOT and not there:
            self.way, self.unsaved = Way.WAIT, 0
        self.belief.see(self.now / HOUR, there)
        progress = Progress(self.saved, self.unsaved, self.way, self.idle, there)
        found = course(JOB, progress, self.now, outlook(), self.belief.weights())
        if found.way is not self.way:
            self.way, self.unsaved = found.way, 0
            self.idle = JOB.restart_ms + JOB.on_demand_ready_ms
        return found.ask_at

    def run(self) -> int:
        """When it is done. Spot that goes is an event; that it is back is only seen when it asks."""
        ask_at = 0
        while self.saved < JOB.work_ms and self.now <= JOB.deadline:
            if self.now + MINUTE > ask_at or (self.way is Way.SPOT and not self.there()):
                ask_at = self.turn()
            self.minute()
        return self.now


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), min_size=1, max_size=12))
def test_it_is_never_late_whatever_spot_does(gaps: list[tuple[int, int]]) -> None:
    assert Life(gaps).run() <= JOB.deadline
