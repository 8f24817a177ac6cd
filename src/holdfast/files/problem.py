"""What is wrong with a file, said so that the reader can put it right."""

import json
from collections.abc import Iterable
from typing import NamedTuple

LONGEST_SHOWN = 40


class Problem(NamedTuple):
    path: str  # "workloads[0].replicas"; empty: the file as a whole
    expected: str  # "expected a whole number of at least 1, got -3"
    suggestion: str = ""  # "Try: replicas = 3"
    line: int = 0  # in the file; 0: not known

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.expected}." + (f" {self.suggestion}" if self.suggestion else "")


class FileProblem(Exception):
    """The file cannot be used: everything found wrong with it."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file, self.problems = file, list(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        return [f"{self.file}{_line(problem)}: {problem}" for problem in self.problems]


def _line(problem: Problem) -> str:
    return f":{problem.line}" if problem.line else ""


def shown(value: object) -> str:
    """A value as it stands in the file, short enough for one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            text = json.dumps(value)
            return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 4] + '..."'
        case int() | float():
            text = str(value)
            return text if len(text) <= LONGEST_SHOWN else f"a number of {len(text)} digits"
        case list():
            return "a list" if value else "an empty list"
        case dict():
            return "a table" if value else "an empty table"
        case _:
            return f"a {type(value).__name__}"
