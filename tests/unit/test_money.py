from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.cost import budgets
from holdfast.core.state import accounts
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.money import Account, Budget
from holdfast.model.policy import Policy
from holdfast.model.units import DAY, HOUR, MINUTE, NEVER, SECOND
from holdfast.model.workload import Service, Workload
from holdfast.model.world import Leader
from tests.build import needs
from tests.play import Play, of, offer, pool

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(0, 300 * 365 * DAY))
def test_months_begin_and_end_as_in_the_calendar(at: int) -> None:
    day = EPOCH + timedelta(milliseconds=at)
    first = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    then = (first + timedelta(days=32)).replace(day=1)
    assert budgets.month_start(at) == (first - EPOCH) // timedelta(milliseconds=1)
    assert budgets.month_end(at) == (then - EPOCH) // timedelta(milliseconds=1)


@given(
    st.lists(st.tuples(st.integers(0, 40 * DAY), st.integers(0, 40 * DAY), st.integers(0, 9_000)), max_size=8)
)
def test_what_was_spent_is_the_sum_of_the_lives_of_the_nodes(lives: list[tuple[int, int, int]]) -> None:
    changes = []
    for one, other, price in lives:
        changes += [(min(one, other), price), (max(one, other), -price)]
    account, end = Account("p"), 41 * DAY
    for at, by in sorted(changes):
        account = budgets.changed(account, at, by)
    account = budgets.settled(account, end)
    month = budgets.month_start(end)
    assert account.rate_micro_usd == 0
    assert account.spent == sum(abs(a - b) * price for a, b, price in lives)
    in_month = sum(price * max(0, max(a, b) - max(month, min(a, b))) for a, b, price in lives)
    assert account.spent_month == in_month


def test_time_that_runs_backwards_costs_nothing_and_pays_nothing_back() -> None:
    account = budgets.changed(Account("p"), 10 * HOUR, 5)
    assert budgets.settled(account, 9 * HOUR) == account


def hours(micro: int) -> Policy:
    return Policy(budget=Budget(hour_micro_usd=micro))


def crowd(count: int, **wants: object) -> Workload:
    return Workload("web", Service(count), needs(cpu=8))


def launched(play: Play) -> list[str]:
    return [launch.offer for launch in of(do.LaunchNode, play.settle())]


def test_a_launch_that_failed_for_certain_is_paid_back() -> None:
    play = Play(offers=(offer(price=1_000),))
    play.apply(crowd(1))
    (launch,) = of(do.LaunchNode, play.settle())
    play.now += MINUTE
    play.tell(
        ev.ActionFailed(at=play.now, action="p1.0", node=launch.node, error="CapacityShort", why="none")
    )
    assert play.world.accounts["pool"].spent == 0
    assert play.world.accounts["pool"].rate_micro_usd == 0


def test_nothing_is_launched_above_what_the_fleet_may_cost_an_hour() -> None:
    play = Play(hours(250), offers=(offer(price=100),), max=10)
    play.apply(crowd(5))
    assert len(launched(play)) == 2
    assert play.refused == [], "nobody even asks for more"


def test_a_pool_has_a_budget_of_its_own_and_others_go_on() -> None:
    play = Play(offers=(offer(price=100),), budget=Budget(hour_micro_usd=100))
    play.tell(ev.PoolApplied(at=play.now, pool=pool("other", (offer("dear", price=300),))))
    play.apply(crowd(3))
    assert sorted(launched(play)) == ["dear", "dear", "std"]


def test_the_minimum_of_a_pool_is_no_reason_to_overspend() -> None:
    play = Play(hours(350), offers=(offer(price=100),), min=5)
    assert len(launched(play)) == 3


def test_what_costs_nothing_is_never_refused() -> None:
    play = Play(hours(0), offers=(offer(price=0),))
    play.apply(crowd(3))
    assert len(launched(play)) == 3


def test_dearer_offers_than_the_pool_may_pay_are_left_alone() -> None:
    play = Play(offers=(offer("dear", price=500), offer("cheap", price=90)), price_max_micro_usd=100)
    play.apply(crowd(2))
    assert launched(play) == ["cheap", "cheap"]


def test_the_money_of_the_month_must_last_for_another_hour() -> None:
    play = Play(Policy(budget=Budget(month_micro_usd=350)), offers=(offer(price=100),), max=10)
    play.apply(crowd(5))
    assert len(launched(play)) == 3, "three of them for an hour are 300"


@pytest.mark.parametrize(
    ("spent", "rate", "lasts"),
    [(0, 0, NEVER), (0, 100, 10 * HOUR), (500, 100, 5 * HOUR), (999, 100, 36 * SECOND), (1_200, 100, 0)],
)
def test_how_long_the_money_lasts(spent: int, rate: int, lasts: int) -> None:
    play = Play(Policy(budget=Budget(month_micro_usd=1_000)))
    account = Account("pool", rate, play.now, budgets.month_start(play.now), spent * HOUR, spent * HOUR)
    play.world.accounts["pool"] = account
    assert budgets.Purse(play.world, play.now).fleet.lasts_ms() == lasts


