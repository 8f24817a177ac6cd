"""The market of a pool in a scenario file: steps, traces, and what is wrong with them."""

import json
from pathlib import Path

import pytest

from holdfast.files.problem import FileProblem
from holdfast.files.scenario.scenario_file import from_tables, read
from holdfast.model.units import MINUTE
from holdfast.sim.scenario.market import PLENTY, Market
from holdfast.sim.scenario.scenario import Scenario

HEAD = '[[pools]]\nname = "spot"\nzones = ["a", "b"]\nspot = true\nmax = 3\n[pools.market]\n'


def market_of(scenario: Scenario) -> Market:
    found = scenario.pools[0].market
    assert found is not None
    return found


def written(folder: Path, text: str) -> Path:
    (path := folder / "story.toml").write_text(HEAD + text)
    return path


def test_a_pool_without_a_market_has_none() -> None:
    assert from_tables({"pools": [{"name": "std"}]}, "x.toml").pools[0].market is None


def test_steps_are_of_one_offer_or_of_each(tmp_path: Path) -> None:
    text = 'steps = [{ available = 2, price = 0.5 }, { at = "3m", offer = "b", available = 0 }]'
    made = market_of(read(written(tmp_path, text)))
    assert [(made.of(offer).left(3 * MINUTE), made.of(offer).price(0, 0)) for offer in "ab"] == [
        (2, 500_000),
        (0, 500_000),
    ]


def test_a_trace_is_found_beside_the_scenario(tmp_path: Path) -> None:
    rows = {"set": "S", "step_s": 60, "zones": {"a": [1, 0], "z": [5, 5]}}
    (tmp_path / "t.json").write_text(json.dumps(rows))
    made = market_of(read(written(tmp_path, 'trace = "t.json"\nformat = "counts"')))
    assert (made.of("a").left(MINUTE), made.of("b").left(MINUTE)) == (0, PLENTY)


@pytest.mark.parametrize(
    ("text", "where", "why", "hint"),
    [
        ('steps = [{ offer = "c" }]', "steps[0].offer", 'an offer of the pool, got "c"', "There is: a, b"),
        ("steps = [{ availble = 1 }]", "steps[0].availble", "a known field", "available"),
        ("steps = [{ available = -1 }]", "steps[0].available", "at least 0", ""),
        (
            'steps = [{ available = 1 }]\ntrace = "x"',
            "trace",
            "either steps or a trace, got both",
            "leave out",
        ),
        ('trace = "nowhere.json"', "trace", "cannot be read: No such file", ""),
        ('trace = "t.json"\nformat = "zones"', "trace", "is no trace of zones", ""),
        ('trace = "t.json"\nformat = "wimdows"', "format", "one of: windows, zones", "windows"),
        ('trace = "t.json"', "trace", "of the zones of the pool (a, b), got one of others", "There is: z"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, text: str, where: str, why: str, hint: str
) -> None:
    (tmp_path / "t.json").write_text('{"step_s": 60, "zones": {"z": [1]}}')
    with pytest.raises(FileProblem) as caught:
        read(written(tmp_path, text))
    (problem,) = caught.value.problems
    assert problem.path == f"pools[0].market.{where}"
    assert why in problem.expected
    assert hint in problem.suggestion
