"""Recorded load, and what becomes of it under a number of replicas.

The model is the usual one: fluid, without a queue. Time goes in steps of 15 s. A record is scaled so that
its mean is the work of 20 replicas; a rate given every ten minutes runs in straight lines between its
values, single requests are counted by step. At each step a policy reads the demand of this instant and says
how many replicas it wants. What it adds is paid from now on and ready after the cold start; what it takes
away is gone at once, the youngest first. Work above what the ready ones can do is unserved. Hours are a
multiple of the demand itself: 1.00 would be exactly as many replicas as are needed, in fractions. Everybody
begins with enough for the first reading at 70 %.

With this, the defaults of Kubernetes' autoscaler give 1.46 x the ideal hours and 0.000 / 0.016 / 0.107 %
unserved at 60 / 300 / 600 s on the load of language_m-large, and 10.9 % at 7.1 x on azure_llm_code at 60 s.
"""

import csv
import datetime
import io
import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bench._records import texts
from bench._say import say
from holdfast.core.scaling.forecast import Tracker
from holdfast.core.scaling.replica_count import Standing
from holdfast.model.units import DAY, HOUR, SECOND, Instant

Floats = NDArray[np.float64]

STEP_S: Final = 15
MEAN_REPLICAS: Final = 20.0
FIRST_UTILISATION: Final = 0.7


class Load(NamedTuple):
    name: str
    demand: Floats  # in replicas, a value a step


class Policy(Protocol):
    def want(self, at: Standing, seen: Tracker, now: Instant) -> int: ...


Maker = Callable[[Load, int], Policy]


class Outcome(NamedTuple):
    replica_hours_x: float
    unserved_pct: float
    flaps_per_day: float


def loads(folder: Path) -> Iterator[Load]:
    """Every record in a folder, whatever it is called; what is none is passed over."""
    for kind in (".csv", ".jsonl"):
        for name, text in texts(folder, kind):
            rates = _rates(text, kind)
            if rates is not None and rates.size > 1 and rates.mean() > 0:
                yield Load(name, rates / rates.mean() * MEAN_REPLICAS)
            else:
                say(f"{name}{kind} is no record of load: passed over")


def _rates(text: str, kind: str) -> Floats | None:
    if kind == ".jsonl":
        stamps = [json.loads(line)["timestamp"] / 1000 for line in text.splitlines() if '"timestamp"' in line]
        return _counted(stamps)
    rows = csv.DictReader(io.StringIO(text))
    names = rows.fieldnames or []
    if "t_seconds" in names and "rate_rps" in names:
        read = np.array([(float(row["t_seconds"]), float(row["rate_rps"])) for row in rows])
        return _between(read) if len(read) > 1 else None
    if "TIMESTAMP" in names:
        return _counted([_seconds(row["TIMESTAMP"]) for row in rows])
    return None


def _between(read: Floats) -> Floats:
    """In straight lines; the last value lasts as long as the others."""
    at, rate = read[:, 0] - read[0, 0], read[:, 1]
    steps = np.arange(0, at[-1] + np.median(np.diff(at)), STEP_S)
    return np.interp(steps, at, rate)


def _seconds(stamp: str) -> float:
    """Stamps have seven digits after the point; more than six are too many for `datetime`."""
    when, _, part = stamp.partition(".")
    moment = datetime.datetime.fromisoformat(when.strip()).replace(tzinfo=datetime.UTC)
    digits = "".join(d for d in part if d.isdigit())
    return moment.timestamp() + float(f"0.{digits or 0}")


def _counted(stamps: list[float]) -> Floats | None:
    if not stamps:
        return None
    at = np.array(stamps)
    return np.bincount(((at - at.min()) // STEP_S).astype(int)).astype(np.float64)


def synthetic(seed: int) -> Iterator[Load]:
    """Made up: a day and a night with restless hours, and bursts out of nothing."""
    draw = np.random.default_rng(seed)
    minutes = np.arange(2 * 144 + 1) * 10
    wave = 1 + 0.5 * np.sin(2 * np.pi * minutes / 1440)
    restless = np.where((minutes // 360) % 3 == 2, 0.25, 0.04)
    rate = wave * np.exp(draw.normal(0, 1, minutes.size) * restless)
    day = _between(np.column_stack([minutes * 60.0, rate]))
    yield Load("made_up_days", day / day.mean() * MEAN_REPLICAS)
    bursts = draw.pareto(2.5, 4 * 3600 // STEP_S) * (draw.random(4 * 3600 // STEP_S) < 0.4)
    yield Load("made_up_bursts", bursts / bursts.mean() * MEAN_REPLICAS)


class Lane:
    """One policy with one cold start."""

    def __init__(self, policy: Policy, cold_start_s: int, first: float) -> None:
        self.policy, self.cold_start_s = policy, cold_start_s
        self._ready = max(1, math.ceil(first / FIRST_UTILISATION))
        self._coming: deque[tuple[Instant, int]] = deque()
        self._paid = self._demand = self._unserved = 0.0
        self._steps = self._turns = self._way = 0

    def step(self, seen: Tracker, now: Instant, demand: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            self._ready += self._coming.popleft()[1]
        at = Standing(self._ready, sum(count for _, count in self._coming), self.cold_start_s * SECOND)
        wanted = self.policy.want(at, seen, now)
        self._set(wanted - at.have, now)
        self._paid += wanted
        self._demand += demand
        self._unserved += max(0.0, demand - self._ready)
        self._steps += 1

    def _set(self, more: int, now: Instant) -> None:
        if more > 0:
            self._coming.append((now + self.cold_start_s * SECOND, more))
        less = -more
        while self._coming and less > 0:
            ready_at, count = self._coming.pop()
            if count > less:
                self._coming.append((ready_at, count - less))
            less = max(0, less - count)
        self._ready -= max(0, less)
        if more and (more > 0) != (self._way > 0):
            self._turns += self._way != 0
        self._way = more or self._way

    def totals(self) -> Floats:
        """Paid, asked for and left unserved, in replicas times steps."""
        return np.array([self._paid, self._demand, self._unserved])

    def outcome(self) -> Outcome:
        days = self._steps * STEP_S * SECOND / DAY
        return Outcome(
            round(self._paid / self._demand, 3),
            round(100 * self._unserved / self._demand, 3),
            round(self._turns / days, 1),
        )


def follow(load: Load, lanes: list[Lane]) -> None:
    """All lanes through one record. They share one memory of the past, which is the same for all."""
    seen = Tracker()
    for number, demand in enumerate(load.demand):
        now = HOUR + number * STEP_S * SECOND
        seen.see(now, float(demand))
        for lane in lanes:
            lane.step(seen, now, float(demand))
