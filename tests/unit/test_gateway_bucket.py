"""A bucket: what it gives, what it gets back, and what no clock, change or late return makes of it."""

import math

import pytest

from holdfast.core.gateway.quota.token_bucket import Bucket


def test_it_is_full_at_first_and_fills_at_its_rate() -> None:
    bucket = Bucket(100, 10, now=0)
    assert bucket.level_at(0) == 100
    bucket.take(80, 0)
    assert bucket.level_at(3) == 50
    assert bucket.level_at(1_000) == 100


def test_a_clock_that_steps_back_brings_nothing_and_the_same_second_is_not_counted_twice() -> None:
    bucket = Bucket(100, 10, now=100)
    bucket.take(100, 100)
    assert bucket.level_at(90) == 0
    bucket.fill(90)
    bucket.fill(100)
    assert bucket.level_at(100) == 0
    assert bucket.level_at(101) == 10


@pytest.mark.parametrize(("amount", "wait"), [(0, 0), (20, 0), (50, 3), (100, 8), (101, math.inf)])
def test_the_wait_is_what_the_rate_needs_and_for_ever_above_the_capacity(amount: int, wait: float) -> None:
    bucket = Bucket(100, 10, now=0)
    bucket.take(80, 0)
    assert bucket.wait_s(amount, 0) == pytest.approx(wait, abs=1e-5)
    if 0 < wait < math.inf:
        assert bucket.level_at(bucket.wait_s(amount, 0)) >= amount


def test_without_a_rate_what_is_short_stays_short() -> None:
    bucket = Bucket(10, 0, now=0)
    bucket.take(10, 0)
    assert bucket.wait_s(1, 5) == math.inf


def test_the_unused_comes_back_at_once() -> None:
    bucket = Bucket(100, 10, now=0)
    mark = bucket.take(100, 0)
    bucket.settle(100, 30, mark, 0)
    assert bucket.level_at(0) == 70


def test_use_beyond_the_reservation_is_debt_and_time_repays_it() -> None:
    bucket = Bucket(100, 10, now=0)
    mark = bucket.take(100, 0)
    bucket.settle(100, 150, mark, 0)
    assert bucket.level_at(0) == -50
    assert bucket.wait_s(1, 0) == pytest.approx(5.1, abs=1e-5)
    assert bucket.level_at(5) == 0


def test_what_the_clock_brought_back_a_late_return_does_not_bring_again() -> None:
    bucket = Bucket(1_000, 10, now=0)
    first = bucket.take(900, 0)
    bucket.take(1_000, 100)  # the bucket is full again: all of it
    bucket.settle(900, 10, first, 100)
    assert bucket.level_at(100) == pytest.approx(0, abs=1e-6)


def test_a_late_return_brings_what_the_clock_has_not() -> None:
    bucket = Bucket(1_000, 10, now=0)
    mark = bucket.take(900, 0)
    bucket.settle(900, 0, mark, 30)
    assert bucket.level_at(30) == pytest.approx(1_000)
    assert bucket.held == pytest.approx(0)


def test_nothing_is_eaten_while_a_busy_bucket_has_reserved_less_than_it_holds() -> None:
    bucket = Bucket(600, 10, now=0)
    bucket.settle(300, 300, bucket.take(300, 0), 0)
    mark = bucket.take(300, 0)
    bucket.settle(300, 50, mark, 30)
    assert bucket.level_at(30) == pytest.approx(300 + 250)


def test_a_return_without_a_mark_never_lifts_above_the_capacity() -> None:
    bucket = Bucket(100, 0, now=0)
    bucket.take(10, 0)
    bucket.give(50, 0)
    assert bucket.level_at(0) == 100


def test_a_lowered_capacity_takes_what_is_above_it_and_a_raised_one_fills_at_the_rate() -> None:
    bucket = Bucket(100, 10, now=0)
    bucket.change(40, 4, 0)
    assert bucket.level_at(0) == 40
    bucket.change(200, 20, 0)
    assert bucket.level_at(0) == 40
    assert bucket.level_at(1) == 60


def test_changed_limits_forgive_no_debt() -> None:
    bucket = Bucket(100, 10, now=0)
    bucket.settle(100, 150, bucket.take(100, 0), 0)
    bucket.change(500, 50, 0)
    assert bucket.level_at(0) == -50
    bucket.change(10, 1, 0)
    assert bucket.level_at(0) == -50


def test_what_is_held_gives_way_to_a_lowered_capacity() -> None:
    bucket = Bucket(100, 0, now=0)
    mark = bucket.take(100, 0)
    bucket.change(40, 0, 0)
    bucket.settle(100, 0, mark, 0)
    assert bucket.level_at(0) == pytest.approx(40)
