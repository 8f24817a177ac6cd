"""Where to launch: the order of tries, what is left out, and when two are tried at once."""

import itertools

import numpy as np
import pytest

from holdfast.core.market.offer_history import (
    came_up,
    ended,
    failed,
    listed,
    preempted,
    refused,
)
from holdfast.core.market.offers import outlook, suits
from holdfast.core.market.rank import (
    CHANCE_MIN,
    NEVER_UP_MS,
    REFUSED_MS,
    Ask,
    Ranking,
    hedge,
    rank,
)
from holdfast.core.placement.bin_packing import Bin
from holdfast.model.market import OfferRecord, key_of
from holdfast.model.offer_table import Table
from holdfast.model.place import Level, Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND
from holdfast.model.workload import Needs

NOW = 1_700_000_000_000
H100 = Resources(cpu_milli=8000, memory_mib=65_536, gpu_milli=GPU, gpu_kind="h100")


class Shop:
    """A table, the pool of each offer, and the record of each."""

    def __init__(self) -> None:
        self.table, self.records = Table(4), dict[str, OfferRecord]()

    def add(
        self,
        name: str,
        price: float = 1.0,
        *,
        spot: bool = False,
        zone: str = "",
        provider: str = "",
        capacity: Resources = H100,
        pool: Pool | None = None,
    ) -> None:
        offer = Offer(name, Place(provider or name, "r", zone or name), capacity, round(price * 1e6), spot)
        pool = pool or Pool("pool", "test", (offer,))
        record = OfferRecord(key_of(pool.name, name))
        self.records[name] = record
        self.table.put(pool, offer, record)

    def polled(self, name: str, pattern: str) -> None:
        """Every seven hours, the last time an hour ago."""
        record = self.records[name]
        for ago, letter in zip(range(len(pattern) - 1, -1, -1), pattern, strict=True):
            record = listed(record, NOW - HOUR - ago * 7 * HOUR, letter == "1")
        self.note(name, record)

    def note(self, name: str, record: OfferRecord) -> None:
        self.records[name] = record
        self.table.note(record)

    def rank(self, ask: Ask | None = None, now: int = NOW) -> Ranking:
        return rank(self.table, ask or Ask(), now, suits(self.table, Needs()))

    def order(self, ask: Ask | None = None, now: int = NOW) -> list[str]:
        return [key.removeprefix("pool/") for key in self.rank(ask, now).keys]


HURRY = Ask(wanted_ms=10 * HOUR, wait_micro_usd=1_000_000)


def test_of_offers_alike_the_cheapest_is_first_and_names_break_ties() -> None:
    shop = Shop()
    for name, price in (("b", 2.0), ("d", 1.0), ("a", 2.0), ("c", 3.0)):
        shop.add(name, price)
    assert shop.order() == ["d", "a", "b", "c"]


def test_whoever_is_in_a_hurry_tries_the_likely_one_first() -> None:
    shop = Shop()
    shop.add("cheap", 1.0)
    shop.add("likely", 1.1)
    shop.polled("cheap", "0000100000")
    shop.polled("likely", "1111111111")
    assert shop.order(Ask(wanted_ms=10 * HOUR)) == ["cheap", "likely"]
    assert shop.order(HURRY) == ["likely", "cheap"]


def test_what_is_taken_away_often_must_be_cheap() -> None:
    shop = Shop()
    shop.add("restless", 1.0, spot=True)
    shop.add("steady", 1.2, spot=True)
    for number in range(20):
        shop.note("restless", preempted(shop.records["restless"], NOW - number, HOUR))
        shop.note("steady", ended(shop.records["steady"], NOW - number, DAY))
    assert shop.order(Ask(loss_ms=SECOND)) == ["restless", "steady"]
    assert shop.order(Ask(loss_ms=HOUR)) == ["steady", "restless"]


def test_an_offer_that_stays_is_preferred_if_its_going_is_a_loss() -> None:
    shop = Shop()
    shop.add("flicker", 1.0)
    shop.add("steady", 1.02)
    shop.polled("flicker", "1100101101" * 4 + "1")
    shop.polled("steady", "1" * 41)
    ask = Ask(wanted_ms=DAY, loss_ms=HOUR)
    assert shop.order(ask) == ["flicker", "steady"]
    assert shop.order(Ask(wanted_ms=DAY, loss_ms=HOUR, delisting_is_loss=True)) == ["steady", "flicker"]