def test_money_that_lasts_beyond_the_month_lasts_for_ever() -> None:
    play = Play(Policy(budget=Budget(month_micro_usd=1_000)))
    play.world.accounts["pool"] = Account("pool", 1, play.now, budgets.month_start(play.now))
    assert budgets.Purse(play.world, play.now).fleet.lasts_ms() == NEVER


def listing(play: Play, *offers: object) -> None:
    play.tell(ev.OffersListed(at=play.now, pool="pool", offers=offers))  # type: ignore[arg-type]


def test_a_listing_says_what_can_be_had_and_spot_nodes_cost_what_spot_costs_now() -> None:
    play = Play(offers=(), lists_offers=True)
    assert [ask.pool for ask in of(do.ListOffers, play.settle())] == ["pool"]
    spot = offer("spot", price=100, spot=True)
    listing(play, spot)
    play.apply(crowd(1))
    (launch,) = of(do.LaunchNode, play.settle())
    play.tell(ev.NodeLaunched(at=play.now, node=launch.node))
    play.now += HOUR
    listing(play, replace(spot, price_micro_usd=300))
    play.now += HOUR
    assert budgets.settled(play.world.accounts["pool"], play.now).spent == (100 + 300) * HOUR


def test_an_offer_that_is_gone_is_not_launched_any_more() -> None:
    play = Play(offers=(offer("one"), offer("two", price=5)), lists_offers=True)
    listing(play, offer("one"))
    play.apply(crowd(1))
    assert launched(play) == ["one"]
    play.tell(ev.PoolApplied(at=play.now, pool=play.world.pools["pool"]))
    assert [offer.name for offer in play.world.offers["pool"]] == ["one"], "the listing outlives an apply"


def test_a_listing_without_news_changes_nothing() -> None:
    play = Play(offers=(offer("one"),), lists_offers=True)
    play.tell(ev.OffersListed(at=play.now, pool="pool"))
    play.tell(ev.OffersListed(at=play.now, pool="unknown", offers=()))
    assert [offer.name for offer in play.world.offers["pool"]] == ["one"]


def test_when_the_money_of_the_month_is_used_up_everything_that_costs_goes_in_time() -> None:
    play = Play(Policy(budget=Budget(month_micro_usd=1_000)), offers=(offer(price=500),), max=3)
    play.tell(ev.PoolApplied(at=play.now, pool=pool("free", (offer("free", price=0),), max=1)))
    play.apply(crowd(2))
    for launch in of(do.LaunchNode, play.settle()):
        play.tell(ev.NodeJoined(at=play.now, node=launch.node))
    play.obey()
    assert sorted(node.offer for node in play.world.nodes.values()) == ["free", "std"]
    (dear,) = [name for name, node in play.world.nodes.items() if node.price_micro_usd]
    notices = of(do.GiveNotice, play.later(2 * HOUR - 6 * MINUTE))
    assert [notice.node for notice in notices] == [dear]
    for name in [name for name, home in play.running("web").items() if home == dear]:
        play.end(name)
    gone = of(do.TerminateNode, play.later(10 * MINUTE))
    assert gone[0].node == dear
    assert budgets.spent_in_month(play.world, ("pool", "free"), notices[0].deadline) <= 1_000
    play.tell(ev.NodeTerminated(at=play.now, node=dear))
    assert launched(play) == [], "there is no money left"


def test_a_new_month_has_new_money() -> None:
    play = Play(Policy(budget=Budget(month_micro_usd=1_000)), offers=(offer(price=500),), max=3)
    play.now = budgets.month_end(play.now) - 2 * HOUR
    play.world.accounts["pool"] = Account("pool", 0, play.now, 0, 1_000 * HOUR, 1_000 * HOUR)
    play.apply(crowd(1))
    assert launched(play) == []
    assert of(do.LaunchNode, play.later(budgets.month_end(play.now) - play.now))[0].offer == "std"


def test_a_node_that_was_repriced_before_it_was_refused_is_paid_back_whole() -> None:
    play = Play(offers=(offer("spot", price=100, spot=True),), lists_offers=True)
    play.apply(crowd(1))
    (launch,) = of(do.LaunchNode, play.settle())
    play.now += HOUR
    listing(play, offer("spot", price=900, spot=True))
    play.now += HOUR
    play.tell(ev.ActionFailed(at=play.now, action="p", node=launch.node, error="CapacityShort", why=""))
    assert play.world.accounts["pool"].spent == 0


def test_what_a_person_cordoned_or_put_back_goes_too_when_the_money_is_used_up() -> None:
    play = Play(Policy(budget=Budget(month_micro_usd=1_000)), offers=(offer(price=500),), max=3)
    play.apply(crowd(1))
    for launch in of(do.LaunchNode, play.settle()):
        play.tell(ev.NodeJoined(at=play.now, node=launch.node))
    play.obey()
    (name,) = play.world.nodes
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node=name))
    assert of(do.GiveNotice, play.later(2 * HOUR - 6 * MINUTE))
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.UNCORDON, node=name))
    assert of(do.GiveNotice, play.settle()), "and again when somebody puts it back"


