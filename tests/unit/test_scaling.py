"""How many replicas, and why."""

import copy
import functools
import math

import msgspec
import pytest

from holdfast.core.scaling.forecast import Tracker
from holdfast.core.scaling.replica_count import (
    Size,
    Standing,
    Wishes,
    ceiling,
    floor,
    ours,
    target_tracking,
    weigh,
)
from holdfast.model.scale import Scale, ScalePolicy, Signal, Window
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND

STEP = 15 * SECOND
START = 10 * DAY
SCALE = Scale(min=1, max=200, confidence=0.95, stale_ms=2 * MINUTE)


def seen(*demands: float, repeat: int = 40) -> Tracker:
    return copy.deepcopy(_seen(demands, repeat))


@functools.cache
def _seen(demands: tuple[float, ...], repeat: int) -> Tracker:
    """So many readings of each, a little apart from one another, as real ones are."""
    tracker = Tracker()
    at = START
    for demand in demands:
        for number in range(repeat):
            tracker.see(at, demand * (1.0 + 0.001 * (number % 7)))
            at += STEP
    return tracker


def decide(tracker: Tracker, standing: Standing, scale: Scale = SCALE, later: int = 0) -> Size:
    assert tracker.at is not None
    return settled(scale, standing, tracker, tracker.at + later)


def settled(scale: Scale, standing: Standing, tracker: Tracker, now: int, most: int | None = None) -> Size:
    """As if it had wanted the same for a long time: what is decided when nothing is waited for."""
    wishes = Wishes()
    ours(scale, standing, tracker, wishes, now - HOUR, most)
    ours(scale, standing, tracker, wishes, now - HOUR + 1, most)
    return ours(scale, standing, tracker, wishes, now, most)


def test_it_wants_enough_for_what_may_come_within_the_lead_time() -> None:
    size = decide(seen(20.0, repeat=2000), Standing(ready=10))
    assert 21 <= size.wanted <= 24
    assert "may reach" in size.why
    assert size.lead is not None
    assert size.lead.peak >= 20.0


def test_a_jump_acts_at_once() -> None:
    tracker = seen(10.0, repeat=2000)
    assert tracker.at is not None
    tracker.see(tracker.at + STEP, 30.0)
    assert decide(tracker, Standing(ready=12)).wanted >= 30


def test_it_goes_down_only_to_what_the_coming_hour_will_not_ask_back() -> None:
    """Every twenty minutes it rises to thirty, so ten are not let go in between."""
    tracker = seen(*[10.0, 30.0] * 40, 10.0, repeat=20)
    assert decide(tracker, Standing(ready=34)).wanted >= 30
    calm = seen(30.0, *[10.0] * 99, repeat=40)
    assert decide(calm, Standing(ready=34)).wanted < 15


def test_a_young_record_holds_only_what_it_can_know_of() -> None:
    """A quarter of an hour after a burst the coming hour was never seen: what it may ask back is imagined."""
    young = seen(40.0, *[10.0] * 11, repeat=8)
    peak = young.forecast(young.at or 0, HOUR, 2 / 3).peak
    size = decide(young, Standing(ready=60))
    assert young.reach_ms(2 / 3) < 15 * MINUTE
    assert size.window is not None
    assert size.window.ahead_ms <= young.reach_ms(2 / 3)
    assert 10 <= size.wanted < peak


def test_a_young_service_holds_what_target_tracking_would_until_its_past_says_otherwise() -> None:
    calm = seen(*[10.0, 10.2] * 10, repeat=1)
    for lead_ms in (MINUTE, 5 * MINUTE, 10 * MINUTE):
        assert decide(calm, Standing(ready=5, lead_ms=lead_ms)).wanted == math.ceil(10.2 / SCALE.target)


def test_a_young_service_that_target_tracking_left_short_is_held_by_its_forecast() -> None:
    burst = seen(*[2.0] * 10, *[2.0, 2.0, 2.0, 12.0] * 10, 2.0, repeat=1)
    assert decide(burst, Standing(ready=2)).wanted > 2 * math.ceil(2.0 / SCALE.target)


def test_a_record_of_hours_needs_no_bound_and_no_floor() -> None:
    calm = seen(*[10.0, 10.2] * 800, repeat=1)
    assert calm.outgrown(MINUTE, 1 / SCALE.target, SCALE.confidence) == 1.0
    assert decide(calm, Standing(ready=15)).wanted < math.ceil(10.0 / SCALE.target)


