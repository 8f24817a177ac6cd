"""What is remembered of an offer: what each event changes, and how it fades."""

import msgspec
import pytest

from holdfast.core.market.offer_history import (
    asked,
    came_up,
    chance_there,
    ended,
    faded,
    failed,
    listed,
    preempted,
    refused,
    weights,
)
from holdfast.model.market import HALF_LIFE_MS, PRICES_KEPT, OfferRecord, key_of
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND

NEW = OfferRecord(key_of("pool", "offer"))
START = 1_700_000_000_000


def polled(pattern: str, every_ms: int = 7 * HOUR) -> OfferRecord:
    record = NEW
    for number, letter in enumerate(pattern):
        record = listed(record, START + number * every_ms, letter == "1", 1_000_000)
    return record


def test_of_an_offer_never_seen_on_demand_is_expected_more_often_than_spot() -> None:
    assert chance_there(NEW, spot=True, now=START) == pytest.approx(0.5)
    assert 0.7 < chance_there(NEW, spot=False, now=START) < 0.8


def test_a_refusal_means_away_now_and_perhaps_back_later() -> None:
    record = refused(polled("1" * 10), START + 64 * HOUR)
    chances = [chance_there(record, False, record.at + wait) for wait in (0, MINUTE, HOUR, DAY)]
    assert chances[0] < 0.01
    assert chances == sorted(chances)
    assert chances[-1] > 0.3


def test_one_refusal_does_not_undo_a_long_record() -> None:
    long, short = polled("1" * 40), polled("1110" * 10)
    after = refused(long, long.at + MINUTE)
    back = listed(after, long.at + 7 * HOUR, there=True)
    again = listed(short, long.at + 7 * HOUR, there=True)
    day_later = long.at + DAY
    assert chance_there(back, False, day_later) > chance_there(again, False, day_later)


def test_back_off_doubles_up_to_its_limit_and_ends_when_a_node_comes_up() -> None:
    record, at, waits = NEW, START, []
    for _ in range(9):
        record = refused(record, at, backoff_ms=10 * SECOND, backoff_max_ms=10 * MINUTE, why="none left")
        waits.append(record.retry_at - at)
        at = record.retry_at
    assert waits[:3] == [10 * SECOND, 20 * SECOND, 40 * SECOND]
    assert waits[-1] == 10 * MINUTE
    assert (record.failures_in_a_row, record.why) == (9, "none left")
    record = came_up(record, at, 2 * MINUTE)
    assert (record.failures_in_a_row, record.retry_at, record.why) == (0, 0, "")


def test_a_list_that_shows_it_again_ends_the_back_off() -> None:
    record = refused(polled("11"), START + 8 * HOUR, backoff_ms=HOUR, backoff_max_ms=HOUR)
    assert listed(record, START + 8 * HOUR + MINUTE, there=True).retry_at == 0
    assert listed(record, START + 8 * HOUR + MINUTE, there=False).retry_at == record.retry_at


def test_a_failed_boot_says_nothing_about_whether_there_is_one() -> None:
    record = polled("11")
    after = failed(record, record.at + MINUTE, why="never joined")
    assert (after.seen_at, after.there) == (record.seen_at, True)
    assert after.log_weights == pytest.approx(record.log_weights, rel=1e-3)
    assert after.failed == pytest.approx(1)
    assert after.retry_at > after.at


def test_the_time_to_ready_is_a_mean_with_a_spread() -> None:
    record = NEW
    for number, took in enumerate((60_000, 120_000, 180_000)):
        record = came_up(record, START + number, took)
    assert record.ready_ms == pytest.approx(120_000, rel=1e-3)
    assert record.ready_var**0.5 == pytest.approx(49_000, rel=0.01)


def test_lives_that_we_end_ourselves_count_as_time_without_a_loss() -> None:
    record = preempted(ended(NEW, START, 5 * HOUR), START, 3 * HOUR)
    assert (record.losses, record.served_ms) == (1.0, 8 * HOUR)


def test_prices_are_kept_when_they_change_and_only_the_latest() -> None:
    record = NEW
    for number in range(20):
        record = listed(record, START + number * HOUR, True, 1_000_000 + number // 2)
    assert len(record.prices) == PRICES_KEPT
    assert record.prices[-1] == (START + 18 * HOUR, 1_000_009)


def test_a_price_list_tells_prices_and_no_more() -> None:
    record = listed(NEW, START, True, 7, proves=False)
    assert (record.seen_at, record.prices) == (0, ((START, 7),))
    assert listed(record, START + 1, False, proves=False) == faded(record, START + 1)


def test_everything_is_worth_half_after_a_half_life() -> None:
    record = preempted(
        came_up(refused(asked(polled("1101"), START + DAY), START + DAY), START + DAY, 9), START + DAY, 4
    )
    later = faded(record, record.at + HALF_LIFE_MS)
    for name in ("asked", "refused", "came_up", "hoped", "losses", "served_ms"):
        assert getattr(later, name) == pytest.approx(getattr(record, name) / 2)
    assert later.log_weights == pytest.approx([weight / 2 for weight in record.log_weights])


def test_after_years_nothing_is_left_but_the_prior() -> None:
    old = faded(polled("1" * 60), START + 4 * 365 * DAY)
    assert weights(old, spot=True) == pytest.approx(weights(NEW, spot=True), abs=1e-6)


def test_a_look_from_the_past_is_not_taken_for_the_present() -> None:
    record = polled("11")
    assert listed(record, START + HOUR, there=False).there
    assert not refused(record, record.seen_at).there  # in the same millisecond: what came last


def test_a_full_record_is_small_and_comes_back_the_same() -> None:
    record = NEW
    for number in range(300):
        record = listed(record, START + number * HOUR, number % 7 < 5, 1_000_000 + number)
    record = refused(
        asked(preempted(came_up(record, record.at, 99_999), record.at, 10**8), record.at),
        record.at,
        why="x" * 999,
    )
    body = msgspec.msgpack.encode(record)
    assert len(body) < 600
    assert msgspec.msgpack.decode(body, type=OfferRecord) == record
