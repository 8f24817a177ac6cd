"""Where nodes are launched: the market, its memory, and two at a time."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.explain.pending import waiting
from holdfast.core.state.snapshot import dump, load
from holdfast.core.turn import resume
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.money import Budget
from holdfast.model.node import NodeState
from holdfast.model.place import Place
from holdfast.model.policy import CapacityPolicy, Policy
from holdfast.model.pool import Reserve
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Service, Spread, Workload
from tests.build import needs
from tests.play import Play, of, offer, pool

PRICE = 1_000_000


def here(name: str, zone: str, *, price: int = PRICE, spot: bool = False) -> Any:
    return offer(name, zone, price=price, spot=spot)


def web(count: int = 1) -> Workload:
    return Workload("web", Service(count), needs(cpu=8))


def launches(play: Play) -> list[do.LaunchNode]:
    return of(do.LaunchNode, play.settle())


def refuse(play: Play, node: str, why: str = "sold out") -> None:
    play.tell(ev.ActionFailed(at=play.now, action="p", node=node, error="CapacityShort", why=why))


def come_up(play: Play, node: str, after_ms: int = MINUTE) -> None:
    play.tell(ev.NodeLaunched(at=play.now, node=node))
    play.now += after_ms
    play.tell(ev.NodeJoined(at=play.now, node=node))


def test_an_offer_that_was_refused_waits_alone_and_the_next_is_tried_at_once() -> None:
    play = Play(offers=(here("one", "a", price=PRICE - 1), here("two", "b")))
    play.apply(web())
    (first,) = launches(play)
    assert first.offer == "one"
    refuse(play, first.node)
    (second,) = launches(play)
    assert second.offer == "two"
    assert play.world.records["pool/one"].retry_at > play.now
    assert play.world.pool_states["pool"].retry_at == 0


def test_what_nobody_has_is_asked_for_again_after_a_while() -> None:
    play = Play(offers=(here("one", "a"),))
    play.apply(web())
    refuse(play, launches(play)[0].node)
    assert launches(play) == []
    again = of(do.LaunchNode, play.later(play.world.policy.capacity.backoff_ms))
    assert [launch.offer for launch in again] == ["one"]


def test_a_provider_that_cannot_be_reached_holds_back_its_whole_pool() -> None:
    play = Play(offers=(here("one", "a"), here("two", "b")))
    play.apply(web())
    (first,) = launches(play)
    play.tell(ev.ActionFailed(at=play.now, action="p", node=first.node, error="Unreachable", why="no answer"))
    assert launches(play) == []
    assert play.world.records["pool/one"].refused == 0


def test_copies_that_must_not_go_down_together_get_nodes_in_different_zones() -> None:
    play = Play(offers=(here("one", "a"), here("two", "b"), here("three", "c")))
    play.apply(Workload("web", Service(3), needs(cpu=8, spread=Spread.PREFER)))
    assert sorted(launch.offer for launch in launches(play)) == ["one", "three", "two"]


@pytest.mark.parametrize("price", [0, 1, 2_000, PRICE])
def test_copies_stand_apart_whatever_a_node_costs(price: int) -> None:
    play = Play(offers=tuple(here(zone, zone, price=price) for zone in "abc"))
    play.apply(Workload("web", Service(6), needs(cpu=8, spread=Spread.PREFER)))
    assert Counter(launch.offer for launch in launches(play)) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("price", [0, PRICE])
def test_a_service_that_grows_node_by_node_is_spread_as_well(price: int) -> None:
    """The first zone has come up and the others were never tried; then one more is asked for while another
    still boots."""
    play, ordered = Play(offers=tuple(here(zone, zone, price=price) for zone in "abc")), Counter[str]()
    for count in range(1, 7):
        play.apply(Workload("web", Service(count), needs(cpu=8, spread=Spread.PREFER)))
        for launch in launches(play):
            ordered[launch.offer] += 1
            if count % 2:
                come_up(play, launch.node)
                play.settle()
    assert ordered == {"a": 2, "b": 2, "c": 2}


def test_a_zone_that_is_noticeably_dearer_gets_no_copies() -> None:
    offers = (here("cheap", "a"), here("alike", "b", price=PRICE + PRICE // 200))
    play = Play(offers=(*offers, here("dear", "c", price=PRICE + PRICE // 20)))
    play.apply(Workload("web", Service(20), needs(cpu=8, spread=Spread.PREFER)))
    found = Counter(launch.offer for launch in launches(play))
    assert found["dear"] == 0
    assert found["cheap"] > found["alike"] >= 5


def test_a_free_node_beside_other_copies_is_taken_before_one_that_costs() -> None:
    play = Play(offers=(here("own", "a", price=0), here("rented", "b", price=PRICE)))
    play.apply(Workload("web", Service(4), needs(cpu=8, spread=Spread.PREFER)))
    assert Counter(launch.offer for launch in launches(play)) == {"own": 4}


def test_an_offer_whose_nodes_are_taken_away_loses_its_place() -> None:
    calm = replace(here("calm", "a", spot=True, price=PRICE + PRICE // 50), place=Place("other"))
    play = Play(offers=(calm, here("wild", "b", spot=True)))
    play.apply(replace(web(), move_cost_ms=HOUR))
    tried = []
    for _ in range(6):
        (launch,) = launches(play)
        tried.append(launch.offer)
        come_up(play, launch.node)
        play.obey()
        play.now += 10 * MINUTE
        play.judge(launch.node, Level.DEAD)
    assert tried[0] == "wild"
    assert tried[-1] == "calm"


def test_a_loss_is_counted_once_however_it_is_heard_of() -> None:
    play = Play(offers=(here("one", "a", spot=True),))
    play.apply(web())
    (launch,) = launches(play)
    come_up(play, launch.node)
    play.settle()
    for _ in range(2):
        play.tell(ev.SpotNoticed(at=play.now, node=launch.node, deadline=play.now + MINUTE))
    play.judge(launch.node, Level.DEAD)
    play.tell(ev.NodeTerminated(at=play.now, node=launch.node))
    assert round(play.world.records["pool/one"].losses, 6) == 1


def test_the_time_to_ready_is_remembered() -> None:
    play = Play(offers=(here("one", "a"),))
    play.apply(web())
    (launch,) = launches(play)
    come_up(play, launch.node, after_ms=7 * MINUTE)
    assert play.world.records["pool/one"].ready_ms == 7 * MINUTE


def test_a_node_that_never_joins_counts_against_its_offer() -> None:
    play = Play(offers=(here("one", "a"), here("two", "b", price=2 * PRICE)))
    play.apply(web())
    (launch,) = launches(play)
    play.tell(ev.NodeLaunched(at=play.now, node=launch.node))
    play.later(play.world.policy.capacity.boot_timeout_ms)
    assert round(play.world.records["pool/one"].failed, 6) == 1


def test_the_memory_survives_a_restart() -> None:
    play = Play(offers=(here("one", "a"),))
    play.apply(web())
    refuse(play, launches(play)[0].node)
    assert load(dump(play.world)).records == play.world.records


def test_where_waiting_is_dear_two_are_asked_for_and_the_first_one_ready_stays() -> None:
    play = Play(
        Policy(capacity=CapacityPolicy(wait_worth=1000.0)),
        offers=(here("one", "a", spot=True), here("two", "b", price=PRICE + 5)),
        max=10,
    )
    play.apply(web())
    one, two = launches(play)
    assert (one.hedge, two.hedge) == (two.node, one.node)
    assert {one.offer, two.offer} == {"one", "two"}
    come_up(play, two.node, after_ms=30 * SECOND)
    ended = [action.node for action in of(do.TerminateNode, play.settle())]
    assert ended == [one.node]
    assert play.world.nodes[two.node].state is NodeState.READY
    assert play.world.records["pool/one"].failed == 0, "it was not given the time to fail"


def test_where_waiting_costs_nothing_one_is_enough() -> None:
    play = Play(
        Policy(capacity=CapacityPolicy(wait_worth=0.0)),
        offers=(here("one", "a", spot=True), here("two", "b", price=PRICE + 5)),
    )
    play.apply(web())
    assert len(launches(play)) == 1


def test_two_that_were_asked_for_at_once_are_room_for_one() -> None:
    play = Play(
        Policy(capacity=CapacityPolicy(wait_worth=1000.0)),
        offers=(here("one", "a", spot=True), here("two", "b", price=PRICE + 5)),
        max=10,
    )
    play.apply(web())
    assert len(launches(play)) == 2
    play.reapply("web", shape=Service(2))
    assert len(launches(play)) == 2, "the second copy gets two of its own"


def test_a_pool_keeps_its_maximum_when_two_are_asked_for() -> None:
    play = Play(
        Policy(capacity=CapacityPolicy(wait_worth=1000.0)),
        offers=(here("one", "a", spot=True), here("two", "b", price=PRICE + 5)),
        max=1,
    )
    play.apply(web())
    assert len(launches(play)) == 1


def test_a_list_that_shows_an_offer_again_ends_its_back_off() -> None:
    play = Play(offers=(here("one", "a"),), lists_offers=True, lists_stock=True)
    play.apply(web())
    refuse(play, launches(play)[0].node)
    play.now += SECOND
    play.tell(ev.OffersListed(at=play.now, pool="pool", offers=()))
    assert launches(play) == []
    play.now += SECOND
    play.tell(ev.OffersListed(at=play.now, pool="pool", offers=(here("one", "a"),)))
    assert [launch.offer for launch in launches(play)] == ["one"]


def test_prices_are_remembered_as_they_change() -> None:
    play = Play(offers=(here("one", "a"),), lists_offers=True)
    for price in (PRICE, PRICE, 2 * PRICE):
        play.now += DAY
        listed = replace(here("one", "a"), price_micro_usd=price)
        play.tell(ev.OffersListed(at=play.now, pool="pool", offers=(listed,)))
    assert [price for _, price in play.world.records["pool/one"].prices] == [PRICE, 2 * PRICE]


def test_a_node_that_ended_before_it_joined_is_missed_in_the_list_and_replaced() -> None:
    play = Play(offers=(here("one", "a"),))
    play.apply(web())
    (launch,) = launches(play)
    play.tell(ev.NodeLaunched(at=play.now, node=launch.node))
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=(), asked_at=play.now))
    assert of(do.TerminateNode, play.settle()) == [], "it may not be in the list yet"
    play.now += 3 * MINUTE
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=(), asked_at=play.now))
    assert [end.node for end in of(do.TerminateNode, play.settle())] == [launch.node]
    assert round(play.world.records["pool/one"].failed, 6) == 1


def test_the_last_nodes_of_a_pool_are_kept_for_what_is_important() -> None:
    play = Play(offers=(here("one", "a"),), max=3, reserve=Reserve(nodes=2, priority=5))
    play.apply(web(3))
    (launch,) = launches(play)
    come_up(play, launch.node)
    play.settle()
    assert "pool pool keeps its last 2 nodes for others" in waiting(play.world, web(3), play.now)[0].because
    play.apply(replace(web(3), name="vital", priority=5))
    assert len(launches(play)) == 2


def test_spot_is_asked_for_at_no_more_than_the_ceiling_and_the_budget_leave() -> None:
    """Prices move between a list and a launch, and after it: who sells can keep to it, and we cannot."""
    spot, steady = here("spot", "a", price=100, spot=True), here("steady", "a", price=300)
    budget = Budget(hour_micro_usd=1_000)

    def most(play: Play) -> list[int | None]:
        play.apply(web(2))
        asked = launches(play)
        assert [launch.price_max_micro_usd for launch in resume_of(play)] == [
            launch.price_max_micro_usd for launch in asked
        ], "and so does the next leader"
        return [launch.price_max_micro_usd for launch in asked]

    assert most(Play(offers=(spot,))) == [None, None]
    assert most(Play(offers=(spot,), price_max_micro_usd=250)) == [250, 250]
    assert most(Play(offers=(spot,), budget=budget)) == [1_000, 900], "the first of them has its price by now"
    assert most(Play(offers=(steady,), budget=budget)) == [None, None], "on demand costs what it costs"


def resume_of(play: Play) -> list[do.LaunchNode]:
    return [step.action for step in resume(play.world) if isinstance(step.action, do.LaunchNode)]


def test_two_are_asked_for_only_if_both_can_be_paid() -> None:
    policy = Policy(
        capacity=CapacityPolicy(wait_worth=1000.0), budget=Budget(hour_micro_usd=PRICE + PRICE // 2)
    )
    play = Play(policy, offers=(here("one", "a", spot=True), here("two", "b", price=PRICE + 5)), max=10)
    play.apply(web())
    (launch,) = launches(play)
    assert launch.hedge == ""
    assert play.refused == []


def kept_pool(nodes: int = 4, **reserve: int) -> Play:
    """As many nodes as there may be are here, all empty."""
    play = Play(max=nodes, reserve=Reserve(**{"nodes": 2, "priority": 5, **reserve}))
    play.join(*(f"n{number}" for number in range(nodes)))
    return play


def test_nodes_that_are_there_are_kept_for_what_is_important_too() -> None:
    play = kept_pool()
    play.apply(web(4))
    play.obey()
    assert len(play.running("web")) == 2
    assert "pool pool keeps 2 nodes for others" in waiting(play.world, web(4), play.now)[0].because
    play.apply(replace(web(2), name="vital", priority=5))
    assert of(do.StopReplica, play.obey()) == [], "nobody has to go"
    assert len(play.running("vital")) == 2
    assert not set(play.running("web").values()) & set(play.running("vital").values())


def test_a_node_that_holds_something_unimportant_may_hold_more_of_it() -> None:
    play = kept_pool()
    play.apply(Workload("small", Service(9), needs(cpu=4)))
    play.obey()
    assert len(play.running("small")) == 4
    assert len(set(play.running("small").values())) == 2


def test_what_is_important_may_be_anywhere() -> None:
    play = kept_pool()
    play.apply(replace(web(4), priority=5))
    play.obey()
    assert len(play.running("web")) == 4


def test_a_pool_that_may_still_grow_by_its_reserve_keeps_no_node_that_is_there() -> None:
    play = Play(max=4, reserve=Reserve(nodes=2, priority=5))
    play.join("n0", "n1")
    play.apply(web(2))
    play.obey()
    assert len(play.running("web")) == 2


def test_what_ran_before_a_reserve_was_made_stays() -> None:
    play = Play(max=2)
    play.join("n0", "n1")
    play.apply(web(2))
    play.obey()
    play.tell(ev.PoolApplied(at=play.now, pool=pool(max=2, reserve=Reserve(nodes=2, priority=5))))
    assert of(do.StopReplica, play.later(20 * MINUTE)) == []
    play.end(next(iter(play.running("web"))), ev.Ended.STOPPED)
    play.obey()
    assert len(play.running("web")) == 1, "and does not come back"