def test_a_new_leader_lets_nothing_go_before_it_has_looked_for_a_while() -> None:
    tracker, wishes = seen(5.0, repeat=2000), Wishes()
    assert tracker.at is not None
    wanted = []
    for number in range(30):
        tracker.see(tracker.at + STEP, 5.0 + 0.001 * (number % 5))
        wanted.append(ours(SCALE, Standing(ready=30), tracker, wishes, tracker.at).wanted)
    assert wanted[:20] == [30] * 20
    assert wanted[-1] < 10


def test_what_is_coming_counts_as_there() -> None:
    tracker = seen(20.0, repeat=2000)
    both = decide(tracker, Standing(ready=10, coming=13))
    assert both.wanted == decide(tracker, Standing(ready=23)).wanted


def test_a_longer_lead_time_wants_no_fewer() -> None:
    tracker = seen(*[15.0, 20.0, 18.0, 25.0] * 30, repeat=10)
    wanted = [decide(tracker, Standing(1, lead_ms=lead)).wanted for lead in (MINUTE, 5 * MINUTE, 10 * MINUTE)]
    assert wanted == sorted(wanted)


@pytest.mark.parametrize("later", [3 * MINUTE, HOUR, DAY])
def test_an_old_signal_holds_what_there_is(later: int) -> None:
    size = decide(seen(1.0), Standing(ready=30), later=later)
    assert size.wanted == 30
    assert "old" in size.why


def test_without_any_signal_it_holds_or_rises_to_the_fallback() -> None:
    assert settled(SCALE, Standing(ready=7), Tracker(), START).wanted == 7
    scale = msgspec.structs.replace(SCALE, fallback=12)
    assert settled(scale, Standing(ready=7), Tracker(), START).wanted == 12
    assert settled(scale, Standing(ready=15), Tracker(), START).wanted == 15


def test_a_stuck_signal_takes_nothing_away() -> None:
    tracker = seen(5.0)
    for number in range(60):
        tracker.see(START + HOUR + number * STEP, 2.0)
    size = decide(tracker, Standing(ready=30))
    assert size.wanted == 30
    assert "stuck" in size.why


def test_the_bounds_hold_and_the_budget_before_the_least() -> None:
    tracker = seen(50.0)
    scale = Scale(min=4, max=20)
    assert decide(tracker, Standing(ready=3), scale).wanted == 20
    assert settled(scale, Standing(ready=3), tracker, START + 40 * STEP, most=2).wanted == 2
    assert decide(seen(0.1, repeat=2000), Standing(ready=4), scale).wanted == 4
    assert ceiling(scale, most=-3) == 0


def test_steps_are_limited_but_waking_is_not() -> None:
    scale = msgspec.structs.replace(SCALE, up_per_minute=3, down_per_minute=2)
    assert decide(seen(50.0), Standing(ready=10, added_lately=1), scale).wanted == 12
    assert decide(seen(1.0, repeat=2000), Standing(ready=20, removed_lately=0), scale).wanted == 18
    assert decide(seen(1.0, repeat=2000), Standing(ready=20, removed_lately=2), scale).wanted == 20


ZERO = Scale(min=0, max=50, idle_ms=10 * MINUTE, up_per_minute=1, confidence=0.95, stale_ms=2 * MINUTE)


def test_it_goes_to_zero_only_after_so_long_without_demand() -> None:
    assert decide(seen(3.0, 0.0, repeat=30), Standing(ready=2), ZERO).wanted >= 1
    assert decide(seen(3.0, 0.0, repeat=50), Standing(ready=2), ZERO).wanted == 0
    never = msgspec.structs.replace(ZERO, min=1)
    assert decide(seen(3.0, 0.0, repeat=500), Standing(ready=2), never).wanted >= 1


def test_zero_stays_zero_and_whoever_waits_wakes_it_at_once() -> None:
    idle = seen(3.0, 0.0, repeat=50)
    assert decide(idle, Standing(ready=0), ZERO).wanted == 0
    assert decide(idle, Standing(ready=0, pending=1, added_lately=1), ZERO).wanted >= 1
    assert settled(ZERO, Standing(ready=0, pending=1, added_lately=1), Tracker(), START).wanted >= 1
    assert decide(idle, Standing(ready=0, pending=1), ZERO, later=DAY).wanted >= 1


