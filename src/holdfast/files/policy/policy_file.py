"""Reads a policy file: the tables of `holdfast.model.policy.Policy`, such as `[detection]`."""

from pathlib import Path
from typing import Annotated

from pydantic import TypeAdapter, ValidationError

from holdfast.files import read_text, validation_errors
from holdfast.files.policy import policy_checks
from holdfast.files.problem import FileProblem, Problem
from holdfast.files.struct_schema import Mirror
from holdfast.model.policy import Policy

POLICY = Mirror(Policy, least_ms=1)
READER: TypeAdapter[Policy] = TypeAdapter(Annotated[Policy, POLICY])
EMPTY = Problem("", "expected a policy, got an empty file", 'Try: [leases] with lease = "30s"')


def read(path: Path) -> Policy:
    data = read_text.tables(path)
    if not data:
        raise FileProblem(str(path), [EMPTY])
    try:
        policy = READER.validate_python(data)
    except ValidationError as error:
        raise FileProblem(str(path), validation_errors.problems(POLICY.model, error)) from None
    found = list(policy_checks.problems(policy))
    if found:
        raise FileProblem(str(path), found)
    return policy
