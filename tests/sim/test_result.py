"""What a run says it came to."""

from msgspec.structs import replace

from holdfast.model.resources import Resources
from holdfast.model.units import MINUTE
from holdfast.model.workload import Needs, Service, Workload
from holdfast.sim.result import WorkloadResult, tell
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    Change,
    Fault,
    Trouble,
    WorkloadSetup,
)
from tests.sim.test_sweep import small_story


def test_a_service_that_was_never_up_was_down_all_the_time() -> None:
    huge = Workload("huge", Service(1), Needs(Resources(cpu_milli=99_000)))
    story = replace(small_story(), workloads=(WorkloadSetup(huge),), troubles=())
    (result,) = Simulation(story).run().workloads
    assert (result.availability, result.downtime_ms, result.outages) == (0.0, story.lasts_ms, 1)


def done(*changes: Change) -> WorkloadResult:
    """What became of a service to which its owner does these."""
    web = WorkloadSetup(Workload("web", Service(2), Needs(Resources(cpu_milli=1_000))))
    story = replace(small_story(), workloads=(web,), changes=changes, troubles=())
    (result,) = Simulation(story).run().workloads
    return result


def test_a_service_that_its_owner_paused_is_not_down() -> None:
    assert done(Change(2 * MINUTE, "pause", "web")).outages == 0
    result = done(Change(1 * MINUTE, "pause", "web"), Change(2 * MINUTE, "resume", "web"))
    assert (result.availability, result.downtime_ms, result.outages) == (1.0, 0, 0)


def test_a_service_that_does_not_come_back_when_it_is_resumed_is_down_from_then_on() -> None:
    pause, resume = Change(1 * MINUTE, "pause", "web"), Change(2 * MINUTE, "resume", "web")
    cordons = tuple(Change(90_000, "cordon", node=f"pool-{letter}") for letter in "abcdefghi")
    result = done(pause, *cordons, resume)
    assert (result.downtime_ms, result.outages) == (small_story().lasts_ms - 2 * MINUTE, 1)


def test_a_service_that_was_deleted_is_not_down() -> None:
    assert done(Change(2 * MINUTE, "delete", "web")).outages == 0


def test_a_fault_that_finds_nobody_says_so() -> None:
    nobody = Trouble(at=20_000, fault=Fault.CRASH, nodes=("pool-99",))
    sim = Simulation(replace(small_story(), troubles=(nobody,)))
    result = sim.run()
    assert sim.story is not None
    assert "nobody is there" in sim.story.text()
    assert "safety    kept" in tell(result)
