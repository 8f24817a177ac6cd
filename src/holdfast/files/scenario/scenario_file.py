"""Reads a scenario file: `read(Path("scenarios/one-node-dies.toml"))`."""

from pathlib import Path

from holdfast.files import read_text
from holdfast.files.partial import UNNAMED, Broken, Salvaged
from holdfast.files.problem import FileProblem, Problem
from holdfast.files.scenario import (
    feasibility,
    markets,
    scenario_checks,
    scenario_convert,
)
from holdfast.files.scenario.scenario_schema import ScenarioForm
from holdfast.files.validation_errors import TOML
from holdfast.sim.scenario.scenario import Scenario

EMPTY = Problem(
    "",
    "expected a scenario with at least one pool, got an empty file",
    'Try: [[pools]] with name = "std" and nodes = 3',
)


def read(path: Path) -> Scenario:
    return from_tables(read_text.tables(path), str(path))


def from_tables(data: dict[str, object], file: str) -> Scenario:
    if not data:
        raise FileProblem(file, [EMPTY])
    read = Salvaged(ScenarioForm, data, TOML, {"name": UNNAMED})
    form = read.form
    if form is not None and not any(len(each.loc) == 1 and not each.known for each in read.broken):
        # else a table has a name that nobody knows: everything may depend on it
        read.tell(
            scenario_checks.problems(form, frozenset(name for each in read.broken for name in _names(each)))
        )
    found = read.problems
    if form is None or found:
        raise FileProblem(file, found)
    made, found = markets.read(form, Path(file).parent)
    if not found:
        scenario = scenario_convert.scenario(form, Path(file).stem, made)
        found = feasibility.problems(scenario)
    if found:
        raise FileProblem(file, found)
    return scenario


def _names(broken: Broken) -> set[str]:
    """The table and the field in it; `?` for a field that does not exist and may be meant for any other."""
    loc = broken.loc
    if len(loc) > 2 and broken.known:
        return {f"{loc[0]}.{loc[2]}"}
    return {f"{loc[0]}.?"} if len(loc) > 2 else {str(loc[0]), f"{loc[0]}.?"}