def test_a_month_with_a_budget_is_one_entry_on_the_agenda() -> None:
    play = Play(Policy(budget=Budget(month_micro_usd=1_000_000)), offers=(offer(price=10),), max=9)
    play.settle()
    for number in range(50):
        play.join(f"n{number}")
        play.later(1_000)
    ends = [entry for entry in play.world.agenda.due if entry[0] == budgets.month_end(play.now)]
    assert len(ends) == 1
    assert play.world.agenda.watched["pool"] == ends[0][0]


# the clock was set between two leaders


def leads(play: Play, generation: int, stepped_ms: int = 0) -> None:
    play.tell(
        ev.LeaderChanged(at=play.now, leader="cp", generation=generation, era="boot", stepped_ms=stepped_ms)
    )


@pytest.mark.parametrize(
    ("era", "seen", "stepped"),
    [
        ("boot", None, HOUR),  # the same boot of the same machine
        ("other", None, 0),  # nobody knows: what the clocks show is charged
        ("other", 900, HOUR + 100),  # another machine, which followed
        ("", None, 0),
    ],
)
def test_how_far_a_clock_was_set_is_known_by_its_machine_and_by_who_followed(
    era: str, seen: int | None, stepped: int
) -> None:
    assert accounts.stepped_ms(Leader("cp", 1, 0, "boot", 1_000), era, 1_000 + HOUR, seen) == stepped


@pytest.mark.parametrize(
    ("era", "least", "begins"),
    [
        ("boot", None, 6_000),  # the same boot of the same machine: what passed since is known
        ("other", 900, 5_900),  # another machine, which followed
        ("other", -9_000, 5_100),  # never before the last entry
        ("other", None, 5_100),  # nobody knows
        ("", None, 5_100),
    ],
)
def test_what_passed_since_the_last_entry_counts_though_the_wall_clock_is_behind_it(
    era: str, least: int | None, begins: int
) -> None:
    """The leader before had a clock that is ahead: an hour of it was not charged, nor may what follows be."""
    before = Leader("cp", 1, 0, "boot", 1_000)
    assert accounts.begins_at(before, era, 5_000, least, 5_100) == begins


def test_a_clock_that_was_set_back_takes_no_money_away() -> None:
    assert accounts.stepped_ms(Leader("cp", 1, 0, "boot", 1_000), "boot", 1_000 - HOUR, None) == 0


def test_a_leader_from_before_this_was_journalled_says_nothing() -> None:
    assert accounts.stepped_ms(Leader("cp", 1, 0), "", HOUR, None) == 0


def test_the_hour_by_which_a_clock_was_set_forward_is_not_charged() -> None:
    play = Play(offers=(offer(price=100),))
    leads(play, 1)
    play.join("a")
    price = play.node("a").price_micro_usd
    play.now += 10 * MINUTE + HOUR
    leads(play, 2, stepped_ms=HOUR)
    play.now += 5 * MINUTE
    account = budgets.settled(play.world.accounts["pool"], play.now)
    assert price
    assert account.spent == account.spent_month == price * 15 * MINUTE


def test_an_hour_without_a_leader_is_charged() -> None:
    play = Play(offers=(offer(price=100),))
    leads(play, 1)
    play.join("a")
    play.now += HOUR
    leads(play, 2)
    account = budgets.settled(play.world.accounts["pool"], play.now)
    assert account.spent == play.node("a").price_micro_usd * HOUR


def test_a_launch_that_failed_is_paid_back_to_the_unit_though_the_clock_was_set() -> None:
    play = Play(offers=(offer(price=100),), min=1)
    leads(play, 1)
    launch = next(action for action in play.turn() if isinstance(action, do.LaunchNode))
    play.now += 1_000 + HOUR
    leads(play, 2, stepped_ms=HOUR)
    play.now += 1_000
    play.tell(ev.ActionFailed(at=play.now, action="p1.0", node=launch.node, error="CapacityShort", why=""))
    assert budgets.settled(play.world.accounts["pool"], play.now).spent == 0


def test_a_step_over_the_end_of_a_month_begins_the_new_one_with_nothing_spent_in_the_step() -> None:
    play = Play(offers=(offer(price=100),))
    play.now = budgets.month_end(play.now) - 30 * MINUTE
    leads(play, 1)
    play.join("a")
    price = play.node("a").price_micro_usd
    play.now += HOUR
    leads(play, 2, stepped_ms=HOUR)
    play.now += 10 * MINUTE
    account = budgets.settled(play.world.accounts["pool"], play.now)
    assert account.spent == price * 10 * MINUTE
    assert account.spent_month <= account.spent
