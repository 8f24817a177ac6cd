"""Reads workload files: YAML, one document a thing that is wanted.

    for wanted in documents(text, "web.yaml"): ...

Everything that is wrong is told at once: of a document with a field that cannot be read, the rest is checked
too (`salvage`), and a misspelt kind is taken for the nearest.
"""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from pydantic import ValidationError

from holdfast.core.spelling import did_you_mean
from holdfast.files import read_text, validation_errors, yaml_lines
from holdfast.files.fleet import fleet_convert
from holdfast.files.partial import UNNAMED, Salvaged
from holdfast.files.policy import policy_checks, policy_file
from holdfast.files.problem import FileProblem, Problem, shown
from holdfast.files.validation_errors import YAML
from holdfast.files.workload import workload_checks
from holdfast.files.workload.workload_schema import (
    TEXTS,
    DocumentKind,
    PoolDocument,
    ProjectDocument,
    WorkloadDocument,
)
from holdfast.files.yaml_lines import Document
from holdfast.model.policy import Policy
from holdfast.model.pool import Pool
from holdfast.model.program import Program
from holdfast.model.project import Project
from holdfast.model.workload import DEFAULT_PROJECT, Workload

Wanted = Workload | Pool | Policy | Project
EMPTY = Problem("", "expected at least one document, got an empty file", "Try: kind: service")
PATTERNS = ("*.yaml", "*.yml")
KINDS = [str(kind) for kind in DocumentKind]
POOL_MAX = 1_000  # of nodes that join by themselves
REACHED_BY = {"name", "address", "port", "user", "key_file", "known_hosts", "python", "root"}
INSTEAD = {"name": UNNAMED, "command": UNNAMED}
OF_A_GATEWAY = {"services", "listen", "admin", "limits", "keys"}
# Fields that other systems have, and what is meant here.
ELSEWHERE = {
    "port": "holdfast chooses the port; the program finds it in $PORT",
    "ports": "holdfast chooses the port; the program finds it in $PORT",
    "image": "Try: command: [...], which runs as a process of the node",
    "args": "Try: all words in command",
    "environment": "Did you mean: env",
    "count": "Did you mean: replicas",
    "readiness": "Did you mean: ready",
    "liveness": "Did you mean: alive",
    "resources": "Try: cpus, memory and gpus as fields of their own",
}


class _Read(NamedTuple):
    form: Any  # none: it could not be read at all
    problems: list[Problem]
    broken: frozenset[str]  # fields that were left out


def read(path: Path) -> list[Wanted]:
    return documents(read_text.text(path, "YAML", PATTERNS), str(path))


def documents(text: str, name: str, project: str = DEFAULT_PROJECT) -> list[Wanted]:
    """What the text asks for, in its order. FileProblem: everything that is wrong with it. `project`: of
    workloads that name none."""
    found = yaml_lines.documents(text, name, TEXTS)
    if not found:
        raise FileProblem(name, [EMPTY])
    places = [f"[{number}]" if len(found) > 1 else "" for number in range(len(found))]
    forms = [_read(document, name) for document in found]
    problems = [
        _placed(problem, place, document)
        for document, form, place in zip(found, forms, places, strict=True)
        for problem in form.problems
    ]
    problems += _together(found, forms, places)
    if problems:
        raise FileProblem(name, sorted(problems, key=lambda problem: problem.line))
    return [_wanted(form.form, project) for form in forms]


def _placed(problem: Problem, place: str, document: Document) -> Problem:
    """In its document, with its line, and in the words of YAML."""
    dot = "." if place and problem.path and not problem.path.startswith("[") else ""
    hint = problem.suggestion
    if hint.startswith("Try: ") and " = " in hint:
        hint = hint.replace(" = ", ": ", 1)
    line = problem.line or document.line_of(problem.path)
    return Problem(f"{place}{dot}{problem.path}", problem.expected, hint, line)


def _together(found: list[Document], forms: list[_Read], places: list[str]) -> Iterator[Problem]:
    usable = [
        (f"{place}." if place else "", form.form)
        for place, form in zip(places, forms, strict=True)
        if form.form is not None and not form.broken & {"name", "after"}
    ]
    for problem in workload_checks.together(usable):
        for place, document in zip(places, found, strict=True):
            if place and problem.path.startswith(f"{place}."):
                yield _placed(problem._replace(path=problem.path.removeprefix(f"{place}.")), place, document)
            elif not place:
                yield _placed(problem, place, document)
    policies = [number for number, form in enumerate(forms) if isinstance(form.form, Policy)]
    for number in policies[1:]:
        problem = Problem("kind", "expected one policy, got another before it", "Try: one document for both")
        yield _placed(problem, places[number], found[number])


