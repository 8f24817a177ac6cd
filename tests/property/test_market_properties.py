"""What must hold whatever is remembered of offers, and whatever is asked of the market."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.market import offer_history
from holdfast.core.market.offers import outlook
from holdfast.core.market.rank import Ask, hedge, rank
from holdfast.model.market import OfferRecord, key_of
from holdfast.model.offer_table import Table
from holdfast.model.place import Level, Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import DAY, HOUR, MINUTE

quick = settings(deadline=None, max_examples=80)  # a busy machine is not a failure

NOW = 1_700_000_000_000
Fold = Callable[[OfferRecord], OfferRecord]

AT = st.one_of(
    st.integers(NOW - 60 * DAY, NOW), st.integers(-(10**15), 10**15), st.sampled_from([0, 1, NOW, NOW + 1])
)
SPAN = st.one_of(st.integers(0, 30 * DAY), st.integers(-(10**12), 10**15))


@st.composite
def folds(draw: st.DrawFn) -> Fold:
    at, span, name = draw(AT), draw(SPAN), draw(st.integers(0, 6))
    there, price = draw(st.booleans()), draw(st.integers(-5, 10**9))
    table: list[Fold] = [
        lambda r: offer_history.asked(r, at),
        lambda r: offer_history.refused(r, at, why="none"),
        lambda r: offer_history.failed(r, at),
        lambda r: offer_history.came_up(r, at, span),
        lambda r: offer_history.preempted(r, at, span),
        lambda r: offer_history.ended(r, at, span),
        lambda r: offer_history.listed(r, at, there, price),
    ]
    return table[name]


def record_of(name: str, lived: list[Fold]) -> OfferRecord:
    record = OfferRecord(key_of("pool", name))
    for fold in lived:
        record = fold(record)
    return record


def table_of(
    records: list[OfferRecord], prices: list[int], spot: list[bool], zones: list[int] | None = None
) -> Table:
    table = Table(2)
    for number, record in enumerate(records):
        zone = str(zones[number] if zones else number)
        name = record.key.removeprefix("pool/")
        capacity = Resources(8000, 65_536, GPU, "h100")
        offer = Offer(name, Place("p", "r", zone), capacity, prices[number], spot[number])
        table.put(Pool("pool", "x", (offer,)), offer, record)
    return table


LIVES = st.lists(folds(), max_size=12)
ASKS = st.builds(
    Ask,
    wanted_ms=st.integers(-5, 400 * DAY),
    loss_ms=st.integers(0, 10 * HOUR),
    wait_micro_usd=st.sampled_from([0, 1000, 1_000_000]),
    price_max_micro_usd=st.integers(0, 5_000_000),
    spot=st.booleans(),
    delisting_is_loss=st.booleans(),
    spread_over=st.sampled_from(list(Level)),
    company=st.lists(st.tuples(st.sampled_from(["p", "p/r/0", "p/r/1", "x"]), st.integers(0, 5))).map(tuple),
    company_ms=st.integers(0, 10 * HOUR),
)


@quick
@given(LIVES)
def test_no_history_however_odd_breaks_a_record(lived: list[Fold]) -> None:
    record = record_of("a", lived)
    sums = (record.asked, record.refused, record.failed, record.came_up, record.hoped)
    assert all(math.isfinite(value) and value >= 0 for value in (*sums, record.losses, record.served_ms))
    assert record.ready_ms >= 0
    assert record.ready_var >= 0
    assert len(msgspec.msgpack.encode(record)) < 600
    assert 0 <= offer_history.chance_there(record, True, NOW) <= 1 + 1e-9


@quick
@given(LIVES, st.integers(0, 400 * DAY))
def test_records_only_fade_with_time(lived: list[Fold], later: int) -> None:
    record = record_of("a", lived)
    after = offer_history.faded(record, record.at + later)
    for name in ("asked", "refused", "failed", "came_up", "hoped", "losses", "served_ms"):
        assert getattr(after, name) <= getattr(record, name)
    assert after.failures_in_a_row == record.failures_in_a_row


@quick
@given(
    st.lists(st.tuples(LIVES, st.integers(0, 6_000_000), st.booleans()), max_size=8), ASKS, st.integers(0, 3)
)
def test_what_is_ranked_is_within_the_ceiling_allowed_and_not_in_back_off(
    offers: list[tuple[list[Fold], int, bool]], ask: Ask, days: int
) -> None:
    now = NOW + days * DAY
    records = [record_of(str(number), lived) for number, (lived, _, _) in enumerate(offers)]
    table = table_of(records, [price for _, price, _ in offers], [spot for *_, spot in offers])
    ranking = rank(table, ask, now, table.bools["used"])
    for candidate in (*ranking, *hedge(ranking)):
        number = int(candidate.key.removeprefix("pool/"))
        assert offers[number][1] <= ask.price_max_micro_usd
        assert ask.spot or not offers[number][2]
        assert records[number].retry_at <= now
        assert candidate.cost_micro_usd >= candidate.price_micro_usd - 1
        assert 0 <= candidate.chance <= 1 + 1e-9
        assert 0 <= candidate.outlives <= 1 + 1e-9
    costs = [candidate.cost_micro_usd for candidate in ranking]
    assert costs == sorted(costs)
    left_out = {str(number) for number in range(len(offers))} - {
        key.removeprefix("pool/") for key in ranking.keys
    }
    for number in map(int, left_out):
        _, price, spot = offers[number]
        assert price > ask.price_max_micro_usd or (spot and not ask.spot) or records[number].retry_at > now


@quick
@given(LIVES, st.integers(1, 5_000_000), st.integers(0, 1_000_000), ASKS, st.booleans())
def test_of_two_offers_with_the_same_record_the_cheaper_is_never_second(
    lived: list[Fold], price: int, more: int, ask: Ask, spot: bool
) -> None:
    open_ = msgspec.structs.replace(ask, price_max_micro_usd=1 << 62, company=())
    table = table_of(
        [record_of("dear", lived), record_of("cheap", lived)], [price + more, price], [spot, spot]
    )
    keys = rank(table, open_, NOW + 70 * DAY, table.bools["used"]).keys
    assert not keys or not more or keys[0] == "pool/cheap" or _tied(table, open_)


def _tied(table: Table, ask: Ask) -> bool:
    first, second = rank(table, ask, NOW + 70 * DAY, table.bools["used"])
    return first.cost_micro_usd == second.cost_micro_usd


@quick
@given(LIVES, st.integers(1, 20), st.booleans(), ASKS)
def test_more_successes_never_make_an_offer_look_worse(
    lived: list[Fold], times: int, spot: bool, ask: Ask
) -> None:
    """One more that came up, or one more hour served without a loss: the chance and the survival rise."""
    record = record_of("a", lived)
    now = max(record.at, record.seen_at, NOW) + MINUTE
    better = offer_history.faded(record, now)
    for _ in range(times):
        better = msgspec.structs.replace(
            better, came_up=better.came_up + 1, hoped=better.hoped + 1, served_ms=better.served_ms + HOUR
        )
    before, after = (outlook(table_of([each], [1], [spot]), now) for each in (record, better))
    assert after.up[0] >= before.up[0] - 1e-9
    assert after.loss_shape[0] / after.loss_hours[0] <= before.loss_shape[0] / before.loss_hours[0] + 1e-12


@quick
@given(LIVES, LIVES, st.booleans(), ASKS)
def test_a_likelier_offer_that_lasts_as_long_at_the_same_price_is_not_dearer(
    one: list[Fold], other: list[Fold], spot: bool, ask: Ask
) -> None:
    records = [msgspec.structs.replace(record_of(*each), retry_at=0) for each in (("a", one), ("b", other))]
    open_ = msgspec.structs.replace(ask, price_max_micro_usd=1 << 62, company=(), spot=True)
    table = table_of(records, [1_000_000, 1_000_000], [spot, spot])
    found = {candidate.key: candidate for candidate in rank(table, open_, NOW, table.bools["used"])}
    a, b, expected = found["pool/a"], found["pool/b"], outlook(table, NOW)
    better = (
        expected.there[a.row] >= expected.there[b.row]
        and expected.up[a.row] >= expected.up[b.row]
        and a.outlives >= b.outlives
        and expected.ready_ms[a.row] <= expected.ready_ms[b.row]
    )
    assert not better or a.cost_micro_usd <= b.cost_micro_usd + 1


@quick
@given(st.permutations(list(range(6))), st.lists(LIVES, min_size=6, max_size=6), ASKS)
def test_the_order_in_which_offers_came_does_not_change_the_ranking(
    order: list[int], lives: list[list[Fold]], ask: Ask
) -> None:
    records = [record_of(str(number), lived) for number, lived in enumerate(lives)]
    zones = [0, 0, 1, 1, 2, 2]
    tables = [
        table_of([records[n] for n in ns], [1_000_000 + n for n in ns], [False] * 6, [zones[n] for n in ns])
        for ns in (list(range(6)), order)
    ]
    first, second = ([c.cost_micro_usd for c in rank(t, ask, NOW, t.bools["used"])] for t in tables)
    assert np.allclose(first, second, atol=1)
