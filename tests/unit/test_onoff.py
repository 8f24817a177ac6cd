"""What comes and goes: what is believed of it after it was watched."""

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.reliability.onoff import Belief, Grid


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
