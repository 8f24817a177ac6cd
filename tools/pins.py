"""Writes the pins with hashes: `python tools/pins.py`, by an environment in which holdfast is installed.

`constraints.txt` says which version of everything. An index that was broken into, or a mirror, can serve
another file under the same version, so the lock files name the hash of every file of that version:

    requirements.lock        what running needs, with the extras aws, postgres and ssh
    requirements-dev.lock    all of constraints.txt

`pip install --require-hashes -r requirements.lock`, then `pip install --no-deps holdfast-*.whl`, takes those
files and no others. The hashes are what the indexes say that pip is configured with (PEP 503); no address of
an index is written down. Standard library only, besides what pip brings.
"""

import ast
import hashlib
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parent.parent
PYPI = "https://pypi.org/simple"
EXTRAS = ("aws", "postgres", "ssh")
TIMEOUT_S = 30
HEAD = (
    "# Made by `make pins`: the versions of constraints.txt, with the hash of every file that pip may take.\n"
)

Pins = dict[str, str]  # name (normalised), version
Fetch = Callable[[str], str | None]


class CannotPin(Exception):
    pass


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> Pins:
    rows = [row.split("#")[0].strip() for row in text.splitlines()]
    return {normalised(name): version for name, _, version in (row.partition("==") for row in rows if row)}


def lock_of(pins: Pins, hashes: Mapping[str, Iterable[str]]) -> str:
    """The text of a lock file."""
    rows = []
    for name, version in sorted(pins.items()):
        found = sorted(set(hashes[name]))
        rows.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{one}" for one in found)]))
    return HEAD + "\n".join(rows) + "\n"


# what the indexes know


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def hashes_in(page: str, name: str, version: str) -> set[str]:
    """Of all files of this version on a page of an index."""
    links = _Links()
    links.feed(page)
    found = set()
    for link in links.found:
        address, fragment = urldefrag(link)
        kind, _, digest = fragment.partition("=")
        if kind == "sha256" and is_file_of(unquote(address.rsplit("/", 1)[-1]), name, version):
            found.add(digest)
    return found


def is_file_of(file: str, name: str, version: str) -> bool:
    """`some_name-1.2-py3-none-any.whl`, `some-name-1.2.tar.gz`."""
    stem = file.removesuffix(".tar.gz").removesuffix(".zip")
    if file.endswith(".whl"):
        own, _, rest = file.partition("-")
        return normalised(own) == name and rest.split("-")[0] == version
    return stem != file and normalised(stem) == normalised(f"{name}-{version}")


def configured(config: str) -> tuple[list[str], list[Path]]:
    """The indexes and the folders of files, from the output of `pip config list`."""
    said: dict[str, list[str]] = {"index-url": [], "extra-index-url": [], "find-links": []}
    for row in config.splitlines():
        key, _, value = row.partition("=")
        option = key.rsplit(".", 1)[-1]
        if option in said:
            said[option] += str(ast.literal_eval(value)).split()
    indexes = [*(said["index-url"] or [PYPI]), *said["extra-index-url"]]
    folders = [Path(each.removeprefix("file://")) for each in said["find-links"]]
    return list(dict.fromkeys(indexes)), [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


class Indexes:
    """An index that does not answer once is not asked again."""

    def __init__(self, urls: Iterable[str], folders: Iterable[Path], fetch: "Fetch | None" = None) -> None:
        self.urls, self.folders, self.fetch = list(urls), list(folders), fetch or self._fetch

    def hashes(self, name: str, version: str) -> set[str]:
        found: set[str] = set()
        for url in list(self.urls):
            page = self.fetch(f"{url.rstrip('/')}/{name}/")
            found |= hashes_in(page, name, version) if page else set()
        for folder in self.folders:
            for file in folder.iterdir():
                if is_file_of(file.name, name, version):
                    found.add(hashlib.sha256(file.read_bytes()).hexdigest())
        if not found:
            raise CannotPin(f"no index has a file of {name} {version} with its hash")
        return found

    def _fetch(self, url: str) -> str | None:
        address = f"{url}index.html" if url.startswith("file:") else url
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError:
            return None
        except OSError as error:
            if not url.startswith("file:"):
                self.urls = [each for each in self.urls if not url.startswith(each)]
                print(f"an index does not answer, and is left out: {error}", file=sys.stderr)
            return None


# what running needs


def running(extras: Iterable[str] = EXTRAS) -> set[str]:
    """The names of what holdfast needs here, by what is installed."""
    from pip._vendor.packaging.requirements import Requirement

    names: set[str] = set()
    todo = [("holdfast", frozenset(extras))]
    done: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        names.add(name)
        for text in metadata.requires(name) or ():
            needs = Requirement(text)
            given = [{"extra": extra} for extra in wanted] or [{"extra": ""}]
            if needs.marker is None or any(needs.marker.evaluate(each) for each in given):
                todo.append((normalised(needs.name), frozenset(needs.extras)))
    return names - {"holdfast"}


def main() -> int:
    pins = read_pins((ROOT / "constraints.txt").read_text())
    config = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(config, check=True, capture_output=True, text=True).stdout
    indexes = Indexes(*configured(said))
    try:
        hashes = {name: indexes.hashes(name, version) for name, version in pins.items()}
    except CannotPin as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    needed = {name: pins[name] for name in running()}
    (ROOT / "requirements.lock").write_text(lock_of(needed, hashes))
    (ROOT / "requirements-dev.lock").write_text(lock_of(pins, hashes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
