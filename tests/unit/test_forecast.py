"""What is expected of demand, and what is not believed."""

import math

import msgspec
import numpy as np
import pytest

from holdfast.core.scaling.forecast import (
    DEMAND_MAX,
    WAYS,
    Summary,
    Tracker,
    way_name,
)
from holdfast.core.scaling.forecast_errors import Lead
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND

STEP = 15 * SECOND


def fed(demands: list[float], step: int = STEP, start: int = HOUR) -> Tracker:
    tracker = Tracker()
    for number, demand in enumerate(demands):
        tracker.see(start + number * step, demand)
    return tracker


def noisy(hours: float, spread: float, level: float = 20.0, seed: int = 1) -> list[float]:
    draw = np.random.default_rng(seed)
    return [float(x) for x in level * np.exp(draw.normal(0, spread, int(hours * HOUR / STEP)))]


def ahead(tracker: Tracker, lead: int, confidence: float = 0.95) -> float:
    assert tracker.at is not None
    return tracker.forecast(tracker.at, lead, confidence).peak


def test_a_record_of_n_windows_does_not_speak_of_what_is_rarer_than_one_in_n_and_one() -> None:
    tracker = Tracker()
    assert tracker.reach_ms(2 / 3) == 0
    for number in range(4 * 60 + 1):
        tracker.see(HOUR + number * STEP, 10.0 + 0.01 * (number % 7))
    assert tracker.reach_ms(2 / 3) == 20 * MINUTE, "three windows of twenty minutes, and one of an hour"
    assert tracker.reach_ms(0.95) == 2 * MINUTE
    for number in range(4 * 60, 4 * 60 * 12):
        tracker.see(HOUR + number * STEP, 10.0 + 0.01 * (number % 7))
    assert 4 * HOUR < tracker.reach_ms(2 / 3) < 6 * HOUR, "half of what was seen"
    assert Tracker.restore(tracker.summary()).reach_ms(2 / 3) == tracker.reach_ms(2 / 3)


def test_nothing_seen_is_nothing_expected() -> None:
    assert Tracker().forecast(HOUR, MINUTE, 0.95).peak == 0.0
    assert Tracker().chance(MINUTE, 5.0, 0.95) == 0.0


def test_a_young_record_is_careful_and_an_old_one_of_a_calm_load_is_not() -> None:
    young, old = fed([20.0] * 4), fed(noisy(6, 0.01))
    assert ahead(young, 5 * MINUTE) > 1.5 * 20
    assert 20 < ahead(old, 5 * MINUTE) < 1.1 * 20


def test_what_is_asked_for_with_a_probability_is_kept_about_so_often() -> None:
    tracker, kept, asked = Tracker(), 0, 0
    demands = noisy(48, 0.2)
    for number, demand in enumerate(demands[:-20]):
        tracker.see(HOUR + number * STEP, demand)
        if number > len(demands) // 2:
            asked += 1
            kept += ahead(tracker, 5 * MINUTE, 0.9) >= max(demands[number + 1 : number + 21])
    assert 0.85 < kept / asked < 0.97


def test_a_steady_rise_is_foreseen() -> None:
    tracker = fed([20.0 + number * 0.05 for number in range(960)])  # 12 replicas an hour
    in_ten_minutes = tracker.demand + 2.0
    assert in_ten_minutes - 0.5 < ahead(tracker, 10 * MINUTE) < in_ten_minutes * 1.15


def test_a_daily_rise_is_foreseen_from_the_days_before() -> None:
    """Flat at night, then within half an hour four times as much, every day."""

    def demand(minute: int) -> float:
        of_day = minute % 1440
        return 10.0 + 30.0 * min(1.0, max(0.0, (of_day - 480) / 30)) * (of_day < 1200)

    at_night, before_the_rise = 6 * 1440 + 240, 6 * 1440 + 475
    tracker = fed([demand(minute) for minute in range(at_night)], step=MINUTE, start=0)
    assert ahead(tracker, HOUR, 2 / 3) < 15
    for minute in range(at_night, before_the_rise):
        tracker.see(minute * MINUTE, demand(minute))
    assert ahead(tracker, HOUR, 2 / 3) > 25


def test_a_restless_load_is_guessed_higher_than_a_calm_one() -> None:
    assert ahead(fed(noisy(12, 0.3)), 5 * MINUTE) > 1.3 * ahead(fed(noisy(12, 0.02)), 5 * MINUTE)


def test_a_burst_in_a_young_record_is_not_multiplied() -> None:
    tracker = fed([0.0] * 20 + [1.0] + [0.0] * 20 + [100.0])
    for lead in (MINUTE, 10 * MINUTE, HOUR):
        assert ahead(tracker, lead, 0.98) < 400


@pytest.mark.parametrize(
    "demand", [math.nan, math.inf, -math.inf, -1.0, -1e-9, DEMAND_MAX * 2], ids=lambda demand: str(demand)
)
def test_an_impossible_reading_is_refused_and_changes_nothing(demand: float) -> None:
    tracker = fed(noisy(1, 0.1))
    before = tracker.summary()
    assert not tracker.see(10 * HOUR, demand)
    assert tracker.summary() == before


