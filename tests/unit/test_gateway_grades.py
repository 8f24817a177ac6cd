"""How far may we go with a key: a table of cases, and how long each must last."""

from itertools import pairwise

import pytest

from holdfast.core.gateway.key_audit.enforcement import (
    CALM_MS,
    Case,
    Course,
    case,
    restore,
    score,
    step,
)
from holdfast.core.gateway.key_audit.indicators import Family, Reason
from holdfast.model.gateway import Grade
from holdfast.model.units import DAY, HOUR, MINUTE, Instant


def reason(name: str, family: Family, weight: float) -> Reason:
    return Reason(name, family, weight, name)


GONE = reason("owner_gone", Family.CERTAIN, 1.0)
UNREAD = reason("unread", Family.WASTE, 0.7)
LONG = reason("unread_long", Family.WASTE, 0.5)
REFUSED = reason("refused", Family.WASTE, 0.7)
EAGER = reason("no_back_off", Family.SAMENESS, 0.5)
REPEATS = reason("repeats", Family.SAMENESS, 0.5)
CUT = reason("always_cut", Family.SAMENESS, 0.45)
REGULAR = reason("regular", Family.SAMENESS, 0.3)
FLAT = reason("flat", Family.SAMENESS, 0.3)
CHANGED = reason("changed", Family.CONTEXT, 0.0)
WOKEN = reason("woken", Family.CONTEXT, 0.5)
DRAIN = reason("drain", Family.DRAIN, 0.4)


def last(reasons: list[Reason], hours: float, felt: bool = True) -> Grade:
    course, wall = Course(), 0
    grade = step(course, reasons, felt, wall)
    while wall < hours * HOUR:
        wall += 10 * MINUTE
        grade = step(course, reasons, felt, wall)
    return grade


@pytest.mark.parametrize(
    ("reasons", "rests_on"),
    [
        ([], Case.NONE),
        ([GONE], Case.CERTAIN),
        ([UNREAD], Case.NONE),
        ([UNREAD, DRAIN], Case.NONE),
        ([UNREAD, REGULAR, FLAT], Case.NONE),
        ([UNREAD, REPEATS], Case.NONE),
        ([UNREAD, REPEATS, CHANGED], Case.WASTE),
        ([UNREAD, LONG], Case.WASTE),
        ([REFUSED, EAGER], Case.WASTE),
        ([WOKEN, REPEATS], Case.NONE),
        ([WOKEN, REPEATS, REGULAR], Case.WOKEN),
        ([REPEATS, CUT, REGULAR, CHANGED], Case.NONE),
        ([REPEATS, CUT, FLAT], Case.NONE),
        ([REPEATS, CUT, FLAT, CHANGED], Case.SAMENESS),
        ([DRAIN], Case.NONE),
    ],
)
def test_what_a_clamp_would_rest_on(reasons: list[Reason], rests_on: Case) -> None:
    assert case(reasons) is rests_on


@pytest.mark.parametrize(
    ("reasons", "before_h", "after_h"),
    [
        ([GONE], 0.5, 1),
        ([UNREAD, REPEATS, CHANGED], 0.5, 1),
        ([UNREAD, LONG], 0.5, 1),
        ([REFUSED, EAGER], 0.5, 1),
        ([WOKEN, REPEATS, REGULAR], 23, 24),
        ([REPEATS, CUT, FLAT, CHANGED], 47, 48),
    ],
)
def test_each_case_must_last_before_a_clamp(reasons: list[Reason], before_h: float, after_h: float) -> None:
    assert last(reasons, before_h) is not Grade.CLAMP
    assert last(reasons, after_h) is Grade.CLAMP


