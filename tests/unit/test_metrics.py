"""What /metrics says of workloads, and that it says only so much."""

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from holdfast.control.metrics import WORKLOADS_NAMED, WorkloadLabels, WorldCollector
from holdfast.core.state import fold
from holdfast.model import event as ev
from holdfast.model.replica import Phase
from holdfast.model.scale import Scale, Signal
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import Play


def collected(world: World) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(WorldCollector(lambda: world, lambda: True, lambda: 0, lambda: 0, lambda name: 1.0))
    return registry


def applied(*workloads: Workload) -> World:
    world = World()
    for workload in workloads:
        fold.observe(world, ev.WorkloadApplied(at=1, workload=workload))
    return world


def test_replicas_and_seats_are_counted_by_workload() -> None:
    play = Play(max=1)
    play.join("a")
    play.apply(Workload("web", Service(2), needs(cpu=1)), Workload("big", Service(1), needs(cpu=100)))
    play.obey()
    play.end("web/1.1", ev.Ended.FAILED)
    play.world.slots["web/1"] = replace(play.world.slots["web/1"], phase=Phase.FAILED)
    found = collected(play.world).get_sample_value
    assert found("holdfast_workload_replicas", {"workload": "web", "state": "ready"}) == 1
    assert found("holdfast_workload_seats_waiting", {"workload": "big"}) == 1
    assert found("holdfast_workload_seats_failed", {"workload": "web"}) == 1
    assert found("holdfast_workload_seats_failed", {"workload": "big"}) == 0


def test_thousands_of_workloads_have_a_bounded_number_of_series_and_none_is_left_out() -> None:
    scale = Scale(min=1, max=3, per_replica={Signal.IN_FLIGHT: 1.0})
    shapes = [Service(1), Service(1, scale=scale)]
    world = applied(*(Workload(f"w{number}", shapes[number % 2]) for number in range(2_000)))
    families = list(
        WorldCollector(lambda: world, lambda: True, lambda: 0, lambda: 0, lambda _: 1.0).collect()
    )
    labelled = {
        family.name: {sample.labels["workload"] for sample in family.samples}
        for family in families
        if any("workload" in sample.labels for sample in family.samples)
    }
    assert {"holdfast_workload_seats_waiting", "holdfast_replicas_wanted", "holdfast_demand_replicas"} < set(
        labelled
    )
    named = set().union(*labelled.values())
    assert len(named) == WORKLOADS_NAMED + 1
    assert "other" in named
    (wanted,) = [family for family in families if family.name == "holdfast_replicas_wanted"]
    assert sum(sample.value for sample in wanted.samples) == 1_000


def test_a_workload_keeps_its_series_and_the_most_important_come_first() -> None:
    label = WorkloadLabels(most=2)
    world = applied(*(Workload(name, Service(1), priority=p) for name, p in (("a", 0), ("b", 5), ("c", 0))))
    label.renew(world)
    assert [label(name) for name in "abc"] == ["a", "b", "other"]
    fold.observe(world, ev.WorkloadApplied(at=2, workload=Workload("d", Service(1), priority=9)))
    label.renew(world)
    assert [label(name) for name in "abcd"] == ["a", "b", "other", "other"]
    fold.observe(world, ev.WorkloadDeleted(at=3, workload="a"))
    label.renew(world)
    assert [label(name) for name in "abcd"] == ["other", "b", "other", "d"]