def test_a_reading_from_before_is_refused_until_the_clock_was_put_back() -> None:
    tracker = fed([20.0] * 10)
    assert not tracker.see(HOUR, 5.0)
    assert not tracker.see(HOUR + SECOND, 5.0)
    assert tracker.see(HOUR + 2 * SECOND, 5.0)
    assert tracker.demand == 5.0


def test_a_hundredfold_jump_is_taken_when_it_is_confirmed() -> None:
    tracker = fed([2.0] * 10)
    assert not tracker.see(2 * HOUR, 5000.0)
    assert tracker.demand == 2.0
    assert tracker.see(2 * HOUR + STEP, 5100.0)
    assert tracker.demand == 5100.0


def test_one_absurd_reading_does_not_stay_in_doubt_for_ever() -> None:
    tracker = fed([2.0] * 10)
    assert not tracker.see(2 * HOUR, 5000.0)
    assert tracker.see(2 * HOUR + STEP, 2.0)
    assert not tracker.see(2 * HOUR + 2 * STEP, 5000.0)


def test_a_signal_that_always_moved_and_stands_still_is_stuck() -> None:
    tracker = fed(noisy(1, 0.1))
    assert not tracker.is_stuck()
    for number in range(40):
        tracker.see(3 * HOUR + number * STEP, 17.0)
    assert tracker.is_stuck()
    tracker.see(4 * HOUR, 18.0)
    assert not tracker.is_stuck()


def test_a_signal_that_often_repeats_itself_is_not_stuck_and_neither_is_an_idle_one() -> None:
    steps = fed([float(3 + (number // 40) % 2) for number in range(2000)])
    for number in range(60):
        steps.see(20 * HOUR + number * STEP, 3.0)
    assert not steps.is_stuck()
    assert not fed(noisy(1, 0.1) + [0.0] * 200).is_stuck()


def test_idle_time_counts_from_the_last_demand() -> None:
    tracker = fed([1.0, 2.0, 0.0, 0.0, 0.0])
    assert tracker.idle_ms(HOUR + 4 * STEP) == 3 * STEP
    assert fed([1.0]).idle_ms(HOUR) == 0
    assert fed([0.0, 0.0]).idle_ms(HOUR + STEP) == STEP  # never busy: since it is known


def test_the_age_of_the_last_reading_counts_as_time_ahead() -> None:
    tracker = fed(noisy(12, 0.2))
    assert tracker.at is not None
    late = tracker.forecast(tracker.at + 4 * MINUTE, MINUTE, 0.95).peak
    assert late == pytest.approx(ahead(tracker, 5 * MINUTE))


def test_a_peak_between_two_leads_lies_between_theirs() -> None:
    tracker = fed(noisy(12, 0.1))
    low, middle, high = (ahead(tracker, minutes * MINUTE) for minutes in (5, 7, 10))
    assert min(low, high) <= middle <= max(low, high)
    assert ahead(tracker, 4 * HOUR) >= ahead(tracker, HOUR)


def test_more_capacity_is_enough_with_a_higher_chance() -> None:
    tracker = fed(noisy(12, 0.2))
    chances = [tracker.chance(5 * MINUTE, capacity, 0.95) for capacity in (1.0, 25.0, 30.0, 40.0, 200.0)]
    assert chances == sorted(chances)
    assert chances[0] == 0.0
    assert chances[-1] > 0.99


def test_a_summary_is_small_and_a_new_leader_goes_on_from_it() -> None:
    tracker = fed(noisy(30, 0.15))
    packed = msgspec.msgpack.encode(tracker.summary())
    assert len(packed) < 32_000
    again = Tracker.restore(msgspec.msgpack.decode(packed, type=Summary))
    for lead in (MINUTE, 5 * MINUTE, HOUR):
        assert ahead(again, lead) == pytest.approx(ahead(tracker, lead), rel=0.1)
    assert again.see(DAY * 3, 21.0)


def test_an_empty_or_foreign_summary_starts_anew() -> None:
    assert Tracker.restore(Tracker().summary()).at is None
    summary = fed([5.0] * 50).summary()
    foreign = msgspec.structs.replace(summary, week=b"xx", means=(1.0,), leads=())
    tracker = Tracker.restore(foreign)
    assert tracker.see(2 * HOUR, 6.0)
    assert ahead(tracker, MINUTE) >= 6.0


def test_a_hole_in_the_readings_is_not_taken_for_calm() -> None:
    lead = Lead(MINUTE, 2)
    lead.begin(0, np.array([1.0, 0.0]), 1.0)
    lead.forget_open()
    lead.hear(10 * HOUR, 5.0)
    assert lead.windows == 0.0


def test_every_guess_has_words_of_its_own() -> None:
    assert len({way_name(way) for way in range(WAYS)}) == WAYS
