"""A job with a deadline in a spot market that was recorded: who takes which way when, and what it costs.

A step is paid whole, as the published benchmarks do. Spot is lost at the beginning of the step in which its
zone has none. The deadline is checked.

Several zones: one look a step, as in the published comparison. Whoever runs on spot sees its own zone and
no other; whoever does not may try one zone in a step, and is refused at no cost where there is none. A step
in which spot is lost has had its look. A node in another zone is a new one, with its restart.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench._records import objects
from holdfast.core.spot.deadline_policy import Standing, Terms, after_step
from holdfast.model.course import Way

Bools = NDArray[np.bool_]

WORK_HOURS = 48.0
RESTART_HOURS = (0.02, 0.05, 0.1)
ON_DEMAND_PRICE, SPOT_PRICE = 3.06, 0.9731
PRICES = {Way.WAIT: 0.0, Way.SPOT: SPOT_PRICE, Way.ON_DEMAND: ON_DEMAND_PRICE}


class Market(NamedTuple):
    """`there[zone, step]`: can spot be had?"""

    name: str
    step_hours: float
    there: Bools


class Look:
    """Is there spot in this zone now? To be asked once."""

    def __init__(self, there: Bools, *, left: bool) -> None:
        self.there, self.left = there, left

    def __call__(self, zone: int) -> bool:
        if not self.left:
            raise ValueError("one look a step")
        self.left = False
        return bool(self.there[zone])


class View(NamedTuple):
    """What a job sees at the beginning of a step. `zone`: where it runs on spot. `lost`: where it has just
    been lost. `now.spot_there` is only known of the zone it runs in: whoever wants to know of another has one
    look, if it is `left`."""

    job: int
    now: Standing
    zone: int | None
    lost: int | None
    look: Look


class Policy(Protocol):
    """For several jobs of the same terms, side by side, each in its own market; none knows of another."""

    def begin(self, terms: Terms, zones: int, jobs: int) -> None: ...

    def choose(self, hour: float, views: "list[View]") -> "list[Move]": ...


class Move(NamedTuple):
    way: Way
    zone: int = 0


class Run(msgspec.Struct, frozen=True):
    cost: float
    launches: int
    late: bool


def terms_of(market: Market, deadline_hours: float, restart_hours: float) -> Terms:
    return Terms(
        work=WORK_HOURS,
        time=deadline_hours,
        restart=restart_hours,
        step=market.step_hours,
        spot_price=SPOT_PRICE,
        on_demand_price=ON_DEMAND_PRICE,
    )


class Life:
    """One job in its market."""

    def __init__(self, job: int, market: Market, terms: Terms) -> None:
        self.job, self.market, self.terms = job, market, terms
        self.work, self.restart, self.way, self.zone = terms.work, 0.0, Way.WAIT, 0
        self.cost, self.launches = 0.0, 0

    def view(self, step: int, steps: int) -> View:
        there = self.market.there[:, step]
        lost = self.zone if self.way is Way.SPOT and not there[self.zone] else None
        if lost is not None:
            self.way, self.restart = Way.WAIT, 0.0
        on_spot = self.zone if self.way is Way.SPOT else None
        left = (steps - step) * self.terms.step
        self.now = Standing(self.work, left, self.way, self.restart, on_spot is not None)
        return View(self.job, self.now, on_spot, lost, Look(there, left=on_spot is None and lost is None))

    def take(self, step: int, move: "Move") -> None:
        if move.way is Way.SPOT and not self.market.there[move.zone, step]:
            raise ValueError(f"job {self.job} takes spot where there is none")
        now = self.now
        if move.way is not self.way or (self.way is Way.SPOT and move.zone != self.zone):
            now = msgspec.structs.replace(now, way=Way.WAIT, restart_left=0.0)
            self.launches += move.way is not Way.WAIT
        self.work, self.restart = after_step(self.terms, now, move.way)
        self.way, self.zone = move
        self.cost += PRICES[move.way] * self.terms.step

    @property
    def is_done(self) -> bool:
        return self.work <= 1e-9


def follow(markets: list[Market], terms: Terms, policy: Policy) -> list[Run]:
    """A job in each of these markets, which have as many zones each."""
    steps = round(terms.time / terms.step)
    lives = [Life(job, market, terms) for job, market in enumerate(markets)]
    policy.begin(terms, len(markets[0].there), len(markets))
    for step in range(steps):
        going = [life for life in lives if not life.is_done]
        views = [life.view(step, steps) for life in going]
        for life, move in zip(going, policy.choose(step * terms.step, views) if views else [], strict=True):
            life.take(step, move)
    return [Run(life.cost, life.launches, late=not life.is_done) for life in lives]


def score(cost: float) -> float:
    """100: all on spot without a restart; 0: all on demand."""
    most, least = WORK_HOURS * ON_DEMAND_PRICE, WORK_HOURS * SPOT_PRICE
    return 100 * (most - cost) / (most - least)


# the records


def markets(folder: Path) -> Iterator[tuple[str, Market]]:
    """Every record in the folder, whatever its file is called: ("single" or "multi", the market)."""
    for name, found in objects(folder, ".jsonl", ("step_s",)):
        for record in found:
            hours = cast(float, record["step_s"]) / 3600
            if "available" in record:
                rows = _rows([cast(str, record["available"])])
                yield "single", Market(str(record.get("env", name)), hours, rows)
            elif "zones" in record:
                zones = cast(dict[str, str], record["zones"])
                rows = _rows([zones[zone] for zone in sorted(zones)])
                yield "multi", Market("+".join(sorted(zones)), hours, rows)


def _rows(texts: list[str]) -> Bools:
    return np.array([[letter == "1" for letter in text] for text in texts], np.bool_)


def synthetic(seed: int, count: int) -> Iterator[tuple[str, Market]]:
    """Where there are no records: zones that come and go at rates of their own."""
    dice = np.random.default_rng(seed)
    for number in range(count):
        yield "single", Market(f"made-{number % 3}", 1 / 6, _made(dice, 1, 1 / 6, 92.0))
        yield "multi", Market("made", 0.054, _made(dice, 3, 0.054, 60.0))


def _made(dice: np.random.Generator, zones: int, step: float, hours: float) -> Bools:
    rows = np.zeros((zones, math.ceil(hours / step)), np.bool_)
    for row in rows:
        means = np.exp(dice.uniform(np.log(0.5), np.log(24), 2))  # away, there
        at, there = 0, bool(dice.random() < means[1] / means.sum())
        while at < len(row):
            length = max(1, round(dice.exponential(means[int(there)]) / step))
            row[at : at + length] = there
            at, there = at + length, not there
    return rows


Maker = Callable[[], Policy]