def test_who_wakes_it_is_the_reason_and_not_a_demand_of_nothing() -> None:
    """It said: demand 0.0 may reach 0.9."""
    idle, one = seen(3.0, 0.0, repeat=50), Standing(ready=0, pending=1, oldest_wait_ms=300)
    assert decide(idle, one, ZERO).why == "1 request waits for 0.3 s, and nobody answers"
    two = Standing(ready=0, pending=2)
    assert decide(idle, two, ZERO).why == "2 requests wait, and nobody answers"
    tracking = msgspec.structs.replace(ZERO, policy=ScalePolicy.TARGET_TRACKING)
    assert decide(idle, two, tracking).why == "2 requests wait, and nobody answers"
    assert decide(idle, two, ZERO, later=DAY).why.endswith(" old: 2 requests wait, and nobody answers")
    scale = msgspec.structs.replace(SCALE, per_replica={Signal.OLDEST_WAIT: 2.0 * SECOND})
    late = Standing(ready=10, pending=50, oldest_wait_ms=3 * SECOND)
    assert (
        decide(seen(5.0, repeat=2000), late, scale).why
        == "50 requests wait for up to 3.0 s, and too few answer"
    )


def test_those_who_wait_too_long_get_more_unless_more_is_coming() -> None:
    scale = msgspec.structs.replace(SCALE, per_replica={Signal.OLDEST_WAIT: 2.0 * SECOND})
    tracker = seen(5.0, repeat=2000)
    late = Standing(ready=10, pending=50, oldest_wait_ms=3 * SECOND)
    assert decide(tracker, late, scale).wanted == 15
    coming = msgspec.structs.replace(late, coming=5)
    assert decide(tracker, coming, scale).wanted <= 15
    very = msgspec.structs.replace(late, oldest_wait_ms=HOUR)
    assert decide(tracker, very, scale).wanted == 20


MONDAY = 4 * DAY  # 1970-01-05


@pytest.mark.parametrize(
    ("now", "least"),
    [
        (MONDAY + 8 * HOUR - 1, 1),
        (MONDAY + 8 * HOUR, 10),
        (MONDAY + 18 * HOUR - 1, 10),
        (MONDAY + 18 * HOUR, 1),
        (MONDAY + 5 * DAY + 9 * HOUR, 1),  # Saturday
        (MONDAY + 4 * DAY + 23 * HOUR, 5),  # Friday night
        (MONDAY + 5 * DAY + HOUR, 5),  # and what is left of it
        (MONDAY + 5 * DAY + 23 * HOUR, 1),
    ],
)
def test_scheduled_minimums(now: int, least: int) -> None:
    office = Window(10, (0, 1, 2, 3, 4), 8 * 60, 18 * 60)
    friday_night = Window(5, (4,), 22 * 60, 2 * 60)
    scale = Scale(schedule=(office, friday_night))
    assert floor(scale, now) == least
    east = msgspec.structs.replace(scale, utc_offset_minutes=120)
    assert floor(east, now - 2 * HOUR) == least


def test_target_tracking_does_what_kubernetes_does() -> None:
    wishes = Wishes()

    def want(have: int, demand: float, now: int) -> int:
        tracker = Tracker()
        tracker.see(now, demand)
        return target_tracking(SCALE, Standing(ready=have), tracker, wishes, now).wanted

    assert want(10, 7.5, START) == 10  # within a tenth
    assert want(10, 14.0, START + STEP) == 20
    assert want(10, 70.0, START + 2 * STEP) == 20  # at most twice
    assert want(2, 70.0, START + 3 * STEP) == 6  # or four more
    assert want(20, 7.0, START + 4 * STEP) == 20  # the most of the last five minutes
    assert want(20, 7.0, START + 10 * MINUTE) == 10


def test_target_tracking_takes_nothing_away_without_a_signal() -> None:
    assert target_tracking(SCALE, Standing(ready=9), Tracker(), Wishes(), START).wanted == 9


def test_a_decision_can_be_weighed_against_the_others() -> None:
    tracker, standing = seen(*[20.0, 24.0] * 40, repeat=10), Standing(ready=30)
    size = weigh(SCALE, standing, tracker, decide(tracker, standing))
    by_name = {other.name: other for other in size.alternatives}
    assert by_name["one fewer"].replicas == size.wanted - 1
    assert by_name["one fewer"].enough <= by_name["as decided"].enough <= by_name["one more"].enough
    assert by_name["target tracking"].replicas == 35
    assert by_name["as it is"].replica_hours == 30.0
