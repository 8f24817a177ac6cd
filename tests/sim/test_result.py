"""What a run says it came to."""

from msgspec.structs import replace

from holdfast.model.resources import Resources
from holdfast.model.workload import Needs, Service, Workload
from holdfast.sim.result import tell
from holdfast.sim.run import Simulation
from holdfast.sim.scenario import Fault, Trouble, WorkloadSetup
from tests.sim.test_sweep import small_story


def test_a_service_that_was_never_up_was_down_all_the_time() -> None:
    huge = Workload("huge", Service(1), Needs(Resources(cpu_milli=99_000)))
    story = replace(small_story(), workloads=(WorkloadSetup(huge),), troubles=())
    (result,) = Simulation(story).run().workloads
    assert (result.availability, result.downtime_ms, result.outages) == (0.0, story.lasts_ms, 1)


def test_a_fault_that_finds_nobody_says_so() -> None:
    nobody = Trouble(at=20_000, fault=Fault.CRASH, nodes=("pool-99",))
    sim = Simulation(replace(small_story(), troubles=(nobody,)))
    result = sim.run()
    assert sim.story is not None
    assert "nobody is there" in sim.story.text()
    assert "safety    kept" in tell(result)