@pytest.mark.parametrize(
    ("reasons", "most"),
    [
        ([DRAIN], Grade.OBSERVE),
        ([FLAT, DRAIN], Grade.OBSERVE),
        ([UNREAD], Grade.TAG),
        ([UNREAD, DRAIN], Grade.TAG),
        ([REPEATS, REGULAR, FLAT, DRAIN, CHANGED], Grade.TAG),
        ([REPEATS, CUT, REGULAR, FLAT, DRAIN], Grade.OBSERVE),
        ([REPEATS, CUT, FLAT, CHANGED], Grade.CLAMP),
        ([UNREAD, LONG, REPEATS], Grade.SUSPEND),
        ([REFUSED, EAGER, REPEATS, REGULAR], Grade.CLAMP),
        ([GONE], Grade.SUSPEND),
    ],
)
def test_how_far_each_case_ever_goes(reasons: list[Reason], most: Grade) -> None:
    assert last(reasons, 24 * 30) is most


def test_what_would_not_be_felt_is_not_clamped_for_its_habits_but_for_waste_it_is() -> None:
    assert last([REPEATS, CUT, FLAT, CHANGED], 24 * 30, felt=False) is Grade.TAG
    assert last([WOKEN, REPEATS, REGULAR], 24 * 30, felt=False) is Grade.TAG
    assert last([UNREAD, LONG], 2, felt=False) is Grade.CLAMP


def test_reasons_join_as_chances_that_are_apart() -> None:
    assert score([UNREAD, REPEATS]) == pytest.approx(0.85)
    assert score([]) == 0.0
    assert score([GONE, DRAIN]) == 1.0


def test_a_case_that_was_interrupted_counts_from_its_return() -> None:
    course = Course()
    case_ = [WOKEN, REPEATS, REGULAR]
    for hour in range(23):
        step(course, case_, True, hour * HOUR)
    step(course, [WOKEN], True, 23 * HOUR)
    assert step(course, case_, True, 24 * HOUR) is not Grade.CLAMP
    assert step(course, case_, True, 47 * HOUR) is not Grade.CLAMP
    assert step(course, case_, True, 48 * HOUR) is Grade.CLAMP


def test_it_comes_down_one_step_at_a_time_and_only_after_a_calm() -> None:
    course, wall = Course(), 0
    for wall in (0, HOUR):
        step(course, [UNREAD, LONG], True, wall)
    assert course.grade is Grade.CLAMP
    seen: list[tuple[Instant, Grade]] = []
    for _ in range(30):
        wall += HOUR
        seen.append((wall, step(course, [], True, wall)))
    changes = [grade for (_, before), (_, grade) in pairwise(seen) if grade is not before]
    assert changes == [Grade.TAG, Grade.OBSERVE, Grade.FINE]
    assert next(at for at, grade in seen if grade is Grade.TAG) == 2 * HOUR + CALM_MS


def test_a_score_on_the_edge_does_not_flap() -> None:
    course = Course()
    grades = set()
    for hour in range(200):
        reasons = [UNREAD, LONG] if hour % 8 < 2 or hour < 10 else [UNREAD]
        grade = step(course, reasons, True, hour * HOUR)
        if hour > 10:
            grades.add(grade)
    assert grades == {Grade.CLAMP}


def test_a_suspended_key_stays_so_until_a_person_restores_it() -> None:
    course = Course()
    for hour in range(24 * 9):
        step(course, [GONE], True, hour * HOUR)
    assert course.grade is Grade.SUSPEND
    assert step(course, [], True, 60 * DAY) is Grade.SUSPEND
    restore(course, 61 * DAY)
    assert step(course, [], True, 61 * DAY) is Grade.FINE


def test_refusals_keep_a_clamped_key_where_it_is() -> None:
    course = Course()
    for hour in range(24 * 30):
        grade = step(course, [REFUSED, EAGER, REPEATS, REGULAR], True, hour * HOUR)
        assert hour < 2 or grade is Grade.CLAMP


def test_asking_twice_changes_nothing() -> None:
    course = Course()
    for minute in range(0, 600, 10):
        first = step(course, [UNREAD, LONG], True, minute * MINUTE)
        assert step(course, [UNREAD, LONG], True, minute * MINUTE) is first
