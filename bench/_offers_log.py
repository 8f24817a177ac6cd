"""What could be rented where, and when: change logs of GPU offers, and what they leave open.

A log was made by polling a list every few hours; a row says what changed since the poll before. Between two
polls that agree we assume that nothing happened. A change that a poll shows happened at an instant that
nobody knows, drawn evenly from the time since the poll before (seeded, the same for everybody). Where polls
are more than a day apart nothing is asked, and whatever reaches into such a hole, or beyond the log's end,
counts neither as outlived nor as lost. Stays and absences shorter than the time between polls are not in the
logs, so not here either.

Two kinds of log. In a *stock list* an offer is present while it can be rented. In a *price list* it is
present whether there is one or not; nobody knows what a try would have met. A log is taken for a price list
if its name is that of a known one, or if its offers hardly ever vanish. Spot prices are left out: the lists
do not say whose spot nodes were taken away. GPU names are compared without dashes and brand: "RTX-A6000" is
"A6000".
"""

import re
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench._records import tables

HOLE_S = 24 * 3600
PRICE_LISTS = ("vast", "aws")
VANISH_PER_MONTH_MIN = 0.1  # an offer of a stock list vanishes at least once in ten months
MONTH_S = 30 * 86_400
RESOLD = re.compile(r"[a-z]+_")  # a reseller puts the provider's name before its own

Kind = tuple[str, int]  # the GPU, and how many


class Row(NamedTuple):
    at: int
    offer: str
    kind: Kind | None  # none: it vanished
    price: float
    provider: str = ""
    region: str = ""
    zone: str = ""


class Stay(NamedTuple):
    """There, at that price, from one instant to another."""

    start: float
    end: float
    price: float


class Item:
    """An offer and its true life."""

    def __init__(self, row: Row) -> None:
        self.name, self.provider, self.region, self.zone = row.offer, row.provider, row.region, row.zone
        self.kind: Kind = row.kind or ("", 0)
        self.stays: list[Stay] = []
        self._starts: list[float] = []

    def close(self) -> None:
        self._starts = [stay.start for stay in self.stays]

    def at(self, when: float) -> Stay | None:
        number = bisect_right(self._starts, when) - 1
        return self.stays[number] if number >= 0 and when < self.stays[number].end else None

    def gone_at(self, when: float) -> float:
        """Until when it stays, if it is there; price changes do not matter."""
        number = bisect_right(self._starts, when) - 1
        end = self.stays[number].end
        for stay in self.stays[number + 1 :]:
            if stay.start > end:
                break
            end = stay.end
        return end


class Log(NamedTuple):
    name: str
    polls: list[int]
    changes: dict[int, list[Row]]  # by poll
    items: dict[str, Item]
    proves: bool  # a stock list

    def known(self, start: float, end: float) -> bool:
        """Is there no hole in this time?"""
        if start < self.polls[0] or end > self.polls[-1]:
            return False
        first, last = bisect_right(self.polls, start), bisect_left(self.polls, end)
        times = self.polls[max(0, first - 1) : last + 1]
        return all(b - a <= HOLE_S for a, b in pairwise(times))


def logs(folder: Path) -> Iterator[Log]:
    """Every log in the folder, whatever its file is called."""
    for name, rows in tables(folder, ("t", "instance", "region", "zone", "acc", "count", "price")):
        yield build(name, list(_rows(name, rows)))


def _rows(name: str, raw: list[dict[str, str]]) -> Iterator[Row]:
    resold = all(RESOLD.match(row["instance"]) for row in raw)
    for row in sorted(raw, key=lambda row: int(row["t"])):
        provider = row["instance"].split("_")[0] if resold else name
        offer = f"{row['instance']}|{row['region']}|{row['zone']}"
        there = row["acc"] != "-" and row["price"] != "" and float(row["count"] or 0) >= 1
        kind = (_plain(row["acc"]), int(float(row["count"]))) if there else None
        price = float(row["price"]) if there else 0.0
        yield Row(int(row["t"]), offer, kind, price, provider, row["region"], row["zone"])


def _plain(gpu: str) -> str:
    """Three sources write "RTX6000Ada" in three ways."""
    short = re.sub(r"[^A-Z0-9]", "", gpu.upper())
    return short.removeprefix("RTX") if short.removeprefix("RTX")[:1].isalpha() else short


def build(name: str, rows: list[Row]) -> Log:
    polls = sorted({row.at for row in rows})
    before = dict(zip(polls[1:], polls, strict=False))
    changes: dict[int, list[Row]] = defaultdict(list)
    items: dict[str, Item] = {}
    open_: dict[str, tuple[float, float]] = {}
    for row in rows:
        changes[row.at].append(row)
        if row.offer not in items and row.kind:
            items[row.offer] = Item(row)
        when = _instant(row, before.get(row.at))
        if row.offer in open_:
            start, price = open_.pop(row.offer)
            items[row.offer].stays.append(Stay(start, when, price))
        if row.kind:
            open_[row.offer] = (when, row.price)
    for offer, (start, price) in open_.items():
        items[offer].stays.append(Stay(start, float(polls[-1]), price))
    for item in items.values():
        item.close()
    return Log(name, polls, dict(changes), items, _is_stock(name, rows, items, polls))


def _instant(row: Row, before: int | None) -> float:
    """When it really happened: drawn by the row itself, so that everybody draws the same."""
    if before is None:
        return float(row.at)
    share = zlib.crc32(f"{row.offer}@{row.at}".encode()) / 2**32
    return before + share * (row.at - before)


def _is_stock(name: str, rows: list[Row], items: dict[str, Item], polls: list[int]) -> bool:
    vanished = sum(row.kind is None for row in rows)
    months = max(1.0, (polls[-1] - polls[0]) / MONTH_S)
    often = vanished / max(1, len(items)) / months >= VANISH_PER_MONTH_MIN
    return often and not name.startswith(PRICE_LISTS)


# where there are no logs


def synthetic(seed: int, days: int = 40) -> Log:
    """Five providers with two regions each and three kinds of GPU, that come and go at paces of their own."""
    dice = np.random.default_rng(seed)
    rows: list[Row] = []
    polls = [number * 25_000 for number in range(days * 86_400 // 25_000)]
    for number in range(60):
        provider, region, kind = f"p{number % 5}", f"r{number // 5 % 2}", ("ABC"[number // 10 % 3], 1)
        offer = f"{provider}_{kind[0]}{number}|{region}|"
        price = float(np.round(dice.uniform(1, 2), 2))
        means = np.exp(dice.uniform(np.log(10), np.log(100), 2)) * 3600  # there, away
        there, left = bool(dice.random() < 0.5), 0.0
        for before, poll in zip([None, *polls], polls, strict=False):
            was, left = there, left - (poll - before if before is not None else 0)
            if left <= 0:
                there, left = not there, float(dice.exponential(means[int(there)]))
            if there and (before is None or not was):
                rows.append(Row(poll, offer, kind, price, provider, region))
            elif was and not there and before is not None:
                rows.append(Row(poll, offer, None, 0.0, provider, region))
    return build("made", sorted(rows))
