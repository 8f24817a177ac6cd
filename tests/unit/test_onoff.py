"""What comes and goes: what is believed of it after it was watched."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.reliability.onoff import SPOT_GRID, Belief, Beliefs, Grid, Zones


def watched(*looks: tuple[float, bool]) -> Belief:
    belief = Belief()
    for at, there in looks:
        belief.see(at, there)
    return belief


def every_ten_minutes(pattern: str) -> Belief:
    return watched(*((number / 6, letter == "1") for number, letter in enumerate(pattern)))


def test_what_has_lasted_is_expected_to_last() -> None:
    hours = [every_ten_minutes("1" * 6 * hours).stays_hours(100) for hours in (1, 6, 24)]
    assert hours == sorted(hours)
    assert hours[-1] > 1.5 * hours[0]


def test_what_comes_and_goes_all_the_time_is_not_expected_to_last() -> None:
    assert every_ten_minutes("1110" * 20).stays_hours(100) < 1.5
    assert every_ten_minutes("1" * 80).stays_hours(100) > 10


def test_a_look_says_less_the_longer_it_is_ago() -> None:
    belief = every_ten_minutes("111000" * 6 + "1")
    chances = [belief.chance_there(6 + hours) for hours in (0.01, 0.5, 50)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.9
    assert 0.3 < chances[-1] < 0.7


def test_a_look_at_the_past_changes_nothing() -> None:
    belief = watched((0, True), (1, True))
    before = belief.weights().tolist()
    belief.see(0.5, there=False)
    belief.see(1, there=False)
    assert belief.weights().tolist() == before


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=60), st.floats(0, 400))
def test_whatever_was_seen_chances_are_chances(looks: list[tuple[float, bool]], at: float) -> None:
    belief = watched(*sorted(looks))
    assert math.isclose(belief.weights().sum(), 1)
    assert 0 <= belief.chance_there(max(at, belief.seen_at or 0)) <= 1 + 1e-9
    assert 0 < belief.stays_hours(24) <= 24


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=20), st.sampled_from([1, 5]))
def test_a_belief_that_was_written_down_goes_on_as_if_it_had_not_been(
    looks: list[tuple[float, bool]], pieces: int
) -> None:
    grid = Grid.of((1.0, 10.0, 100.0))
    whole, taken_up = Belief(grid, doubt=0.02), Belief(grid, doubt=0.02)
    for number, (at, there) in enumerate(sorted(looks)):
        if number % pieces == 0:
            kept = taken_up.log_weights, taken_up.seen_at, taken_up.there
            taken_up = Belief(grid, *kept, doubt=0.02)
        whole.see(at, there)
        taken_up.see(at, there)
    assert taken_up.weights().tolist() == whole.weights().tolist()
    assert taken_up.chance_there(300) == whole.chance_there(300)


def test_whoever_doubts_looks_learns_less_from_one() -> None:
    sure, doubtful = (Belief(doubt=doubt) for doubt in (1e-6, 0.2))
    for belief in (sure, doubtful):
        belief.see(0, there=True)
        belief.see(0.01, there=False)
    assert sure.stays_hours(100) < doubtful.stays_hours(100)


def watched_together(*patterns: str) -> Beliefs:
    beliefs, rows = Beliefs(len(patterns)), np.arange(len(patterns))
    for number, letters in enumerate(zip(*patterns, strict=True)):
        beliefs.see(number / 6, rows, np.array([letter == "1" for letter in letters]))
    return beliefs


def away_hours(beliefs: Beliefs) -> list[float]:
    found: list[float] = (
        beliefs.weights(np.arange(len(beliefs.weights(np.array([0]))))) @ SPOT_GRID.aways
    ).tolist()
    return found


def test_until_something_changes_many_are_believed_of_as_one_is() -> None:
    together = watched_together("1" * 30, "0" * 30)
    for row, pattern in enumerate(("1" * 30, "0" * 30)):
        alone = every_ten_minutes(pattern)
        assert together.weights(np.array([row]))[0] == pytest.approx(alone.weights())
        assert together.promises(7.0, np.array([row]), 4.0) == pytest.approx([alone.promises(7.0, 4.0)])


def test_a_long_gap_after_many_short_ones_is_soon_taken_for_a_long_one() -> None:
    habit = "1110" * 30
    gap = habit + "0" * 9  # an hour and a half
    assert away_hours(watched_together(habit + "1" * 9))[0] < 1
    assert away_hours(watched_together(gap))[0] > 3
    assert float(every_ten_minutes(gap).weights() @ SPOT_GRID.aways) < 1, (
        "one pair of means for ever does not see it"
    )


def test_what_is_drawn_anew_leaves_the_other_mean_as_it_was() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(20))
    by_pair = weights.reshape(SPOT_GRID.shape)
    stay, away = (
        each.reshape(SPOT_GRID.shape) for each in (SPOT_GRID.stay_anew(weights), SPOT_GRID.away_anew(weights))
    )
    assert stay.sum(axis=0) == pytest.approx(by_pair.sum(axis=0)), "the mean times away"
    assert away.sum(axis=1) == pytest.approx(by_pair.sum(axis=1)), "the mean stays"
    assert np.ptp(stay.sum(axis=1)) < np.ptp(by_pair.sum(axis=1))


def test_a_watcher_looks_where_most_is_promised_and_learns_nothing_from_others() -> None:
    zones, both = Zones(2, watchers=2), np.array([0, 1])
    for number in range(12):
        zones.see(number / 6, both, np.array([0, 1]), np.array([True, True]))
        zones.see(number / 6 + 0.01, both, np.array([1, 0]), np.array([False, False]))
    assert zones.look_at(2.1, both).tolist() == [0, 1]
