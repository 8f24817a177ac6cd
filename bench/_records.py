"""Which files of a folder are records of a kind: what is in them decides, not what they are called.

Plain or gzipped; what cannot be read, or is a record of something else, is passed over and named on stderr.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench._say import say

Rows = list[dict[str, str]]


def texts(folder: Path, suffix: str) -> Iterator[tuple[str, str]]:
    """Name without its suffixes, and text, of every file in the folder that ends so, gzipped or not."""
    for path in sorted(folder.glob(f"*{suffix}*")):
        name = path.name.removesuffix(".gz")
        if not name.endswith(suffix) or not path.is_file():
            continue
        try:
            raw = path.read_bytes()
            yield (
                name.removesuffix(suffix),
                (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode(errors="replace"),
            )
        except (OSError, EOFError, zlib.error) as error:
            say(f"{path.name} cannot be read ({error}): passed over")


def tables(folder: Path, columns: Iterable[str]) -> Iterator[tuple[str, Rows]]:
    """Every CSV file that has these columns and a row."""
    needed = set(columns)
    for name, text in texts(folder, ".csv"):
        reader = csv.DictReader(io.StringIO(text))
        if needed.issubset(reader.fieldnames or ()):
            rows = list(reader)
            if rows:
                yield name, rows


def objects(folder: Path, suffix: str, keys: Iterable[str]) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Every file of JSON objects (one, or one a line) with those of its objects that have these keys."""
    needed = set(keys)
    for name, text in texts(folder, suffix):
        try:
            read = [
                json.loads(line) for line in (text.splitlines() if suffix == ".jsonl" else [text]) if line
            ]
        except json.JSONDecodeError as error:
            say(f"{name}{suffix} is no JSON ({error}): passed over")
            continue
        found = [each for each in read if isinstance(each, dict) and needed <= each.keys()]
        if found:
            yield name, found


def source(*, recorded: bool) -> dict[str, object]:
    """What a benchmark says of where its figures come from."""
    return {"data": "recorded" if recorded else "synthetic"}
