"""Reads a scenario file: `read(Path("scenarios/one-node-dies.toml"))`."""

from pathlib import Path

from pydantic import ValidationError

from holdfast.files import checks, convert, explain, fit, load, markets, salvage
from holdfast.files.forms import ScenarioForm
from holdfast.files.problem import FileProblem, Problem
from holdfast.sim.scenario import Scenario

EMPTY = Problem(
    "",
    "expected a scenario with at least one pool, got an empty file",
    'Try: [[pools]] with name = "std" and nodes = 3',
)


def read(path: Path) -> Scenario:
    return from_tables(load.tables(path), str(path))


def from_tables(data: dict[str, object], file: str) -> Scenario:
    if not data:
        raise FileProblem(file, [EMPTY])
    try:
        form = ScenarioForm.model_validate(data)
    except ValidationError as error:
        found = explain.problems(ScenarioForm, error)
        found += salvage.more_problems(data, error)
        raise FileProblem(file, found) from None
    found = checks.problems(form)
    if not found:
        made, found = markets.read(form, Path(file).parent)
    if not found:
        scenario = convert.scenario(form, Path(file).stem, made)
        found = fit.problems(scenario)
    if found:
        raise FileProblem(file, found)
    return scenario
