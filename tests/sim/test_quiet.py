"""Working out many quiet rounds at once changes how long a simulation takes, not what it says."""

import pytest
from msgspec.structs import replace

from holdfast.files.scenario.scenario_file import from_tables
from holdfast.model.units import HOUR, SECOND
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    Fault,
    NetworkTraits,
    Scenario,
    Trouble,
)
from tests.sim.test_sweep import small_story


def story(loss: float = 0.0005) -> Scenario:
    crash = Trouble(at=2 * HOUR, fault=Fault.CRASH, nodes=("pool-a",))
    restart = Trouble(at=1 * HOUR, fault=Fault.AGENT_RESTART, nodes=("pool-b",), lasts_ms=3 * SECOND)
    network = replace(NetworkTraits(), loss=loss)
    return replace(small_story(), lasts_ms=4 * HOUR, troubles=(crash, restart), network=network)


@pytest.mark.parametrize("loss", [0.0, 0.0005, 0.02])
def test_a_story_is_the_same_with_and_without_its_quiet_hours(
    loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Simulation(story(loss))
    told = quick.run()
    monkeypatch.setattr(Simulation, "_pass_quiet_time", lambda sim: None)
    slow = Simulation(story(loss))
    assert slow.run() == told
    assert quick.story is not None
    assert slow.story is not None
    assert quick.story.text() == slow.story.text()
    assert quick.kernel.events * 5 < slow.kernel.events or loss > 0.01


def test_the_detector_has_the_same_memory_of_a_quiet_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = replace(story(), troubles=(), lasts_ms=1 * HOUR + 500)
    quick = Simulation(quiet)
    quick.run()
    monkeypatch.setattr(Simulation, "_pass_quiet_time", lambda sim: None)
    slow = Simulation(quiet)
    slow.run()
    assert quick.leader is not None
    assert slow.leader is not None
    assert quick.leader.mind is not None
    assert slow.leader.mind is not None
    one, other = quick.leader.mind.senses.beats, slow.leader.mind.senses.beats
    for name in ("heard", "usual", "look_at"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.mean.tolist() == pytest.approx(other.mean.tolist())
    assert one.variance.tolist() == pytest.approx(other.variance.tolist())


def test_a_fleet_that_is_silent_as_a_whole_is_asked_about_ever_more_seldom() -> None:
    """All of it lost power, its provider says that it runs, and there is nobody else to ask: 20 lines a
    second were written into the journal."""
    tables: dict[str, object] = {
        "lasts": "40m",
        "settle": "5m",
        "pools": [{"name": "std", "nodes": 5, "max": 5, "can_launch": False, "can_terminate": False}],
        "workloads": [{"name": "web", "replicas": 3, "cpus": 1, "memory": "1GiB"}],
        "faults": [{"at": "2m", "fault": "crash", "nodes": ["*"], "lasts": "25m", "provider_knows": False}],
    }
    sim = Simulation(from_tables(tables, "silent.toml"), history=False)
    result = sim.run()
    assert (result.violations, result.unmet) == ((), ())
    assert result.journal_entries < 1_000
