"""What the command line says, and how it fails: one `error:` line and one `hint:` line, never a traceback."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from holdfast.files.problem import FileProblem
    from holdfast.model.policy import Policy
    from holdfast.sim.scenario.scenario import Scenario

FAILED = 1
BAD_INPUT = 2
TIMED_OUT = 3
INTERRUPTED = 130


def fail(errors: Sequence[str], hint: str = "", code: int = BAD_INPUT) -> NoReturn:
    for error in errors:
        note(f"error: {error}")
    if hint:
        note(f"hint: {hint}")
    raise typer.Exit(code)


def as_json(value: object) -> None:
    """One object on one line, so that the last line of the output is all a program needs."""
    import msgspec

    out(msgspec.json.encode(value).decode())


def raw(body: bytes) -> None:
    """What the API answered, as it is."""
    out(body.decode())


def out(text: str, *, flush: bool = False) -> None:
    """A line on stdout, which may be what a program or a node has written."""
    from holdfast.cli.render.escape import for_output

    print(for_output(text), flush=flush)


def note(text: str) -> None:
    """The same on stderr."""
    from holdfast.cli.render.escape import for_output

    print(for_output(text, sys.stderr), file=sys.stderr, flush=True)


def duration(text: str, option: str, least_ms: int = 1) -> int:
    """Milliseconds."""
    from holdfast.files.values import duration as kind

    form = kind(least_ms, "90s")
    try:
        value = form.read(text)
    except (ValueError, OverflowError):
        fail([f"{option}: expected {form.expected}, got {text}"], f"{option} {form.example}")
    assert isinstance(value, int)
    return value


def read_scenario(path: Path, *, json_too: bool = False) -> "Scenario":
    from holdfast.files.problem import FileProblem
    from holdfast.files.scenario import scenario_file

    try:
        return scenario_file.read(path)
    except FileProblem as problem:
        _refuse(problem, "every field is in docs/reference/scenario-file.md", json_too)


def read_policy(path: Path | None, *, json_too: bool = False) -> "Policy | None":
    from holdfast.files.policy import policy_file
    from holdfast.files.problem import FileProblem

    if path is None:
        return None
    try:
        return policy_file.read(path)
    except FileProblem as problem:
        _refuse(problem, "a policy file has tables such as [detection] and [leases]", json_too)


def _refuse(problem: "FileProblem", hint: str, json_too: bool) -> NoReturn:
    if json_too:
        print(json.dumps(_told(problem)))
    fail(problem.lines(), hint)


def refuse(problems: "Sequence[FileProblem]", hint: str, json_too: bool) -> NoReturn:
    """Several files that cannot be used."""
    if json_too:
        print(json.dumps([_told(problem) for problem in problems]))
    fail([line for problem in problems for line in problem.lines()], hint)


def _told(problem: "FileProblem") -> dict[str, object]:
    """A line only where it is known."""
    found = [{name: value for name, value in one._asdict().items() if value != 0} for one in problem.problems]
    return {"file": problem.file, "problems": found}
