"""A file with a wrong field may have other faults too, and its writer wants to hear of all of them at once.

What could not be read is taken out, and the rest is checked as usual, except by the checks that would have
needed it.
"""

import copy
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from holdfast.files import checks
from holdfast.files.forms import ScenarioForm
from holdfast.files.problem import Problem


def more_problems(data: dict[str, object], error: ValidationError) -> list[Problem]:
    rest: Any = copy.deepcopy(data)
    broken: set[str] = set()
    for detail in error.errors(include_url=False, include_context=False):
        loc = detail["loc"]
        if len(loc) == 1 and detail["type"] == "extra_forbidden":
            return []  # a misspelt table, perhaps: everything may depend on it
        broken.add(_field(detail))
        if detail["type"] == "missing" and loc[-1] == "name":
            rest[loc[0]][loc[1]]["name"] = f"unnamed-{loc[1]}"
        elif detail["type"] == "missing" or isinstance(loc[-1], int):
            rest.pop(loc[0], None)
            broken |= {str(loc[0]), f"{loc[0]}.?"}
        else:
            _take_out(rest, loc)
    try:
        return checks.problems(ScenarioForm.model_validate(rest), frozenset(broken))
    except ValidationError:
        return []


def _field(detail: ErrorDetails) -> str:
    """The table and the field in it; `?` for a field that does not exist and may be meant for any other."""
    loc = detail["loc"]
    if len(loc) == 1:
        return str(loc[0])
    known = detail["type"] != "extra_forbidden" and len(loc) > 2
    return f"{loc[0]}.{loc[2] if known else '?'}"


def _take_out(data: Any, loc: tuple[int | str, ...]) -> None:
    for part in loc[:-1]:
        if isinstance(data, dict) and part not in data:
            return
        data = data.__getitem__(part)
    data.pop(loc[-1], None)
