"""Are there known vulnerabilities in what is pinned? `python tools/advisories.py FILE [LOCK...]`, offline.

FILE is an export of the OSV database for PyPI (`all.zip`, one JSON document an advisory, from where osv.dev
publishes it), fetched whenever there is a network. Where there is one now, `make audit` runs pip-audit, which
asks the same database; it has no way to read a file, and what is built behind a wall must be checked as well.

Exit status 1: something pinned is affected. 2: the file cannot be read.
"""

import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pip._vendor.packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(ROOT))

from tools.pins import normalised, read_pins  # noqa: E402


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield json.loads(archive.read(name))


def affected(advisories: Iterable[Mapping[str, Any]], pins: Mapping[str, str]) -> Iterator[str]:
    """A line for each advisory about a version that is pinned."""
    for advisory in advisories:
        if advisory.get("withdrawn"):
            continue
        for about in advisory.get("affected", ()):
            package = about.get("package", {})
            name = normalised(package.get("name", ""))
            if package.get("ecosystem") == "PyPI" and name in pins and is_affected(about, pins[name]):
                yield f"{name} {pins[name]}: {advisory['id']} {advisory.get('summary', '')}".rstrip()
                break


def is_affected(about: Mapping[str, Any], version: str) -> bool:
    if version in about.get("versions", ()):
        return True
    ranges = [one for one in about.get("ranges", ()) if one.get("type") == "ECOSYSTEM"]
    return any(_within(one.get("events", ()), Version(version)) for one in ranges)


def _within(events: Iterable[Mapping[str, str]], version: Version) -> bool:
    """Events in the order of their versions; the last one that is not above ours counts."""
    rows = []
    for event in events:
        for kind, text in event.items():
            if kind in ("introduced", "fixed", "last_affected"):
                rows.append((_version(text), kind))
    inside = False
    for at, kind in sorted(rows):
        if at < version or (at == version and kind != "last_affected"):
            inside = kind == "introduced"
    return inside


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def main(words: list[str]) -> int:
    locks = [Path(word) for word in words[1:]] or [ROOT / "requirements-dev.lock"]
    pins: dict[str, str] = {}
    for lock in locks:
        rows = (row.removesuffix(" \\") for row in lock.read_text().splitlines() if "==" in row)
        pins |= read_pins("\n".join(rows))
    try:
        found = sorted(affected(read(Path(words[0])), pins))
    except (IndexError, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"error: no advisories: {error}\nhint: make audit OSV=all.zip", file=sys.stderr)
        return 2
    print("\n".join([*found, f"{len(pins)} pins, {len(found)} with known vulnerabilities"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
