"""Whatever keys do: counts are kept, space is constant, grades keep the rules, a restart changes nothing."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.gateway.key_audit.audit import Seen, Team, Watch
from holdfast.core.gateway.key_audit.enforcement import (
    RANK,
    Course,
    score,
    step,
)
from holdfast.core.gateway.key_audit.indicators import Family, Reason
from holdfast.model.gateway import Grade, Key, Limits
from holdfast.model.units import DAY, HOUR, MINUTE

BEGIN = 20_458 * DAY
HASHES = st.integers(0, 2**63)
TOKENS = st.integers(0, 10_000)


@st.composite
def requests(draw: st.DrawFn) -> Seen:
    out = draw(TOKENS)
    return Seen(
        draw(HASHES),
        draw(st.sampled_from((200, 400, 401, 403, 404, 408, 429, 499, 500, 503))),
        draw(TOKENS),
        draw(TOKENS),
        out,
        draw(st.integers(0, out)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(HASHES),
        draw(HASHES),
        draw(HASHES),
        draw(HASHES),
        draw(st.booleans()),
        draw(st.booleans()),
    )


GAPS = st.one_of(st.integers(0, HOUR), st.integers(0, 3 * DAY), st.integers(-2 * HOUR, 40 * DAY))
LIVES = st.lists(st.tuples(GAPS, requests()), min_size=1, max_size=40)
KEYS = st.builds(
    Key,
    id=st.just("k"),
    hash=st.just(b""),
    limits=st.builds(Limits, tokens_per_min=st.one_of(st.none(), st.integers(1, 100_000))),
    owner_gone_at=st.sampled_from((0, BEGIN + DAY)),
    replaced_at=st.sampled_from((0, BEGIN + HOUR)),
)
TEAMS = st.one_of(
    st.none(), st.builds(Team, st.lists(st.floats(0, 1e9), min_size=24, max_size=24).map(tuple))
)


def play(watch: Watch, life: list[tuple[int, Seen]], wall: int = BEGIN) -> int:
    for gap, seen in life:
        wall += gap
        watch.note("k", seen, wall / 1000, wall)
    return wall


@given(KEYS, TEAMS, LIVES)
def test_every_judgement_is_sane_and_says_why(
    key: Key, team: Team | None, life: list[tuple[int, Seen]]
) -> None:
    watch = Watch()
    wall = play(watch, life)
    said = watch.judge(key, team, wall / 1000, wall)
    assert 0.0 <= said.score <= 1.0
    assert said.shadow
    assert all(reason.text and 0.0 <= reason.weight <= 1.0 for reason in said.reasons)
    assert said.grade is Grade.FINE or said.reasons
    assert watch.judge(key, team, wall / 1000, wall) == said


@given(st.lists(st.tuples(st.integers(0, HOUR // 2), requests()), min_size=1, max_size=40))
def test_nothing_of_the_last_day_is_lost(life: list[tuple[int, Seen]]) -> None:
    watch = Watch()
    wall = play(watch, life)
    day = watch.habits["k"].last(24)
    edge = (wall // HOUR - 23) * HOUR
    at, kept = BEGIN, []
    for gap, seen in life:
        at += gap
        if at >= edge:
            kept.append(seen)
    answered = [seen for seen in kept if seen.completion_tokens or seen.status < 400]
    assert day.requests == len(kept)
    assert day.answered == len(answered)
    assert day.unread == sum(seen.undelivered_tokens for seen in answered)
    assert math.isclose(
        day.tokens, sum(s.prompt_tokens + s.completion_tokens for s in answered), rel_tol=1e-6
    )
    assert day.unread <= day.output
    assert day.again <= day.refused <= day.requests


@given(LIVES, LIVES)
def test_a_restart_changes_no_judgement(first: list[tuple[int, Seen]], then: list[tuple[int, Seen]]) -> None:
    key = Key("k", b"")
    stayed = Watch()
    wall = play(stayed, first)
    stayed.judge(key, None, wall / 1000, wall)
    back = Watch.load(stayed.save())
    assert back.save() == stayed.save()
    # Times between requests are those of one process: after a pause that is long for both, all is the same
    # (it may begin with a clock that steps back by two hours).
    wall += 5 * HOUR
    ends = [play(watch, then, wall) for watch in (stayed, back)]
    assert stayed.judge(key, None, 0.0, ends[0]) == back.judge(key, None, 0.0, ends[1])
    assert stayed.save() == back.save()


@given(LIVES)
@settings(max_examples=30)
def test_what_is_remembered_does_not_grow(life: list[tuple[int, Seen]]) -> None:
    watch = Watch()
    wall = play(watch, life)
    for _ in range(20):
        wall = play(watch, life, wall)
    assert len(watch.save()) < 4_000


REASONS = st.lists(
    st.builds(
        Reason,
        st.sampled_from(
            (
                "unread",
                "refused",
                "no_back_off",
                "repeats",
                "same_answers",
                "flat",
                "changed",
                "woken",
                "drain",
            )
        ),
        st.sampled_from((Family.WASTE, Family.SAMENESS, Family.CONTEXT, Family.DRAIN)),
        st.floats(0, 1),
        st.just("why"),
    ),
    max_size=6,
)


@given(st.lists(st.tuples(st.integers(0, 20 * HOUR), REASONS, st.booleans()), max_size=40))
def test_no_clamp_comes_at_once_and_no_suspension_before_a_week_of_clamp(
    steps: list[tuple[int, list[Reason], bool]],
) -> None:
    course, wall = Course(), BEGIN
    clamped_at = None
    for gap, reasons, felt in steps:
        wall += gap
        before = course.grade
        grade = step(course, reasons, felt, wall)
        if grade is Grade.CLAMP and before is not Grade.CLAMP:
            assert wall > BEGIN
            assert score([reason for reason in reasons if reason.family is not Family.DRAIN]) >= 0.8
            clamped_at = wall
        if grade is Grade.SUSPEND and before is not Grade.SUSPEND:
            assert clamped_at is not None
            assert wall - clamped_at >= 7 * DAY
        assert RANK.index(before) - RANK.index(grade) <= 1


@given(st.integers(1, 10**6), st.integers(0, 23), st.booleans())
@settings(max_examples=25, deadline=None)
def test_however_much_it_takes_drain_alone_never_tags(tokens: int, zone: int, office: bool) -> None:
    """People with new prompts, who take a hundred times as much one day."""
    watch, key = Watch(), Key("k", b"", limits=Limits(tokens_per_min=tokens))
    prompt, wall = 0, BEGIN + zone * HOUR
    for hour in range(24 * 7):
        more = 100 if hour > 24 * 6 else 1
        for n in range(4):
            prompt += 1
            wall = BEGIN + (zone + hour) * HOUR + (n * n + 1) * MINUTE
            if office and hour % 24 < 8:
                continue
            much = more * tokens
            seen = Seen(prompt * 7919, 200, 0, much, much, 0, False, False, 1, 2, 3)
            watch.note("k", seen, wall / 1000, wall)
        assert watch.judge(key, None, wall / 1000, wall).grade in (Grade.FINE, Grade.OBSERVE)
