"""When a silence is news: against a node's own history, within bounds, and never for time we did not
listen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.health.heartbeats import CLASSES, Beats
from holdfast.model.policy import Detection
from holdfast.model.verdict import Silence

POLICY = Detection()
BEAT = POLICY.beat_ms


def hear(beats: Beats, name: str, at: int) -> None:
    beats.beat(np.array([beats.row[name]]), np.array([at]))


def after(gaps: list[int], name: str = "n") -> tuple[Beats, int]:
    """A table that has heard one node with these gaps, and the instant of its last beat."""
    beats, now = Beats(POLICY), 0
    beats.add(name, now)
    for gap in gaps:
        now += gap
        hear(beats, name, now)
    return beats, now


def grade(beats: Beats, now: int, name: str = "n") -> Silence:
    beats.changed(now)
    return beats.silence(name, now)[0]


@pytest.mark.parametrize(
    ("silent_ms", "says"),
    [
        (BEAT, Silence.FRESH),
        (2 * BEAT, Silence.FRESH),  # one lost beat is nothing
        (POLICY.late_min_ms - 1, Silence.FRESH),
        (POLICY.late_min_ms, Silence.LATE),
        (POLICY.silent_min_ms - 1, Silence.LATE),
        (POLICY.silent_min_ms, Silence.SILENT),
        (POLICY.alone_ms - 1, Silence.SILENT),
        (POLICY.alone_ms, Silence.LONG),
        (100 * POLICY.alone_ms, Silence.LONG),
    ],
)
def test_how_a_node_that_never_missed_a_beat_is_graded(silent_ms: int, says: Silence) -> None:
    beats, now = after([BEAT] * 30)
    assert grade(beats, now + silent_ms) is says


def test_a_node_behind_a_lossy_link_earns_patience() -> None:
    steady, now = after([BEAT] * 40)
    lossy, later = after([BEAT, BEAT, 3 * BEAT] * 13)
    assert grade(steady, now + 4 * BEAT - 1) is not Silence.FRESH
    assert grade(lossy, later + 4 * BEAT - 1) is Silence.FRESH


def test_patience_fades_when_the_link_is_good_again() -> None:
    one_gap, _ = after([6 * BEAT])
    recovered, _ = after([6 * BEAT] + [BEAT] * 3_000)
    assert recovered.silence("n", 0)[2] < one_gap.silence("n", 0)[2]


@given(st.lists(st.integers(1, 120_000), max_size=40))
def test_patience_stays_within_its_bounds(gaps: list[int]) -> None:
    beats, now = after(gaps)
    assert POLICY.late_min_ms <= beats.silence("n", now)[2] <= POLICY.late_max_ms


@given(
    st.lists(st.integers(1, 5_000), max_size=20),
    st.lists(st.integers(0, 4_000), min_size=1, max_size=20),
)
def test_grades_only_rise_while_a_node_is_silent_and_a_beat_resets_them(
    gaps: list[int], looks: list[int]
) -> None:
    beats, now = after(gaps)
    worst = 0
    for wait in looks:
        now += wait
        found = CLASSES.index(grade(beats, now))
        assert found >= worst
        worst = found
    hear(beats, "n", now + 1)
    assert grade(beats, now + 1) is Silence.FRESH


@given(st.lists(st.integers(0, 4_000), min_size=1, max_size=30))
def test_a_grade_never_changes_without_being_told(looks: list[int]) -> None:
    """`changed` names a node exactly when its grade is another than before."""
    beats, now = after([BEAT] * 5)
    before = beats.silence("n", now)[0]
    for wait in looks:
        now += wait
        told = "n" in beats.changed(now)
        found = beats.silence("n", now)[0]
        assert told == (found is not before)
        before = found


@given(
    st.lists(
        st.lists(st.integers(1, 12_000), min_size=5, max_size=5),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=50)
def test_many_beats_at_once_are_the_same_as_one_by_one(rounds: list[list[int]]) -> None:
    names = [f"n{number}" for number in range(5)]
    together, single = Beats(POLICY), Beats(POLICY)
    for name in names:
        together.add(name, 0)
        single.add(name, 0)
    at = [0] * 5
    for gaps in rounds:
        at = [was + gap for was, gap in zip(at, gaps, strict=True)]
        together.beat(np.array([together.row[name] for name in names]), np.array(at))
        for name, instant in zip(names, at, strict=True):
            hear(single, name, instant)
    for column in ("heard", "acked", "mean", "variance", "longest", "usual", "grade", "look_at"):
        assert getattr(together, column).tolist() == getattr(single, column).tolist(), column


def test_a_beat_that_was_overtaken_by_a_later_one_changes_nothing() -> None:
    beats, now = after([BEAT] * 5)
    hear(beats, "n", now - 300)
    assert beats.silence("n", now)[1] == 0
    assert beats.last_acked("n") == now


def test_time_we_did_not_listen_is_forgiven_but_not_more() -> None:
    beats, now = after([BEAT] * 10)
    beats.forgive(60_000, now + 60_500)
    assert beats.silence("n", now + 60_500)[:2] == (Silence.FRESH, 500)
    beats.forgive(60_000, now + 61_000)
    assert beats.silence("n", now + 61_000)[1] == 0, "nobody is heard in the future"


def test_the_forgiven_are_looked_at_again() -> None:
    beats, now = after([BEAT] * 10)
    assert beats.changed(now + 5_000) == ["n"]
    beats.forgive(5_000, now + 5_100)
    assert beats.changed(now + 5_100) == ["n"]
    assert beats.silence("n", now + 5_100)[0] is Silence.FRESH


def test_forgiveness_does_not_stretch_a_lease() -> None:
    beats, now = after([BEAT] * 10)
    beats.forgive(60_000, now + 60_500)
    assert beats.last_acked("n") == now


def test_nobody_is_listened_to_in_an_empty_table() -> None:
    beats = Beats(POLICY)
    beats.forgive(1_000, 5_000)
    assert beats.changed(10**9) == []
    assert beats.silence("stranger", 5) == (Silence.FRESH, 0, 0)
    assert beats.last_acked("stranger") == 0


def test_the_table_grows_and_keeps_what_it_knew() -> None:
    beats = Beats(POLICY)
    for number in range(200):
        beats.add(f"n{number}", number)
    assert len(set(beats.row.values())) == 200
    assert [beats.last_acked(f"n{number}") for number in range(200)] == list(range(200))
    assert beats.next_look() == POLICY.late_min_ms
    assert len(beats.changed(10 * POLICY.alone_ms)) == 200


def test_a_row_is_used_again_without_the_history_of_its_last_owner() -> None:
    beats, now = after([9_000] * 10, "old")
    beats.remove("old")
    fresh = Beats(POLICY)
    assert beats.add("new", now) == 0
    fresh.add("new", now)
    assert beats.silence("new", now) == fresh.silence("new", now)
    assert beats.changed(now + POLICY.late_min_ms) == ["new"]


def test_who_is_removed_is_not_heard_of_again() -> None:
    beats, now = after([BEAT] * 3)
    beats.changed(now + 5_000)
    hear(beats, "n", now + 5_001)
    beats.remove("n")
    beats.remove("n")
    assert beats.changed(now + 60_000) == []
    assert beats.fell_silent_since(0) == 0


def test_a_node_that_says_hello_again_is_fresh_and_keeps_its_history() -> None:
    beats, now = after([3 * BEAT] * 30)
    usual = beats.silence("n", now)[2]
    beats.changed(now + 60_000)
    beats.add("n", now + 60_000)
    assert beats.silence("n", now + 60_000) == (Silence.FRESH, 0, usual)


def test_only_the_newly_silent_count_as_falling_silent() -> None:
    beats = Beats(POLICY)
    for name, heard in (("long", 0), ("just", 50_000), ("well", 60_000)):
        beats.add(name, heard)
    beats.changed(60_000)
    assert beats.fell_silent_since(45_000) == 1
    assert beats.fell_silent_since(0) == 2
