"""A service on spot and on demand: what is ordered, what is let go, and why."""

from msgspec.structs import replace

from holdfast.core.spot.mix_policy import (
    Fleet,
    MixRules,
    Orders,
    Zone,
    expected_cost,
    orders,
)
from holdfast.model.units import HOUR, SECOND

SPOT, ON_DEMAND = 1_000_000, 3_000_000


def zone(
    name: str,
    ready: int = 0,
    coming: int = 0,
    *,
    stays_h: float = 10.0,
    refused: bool = False,
    taking: bool = False,
) -> Zone:
    return Zone(
        name=name,
        price=SPOT,
        stays_ms=round(stays_h * HOUR),
        ready=ready,
        coming=coming,
        refused=refused,
        taking=taking,
    )


def fleet(*zones: Zone, ready: int = 0, coming: int = 0, burn: float = 1.0) -> Fleet:
    return Fleet(
        zones=zones,
        on_demand_price=ON_DEMAND,
        ready_ms=120 * SECOND,
        on_demand_ready=ready,
        on_demand_coming=coming,
        burn=burn,
    )


def asked(found: Fleet, rules: MixRules | None = None, wanted: int = 3) -> Orders:
    return orders(wanted, found, rules or MixRules())


def test_a_new_service_is_spread_over_zones_and_needs_nothing_on_demand() -> None:
    found = asked(fleet(zone("a"), zone("b"), zone("c")))
    assert sorted(found.spot) == ["a", "b", "c"]
    assert found.on_demand == 0


def test_a_zone_that_lasts_much_longer_is_worth_the_risk_of_one_zone() -> None:
    assert asked(fleet(zone("a", stays_h=40), zone("b", stays_h=0.5))).spot == ("a", "a", "a")


def test_a_dear_zone_is_taken_when_the_cheap_one_does_not_last() -> None:
    dear = replace(zone("dear", stays_h=40), price=SPOT * 2)
    assert asked(fleet(zone("cheap", stays_h=0.3), dear), wanted=1).spot == ("dear",)
    assert asked(fleet(zone("cheap", stays_h=30), dear), wanted=1).spot == ("cheap",)


def test_a_service_that_has_all_it_wants_is_left_alone() -> None:
    assert asked(fleet(zone("a", 1), zone("b", 2))) == Orders()


def test_on_demand_stands_in_where_every_zone_has_refused() -> None:
    found = asked(fleet(zone("a", 1), zone("b", refused=True), zone("a2", refused=True)))
    assert found.spot == ("a", "a")
    found = asked(fleet(zone("a", 1, refused=True), zone("b", refused=True)))
    assert (found.spot, found.on_demand) == ((), 2)
    assert found.why == ("2 on demand: no zone has spot",)


def test_spot_that_is_back_replaces_on_demand_only_once_it_is_ready() -> None:
    back = asked(fleet(zone("a", 2), ready=1))
    assert (back.spot, back.release_on_demand) == (("a",), 0)
    coming = asked(fleet(zone("a", 2, 1), ready=1))
    assert coming == Orders()
    ready = asked(fleet(zone("a", 3), ready=1))
    assert (ready.spot, ready.release_on_demand) == ((), 1)


def test_spot_that_is_back_has_to_stay_before_on_demand_makes_room_for_it() -> None:
    assert asked(fleet(zone("a", 2), zone("b", taking=True, stays_h=99), ready=1)).spot == ("a",)
    assert asked(fleet(zone("a", taking=True), ready=3)) == Orders()


def test_the_one_that_comes_second_is_let_go() -> None:
    assert asked(fleet(zone("a", 3), coming=1)).release_on_demand == 1


def test_the_floor_is_on_demand_whatever_spot_does() -> None:
    found = asked(fleet(zone("a")), MixRules(floor=2))
    assert (found.spot, found.on_demand) == (("a",), 2)
    assert asked(fleet(zone("a", 1), ready=2), MixRules(floor=2)) == Orders()
    assert asked(fleet(zone("a", 3), ready=2), MixRules(floor=2)).release_on_demand == 0
    assert asked(fleet(zone("a")), MixRules(floor=9)).on_demand == 3


def test_a_node_under_notice_is_replaced_before_it_is_lost() -> None:
    leaving = replace(zone("a", 1), leaving=1, refused=True)
    assert asked(fleet(leaving, zone("b", 2))).spot == ("b",)
    assert asked(fleet(leaving, zone("b", 2, refused=True))).on_demand == 1


def test_what_a_taking_zone_has_left_is_covered_elsewhere() -> None:
    found = asked(fleet(zone("a", 2, taking=True), zone("b", 0)))
    assert found.spot == ("b", "b", "b")


def test_on_demand_covers_what_is_left_if_more_losses_are_likely_and_short_is_dear() -> None:
    left = fleet(zone("a", 2, refused=True, taking=True))
    assert asked(replace(left, follows=0.9)).on_demand == 3
    assert asked(replace(left, follows=0.05)).on_demand == 1


def test_when_the_cover_is_ready_the_doubtful_ones_are_let_go() -> None:
    found = asked(fleet(zone("a", 2, taking=True), zone("b", 3)))
    assert found.release_spot == ("a", "a")


def test_a_spare_is_kept_only_while_the_promise_is_broken_and_losses_come_alone() -> None:
    kept = replace(fleet(zone("a", 1), zone("b", 2)), alone_per_hour=1.0)
    assert asked(kept).spot == ()
    assert len(asked(replace(kept, burn=1.5)).spot) == 1
    assert asked(replace(kept, burn=1.5, alone_per_hour=0.01)).spot == ()
    assert asked(replace(kept, burn=1.5), MixRules(adaptive_spare=False)).spot == ()


def test_a_spare_that_is_no_longer_needed_is_let_go_where_it_lasts_least() -> None:
    assert asked(fleet(zone("a", 2, stays_h=5), zone("b", 2))).release_spot == ("a",)


def test_where_launches_fail_late_on_demand_is_ordered_beside_them() -> None:
    slow = replace(zone("a", 2), fails=0.3, answer_ms=120 * SECOND)
    found = asked(fleet(slow))
    assert (found.spot, found.on_demand) == (("a",), 1)
    quick = replace(slow, answer_ms=2 * SECOND)
    assert asked(fleet(quick)).on_demand == 0


def test_a_service_without_zones_runs_on_demand() -> None:
    assert asked(fleet()).on_demand == 3


def test_a_service_that_wants_nothing_lets_all_go() -> None:
    found = asked(fleet(zone("a", 2), ready=1), wanted=0)
    assert (found.release_spot, found.release_on_demand) == (("a", "a"), 1)


def test_company_in_a_zone_makes_the_next_one_there_dearer() -> None:
    a = zone("a")
    costs = [expected_cost(a, there, fleet(a), worth=30.0 * ON_DEMAND) for there in (0, 1, 2)]
    assert costs == sorted(costs)
    assert costs[0] > SPOT


def test_zones_that_cost_nothing_share_the_nodes() -> None:
    zones = [replace(zone(name), price=0) for name in "abc"]
    free = replace(fleet(*zones), on_demand_price=0)
    assert sorted(asked(free, wanted=6).spot) == ["a", "a", "b", "b", "c", "c"]
