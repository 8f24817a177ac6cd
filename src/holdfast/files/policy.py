"""Reads a policy file: the tables of `holdfast.model.policy.Policy`, such as `[detection]`."""

from pathlib import Path
from typing import Annotated

from pydantic import TypeAdapter, ValidationError

from holdfast.files import explain, load, policy_checks
from holdfast.files.mirror import Mirror
from holdfast.files.problem import FileProblem, Problem
from holdfast.model.policy import Policy

POLICY = Mirror(Policy, least_ms=1)
READER: TypeAdapter[Policy] = TypeAdapter(Annotated[Policy, POLICY])
EMPTY = Problem("", "expected a policy, got an empty file", 'Try: [leases] with lease = "30s"')


def read(path: Path) -> Policy:
    data = load.tables(path)
    if not data:
        raise FileProblem(str(path), [EMPTY])
    try:
        policy = READER.validate_python(data)
    except ValidationError as error:
        raise FileProblem(str(path), explain.problems(POLICY.model, error)) from None
    found = list(policy_checks.problems(policy))
    if found:
        raise FileProblem(str(path), found)
    return policy
