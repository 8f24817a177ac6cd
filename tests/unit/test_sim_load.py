"""The pretended load of a service: its shape over time, what becomes of it, and how a file says it."""

from typing import Any

import pytest

from holdfast.files.problem import FileProblem
from holdfast.files.scenario.scenario_file import from_tables
from holdfast.model.scale import Signal
from holdfast.model.units import HOUR, MINUTE
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.load_profile import Burst, Load, LoadStep
from holdfast.sim.traffic.fluid_gateway import Served

DAY_OF_LOAD = Load(base=2, peak=10, period_ms=4 * HOUR)
STEPS = Load(steps=(LoadStep(MINUTE, 5.0), LoadStep(3 * MINUTE, 0.0)))
BURSTS = Load(base=1, bursts=(Burst(MINUTE, MINUTE, 7.0),))


@pytest.mark.parametrize(
    ("load", "minute", "level"),
    [
        (DAY_OF_LOAD, 0, 2),
        (DAY_OF_LOAD, 60, 6),
        (DAY_OF_LOAD, 120, 10),
        (DAY_OF_LOAD, 240, 2),
        (STEPS, 0, 0),
        (STEPS, 1, 5),
        (STEPS, 2.9, 5),
        (STEPS, 3, 0),
        (BURSTS, 0.9, 1),
        (BURSTS, 1, 8),
        (BURSTS, 2, 1),
        (Load(base=5, peak=3), 720, 5),
    ],
)
def test_the_level_is_as_it_is_written(load: Load, minute: float, level: float) -> None:
    assert load.level(int(minute * MINUTE)) == pytest.approx(level)


def test_the_last_jump_is_the_last_before_the_end() -> None:
    assert STEPS.last_change(HOUR) == 3 * MINUTE
    assert STEPS.last_change(2 * MINUTE) == MINUTE
    assert BURSTS.last_change(HOUR) == 2 * MINUTE
    assert DAY_OF_LOAD.last_change(HOUR) == 0


def tables(scale: dict[str, Any] | None = None, **load: Any) -> dict[str, Any]:
    web = {
        "name": "web",
        "replicas": 2,
        "scale": {"min": 2, "max": 2, "per_replica": {"in_flight": 4}, **(scale or {})},
        "load": load,
    }
    return {"lasts": "10m", "pools": [{"name": "std", "nodes": 2}], "workloads": [web]}


def served(**load: Any) -> Served:
    result = Simulation(from_tables(tables(**load), "story.toml"), history=False).run()
    assert (result.violations, result.unmet) == ((), ())
    found = result.workloads[0].served
    assert found is not None
    return found


def test_what_two_replicas_take_is_served_but_for_their_start() -> None:
    found = served(base=8)
    assert found.requests == pytest.approx(8 * 600, rel=0.01)
    assert found.lost_share == 0
    assert found.replica_hours == pytest.approx(2 / 6, rel=0.02)
    assert found.turns == 0


def test_what_is_above_is_lost_without_patience() -> None:
    assert served(base=10).lost_share == pytest.approx(0.2, abs=0.01)


def test_with_patience_it_waits_and_is_answered_later() -> None:
    found = served(steps=[{"value": 6}, {"at": "2m", "value": 12}, {"at": "3m", "value": 2}], patience="5m")
    assert found.lost == 0
    assert found.waited > 0
    assert found.waiting == 0
    assert found.longest_wait_ms < 2 * MINUTE


def test_whoever_waits_for_longer_than_its_patience_is_lost() -> None:
    found = served(base=16, patience="30s")
    assert 0.4 < found.lost_share < 0.5


def test_the_same_seed_asks_for_the_same() -> None:
    assert served(base=5, noise=0.3) == served(base=5, noise=0.3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"scale": {"max": 2, "per_replica": {"tokens_per_s": 4}}, "load": {"base": 1}},
            "what one replica takes of in_flight",
        ),
        ({"scale": {"min": 3, "max": 2, "per_replica": {"in_flight": 1}}}, "at most max (2), got 3"),
        ({"scale": {"max": 2}}, "a table of signals and what one replica takes"),
        ({"load": {"base": 1}}, "what one replica takes of in_flight"),
        ({"kind": "job", "scale": {"max": 2, "per_replica": {"in_flight": 1}}}, "no such field in a job"),
        ({"scale": {"per_replica": {"requests": 1}}}, "Did you mean: requests_per_s"),
        ({"scale": {"per_replica": {"in_flight": 0}}}, "Try: in_flight = 8"),
        ({"load": {"signal": "cpu"}}, "one of: in_flight"),
    ],
)
def test_a_load_that_cannot_be_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    story: dict[str, Any] = {"pools": [{"name": "std", "nodes": 2}]}
    story["workloads"] = [{"name": "web", **change}]
    with pytest.raises(FileProblem) as found:
        from_tables(story, "story.toml")
    assert words in str(found.value)


def test_a_fault_of_signals_names_a_service_with_a_load() -> None:
    story = tables(base=1)
    story["faults"] = [{"at": "1m", "fault": "signals stuck", "lasts": "1m", "workload": "wbe"}]
    with pytest.raises(FileProblem) as found:
        from_tables(story, "story.toml")
    assert "expected a service with a load" in str(found.value)


def test_a_file_says_everything_of_a_scale_and_a_load() -> None:
    scale = {"confidence": 0.9, "down_window": "5m", "idle": "1m", "stale": "30s", "fallback": 2}
    setup = from_tables(tables(scale, signal="in_flight", base=1, every="7s"), "story.toml").workloads[0]
    rules = getattr(setup.workload.shape, "scale", None)
    assert rules is not None
    assert rules.per_replica == {Signal.IN_FLIGHT: 4.0}
    assert (rules.confidence, rules.down_window_ms, rules.stale_ms) == (0.9, 5 * MINUTE, MINUTE // 2)
    assert setup.load is not None
    assert setup.load.every_ms == 7_000
