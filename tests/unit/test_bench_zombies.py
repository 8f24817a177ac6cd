"""The bench of the key detector: lives are what they are called, and nobody but the counter knows what."""

import argparse

import numpy as np
import pytest

from bench import zombies
from bench._zombie_life import Life, Trace, Truth
from bench._zombie_traces import HEALTHY, ZOMBIES, lives
from bench.zombies import Found, count, five_times, follow
from holdfast.model.units import HOUR, NEVER


def test_a_trace_says_nothing_of_what_it_is() -> None:
    names = {made.__name__ for made in (*HEALTHY, *ZOMBIES)} | {"leaked"}
    for trace, truth in lives(3):
        assert truth.kind in names
        for _, key in trace.keys:
            told = f"{key.id} {key.owner} {key.team} {key.note}"
            assert not any(name in told for name in names)
            assert not key.exempt


def test_a_life_is_in_order_and_within_its_time() -> None:
    for trace, truth in lives(4):
        assert np.all(np.diff(trace.walls) >= 0), truth.kind
        assert all(len(column) == len(trace.walls) for column in trace.columns)
        out, unread = trace.columns[3], trace.columns[4]
        assert np.all(unread <= out), truth.kind
        assert truth.zombie or truth.kind == "leaked" or truth.onset == 0


def test_the_same_seed_is_the_same_life() -> None:
    for (first, _), (again, _) in zip(lives(5), lives(5), strict=True):
        assert first.keys == again.keys
        assert np.array_equal(first.walls, again.walls)


def test_a_life_that_is_asked_for_alone_is_the_one_it_is_among_all() -> None:
    every = {truth.kind: trace for trace, truth in lives(6)}
    for kind in ("cron", "leaked", "hammer"):
        [(alone, truth)] = lives(6, {kind})
        assert truth.kind == kind
        assert np.array_equal(alone.walls, every[kind].walls)


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda made: str(made.__name__))
def test_no_healthy_life_is_clamped(healthy: object) -> None:
    assert callable(healthy)
    trace: Trace = healthy(Life(np.random.default_rng(77)))
    assert follow(trace).clamp_at == NEVER


def test_what_happens_before_the_onset_is_a_false_clamp() -> None:
    zombie, healthy = Truth("hammer", True, 10 * HOUR), Truth("cron", False)
    measured = count(
        [
            (zombie, Found(clamp_at=9 * HOUR), 0),
            (zombie, Found(clamp_at=12 * HOUR, tag_at=11 * HOUR), 500),
            (zombie, Found(), 0),
            (healthy, Found(clamp_at=1, why="so"), 0),
            (healthy, Found(), 0),
        ]
    )
    assert measured["false_clamps"] == 2
    assert measured["precision_pct"] == 33.3
    assert measured["recall_pct"] == 33.3
    assert measured["wrong"] == ["hammer: ", "cron: so"]
    assert measured["zombies"] == {
        "hammer": {
            "clamped_pct": 33.3,
            "tagged_pct": 33.3,
            "tag_min_p50": 60,
            "clamp_min_p50": 120,
            "clamp_min_max": 120,
            "tokens_p50": 500,
        }
    }


def test_five_times_the_usual_is_seen_by_the_rule_of_the_guides() -> None:
    at = np.arange(0, 100, 0.5)
    life = Life(np.random.default_rng(1))
    life.ask(at, few=1)
    steady = life.end(100)
    assert five_times(steady) == NEVER
    life.ask(np.full(100, 90.5), few=1)
    assert five_times(life.end(100)) - steady.walls[0] == 91 * HOUR


def test_the_cost_of_a_note_and_of_a_key_is_measured() -> None:
    measured = zombies.run(argparse.Namespace(seeds=0, first_seed=1, kinds=[]))
    assert measured["false_clamps"] == 0
    assert isinstance(measured["note_us"], float)
    assert isinstance(measured["bytes_a_key"], int)
    assert 1_000 < measured["bytes_a_key"] < 4_000
