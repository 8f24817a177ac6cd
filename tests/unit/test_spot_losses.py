"""What follows a loss, and how fast a promise is used up."""

import math

from holdfast.model.units import HOUR, MINUTE
from holdfast.reliability.losses import AFTER_LOSS_MS, Losses


def test_before_anything_was_seen_the_promise_is_just_kept() -> None:
    assert math.isclose(Losses().burn(0.01), 1.0)
    assert Losses().follows == 0.5
    assert Losses().alone_per_hour == 0


def test_a_week_without_a_gap_leaves_half_of_the_promise() -> None:
    losses = watched(hours=168, short_every=0)
    assert losses.burn(0.01) < 0.5


def test_a_service_short_twice_as_long_as_allowed_burns_faster_than_it_may() -> None:
    assert watched(hours=100, short_every=50).burn(0.01) > 1.2


def watched(hours: int, short_every: int) -> Losses:
    losses = Losses()
    for minute in range(1, hours * 60):
        losses.watch(minute * MINUTE, short=bool(short_every) and minute % short_every == 0)
    return losses


def test_losses_in_rows_are_learnt() -> None:
    rows, alone = Losses(), Losses()
    for number in range(1, 11):
        at = number * HOUR
        for losses in (rows, alone):
            losses.watch(at, short=False)
            losses.lose(at, "a", count=1, left=2)
        rows.lose(at + 5 * MINUTE, "a", count=2, left=0)
    rows.watch(12 * HOUR, short=False)
    alone.watch(12 * HOUR, short=False)
    assert rows.follows > 0.9
    assert alone.follows < 0.1


def test_a_zone_is_taking_for_some_minutes() -> None:
    losses = Losses()
    losses.lose(HOUR, "a", count=1, left=0)
    assert losses.is_taking(HOUR + AFTER_LOSS_MS - 1, "a")
    assert not losses.is_taking(HOUR + AFTER_LOSS_MS, "a")
    assert not losses.is_taking(HOUR, "b")


def test_old_losses_fade() -> None:
    losses = Losses()
    losses.watch(1, short=False)
    losses.lose(1, "a", count=1, left=0)
    rates = []
    for days in (1, 3, 9):
        losses.watch(days * 24 * HOUR, short=False)
        rates.append(losses.alone_per_hour)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 8
