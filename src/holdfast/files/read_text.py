"""From a path to the text or the tables of a file, whatever is at that path."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.spelling import did_you_mean
from holdfast.files.problem import FileProblem, Problem

BYTES_MAX = 4 * 1024 * 1024
NOT_TEXT = Problem("", "expected text in UTF-8, got bytes that are not text")


def tables(path: Path) -> dict[str, object]:
    return parse(content(path, "TOML", ("*.toml",)), str(path))


def text(path: Path, language: str, patterns: Sequence[str]) -> str:
    return decoded(content(path, language, patterns), str(path))


def decoded(found: bytes, name: str) -> str:
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileProblem(name, [NOT_TEXT]) from None


def content(path: Path, language: str, patterns: Sequence[str]) -> bytes:
    """The bytes of a file. The patterns say which others might have been meant."""
    try:
        with path.open("rb") as file:
            found = file.read(BYTES_MAX + 1)
    except IsADirectoryError:
        inside = [child.name for pattern in patterns for child in sorted(path.glob(pattern))]
        hint = f"Try: {path / inside[0]}" if inside else ""
        raise FileProblem(
            str(path), [Problem("", f"expected a {language} file, got a folder", hint)]
        ) from None
    except FileNotFoundError:
        raise FileProblem(str(path), [_missing(path, patterns)]) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise FileProblem(str(path), [Problem("", f"expected a readable file, got: {why}")]) from None
    if len(found) > BYTES_MAX:
        raise FileProblem(str(path), [Problem("", "expected a file of at most 4 MiB, got a larger one")])
    return found


def parse(content: bytes, name: str) -> dict[str, object]:
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        problem = NOT_TEXT
    except tomllib.TOMLDecodeError as error:
        why = str(error)
        problem = Problem("", f"expected TOML, got something else: {why[0].lower()}{why[1:]}")
    except (ValueError, RecursionError):
        problem = Problem("", "expected TOML, got a number too long or tables too deep to read")
    raise FileProblem(name, [problem])


def _missing(path: Path, patterns: Sequence[str]) -> Problem:
    beside = [child.name for pattern in patterns for child in path.parent.glob(pattern)]
    return Problem("", "expected a file, got nothing: there is no such file", did_you_mean(path.name, beside))
