"""Whatever is read, in whatever order: the bounds hold, doubt takes nothing away, and nothing flaps."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.scaling.forecast import Summary, Tracker
from holdfast.core.scaling.replica_count import (
    Standing,
    Wishes,
    ceiling,
    floor,
    ours,
    target_tracking,
)
from holdfast.model.scale import Scale, Signal, Window
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND

START = 100 * DAY
STEP = 15 * SECOND

readings = st.lists(
    st.tuples(
        st.integers(-2 * HOUR, 2 * HOUR),
        st.one_of(
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(0, 500),
            st.sampled_from([0.0, 1.0, 1e6, 1e300, -5.0]),
        ),
    ),
    max_size=30,
)
standings = st.builds(
    Standing,
    ready=st.integers(0, 300),
    coming=st.integers(0, 50),
    lead_ms=st.integers(0, 3 * HOUR),
    pending=st.integers(0, 1000),
    oldest_wait_ms=st.integers(0, HOUR),
    added_lately=st.integers(0, 20),
    removed_lately=st.integers(0, 20),
)
scheduled = st.builds(
    Window,
    days=st.lists(st.integers(0, 6), max_size=7).map(tuple),
    start_minute=st.integers(0, 1439),
    end_minute=st.integers(0, 1439),
    replicas=st.integers(0, 60),
)


@st.composite
def scales(draw: st.DrawFn) -> Scale:
    least = draw(st.integers(0, 40))
    some = st.one_of(st.just(0), st.integers(1, 50))
    waits = draw(st.one_of(st.none(), st.integers(1, MINUTE)))
    return Scale(
        min=least,
        max=least + draw(st.integers(0, 200)),
        per_replica={Signal.OLDEST_WAIT: float(waits)} if waits else {},
        confidence=draw(st.floats(0.5, 0.999)),
        fallback=draw(some),
        idle_ms=draw(st.integers(0, HOUR)),
        up_per_minute=draw(some),
        down_per_minute=draw(some),
        schedule=tuple(draw(st.lists(scheduled, max_size=2))),
    )


def fed(given_: list[tuple[int, float]]) -> tuple[Tracker, int]:
    tracker, now = Tracker(), START
    for gap, demand in given_:
        now += gap
        tracker.see(now, demand)
    return tracker, now


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scales(), standings, readings, st.one_of(st.none(), st.integers(0, 300)))
def test_the_bounds_always_hold(
    scale: Scale, at: Standing, read: list[tuple[int, float]], most: int | None
) -> None:
    tracker, now = fed(read)
    for size in (
        ours(scale, at, tracker, Wishes(), now, most),
        target_tracking(scale, at, tracker, Wishes(), now, most),
    ):
        high = ceiling(scale, most)
        assert min(floor(scale, now), high) <= size.wanted <= high
        assert size.why


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scales(), standings, readings, st.integers(1, DAY))
def test_a_missing_or_old_signal_never_takes_a_replica_away(
    scale: Scale, at: Standing, read: list[tuple[int, float]], later: int
) -> None:
    tracker, now = fed(read)
    now = max(now, tracker.at or now) + scale.stale_ms + later
    for size in (ours(scale, at, tracker, Wishes(), now), target_tracking(scale, at, tracker, Wishes(), now)):
        assert size.wanted >= min(at.have, ceiling(scale))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([math.nan, -1.0, math.inf]), st.integers(1, 100), standings)
def test_what_is_no_number_never_takes_a_replica_away(demand: float, count: int, at: Standing) -> None:
    tracker = Tracker()
    for number in range(count):
        tracker.see(START + number * STEP, demand)
    assert (
        ours(Scale(max=1000, confidence=0.95), at, tracker, Wishes(), START + count * STEP).wanted >= at.have
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scales(), readings, st.integers(1, 1000))
def test_whoever_waits_at_zero_wakes_it(scale: Scale, read: list[tuple[int, float]], pending: int) -> None:
    tracker, now = fed(read)
    at = Standing(ready=0, pending=pending)
    assert ours(scale, at, tracker, Wishes(), now).wanted >= min(1, ceiling(scale))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scales(), standings, readings, st.integers(0, 30))
def test_a_higher_least_never_wants_fewer(
    scale: Scale, at: Standing, read: list[tuple[int, float]], more: int
) -> None:
    tracker, now = fed(read)
    higher = msgspec.structs.replace(scale, min=min(scale.max, scale.min + more))
    assert ours(higher, at, tracker, Wishes(), now).wanted >= ours(scale, at, tracker, Wishes(), now).wanted


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(readings, st.integers(1, 3 * HOUR), st.floats(0.5, 0.999))
def test_a_forecast_is_a_number_not_below_the_present_and_survives_a_restart(
    read: list[tuple[int, float]], ahead: int, confidence: float
) -> None:
    tracker, now = fed(read)
    now = max(now, tracker.at or now)
    peak = tracker.forecast(now, ahead, confidence).peak
    assert math.isfinite(peak)
    assert peak >= tracker.demand
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(tracker.summary()), type=Summary)
    again = Tracker.restore(kept).forecast(now, ahead, confidence).peak
    assert math.isfinite(again)
    assert again >= tracker.demand * (1 - 1e-9)


def reversals_a_day(demand: Callable[[int], float], lead_ms: int, hours: int, after: int = 6) -> float:
    """Changes of direction, after some hours to learn, in a loop where orders arrive after the lead time."""
    tracker, scale, wishes = Tracker(), Scale(max=1000, confidence=0.95), Wishes()
    have, turns, way = 20, 0, 0
    for number in range(hours * HOUR // STEP):
        now = START + number * STEP
        tracker.see(now, demand(number))
        wanted = ours(scale, Standing(have, lead_ms=lead_ms), tracker, wishes, now).wanted
        if wanted != have and number * STEP >= after * HOUR:
            turns += way != 0 and (wanted > have) != (way > 0)
            way = wanted - have
        have = wanted
    return turns * 24 / (hours - after)


DRAWN = np.random.default_rng(7).normal(0, 1, 40 * HOUR // STEP)


@pytest.mark.parametrize("lead_ms", [MINUTE, 10 * MINUTE])
@pytest.mark.parametrize(
    ("shape", "most", "hours"),  # of which the first do not count
    [
        (lambda n: 20.0, 1, 12),
        (lambda n: 20.0 * math.exp(0.05 * DRAWN[n]), 6, 30),
        (lambda n: 20.0 * math.exp(0.25 * DRAWN[n]), 12, 30),
        (lambda n: 20.0 + 10.0 * math.sin(2 * math.pi * n * STEP / DAY), 6, 30),
        (lambda n: 10.0 if n * STEP < 10 * HOUR else 30.0, 6, 18),
    ],
    ids=["constant", "noise of 5 %", "noise of 25 %", "a day's wave", "a step"],
)
def test_it_does_not_flap(shape: Callable[[int], float], most: float, hours: int, lead_ms: int) -> None:
    assert reversals_a_day(shape, lead_ms, hours) <= most
