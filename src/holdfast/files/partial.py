"""A file with a wrong field may have other faults too, and its writer wants to hear of all of them at once.

What could not be read is mended, and the rest is read again until it can be: a field that is surely misspelt
is taken for the one that is meant, one that must be there gets something in its place, everything else is
taken out. Then the rest is checked as usual, except by checks that would have needed what was taken out; and
of a place that was told as wrong nothing more is told.

A misspelt name is only taken for another when it is nearer than what is good enough for a suggestion: `port`
may be suggested as `spot`, but its value means something else.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.files import validation_errors
from holdfast.files.problem import Problem
from holdfast.files.validation_errors import Loc, Style

ROUNDS = 5  # what is behind a misspelt name, inside a misspelt table, in a table that must be one
SURELY = 0.8  # as near as a name must be to be taken for another
Instead = Mapping[str, Callable[[int], str]]  # of a field that must be there, one that is like no other
UNNAMED: Callable[[int], str] = "unnamed-{}".format
Form = TypeVar("Form", bound=BaseModel)


class Broken(NamedTuple):
    """A field that could not be read."""

    loc: Loc
    known: bool  # false: there is none of this name, and it may have been meant for any other


class Salvaged(Generic[Form]):
    def __init__(self, form: type[Form], data: Mapping[str, object], style: Style, instead: Instead) -> None:
        self._kind, self._style, self._instead = form, style, instead
        self._rest: Any = _copied(data)
        self._spelt: dict[str, str] = {}  # where it is meant to be -> where it stands in the file
        self._told: dict[str, Problem] = {}
        self._out: set[str] = set()  # of these places nothing more is told
        self.broken: list[Broken] = []
        self.form = self._read()  # none: nothing can be made of it

    @property
    def problems(self) -> list[Problem]:
        return list(self._told.values())

    def tell(self, problems: Iterable[Problem]) -> None:
        """Of the rest; they are told of the places where things stand in the file."""
        for problem in problems:
            where = self._written(problem.path)
            if not self._is_told(where):
                self._told[where] = problem._replace(path=where)

    def _read(self) -> Form | None:
        for _ in range(ROUNDS):
            try:
                return self._kind.model_validate(self._rest)
            except ValidationError as error:
                details = error.errors(include_url=False)
                found = validation_errors.problems(self._kind, error, self._style)
                self.tell(problem for problem in found if not self._is_ours(problem.path))
                if not all(self._mended(detail) for detail in details):
                    return None
        return None

    def _is_told(self, where: str) -> bool:
        return where in self._told or any(_is_in(where, out) for out in self._out)

    def _is_ours(self, where: str) -> bool:
        """A table that lacks something since it was taken out."""
        return any(_is_in(out, self._written(where)) for out in self._out)

    def _written(self, where: str) -> str:
        for meant in sorted(self._spelt, key=len, reverse=True):
            if _is_in(where, meant):
                return self._spelt[meant] + where[len(meant) :]
        return where

    def _mended(self, detail: ErrorDetails) -> bool:
        loc = validation_errors.named(detail["loc"])
        if not loc:
            return False
        known = detail["type"] != "extra_forbidden"
        if not known and self._renamed(loc):
            return True
        self.broken.append(Broken(loc, known))
        if detail["type"] != "missing":
            return self._taken_out(loc)
        if loc[-1] in self._instead:
            _at(self._rest, loc[:-1])[loc[-1]] = self._instead[str(loc[-1])](len(self.broken))
            return True
        self.broken.append(Broken(loc[:-1], known=True))
        return self._taken_out(loc[:-1])

    def _renamed(self, loc: Loc) -> bool:
        table, last = _at(self._rest, loc[:-1]), str(loc[-1])
        if last not in table:  # it went with something else
            return True
        near = get_close_matches(last, validation_errors.fields_at(self._kind, loc[:-1]), n=1, cutoff=SURELY)
        if not near or near[0] in table:
            return False
        table[near[0]] = table.pop(last)
        self._spelt[validation_errors.path([*loc[:-1], near[0]])] = self._written(validation_errors.path(loc))
        return True

    def _taken_out(self, loc: Loc) -> bool:
        self._out.add(self._written(validation_errors.path(loc)))
        while loc:
            holder = _at(self._rest, loc[:-1])
            if isinstance(holder, dict):
                holder.pop(loc[-1], None)
                return True
            if isinstance(holder, list) and holder[int(loc[-1])] != {}:
                holder[int(loc[-1])] = {}  # the others keep their numbers
                return True
            loc = loc[:-1]  # a word that stands for a table, or a table with nothing that could be missing
        return False


def _is_in(where: str, place: str) -> bool:
    return where == place or where.startswith((f"{place}.", f"{place}["))


def _at(data: Any, loc: Loc) -> Any:
    for part in loc:
        if isinstance(data, dict) and part not in data:
            return {}  # taken out already
        if not isinstance(data, dict | list):
            return None  # a word that stands for a table
        data = data[part] if isinstance(data, dict) else data[int(part)]
    return data


def _copied(value: object) -> object:
    """What an anchor repeats is mended in one place and not in the others."""
    match value:
        case dict():
            return {key: _copied(each) for key, each in value.items()}
        case list():
            return [_copied(each) for each in value]
        case _:
            return value