def test_nothing_above_the_ceiling_and_no_spot_where_it_is_not_allowed() -> None:
    shop = Shop()
    shop.add("spot", 0.3, spot=True)
    shop.add("at", 2.0)
    shop.add("above", 2.000001)
    assert shop.order(Ask(price_max_micro_usd=2_000_000, spot=False)) == ["at"]


def test_back_off_is_of_one_offer_and_ends() -> None:
    shop = Shop()
    shop.add("a", 1.0, provider="same")
    shop.add("b", 2.0, provider="same")
    shop.note("a", refused(shop.records["a"], NOW, backoff_ms=MINUTE))
    assert shop.order() == ["b"]
    assert shop.order(now=NOW + MINUTE) == ["a", "b"]


def test_company_in_a_domain_is_paid_for_and_not_forbidden() -> None:
    shop = Shop()
    shop.add("a", 1.0, zone="one", provider="p", spot=True)
    shop.add("b", 1.01, zone="two", provider="p", spot=True)
    ask = Ask(company=(("p/r/one", 2),), company_ms=HOUR)
    assert shop.order() == ["a", "b"]
    assert shop.order(ask) == ["b", "a"]
    assert shop.order(Ask(company=(("elsewhere", 9),), company_ms=HOUR)) == ["a", "b"]


def test_a_new_offer_is_judged_by_its_siblings() -> None:
    shop = Shop()
    for provider in ("good", "bad"):
        for number in range(3):
            shop.add(f"{provider}-{number}", provider=provider)
    shop.add("good-new", 1.05, provider="good")
    shop.add("bad-new", 1.0, provider="bad")
    for number in range(3):
        shop.polled(f"good-{number}", "1" * 20)
        shop.polled(f"bad-{number}", "0001000100" * 2)
        for at in range(6):
            shop.note(f"bad-{number}", failed(shop.records[f"bad-{number}"], NOW - DAY + at))
    expected = outlook(shop.table, NOW)
    good, bad = (shop.table.row[f"pool/{name}-new"] for name in ("good", "bad"))
    assert expected.there[good] > expected.there[bad]
    assert expected.up[good] > expected.up[bad] + 0.3


def test_an_offer_with_a_record_speaks_for_itself() -> None:
    shop = Shop()
    for number in range(5):
        shop.add(f"bad-{number}", provider="p")
        for at in range(6):
            shop.note(f"bad-{number}", failed(shop.records[f"bad-{number}"], NOW - DAY + at))
    shop.add("good", provider="p")
    for at in range(30):
        shop.note("good", came_up(shop.records["good"], NOW - DAY + at * MINUTE, 90 * SECOND))
    expected = outlook(shop.table, NOW)
    assert expected.up[shop.table.row["pool/good"]] > 0.85
    assert expected.ready_ms[shop.table.row["pool/good"]] == pytest.approx(96_000, rel=0.05)


def test_the_ranked_list_is_the_cheapest_order_of_tries() -> None:
    """Every order of four offers, tried one after another until one comes up."""
    shop = Shop()
    for name, price, pattern in (
        ("a", 1.0, "0010010"),
        ("b", 1.3, "1111111"),
        ("c", 1.1, "1010101"),
        ("d", 1.2, "0111011"),
    ):
        shop.add(name, price)
        shop.polled(name, pattern)
    found = list(shop.rank(HURRY))
    hours, wait = 10.0, HURRY.wait_micro_usd / MINUTE

    def cost(order: tuple[int, ...]) -> float:
        total, reached = 0.0, 1.0
        for number in order:
            c = found[number]
            served = c.cost_micro_usd - wait * c.lost_ms / max(c.chance, CHANCE_MIN) / hours
            total += reached * (c.chance * served + wait * c.lost_ms / hours)
            reached *= 1 - c.chance
        return total + reached * 1e7

    assert min(itertools.permutations(range(4)), key=cost) == (0, 1, 2, 3)


def test_the_time_lost_by_failing_is_a_refusal_or_a_boot_that_never_ends() -> None:
    shop = Shop()
    shop.add("a")
    candidate = shop.rank()[0]
    expected = outlook(shop.table, NOW)
    row = candidate.row
    there, up = expected.there[row], expected.up[row]
    assert candidate.lost_ms == round((1 - there) * REFUSED_MS + there * (1 - up) * NEVER_UP_MS)