def _read(document: Document, name: str) -> _Read:
    data = document.data
    if not isinstance(data, dict):
        return _Read(None, [Problem("", f"expected fields such as kind, got {shown(data)}")], frozenset())
    if "kind" not in data and data.keys() & OF_A_GATEWAY:
        text = "expected workloads, got the file of a gateway"
        return _Read(None, [Problem("", text, f"Try: holdfast gateway --config {name}")], frozenset())
    kind, problems = _kind(data)
    if kind is None:
        return _Read(None, problems + document.problems, frozenset())
    rest = {**data, "kind": kind}
    if kind == DocumentKind.POLICY:
        done = _policy({key: value for key, value in rest.items() if key != "kind"})
    elif kind == DocumentKind.POOL:
        done = _checked(PoolDocument, rest)
    elif kind == DocumentKind.PROJECT:
        done = _checked(ProjectDocument, rest)
    else:
        done = _checked(WorkloadDocument, rest)
    return done._replace(problems=problems + document.problems + done.problems)


def _kind(data: dict[str, object]) -> tuple[str | None, list[Problem]]:
    """The kind it has or, so that its other fields can be checked, the one that it surely means."""
    if "kind" not in data:
        text = f"expected one of: {', '.join(KINDS)}, got nothing"
        return None, [Problem("kind", text, "Try: kind: service")]
    given = data["kind"]
    if isinstance(given, str) and given.strip().lower() in KINDS:
        return given.strip().lower(), []
    near = get_close_matches(given.lower(), KINDS, n=1) if isinstance(given, str) else []
    text = f"expected one of: {', '.join(KINDS)}, got {shown(given)}"
    hint = did_you_mean(near[0], KINDS) if near else "Try: kind: service"
    return near[0] if near else None, [Problem("kind", text, hint)]


def _checked(form: type[WorkloadDocument | PoolDocument | ProjectDocument], data: dict[str, object]) -> _Read:
    read: Salvaged[WorkloadDocument | PoolDocument | ProjectDocument] = Salvaged(form, data, YAML, INSTEAD)
    broken = frozenset(str(each.loc[0]) if each.known or len(each.loc) > 1 else "?" for each in read.broken)
    if read.form is not None and not isinstance(read.form, ProjectDocument):
        read.tell(workload_checks.problems(read.form, broken))
    return _Read(read.form, [_in_our_words(problem) for problem in read.problems], broken)


def _in_our_words(problem: Problem) -> Problem:
    last = problem.path.rpartition(".")[2]
    if "a known field" in problem.expected and last in ELSEWHERE:
        return problem._replace(suggestion=ELSEWHERE[last])
    return problem


def _policy(data: dict[str, object]) -> _Read:
    try:
        read = policy_file.READER.validate_python(data)
    except ValidationError as error:
        return _Read(None, validation_errors.problems(policy_file.POLICY.model, error, YAML), frozenset())
    return _Read(read, list(policy_checks.problems(read)), frozenset())


def _wanted(form: WorkloadDocument | PoolDocument | ProjectDocument | Policy, project: str) -> Wanted:
    match form:
        case WorkloadDocument():
            program = Program(form.command, form.env, form.workdir, form.ready, form.alive, form.tell)
            return fleet_convert.workload(form, program, paused=form.paused, project=project)
        case PoolDocument():
            return _pool(form)
        case ProjectDocument():
            return fleet_convert.project(form)
        case _:
            return form


def _pool(form: PoolDocument) -> Pool:
    hosts = len(form.hosts)
    least = next((n for n in (form.nodes, form.min) if n is not None), min(hosts, form.max or hosts))
    free = POOL_MAX if not form.can_launch else 0
    most = next((n for n in (form.nodes, form.max) if n is not None), max(least, hosts, free))
    if not hosts:
        offers = tuple(fleet_convert.offers(form))
        found = fleet_convert.pool(form, least, most, offers, form.settings, form.profile)
        return replace(found, network=form.network)
    offers = tuple(fleet_convert.explicit_offer(form, host) for host in form.hosts)
    reached = [
        {"address": host.name, **host.model_dump(include=REACHED_BY, exclude_defaults=True)}
        for host in form.hosts
    ]
    settings = {**form.settings, "hosts": json.dumps(reached)}
    found = fleet_convert.pool(form, least, most, offers, settings, form.profile)
    return replace(found, network=form.network)
