"""From a path to the tables of its TOML, whatever is at that path."""

import tomllib
from pathlib import Path

from holdfast.files.problem import FileProblem, Problem, did_you_mean

BYTES_MAX = 4 * 1024 * 1024


def tables(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except IsADirectoryError:
        inside = [child.name for child in sorted(path.glob("*.toml"))]
        hint = f"Try: {path / inside[0]}" if inside else ""
        raise FileProblem(str(path), [Problem("", "expected a TOML file, got a folder", hint)]) from None
    except FileNotFoundError:
        raise FileProblem(str(path), [_missing(path)]) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise FileProblem(str(path), [Problem("", f"expected a readable file, got: {why}")]) from None
    if len(content) > BYTES_MAX:
        raise FileProblem(str(path), [Problem("", "expected a file of at most 4 MiB, got a larger one")])
    return parse(content, str(path))


def parse(content: bytes, name: str) -> dict[str, object]:
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        problem = Problem("", "expected text in UTF-8, got bytes that are not text")
    except tomllib.TOMLDecodeError as error:
        why = str(error)
        problem = Problem("", f"expected TOML, got something else: {why[0].lower()}{why[1:]}")
    except (ValueError, RecursionError):
        problem = Problem("", "expected TOML, got a number too long or tables too deep to read")
    raise FileProblem(name, [problem])


def _missing(path: Path) -> Problem:
    beside = [child.name for child in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    return Problem("", "expected a file, got nothing: there is no such file", did_you_mean(path.name, beside))
