"""Skipping quiet stretches changes how long a simulation takes, not what it says."""

from msgspec.structs import replace

from holdfast.model.units import HOUR, SECOND
from holdfast.sim.run import Simulation
from holdfast.sim.scenario import Fault, Scenario, Trouble
from tests.sim.test_sweep import small_story


def story(*, skip: bool) -> Scenario:
    crash = Trouble(at=5 * HOUR, fault=Fault.CRASH, nodes=("pool-a",))
    return replace(small_story(), lasts_ms=8 * HOUR, troubles=(crash,), skip_quiet=skip)


def test_a_day_with_one_failure_is_the_same_story_with_and_without_its_quiet_hours() -> None:
    slow, quick = Simulation(story(skip=False)), Simulation(story(skip=True))
    told, skipped = slow.run(), quick.run()
    assert skipped.fine
    assert told.fine
    assert (skipped.nodes_lost, skipped.false_failovers) == (told.nodes_lost, told.false_failovers) == (1, 0)
    assert abs(skipped.node_hours - told.node_hours) < 0.01 * told.node_hours
    assert quick.kernel.events * 5 < slow.kernel.events


def test_a_failure_in_a_quiet_hour_is_seen_as_soon_as_ever() -> None:
    sim = Simulation(story(skip=True))
    sim.run()
    ((at, node),) = sim.deaths
    assert node == "pool-a"
    assert 0 < at - 5 * HOUR < 6 * SECOND
