"""pydantic's list of errors as problems that a person can act on."""

import enum
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from holdfast.core.spelling import did_you_mean
from holdfast.files.problem import Problem, shown
from holdfast.files.struct_schema import Mirror
from holdfast.files.values import Leaf

Loc = Sequence[int | str]
BARE_KEY_MAX = 60
KEY = "[key]"  # pydantic's last step to a key that is wrong itself


class Style(NamedTuple):
    """How a suggestion is written in the language of the file."""

    field: str
    tables: str  # a list of tables
    table: str


TOML = Style("{name} = {example}", "[[{header}]]", "[{header}]")
YAML = Style("{name}: {example}", "{name}: [{{ ... }}]", "{name}: {{ ... }}")


def problems(form: type[BaseModel], error: ValidationError, style: Style = TOML) -> list[Problem]:
    return [_problem(form, detail, style) for detail in error.errors(include_url=False)]


def named(loc: Loc) -> Loc:
    """Where it stands in the file."""
    return loc[:-1] if loc and loc[-1] == KEY else loc


def path(loc: Loc) -> str:
    """`("workloads", 0, "replicas")` -> `workloads[0].replicas`."""
    text = ""
    for part in loc:
        text = step(text, part)
    return text


def step(path: str, part: int | str) -> str:
    """One further into the file."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    key = part if part.replace("_", "").replace("-", "").isalnum() else shown(part)
    return f"{path}{'.' if path else ''}{key[:BARE_KEY_MAX]}"


def _problem(form: type[BaseModel], detail: ErrorDetails, style: Style) -> Problem:
    loc, got = named(detail["loc"]), shown(detail["input"])
    where, last = path(loc), str(loc[-1]) if loc else ""
    header = ".".join(str(part) for part in loc if isinstance(part, str))
    match detail["type"]:
        case "leaf":
            words = detail["ctx"]
            if detail["loc"][-1] == KEY:
                return Problem(where, f"expected {words['expected']}, got {got}", "Try: another name")
            return Problem(
                where, f"expected {words['expected']}, got {got}", tried(style, last, words["example"])
            )
        case "extra_forbidden":
            names = fields_at(form, loc[:-1])
            hint = _rename(last, names, style)
            return Problem(where, "expected a known field, got one that does not exist", hint)
        case "missing":
            expected, example = _wanted(form, loc)
            return Problem(where, f"expected {expected}, got nothing", tried(style, last, example))
        case "list_type":
            hint = style.tables.format(header=last, name=last)
            return Problem(where, f"expected a list of tables, got {got}", f"Try: {hint}")
        case "dict_type" | "model_type" | "model_attributes_type":
            form_of = style.tables if loc and isinstance(loc[-1], int) else style.table
            hint = form_of.format(header=header, name=header.rpartition(".")[2])
            return Problem(where, f"expected a table, got {got}", f"Try: {hint}")
        case _:
            return Problem(where, f"{detail['msg'].lower()}, got {got}")


def tried(style: Style, name: str, example: str) -> str:
    """An example may hold an inline table, `{ team = "x" }`, which each language writes in its own way."""
    written = example if style is TOML else example.replace(" = ", ": ")
    return "Try: " + style.field.format(name=name, example=written)


def _rename(word: str, names: list[str], style: Style) -> str:
    if word.endswith("_ms") and word.removesuffix("_ms") in names:
        return tried(style, word.removesuffix("_ms"), '"30s"')
    return did_you_mean(word, names)


def _wanted(form: type[BaseModel], loc: Loc) -> tuple[str, str]:
    table = table_at(form, loc[:-1])
    if isinstance(table, type) and issubclass(table, BaseModel):
        for mark in written(table)[str(loc[-1])].metadata:
            if isinstance(mark, Leaf):
                return mark.expected, mark.example
    return "a value", "..."


def fields_at(form: type[BaseModel], loc: Loc) -> list[str]:
    table = table_at(form, loc)
    if isinstance(table, type) and issubclass(table, BaseModel):
        return list(written(table))
    keys = get_args(table)[:1]
    return list(keys[0]) if keys and isinstance(keys[0], enum.EnumMeta) else []  # words that are known


def written(form: type[BaseModel]) -> dict[str, FieldInfo]:
    """Its fields by their names in the file: `global` is none in Python."""
    return {field.alias or name: field for name, field in form.model_fields.items()}


def table_at(form: type[BaseModel], loc: Loc) -> Any:
    """The model (or list, or dict of models) that describes this place in the file."""
    here: Any = form
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = written(here)[str(part)]
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
    if get_origin(type_) is UnionType:  # a table, or none
        return next(each for each in get_args(type_) if each is not NoneType)
    return type_
