"""How many copies a target comes to in this world: from what was seen of the pools that suit it."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.market.failure_records import records
from holdfast.core.plan.draft import Draft
from holdfast.core.workloads.redundancy_inputs import resized
from holdfast.core.workloads.slots import sized
from holdfast.model import event as ev
from holdfast.model.place import Level as Domain
from holdfast.model.place import Place
from holdfast.model.units import DAY, HOUR, MINUTE
from holdfast.model.verdict import Level
from holdfast.model.workload import Service, Spread, Workload
from tests.build import needs, resources
from tests.play import Play, offer, pool

ZONES = (offer("a", "a"), offer("b", "b"), offer("c", "c"))
SMALL = (offer("tiny", capacity=resources(cpu=1, memory=1024)),)


def web(availability: float = 0.999, **more: Any) -> Workload:
    return Workload("web", Service(1, availability=availability), needs(cpu=4), **more)


def copies(play: Play, workload: Workload) -> int:
    shape, _ = resized(play.world, workload, play.now)
    return shape.replicas + shape.standby


def seen(play: Play, name: str = "pool", **changes: int) -> None:
    """What the pool is remembered for."""
    play.world.pool_states[name] = replace(play.world.pool_states[name], **changes)


def test_a_higher_target_never_gets_fewer_copies() -> None:
    play = Play(offers=ZONES)
    counts = [copies(play, web(target)) for target in (0.9, 0.99, 0.999, 0.9999)]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_nodes_that_die_often_call_for_more_copies() -> None:
    good, bad = Play(offers=ZONES), Play(offers=ZONES)
    seen(good, deaths=0, served_ms=10_000 * DAY)
    seen(bad, deaths=5_000, served_ms=10_000 * HOUR)
    assert copies(bad, web()) > copies(good, web())


def test_one_more_uneventful_hour_changes_nothing() -> None:
    play = Play(offers=ZONES)
    seen(play, deaths=3, served_ms=1_000 * HOUR)
    before = resized(play.world, web(0.9999), play.now)
    seen(play, deaths=3, served_ms=1_001 * HOUR)
    assert resized(play.world, web(0.9999), play.now) == before


def test_a_pool_that_could_never_run_it_has_no_say() -> None:
    play = Play(offers=ZONES)
    before = resized(play.world, web(), play.now)
    play.tell(ev.PoolApplied(at=play.now, pool=pool("small", SMALL)))
    seen(play, "small", deaths=100_000, served_ms=HOUR)
    assert resized(play.world, web(), play.now) == before


def test_without_any_offer_that_fits_the_numbers_are_as_written() -> None:
    play = Play(offers=SMALL)
    shape, why = resized(play.world, web(), play.now)
    assert shape == web().shape
    assert "no offer" in why


def test_more_zones_to_reach_never_call_for_more_copies() -> None:
    one, three = Play(offers=ZONES[:1]), Play(offers=ZONES)
    assert copies(three, web(0.999)) <= copies(one, web(0.999))


def over(level: Domain) -> Workload:
    workload = web(0.9999)
    return replace(workload, needs=replace(workload.needs, spread=Spread.PREFER, spread_over=level))


@pytest.mark.parametrize("level", [Domain.NODE, Domain.RACK])
def test_copies_are_sized_by_zone_though_they_are_spread_over_what_is_in_it(level: Domain) -> None:
    """One zone, two racks: both fail with their zone, and outages are counted of zones."""
    racks = tuple(replace(offer(rack), place=Place("prov", "here", "a", rack)) for rack in ("r1", "r2"))
    play = Play(offers=racks)
    _, why = by_level = resized(play.world, over(level), play.now)
    assert by_level == resized(play.world, over(Domain.ZONE), play.now)
    assert "2 domains" not in why


def test_the_record_is_that_of_all_its_pools_together() -> None:
    play = Play()
    play.tell(ev.PoolApplied(at=play.now, pool=pool("other")))
    seen(play, deaths=1, served_ms=HOUR, notices=4)
    seen(play, "other", deaths=2, served_ms=2 * HOUR, notices=0)
    both = records(play.world, list(play.world.pools.values()), play.now)
    assert (both.nodes.events, both.nodes.exposure_ms) == (3, 3 * HOUR)


def test_hours_count_towards_preemption_only_where_there_is_spot() -> None:
    for spot, exposure in ((False, 0), (True, HOUR)):
        play = Play(offers=(offer(spot=spot),))
        seen(play, served_ms=HOUR)
        assert (
            records(play.world, list(play.world.pools.values()), play.now).preemptions.exposure_ms == exposure
        )


def test_what_happens_to_nodes_becomes_the_record() -> None:
    play = Play()
    play.join("a", "b")
    play.later(MINUTE)
    play.judge("a", Level.DEAD)
    play.tell(ev.NodeTerminated(at=play.now, node="b"))
    record = records(play.world, list(play.world.pools.values()), play.now).nodes
    assert (record.events, record.exposure_ms) == (1, 2 * MINUTE)


def test_a_service_without_a_target_is_as_large_as_it_says() -> None:
    play = Play(offers=ZONES)
    plain = Workload("web", Service(2))
    assert sized(Draft(play.world, play.now), plain) == (plain, "")


def test_a_service_with_a_target_gets_the_seats_it_needs() -> None:
    play = Play(offers=ZONES)
    workload = web(0.9999)
    play.apply(workload)
    play.settle()
    assert len(play.world.slots) == copies(play, workload) > 1


def test_turning_again_does_not_make_it_grow() -> None:
    play = Play(offers=ZONES)
    play.apply(web(0.9999))
    play.settle()
    before = set(play.world.slots)
    for _ in range(3):
        play.tell(ev.WorkloadApplied(at=play.now, workload=play.world.workloads["web"]))
        play.settle()
    assert set(play.world.slots) == before


def test_a_node_that_is_still_there_has_served_too() -> None:
    play = Play(can_terminate=False)
    play.join("a", "b")
    play.later(HOUR)
    play.judge("a", Level.DEAD)
    play.later(HOUR)
    record = records(play.world, list(play.world.pools.values()), play.now).nodes
    assert (record.events, record.exposure_ms) == (1, 3 * HOUR)


def test_a_zone_that_was_lost_is_remembered_until_somebody_there_says_hello() -> None:
    play = Play(offers=ZONES, can_launch=False, can_terminate=False)
    play.join("a1", "a2", "a3", "a4", zone="a")
    play.join("b1", "b2", "b3", "b4", zone="b")
    play.later(HOUR)
    for name in ("a1", "b1", "b2", "b3"):
        play.judge(name, Level.DEAD)
    play.now += 10 * MINUTE
    play.join("b1", zone="b")
    play.now += 50 * MINUTE
    record = records(play.world, list(play.world.pools.values()), play.now).domains
    assert (record.events, record.exposure_ms, record.down_ms) == (1, 4 * HOUR, 10 * MINUTE)


def test_a_service_grows_when_its_nodes_turn_out_to_die_often() -> None:
    play = Play(offers=ZONES, min=6, max=40)
    play.join(*(f"n{number}" for number in range(6)), zone="a")
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-1", generation=1))
    play.apply(web(0.999))
    play.obey()
    before = len(play.world.slots)
    seen(play, deaths=5_000, served_ms=10_000 * HOUR)
    play.later(play.world.policy.balance.every_ms)
    assert len(play.world.slots) > before
