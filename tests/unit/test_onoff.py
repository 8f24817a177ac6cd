"""What comes and goes: what is believed of it after it was watched."""

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.reliability.onoff import Belief


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
