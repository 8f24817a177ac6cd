"""How often a request may be sent again, and when one is late."""

import math
import random

import pytest

from holdfast.core.gateway.routing.retry_budget import (
    BUCKETS,
    Budget,
    Spread,
    Tries,
    upper_end,
)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_quantile_is_at_most_an_eighth_too_large_and_never_too_small(share: float) -> None:
    dice = random.Random(3)
    values = sorted(dice.lognormvariate(-1, 1.5) for _ in range(3_000))
    spread = Spread(forgets=False)
    for value in values:
        spread.note(value)
    true = values[math.ceil(share * len(values)) - 1]
    assert true <= spread.quantile(share) <= 1.125 * true


def test_nothing_noted_has_no_quantile() -> None:
    assert Spread().quantile(0.99) == 0.0


def test_values_outside_of_the_buckets_fall_into_the_outermost() -> None:
    spread = Spread()
    for value in (0.0, 1e-9, -1.0, 1e9):
        spread.note(value)
    assert spread.counts[0] == 3
    assert spread.counts[-1] == 1


def test_what_is_usual_follows_the_times() -> None:
    spread = Spread()
    for _ in range(10_000):
        spread.note(0.1)
    for _ in range(10_000):
        spread.note(1.0)
    assert spread.quantile(0.5) >= 1.0
    assert spread.noted < 5_000


def test_a_spread_for_metrics_only_grows_and_adds_up() -> None:
    spread = Spread(forgets=False)
    for _ in range(10_000):
        spread.note(0.25)
    ends = spread.cumulative()
    assert len(ends) == BUCKETS
    assert ends[-1] == (upper_end(BUCKETS - 1), 10_000)
    assert [count for _, count in ends] == sorted(count for _, count in ends)
    assert all(count in (0, 10_000) for end, count in ends if not 0.25 <= end < 0.29)
    assert spread.total_s == pytest.approx(2_500)


def test_retries_are_a_tenth_of_the_requests_and_three_a_second() -> None:
    tries, now, retries = Tries(0.0), 0.0, 0
    seconds, per_s = 200, 100
    for _ in range(seconds * per_s):
        now += 1 / per_s
        tries.request(now)
        retries += tries.may_retry(now)  # everything fails
    assert retries == pytest.approx(seconds * (0.1 * per_s + 3), rel=0.05)


def test_a_quiet_service_may_retry_and_not_without_end() -> None:
    tries = Tries(0.0)
    tries.request(100.0)
    granted = sum(tries.may_retry(100.0) for _ in range(1_000))
    assert 25 <= granted <= 35, "ten seconds' worth of three a second"


def test_hedges_are_at_most_two_in_a_hundred() -> None:
    budget, now, hedges = Budget(0.02, 0.0, 60.0, 0.0), 0.0, 0
    for _ in range(50_000):
        now += 0.01
        budget.request(now)
        hedges += budget.take(now)
    assert 0.015 * 50_000 <= hedges <= 0.02 * 50_000


def test_a_clock_that_steps_back_gives_no_budget() -> None:
    budget = Budget(0.0, 1.0, 10.0, 100.0)
    assert sum(budget.take(100.0) for _ in range(50)) == 10
    assert not budget.take(50.0)
    assert not budget.take(100.0)


def test_a_hedge_waits_for_the_95th_percentile_and_for_a_fleet_with_room() -> None:
    tries = Tries(0.0)
    assert tries.hedge_after_s(0.1) == math.inf, "nothing is known yet"
    for number in range(1_000):
        tries.first_token.note(0.2 if number % 10 else 2.0)
    assert 2.0 <= tries.hedge_after_s(0.69) <= 2.3
    assert tries.hedge_after_s(0.7) == math.inf
    for _ in range(1_000):
        tries.request(1.0)
    assert not tries.may_hedge(0.7, 1.0)
    assert tries.may_hedge(0.5, 1.0)


def test_a_stream_has_stalled_after_eight_times_the_usual_longest_gap_and_five_seconds_at_least() -> None:
    tries = Tries(0.0)
    assert tries.stall_after_s() == 30.0
    for _ in range(1_000):
        tries.gaps.note(0.03)
    assert tries.stall_after_s() == 5.0
    for _ in range(5_000):
        tries.gaps.note(1.5)
    assert 12.0 <= tries.stall_after_s() <= 13.6
