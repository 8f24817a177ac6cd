"""What the fleet costs in words and figures, and what is expected of offers: the same numbers that decide."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.api import views
from holdfast.core.cost import budgets, report
from holdfast.core.explain import offer_list
from holdfast.core.explain.explain import explain_offer, explain_pool
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.money import Budget
from holdfast.model.policy import Policy
from holdfast.model.units import DAY, HOUR, MINUTE
from tests.play import Play, of, offer, pool

DOLLAR = 1_000_000


def fleet(count: int = 2, policy: Policy | None = None, **rules: Any) -> Play:
    """Nodes that cost a dollar an hour each, for ten hours."""
    offers = rules.pop("offers", (offer(price=DOLLAR),))
    play = Play(policy, offers=offers, max=9, min=count, **rules)
    play.settle()
    play.now += MINUTE
    for name in list(play.world.nodes):
        play.tell(ev.NodeLaunched(at=play.now, node=name), ev.NodeJoined(at=play.now, node=name))
    play.now += 10 * HOUR - MINUTE
    return play


def test_what_was_spent_is_node_hours_times_their_price() -> None:
    play = fleet(2)
    whole, pool_ = report.report(play.world, play.now)
    assert (whole.pool, pool_.pool) == ("", "pool")
    for each in (whole, pool_):
        assert (each.nodes, each.rate_micro_usd) == (2, 2 * DOLLAR)
        assert each.ever_micro_usd == 20 * DOLLAR
        assert (each.lasts_ms, each.on_demand_micro_usd) == (None, None)
    assert whole.month_micro_usd == budgets.spent_in_month(play.world, ("pool",), play.now)


def test_a_pool_that_is_gone_still_counts_for_what_the_fleet_has_cost() -> None:
    play = fleet(1)
    play.world.accounts["old"] = replace(play.world.accounts["pool"], pool="old", rate_micro_usd=0)
    whole, *pools = report.report(play.world, play.now)
    assert [each.pool for each in pools] == ["pool", "old"]
    assert whole.ever_micro_usd == sum(each.ever_micro_usd for each in pools)


@pytest.mark.parametrize(
    ("month", "told"),
    [
        (2_000, "it lasts until the month ends in 30 days"),
        (50, "as it goes it lasts 15.0 h"),
        (20, "it is used up"),
    ],
)
def test_how_long_the_money_lasts_is_told(month: int, told: str) -> None:
    play = fleet(2, budget=Budget(month_micro_usd=1_000 * DOLLAR))
    rules = replace(play.world.pools["pool"], budget=Budget(3 * DOLLAR, month * DOLLAR))
    play.tell(ev.PoolApplied(at=play.now, pool=rules))
    hour, left = report.tell(report.of_pool(play.world, "pool", play.now), play.now)
    assert hour == "pool pool may cost $3.00/h and costs $2.00/h"
    assert left == f"pool pool may cost ${month:,}.00 a month and has cost $20.00 of it: {told}"
    because = explain_pool(play.world, "pool", play.now).because
    assert "it costs $2.00/h now, $20.00 this month, $20.00 since ever" in because
    assert left in because


def test_the_budget_of_the_fleet_is_told_of_every_pool() -> None:
    play = fleet(1, Policy(budget=Budget(hour_micro_usd=5 * DOLLAR)), price_max_micro_usd=2 * DOLLAR)
    because = explain_pool(play.world, "pool", play.now).because
    assert "the fleet may cost $5.00/h and costs $1.00/h" in because
    assert "offers above $2.00/h are left alone" in because


def test_what_spot_nodes_would_cost_on_demand_is_told_if_it_is_known() -> None:
    spot, dear = offer("spot", price=DOLLAR, spot=True), offer("dear", price=3 * DOLLAR)
    play = fleet(1, offers=(spot,))
    assert report.fleet(play.world, play.now).on_demand_micro_usd is None
    play.world.offers["pool"] = (spot, replace(dear, capacity=replace(dear.capacity, cpu_milli=1)))
    assert report.fleet(play.world, play.now).on_demand_micro_usd is None, "that is another machine"
    play.world.offers["pool"] = (spot, dear)
    assert report.fleet(play.world, play.now).on_demand_micro_usd == 3 * DOLLAR


def test_what_the_api_shows_adds_up() -> None:
    play = fleet(3)
    shown = views.spending(play.world, play.now)
    assert shown.fleet.ever_micro_usd == sum(each.ever_micro_usd for each in shown.pools) == 30 * DOLLAR
    assert shown.month_ends_ms > play.now


# offers


def test_an_offer_that_nobody_tried_is_told_as_such() -> None:
    play = Play(offers=(offer(price=DOLLAR),))
    told = explain_offer(play.world, "pool/std", play.now)
    assert told.summary == "pool/std: $1.00/h, on demand, in prov/here/a; it may be launched"
    assert "it was not asked for lately: others like it are what it is judged by" in told.because
    assert "nobody has looked yet whether it is there" in told.because


def test_what_came_of_launches_is_told_in_numbers() -> None:
    play = fleet(2)
    told = "\n".join(explain_offer(play.world, "pool/std", play.now).because)
    assert "asked for 2 times lately: 2 came up" in told
    assert "it was last seen 10.0 h ago: there" in told
    assert "a useful hour is expected to cost $1." in told


def test_an_offer_in_back_off_says_until_when_and_why() -> None:
    play = Play(offers=(offer(price=DOLLAR),), min=1)
    (launch,) = of(do.LaunchNode, play.settle())
    play.tell(
        ev.ActionFailed(at=play.now, action="p1.0", node=launch.node, error="CapacityShort", why="sold out")
    )
    found = offer_list.one(play.world, "pool/std", play.now)
    assert found.refusal == "asked again in 10 s: failed once: sold out"
    shown = views.offer_listed(found, play.now)
    assert shown.retry_ms == play.now + 10_000
    assert (shown.asked, shown.refused, shown.came_up) == (1, 1, 0)
    told = explain_offer(play.world, "pool/std", play.now)
    assert told.summary.endswith("it would not be launched now")
    assert told.because[0] == found.refusal
    assert "asked for once lately: 1 refused for want of stock" in told.because
    assert (
        views.offer_listed(offer_list.one(play.world, "pool/std", play.now + HOUR), play.now + HOUR).retry_ms
        is None
    )


def test_what_may_not_be_paid_says_so_and_what_would_help() -> None:
    play = Play(offers=(offer(price=DOLLAR),), price_max_micro_usd=10)
    told = explain_offer(play.world, "pool/std", play.now)
    assert told.because[0] == "pool pool takes nothing above $0.00/h"
    assert told.would_help == ("a larger budget or ceiling",)
    full = Play(offers=(offer(price=DOLLAR),), max=0)
    assert explain_offer(full.world, "pool/std", full.now).would_help == (
        "raise max of pool pool from 0 to 1",
    )


def test_changes_of_its_price_are_told() -> None:
    play = Play(offers=(offer(price=DOLLAR),), lists_offers=True)
    for price in (DOLLAR, 2 * DOLLAR):
        play.now += 5 * MINUTE
        play.tell(ev.OffersListed(at=play.now, pool="pool", offers=(offer(price=price),)))
    told = explain_offer(play.world, "pool/std", play.now + DAY).because
    assert "its price changed: $2.00 24.0 h ago, before $1.00 24.1 h ago" in told


def test_every_offer_of_every_pool_is_listed_under_its_key() -> None:
    play = Play(offers=(offer("a"), offer("b", zone="b")))
    play.tell(ev.PoolApplied(at=play.now, pool=pool("other", can_launch=False)))
    found = offer_list.listing(play.world, play.now)
    assert [each.key for each in found] == list(offer_list.keys(play.world))
    assert [each.key for each in found] == ["pool/a", "pool/b", "other/std"]
    assert all(0 < each.chance <= 1 and 0 < each.lasts_a_day <= 1 for each in found)
    with pytest.raises(KeyError):
        explain_offer(play.world, "pool/c", play.now)
