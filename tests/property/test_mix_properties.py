"""Whatever the market does, the mix of spot and on demand keeps its promises."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bench._serving_policies import Ours
from bench._serving_world import ON_DEMAND, WANTED, Held
from holdfast.core.spot.mix_policy import (
    Fleet,
    MixRules,
    Zone,
    orders,
)

counts = st.integers(0, 4)
zones = st.builds(
    Zone,
    name=st.sampled_from("abcd"),
    price=st.integers(1, 3_000_000),
    stays_ms=st.integers(0, 10**9),
    ready=counts,
    coming=counts,
    refused=st.booleans(),
    taking=st.booleans(),
    fails=st.floats(0, 1),
    answer_ms=st.integers(0, 10**6),
)
fleets = st.builds(
    Fleet,
    zones=st.lists(zones, max_size=4, unique_by=lambda z: z.name).map(tuple),
    on_demand_price=st.integers(1, 9_000_000),
    ready_ms=st.integers(1, 10**6),
    on_demand_ready=counts,
    on_demand_coming=counts,
    burn=st.floats(0.01, 10),
    follows=st.floats(0, 1),
    alone_per_hour=st.floats(0, 10),
)
all_rules = st.builds(MixRules, floor=st.integers(0, 5), spares=st.integers(0, 2))


@given(st.integers(0, 8), fleets, all_rules)
def test_what_stands_and_is_ordered_is_enough_and_the_floor_is_on_demand(
    wanted: int, fleet: Fleet, rules: MixRules
) -> None:
    found = orders(wanted, fleet, rules)
    spot = sum(zone.count for zone in fleet.zones) + len(found.spot) - len(found.release_spot)
    have = fleet.on_demand_ready + fleet.on_demand_coming
    on_demand = have + found.on_demand - found.release_on_demand
    assert spot + on_demand >= wanted
    assert on_demand >= min(rules.floor, wanted)


@given(st.integers(0, 8), fleets, all_rules)
def test_nothing_is_let_go_that_is_not_there_or_still_needed(
    wanted: int, fleet: Fleet, rules: MixRules
) -> None:
    found = orders(wanted, fleet, rules)
    for zone in fleet.zones:
        assert found.release_spot.count(zone.name) <= zone.ready
        assert not (zone.refused and zone.name in found.spot)
    assert found.release_on_demand <= fleet.on_demand_ready + fleet.on_demand_coming
    assert not (found.on_demand and found.release_on_demand)


@given(st.integers(0, 8), fleets, all_rules)
def test_letting_go_never_makes_a_service_short(wanted: int, fleet: Fleet, rules: MixRules) -> None:
    found = orders(wanted, fleet, rules)
    before = sum(zone.ready for zone in fleet.zones) + fleet.on_demand_ready
    on_demand = max(0, found.release_on_demand - fleet.on_demand_coming)  # those on their way go first
    after = before - len(found.release_spot) - on_demand
    assert after >= min(wanted, before)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=30))
def test_two_cold_starts_after_the_last_change_all_are_ready_and_none_is_too_much(
    market: list[list[int]],
) -> None:
    policy, held = Ours(3, MixRules(adaptive_spare=False)), Held(3)
    steps = [*market, *[market[-1]] * 10]
    for now in range(0, 300 * len(steps), 30):
        held.now = now
        lost = held.step(steps[now // 300]) if now % 300 == 0 else type(held.step(held.has))()
        policy.act(held, lost)
        assert all(held.in_zone(zone) <= has for zone, has in enumerate(held.has))
    assert sum(held.is_ready(node) for node in held.nodes) == WANTED
    on_demand = sum(node.zone == ON_DEMAND for node in held.nodes)
    assert on_demand == max(0, WANTED - sum(market[-1])), "spot wherever it is to be had"
