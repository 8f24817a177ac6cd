"""From YAML to plain data, with the line of everything in it.

The tree is built here from the parser's events. PyYAML's own composer is recursive in C, where a file of
some hundred kilobytes of `[` ends the process; its resolver turns `no` into false and `1:30` into 90; and
neither keeps the text of a number, which an environment variable needs: `VERSION: 1.10` is "1.10".

- Plain words mean what YAML 1.2 says: true, false, null, numbers. Everything else is text.
- Below the keys in `texts` everything that is not null is text, exactly as it is written.
- Anchors and merge keys (`<<`) work. What an alias repeats counts as often as it is repeated, so a file of
  laughs is refused like any other that is too large.
- Tags are refused: there is nothing here that they could name.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from holdfast.files.problem import FileProblem, Problem
from holdfast.files.validation_errors import step

BYTES_MAX = 4 * 1024 * 1024
VALUES_MAX = 100_000
DEPTH_MAX = 40
DIGITS_MAX = 40  # a longer number is nobody's count: left as the text it is, for the field to refuse

WORDS: dict[str, object] = {"": None, "~": None}
WORDS |= dict.fromkeys(("null", "Null", "NULL"))
WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)
WHOLE = re.compile(r"[-+]?[0-9]+")
REAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
MERGE = "<<"
PLAIN_TAGS = {None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq"))}

PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class Document(NamedTuple):
    data: object
    lines: dict[str, int]  # the path of a value -> its line
    problems: list[Problem]

    def line_of(self, path: str) -> int:
        """Of this place or, if it is not in the file, of what it would stand in."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 0)


class _TooMuch(Exception):
    """The file is larger than anything that a person means."""


def documents(text: str, name: str, texts: frozenset[str] = frozenset()) -> list[Document]:
    """Every document in the text that is not empty."""
    if len(text) > BYTES_MAX or len(text.encode("utf-8", "surrogatepass")) > BYTES_MAX:
        raise FileProblem(name, [Problem("", "expected at most 4 MiB, got more")])
    try:
        parser = PARSER(text.removeprefix("\ufeff"))
        try:
            found = list(_Builder(parser, texts).all())
        finally:
            parser.dispose()
    except _TooMuch as error:
        problem = Problem("", str(error))
    except yaml.YAMLError as error:
        problem = _not_yaml(text, error)
    except UnicodeEncodeError:
        problem = Problem("", "expected text, got characters that are none")
    else:
        return [document for document in found if document.data is not None]
    raise FileProblem(name, [problem])


def _not_yaml(text: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "something else"
    line = mark.line + 1 if mark else 0
    content = text.splitlines()[line - 1] if mark and 0 < line <= len(text.splitlines()) else ""
    hint = "Try: spaces instead of tabs" if "\t" in content else ""
    if "mapping values are not allowed" in what:
        hint = 'Try: quotes around a text that holds ": "'
    return Problem("", f"expected YAML, got something else: {what}", hint, line)


class _Builder:
    def __init__(self, parser: Any, texts: frozenset[str]) -> None:
        self.parser, self.texts = parser, texts
        self.values = 0

    def all(self) -> Iterator[Document]:
        while self.parser.check_event():
            if isinstance(self.parser.get_event(), yaml.DocumentStartEvent):
                yield self._document()

    def _document(self) -> Document:
        self.anchors: dict[str, tuple[object, int]] = {}  # and how many values it is
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        return Document(self._value(self._next(), "", False, 0), self.lines, self.problems)

    def _next(self) -> Any:
        return self.parser.get_event()

    def _value(self, event: Any, path: str, as_text: bool, depth: int) -> object:
        self._count(1)
        if depth > DEPTH_MAX:
            raise _TooMuch(f"expected at most {DEPTH_MAX} levels, got more")
        self.lines[path] = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._repeated(event, path)
        if event.tag not in PLAIN_TAGS:
            self._complain(path, "expected a value without a tag, got one", "Try: leave out " + event.tag)
        before = self.values
        match event:
            case yaml.MappingStartEvent():
                value: object = self._mapping(path, as_text, depth)
            case yaml.SequenceStartEvent():
                value = self._sequence(path, as_text, depth)
            case _:
                value = scalar(event.value, plain=not event.style, as_text=as_text)
        if event.anchor:
            self.anchors[event.anchor] = value, self.values - before + 1
        return value

    def _count(self, more: int) -> None:
        self.values += more
        if self.values > VALUES_MAX:
            raise _TooMuch(f"expected at most {VALUES_MAX:,} values, got more")

    def _repeated(self, event: Any, path: str) -> object:
        if event.anchor not in self.anchors:
            text = "expected the name of an anchor that ends before it is used, got another"
            self._complain(path, text, f"Try: &{event.anchor} at what is meant")
            return None
        value, size = self.anchors[event.anchor]
        self._count(size)
        return value

    def _sequence(self, path: str, as_text: bool, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, step(path, len(items)), as_text, depth + 1))
        return items

    def _mapping(self, path: str, as_text: bool, depth: int) -> dict[str, object]:
        data: dict[str, object] = {}
        merged: list[object] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, path, depth)
            if key is None:
                self._value(self._next(), path, as_text, depth + 1)
                continue
            below = step(path, key)
            first = self.lines.get(below)
            value = self._value(self._next(), below, as_text or key in self.texts, depth + 1)
            if key == MERGE and isinstance(event, yaml.ScalarEvent) and not event.style:
                merged += value if isinstance(value, list) else [value]
            elif key in data:
                self._complain(below, f"expected each field once, got it again (first in line {first})")
            else:
                data[key] = value
            self.lines[below] = event.start_mark.line + 1
        for more in merged:
            if isinstance(more, dict):
                data = {**more, **data}
            else:
                self._complain(step(path, MERGE), "expected a table to merge, got something else")
        return data

    def _key(self, event: Any, path: str, depth: int) -> str | None:
        if isinstance(event, yaml.ScalarEvent):
            return str(event.value)
        self._value(event, path, False, depth + 1)
        self._complain(path, "expected the name of a field, got a list or a table")
        return None

    def _complain(self, path: str, expected: str, suggestion: str = "") -> None:
        self.problems.append(Problem(path, expected, suggestion, self.lines.get(path, 0)))


def scalar(text: str, *, plain: bool, as_text: bool = False) -> object:
    """What a word of the file means."""
    if not plain:
        return text
    if text in WORDS:
        value = WORDS[text]
        return text if as_text and value is not None else value
    if as_text or len(text) > DIGITS_MAX:
        return text
    if WHOLE.fullmatch(text):
        return int(text)
    return float(text) if REAL.fullmatch(text) else text
