"""Markets from trace files: public histories of what could be had, where and for how much.

    windows   JSON lines {"env", "window", "step_s", "available": "0110..."}: yes or no
              `pick` says which: "ENV/WINDOW"; none: the first
    zones     JSON lines {"window", "step_s", "zones": {zone: "0110..."}}: yes or no
              `pick` says which: "WINDOW"; none: the first
    counts    JSON {"set", "step_s", "zones": {zone: [n, ...]}}: how many
    offers    CSV t,instance,region,zone,acc,count,price,spot: what changed; an acc of `-` is gone
              `pick` says the kind of GPU, and how many of it: "H100:8"

A file may be packed with gzip. Where a trace says only that there was something, there is plenty of it. The
change log is in seconds since 1970; its first line is the beginning here. What its first lines do not have
could not be had then. Nothing is corrected or left out: a policy must live with what was.
"""

import csv
import enum
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from holdfast.model.pool import Offer
from holdfast.model.units import SECOND, MicroUsd
from holdfast.sim.scenario.market import (
    PLENTY,
    UNSAID,
    Market,
    Step,
    Track,
    by_numbers,
)

EVERYWHERE = ""  # a track that is of no place in particular


class BadTrace(Exception):
    """The file cannot be read as what it is said to be."""


class Format(enum.StrEnum):
    WINDOWS = "windows"
    ZONES = "zones"
    COUNTS = "counts"
    OFFERS = "offers"


def read(path: Path, format: Format, pick: str = "", *, spot: bool = True) -> dict[str, Track]:
    """The tracks of a file: by zone, by `instance/region/zone` of the change log, or one for everywhere."""
    try:
        with _opened(path) as file:
            match format:
                case Format.WINDOWS:
                    return _window(file, pick)
                case Format.ZONES:
                    return _zones(file, pick)
                case Format.COUNTS:
                    return counts(json.load(file))
                case Format.OFFERS:
                    kind, _, count = pick.partition(":")
                    found = offer_log(csv.DictReader(file), kind, count, spot=spot)
                    if not found:
                        raise KeyError(f"nothing of {pick}")
                    return found
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise BadTrace(f"{path} is no trace of {format}: {type(error).__name__}: {error}") from None


def for_offers(tracks: dict[str, Track], offers: Iterable[Offer]) -> Market:
    """A market for these offers. One belongs to the track of its name, of its zone, or of everywhere."""
    found = {}
    for offer in offers:
        for key in (offer.name, offer.place.zone, EVERYWHERE):
            if key in tracks:
                found[offer.name] = tracks[key]
                break
    return Market(found)


def windows(lines: Iterable[str]) -> Iterator[tuple[str, Track]]:
    """Each window as "ENV/WINDOW" and its track."""
    for row in map(json.loads, filter(str.strip, lines)):
        yield f"{row['env']}/{row['window']}", _yes_or_no(row["step_s"], row["available"])


def zones(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Track]]]:
    """Each window as its number and the tracks of its zones."""
    for row in map(json.loads, filter(str.strip, lines)):
        made = {zone: _yes_or_no(row["step_s"], text) for zone, text in row["zones"].items()}
        yield str(row["window"]), made


def counts(data: dict[str, Any]) -> dict[str, Track]:
    return {zone: by_numbers(data["step_s"] * SECOND, some) for zone, some in data["zones"].items()}


def offer_log(
    rows: Iterable[dict[str, str]], kind: str, count: str = "", *, spot: bool = True
) -> dict[str, Track]:
    """Offers of one kind of GPU (and count, if one is given), by `instance/region/zone`; without a zone, by
    `instance/region`. On spot, what has no spot price cannot be had."""
    begin, steps = -1, dict[str, list[Step]]()
    for row in rows:
        begin = int(row["t"]) if begin < 0 else begin
        key = "/".join(part for part in (row["instance"], row["region"], row["zone"]) if part)
        at = (int(row["t"]) - begin) * SECOND
        if row["acc"] == kind and count in ("", row["count"]):
            price = _micro_usd(row["spot" if spot else "price"])
            had = steps.setdefault(key, [Step(0, 0)] if at else [])
            had.append(Step(at, 0 if price == UNSAID else PLENTY, price))
        elif key in steps:  # gone, or another kind under the same name
            steps[key].append(Step(at, 0))
    return {key: Track.of(some) for key, some in steps.items()}


def _micro_usd(text: str) -> MicroUsd:
    return round(float(text) * 1_000_000) if text else UNSAID


def _yes_or_no(step_s: int, text: str) -> Track:
    return by_numbers(step_s * SECOND, (PLENTY if sign == "1" else 0 for sign in text))


def _window(file: Iterable[str], pick: str) -> dict[str, Track]:
    for name, track in windows(file):
        if pick in ("", name):
            return {EVERYWHERE: track}
    raise KeyError(f"no window {pick}")


def _zones(file: Iterable[str], pick: str) -> dict[str, Track]:
    for name, tracks in zones(file):
        if pick in ("", name):
            return tracks
    raise KeyError(f"no window {pick}")


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")
