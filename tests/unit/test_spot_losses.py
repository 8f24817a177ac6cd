"""What follows a loss, and how fast a promise is used up."""

import math

import pytest

from holdfast.model.market import Losses
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.reliability.losses import (
    AFTER_LOSS_MS,
    AT_ONCE_MS,
    alone_per_hour,
    as_of,
    burn,
    follows,
    lost,
    told,
)


def test_before_anything_was_seen_the_promise_is_just_kept() -> None:
    assert math.isclose(burn(Losses(), 0.01), 1.0)
    assert follows(Losses()) == 0.5
    assert alone_per_hour(Losses()) == 0


def test_a_week_without_a_gap_leaves_half_of_the_promise() -> None:
    assert burn(watched(hours=168, short_every=0), 0.01) < 0.5


def test_a_service_short_twice_as_long_as_allowed_burns_faster_than_it_may() -> None:
    assert burn(watched(hours=100, short_every=50), 0.01) > 1.2


def watched(hours: int, short_every: int) -> Losses:
    losses = Losses()
    for minute in range(1, hours * 60):
        short = bool(short_every) and minute % short_every == 0
        losses = told(losses, minute * MINUTE, short=short)
    return losses


def test_whoever_is_told_of_changes_only_knows_the_same_as_whoever_looks_every_second() -> None:
    often, seldom = Losses(), Losses()
    for second in range(1, 6 * 3600):
        often = told(often, second * SECOND, short=3600 <= second < 5400)
    for second, short in ((1, False), (3600, True), (5400, False)):
        seldom = told(seldom, second * SECOND, short=short)
    seldom = as_of(seldom, (6 * 3600 - 1) * SECOND)
    assert math.isclose(often.short_ms, seldom.short_ms, rel_tol=1e-9)
    assert math.isclose(often.watched_ms, seldom.watched_ms, rel_tol=1e-9)


def test_losses_in_rows_are_learnt() -> None:
    rows, alone = Losses(), Losses()
    for number in range(1, 11):
        at = number * HOUR
        rows, alone = lost(rows, at, "a", left=2), lost(alone, at, "a", left=2)
        rows = lost(rows, at + 5 * MINUTE, "a", left=0, count=2)
    assert follows(as_of(rows, 12 * HOUR)) > 0.9
    assert follows(as_of(alone, 12 * HOUR)) < 0.1


def test_what_follows_too_late_was_no_row() -> None:
    losses = lost(lost(Losses(), HOUR, "a", left=1), HOUR + AFTER_LOSS_MS, "a", left=0)
    assert follows(losses) == 1 / 3


@pytest.mark.parametrize(("apart", "in_a_row"), [(0, False), (AT_ONCE_MS, False), (AT_ONCE_MS + 1, True)])
def test_nodes_that_go_at_once_are_one_loss(apart: int, in_a_row: bool) -> None:
    losses = lost(lost(Losses(), HOUR, "a", left=2), HOUR + apart, "a", left=1)
    assert (losses.cases, losses.followed) == ((3, 2) if in_a_row else (2, 1))
    assert losses.open == {"a": HOUR + apart if in_a_row else HOUR}
    assert round(losses.alone) == (2 if in_a_row else 0)


def test_losses_told_one_by_one_are_the_same_as_told_together() -> None:
    one_by_one = lost(lost(lost(Losses(), HOUR, "a", left=2), HOUR, "a", left=1), HOUR, "a", left=0)
    assert one_by_one == lost(Losses(), HOUR, "a", left=0, count=3)


def test_old_losses_fade() -> None:
    losses = lost(Losses(), 1, "a", left=0)
    rates = [alone_per_hour(as_of(losses, days * 24 * HOUR)) for days in (1, 3, 9)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 8


def test_time_that_goes_back_changes_nothing() -> None:
    losses = told(Losses(), 2 * HOUR, short=True)
    assert as_of(losses, HOUR) == losses
