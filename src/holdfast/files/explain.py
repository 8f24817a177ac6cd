"""pydantic's list of errors as problems that a person can act on."""

from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.files.leaf import Leaf
from holdfast.files.mirror import Mirror
from holdfast.files.problem import Problem, did_you_mean, shown

Loc = Sequence[int | str]
BARE_KEY_MAX = 60


def problems(form: type[BaseModel], error: ValidationError) -> list[Problem]:
    return [_problem(form, detail) for detail in error.errors(include_url=False)]


def path(loc: Loc) -> str:
    """`("workloads", 0, "replicas")` -> `workloads[0].replicas`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if part.replace("_", "").replace("-", "").isalnum() else shown(part)
            text += f"{'.' if text else ''}{key[:BARE_KEY_MAX]}"
    return text


def _problem(form: type[BaseModel], detail: ErrorDetails) -> Problem:
    loc, got = detail["loc"], shown(detail["input"])
    where, last = path(loc), str(loc[-1]) if loc else ""
    match detail["type"]:
        case "leaf":
            words = detail["ctx"]
            return Problem(
                where, f"expected {words['expected']}, got {got}", f"Try: {last} = {words['example']}"
            )
        case "extra_forbidden":
            names = fields_at(form, loc[:-1])
            return Problem(where, "expected a known field, got one that does not exist", _rename(last, names))
        case "missing":
            expected, example = _wanted(form, loc)
            return Problem(where, f"expected {expected}, got nothing", f"Try: {last} = {example}")
        case "list_type":
            return Problem(where, f"expected a list of tables, got {got}", f"Try: [[{last}]]")
        case "dict_type" | "model_type" | "model_attributes_type":
            header = ".".join(str(part) for part in loc if isinstance(part, str))
            listed = loc and isinstance(loc[-1], int)
            return Problem(
                where, f"expected a table, got {got}", f"Try: {f'[[{header}]]' if listed else f'[{header}]'}"
            )
        case _:
            return Problem(where, f"{detail['msg'].lower()}, got {got}")


def _rename(word: str, names: list[str]) -> str:
    if word.endswith("_ms") and word.removesuffix("_ms") in names:
        return f'Try: {word.removesuffix("_ms")} = "30s"'
    return did_you_mean(word, names)


def _wanted(form: type[BaseModel], loc: Loc) -> tuple[str, str]:
    table = table_at(form, loc[:-1])
    if isinstance(table, type) and issubclass(table, BaseModel):
        for mark in table.model_fields[str(loc[-1])].metadata:
            if isinstance(mark, Leaf):
                return mark.expected, mark.example
    return "a value", "..."


def fields_at(form: type[BaseModel], loc: Loc) -> list[str]:
    table = table_at(form, loc)
    return list(table.model_fields) if isinstance(table, type) and issubclass(table, BaseModel) else []


def table_at(form: type[BaseModel], loc: Loc) -> Any:
    """The model (or list, or dict of models) that describes this place in the file."""
    here: Any = form
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields[str(part)]
            here = _model(
                Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            )
        else:
            here = _model(get_args(here)[-1])
    return here


def _model(type_: Any) -> Any:
    if get_origin(type_) is Annotated:
        marks = [mark for mark in get_args(type_)[1:] if isinstance(mark, Mirror)]
        return marks[0].model if marks else get_args(type_)[0]
    return type_
