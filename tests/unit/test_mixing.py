"""A service on spot and on demand in the loop: the floor, the fall back, and the way back."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.workload import Mix, Service, Spread, Workload
from tests.build import needs
from tests.play import Play, of, offer, pool

SPOT, PAID = 1_000_000, 3_000_000
BOOT = 2 * MINUTE


class Mixed(Play):
    """Two zones of spot that have some or have none, on demand in a third, and a service of three."""

    def __init__(self, kinds: str = "both", rules: dict[str, Any] | None = None, **mix: Any) -> None:
        offers = (
            offer("spot-a", "a", price=SPOT, spot=True),
            offer("spot-b", "b", price=SPOT, spot=True),
            offer("paid", "c", price=PAID),
        )
        wanted = tuple(one for one in offers if kinds == "both" or one.spot is (kinds == "spot"))
        super().__init__(offers=wanted, idle_ms=MINUTE, **{"max": 20, **(rules or {})})
        self.there = {"spot-a": True, "spot-b": True, "paid": True}
        self.short_minutes = 0
        wants = replace(needs(cpu=8), spread=Spread.PREFER)
        self.apply(Workload("web", Service(3, mix=Mix(**mix)), wants))

    def homes(self) -> Counter[str]:
        return Counter(self.node(node).offer for node in self.running("web").values())

    def nodes(self) -> Counter[str]:
        return Counter(node.offer for node in self.world.nodes.values())

    def answer(self, actions: list[do.Action]) -> None:
        for launch in of(do.LaunchNode, actions):
            if self.there[launch.offer]:
                self.tell(ev.NodeLaunched(at=self.now, node=launch.node))
            else:
                failed = ev.ActionFailed(
                    at=self.now, action="p", node=launch.node, error="CapacityShort", why="none"
                )
                self.tell(failed)
        for end in of(do.TerminateNode, actions):
            self.tell(ev.NodeTerminated(at=self.now, node=end.node))

    def minutes(self, count: int) -> None:
        for _ in range(count):
            self.now += MINUTE
            for name, node in list(self.world.nodes.items()):
                if node.state == "booting" and self.now - node.since >= BOOT:
                    self.tell(ev.NodeJoined(at=self.now, node=name))
                elif node.spot and not self.there[node.offer]:
                    self.tell(ev.SpotNoticed(at=self.now, node=name, deadline=self.now + 2 * MINUTE))
            for _ in range(12):
                actions = [*self.obey(), *self.later(0)]
                self.answer(actions)
                if not actions:
                    break
            self.short_minutes += sum(self.homes().values()) < 3


def test_while_spot_is_there_everything_is_on_spot_and_spread() -> None:
    play = Mixed()
    play.minutes(10)
    assert play.homes().total() == 3
    assert set(play.homes()) == {"spot-a", "spot-b"}
    assert play.world.launched == 3, "nothing was ordered twice"
    play.minutes(120)
    assert play.nodes()["paid"] == 0


def test_the_floor_is_on_demand_always() -> None:
    play = Mixed(on_demand=1)
    play.minutes(10)
    assert play.homes()["paid"] == 1
    assert play.world.launched == 3, "nothing was ordered twice"
    play.minutes(180)
    assert play.homes()["paid"] == 1
    assert play.homes().total() == 3


def test_when_spot_is_gone_on_demand_stands_in_and_later_lets_go_again() -> None:
    play = Mixed()
    play.minutes(10)
    play.there["spot-a"] = play.there["spot-b"] = False
    play.minutes(10)
    assert play.homes() == {"paid": 3}
    play.there["spot-a"] = play.there["spot-b"] = True
    play.minutes(60)
    assert play.homes()["paid"] == 0
    assert play.homes().total() == 3
    assert play.nodes()["paid"] == 0, "what stood in was released"


def test_a_notice_is_answered_before_the_loss() -> None:
    play = Mixed()
    play.minutes(20)
    play.short_minutes = 0
    play.there["spot-a"] = False
    play.minutes(30)
    assert play.homes().total() == 3
    assert play.homes()["spot-a"] == 0


def test_a_budget_is_kept_while_it_falls_back() -> None:
    play = Mixed()
    budget = replace(play.world.policy.budget, hour_micro_usd=2 * PAID)
    play.tell(ev.PolicyApplied(at=play.now, policy=replace(play.world.policy, budget=budget)))
    play.minutes(10)
    play.there["spot-a"] = play.there["spot-b"] = False
    for _ in range(20):
        play.minutes(1)
        assert sum(node.price_micro_usd for node in play.world.nodes.values()) <= 2 * PAID
    assert play.refused == []


def test_money_follows_the_mix() -> None:
    play = Mixed()
    play.minutes(180)
    spent = play.world.accounts["pool"].spent / HOUR
    assert spent < 3 * 3 * SPOT * 1.5


@pytest.mark.parametrize("floor", [0, 1])
@pytest.mark.parametrize("kinds", ["spot", "paid"])
def test_where_there_is_one_kind_only_it_runs_on_that(kinds: str, floor: int) -> None:
    play = Mixed(kinds, on_demand=floor)
    play.minutes(10)
    assert play.homes().total() == 3
    play.minutes(120)
    assert play.world.launched == 3, "nothing was ordered twice"


def test_where_spot_may_not_be_launched_on_demand_stands_in() -> None:
    play = Mixed("spot", {"max": 0})
    play.tell(ev.PoolApplied(at=play.now, pool=pool("other", (offer("paid", "c", price=PAID),))))
    play.minutes(10)
    assert play.homes() == {"paid": 3}


@pytest.mark.parametrize("left", [("paid",), ("spot-a", "paid"), ("spot-a", "spot-b"), ()])
def test_nodes_of_an_offer_that_is_gone_from_the_list_still_count(left: tuple[str, ...]) -> None:
    play = Mixed(rules={"lists_offers": True, "lists_stock": True})
    play.minutes(10)
    listed = tuple(one for one in play.world.offers["pool"] if one.name in left)
    play.tell(ev.OffersListed(at=play.now, pool="pool", offers=listed))
    play.minutes(60)
    assert play.homes().total() == 3
    assert play.world.launched == 3


@pytest.mark.parametrize("more", [{"max": 3}, {"max": 3, "min": 3}, {"max": 4, "min": 2}])
def test_what_is_ordered_for_a_mix_counts_against_the_limits_of_its_pool(more: dict[str, int]) -> None:
    play = Mixed(rules=more)
    play.apply(Workload("other", Service(1), needs(cpu=8)))
    play.minutes(10)
    assert play.refused == []
    assert play.world.launched == more["max"]


def test_a_floor_whose_node_was_lost_is_filled_again_from_spot() -> None:
    play = Mixed(on_demand=1, spares=1)
    play.minutes(10)
    lost = next(name for name, node in play.world.nodes.items() if node.offer == "paid")
    play.tell(ev.NodeTerminated(at=play.now, node=lost))
    play.minutes(30)
    assert play.homes().total() == 3
    assert play.homes()["paid"] == 1
    launched = play.world.launched
    play.minutes(60)
    assert play.world.launched == launched, "it does not flap"


def test_a_spare_stays_though_it_is_empty() -> None:
    play = Mixed(spares=1)
    play.minutes(120)
    assert play.nodes().total() == 4
    assert play.world.launched == 4


def test_the_floor_on_demand_is_spread_over_zones() -> None:
    offers = (offer("spot", "a", price=SPOT, spot=True), *(offer(z, z, price=PAID) for z in "abc"))
    play = Play(offers=offers, max=20)
    wants = replace(needs(cpu=8), spread=Spread.PREFER)
    play.apply(Workload("web", Service(3, mix=Mix(on_demand=3)), wants))
    assert sorted(launch.offer for launch in of(do.LaunchNode, play.settle())) == ["a", "b", "c"]