def test_two_are_launched_when_the_first_is_doubtful_and_waiting_is_dear() -> None:
    shop = Shop()
    for name in ("a", "b"):
        shop.add(name, 1.0, zone=name, provider="p")
        shop.polled(name, "10" * 10)
    assert len(hedge(shop.rank(HURRY))) == 2
    assert len(hedge(shop.rank(Ask(wanted_ms=10 * HOUR)))) == 1


def test_one_is_launched_when_it_is_sure_or_the_second_shares_its_fate() -> None:
    shop = Shop()
    for name in ("a", "b"):
        shop.add(name, 10.0, zone="same", provider="p")
        shop.polled(name, "10" * 10)
    dear = Ask(wanted_ms=10 * HOUR, wait_micro_usd=1_000_000)
    assert len(hedge(shop.rank(dear))) == 1
    sure = Shop()
    for name in ("a", "b"):
        sure.add(name, 10.0)
        record = sure.records[name]
        for at in range(40):
            record = came_up(record, NOW - DAY + at * HOUR // 2, MINUTE)
        sure.note(name, listed(record, NOW, there=True))
    assert len(hedge(sure.rank(Ask(wait_micro_usd=10_000)))) == 1
    assert hedge(Shop().rank()) == ()


def test_the_reason_names_price_chance_and_lasting() -> None:
    shop = Shop()
    shop.add("a", 1.25)
    assert shop.rank()[0].why == (
        "$1.25 an hour, 72 % to come up, in 3.0 min, 100 % to last 24.0 h: $1.25 a useful hour"
    )


@pytest.mark.parametrize(
    "needs",
    [
        Needs(),
        Needs(resources=Resources(gpu_milli=GPU, gpu_kind="h100|a100")),
        Needs(resources=Resources(gpu_milli=2 * GPU)),
        Needs(resources=Resources(cpu_milli=1), labels={"tier": "gold"}),
        Needs(resources=Resources(cpu_milli=1), tolerates=("lent",)),
        Needs(resources=Resources(cpu_milli=1), spot=False),
    ],
)
def test_the_table_suits_whom_an_empty_node_would_suit(needs: Needs) -> None:
    shop, bins = Shop(), {}
    big = Resources(cpu_milli=64_000, memory_mib=1 << 20, gpu_milli=8 * GPU, gpu_kind="a100")
    pools = [
        Pool("plain", "x", ()),
        Pool("gold", "x", (), labels={"tier": "gold", "a": "b"}),
        Pool("lent", "x", (), taints=("lent",)),
    ]
    cases = itertools.product(pools, (H100, big, Resources(cpu_milli=500, memory_mib=256)), (False, True))
    for number, (pool, capacity, spot) in enumerate(cases):
        shop.add(f"o{number}", spot=spot, capacity=capacity, pool=pool)
        offer = Offer(f"o{number}", Place("x"), capacity, 0, spot)
        bins[key_of(pool.name, f"o{number}")] = Bin.new(pool, offer)
    found = {shop.table.ids[row] for row in np.flatnonzero(suits(shop.table, needs))}
    assert found == {key for key, bin_ in bins.items() if bin_.suits(needs)}


def test_a_dropped_offer_is_gone_and_its_row_is_used_again() -> None:
    shop = Shop()
    for name in "abcdef":
        shop.add(name)
    shop.table.drop("pool/b")
    shop.table.drop("pool/never")
    assert shop.order() == ["a", "c", "d", "e", "f"]
    shop.add("g", 0.5)
    assert shop.order()[0] == "g"
    shop.table.note(OfferRecord("pool/b"))
    assert len(shop.rank()) == 6


def test_the_same_ask_at_the_same_instant_is_answered_from_memory_until_a_record_changes() -> None:
    shop = Shop()
    shop.add("a")
    first = shop.rank()
    assert shop.rank() is first
    shop.note("a", refused(shop.records["a"], NOW))
    assert len(shop.rank()) == 0


def test_spreading_over_providers_hedges_over_providers() -> None:
    shop = Shop()
    for name, provider in (("a", "p"), ("b", "p"), ("c", "q")):
        shop.add(name, 1.0, provider=provider)
        shop.polled(name, "10" * 10)
    ask = Ask(wanted_ms=10 * HOUR, wait_micro_usd=1_000_000, spread_over=Level.PROVIDER)
    assert [found.key for found in hedge(shop.rank(ask))][1:] == ["pool/c"]
