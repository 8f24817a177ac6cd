"""Spot, on demand, or wait: which way makes a job meet its deadline at the least cost?

A job has so much work left and so much time. Spot nodes are cheap and come and go; every start, also after a
loss, costs a restart during which nothing is done. The deadline is a promise, the cost is not.

The promise is kept by a net, not by the choice: a way is taken only if, whatever happens in the next step, a
job that is then started anew on demand still makes it (`is_certain`). The net is exact: it counts the restart
and whole steps, and asks for nothing else.

The choice within the net is the cheapest in expectation, over everything that may come: for each hypothesis
of how spot comes and goes (`reliability.onoff`) the least expected cost is worked out backwards from the
deadline, for every amount of work left, with and without a node, while spot is there or away. Then the
hypotheses' costs of each way are weighed by what is believed. We see whether spot is there whatever we do, so
there is nothing to be learnt by trying, and weighing is as good as planning to learn.

A hypothesis does not hold for ever: with every coming and going one mean in ten is another (`onoff.ANEW`),
and after a day, when half of the evidence has faded, half of the hypotheses are (`onoff.FADES_HOURS`).
Otherwise whoever believes in a gap without end would think slack almost worthless and spend it on waiting,
though after the gap there may be short ones for which it is worth much.

Several zones are one market (`onoff.Zones`): spot is there if the last look found some.

Refused: rules of thumb such as keeping pace with a straight line from start to deadline (Uniform Progress).
They wait and pay at the wrong times, because how long a gap will last decides whether waiting pays, and a
line does not know. Refused: learning a policy from traces. It would know the zones it was trained on.
Refused: counting the restarts between zones as more work. They are losses of the market like any other, and
counted twice they made the job hurry.

Where the numbers come from: `STEPS` divides the time; twice as many moved the cost by a fifth of a percent.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.model.course import Way
from holdfast.reliability.onoff import AWAYS, FADES_HOURS, SPOT_GRID, STAYS, Floats, Ints

STEPS: Final = 256  # the outlook divides the time to the deadline into at most so many
NEVER: Final = 1e7  # dollars: there is no way to make it
ROUNDING: Final = 1e-9


class Terms(msgspec.Struct, frozen=True):
    """What does not change in a job's life. Hours, and dollars an hour."""

    work: float
    time: float  # from its start to its deadline
    restart: float  # from a node being there to work being done
    step: float  # between two choices
    spot_price: float
    on_demand_price: float


class Standing(msgspec.Struct, frozen=True):
    """Where it stands. `restart_left`: of the node it has."""

    work_left: float
    time_left: float
    way: Way
    restart_left: float
    spot_there: bool


class Choice(msgspec.Struct, frozen=True):
    way: Way
    costs: dict[Way, float]  # expected, from here to the end; only of the ways that keep the promise


def after_step(terms: Terms, now: Standing, way: Way) -> tuple[float, float]:
    """Work and restart left after a step that way."""
    if way is Way.WAIT:
        return now.work_left, 0.0
    restart = now.restart_left if way is now.way else terms.restart
    spent = min(restart, terms.step)
    return now.work_left - (terms.step - spent), restart - spent


def is_certain(terms: Terms, now: Standing, way: Way) -> bool:
    """Does it make it whatever happens, if it takes this way for one step?"""
    if way is Way.SPOT and not now.spot_there:
        return False
    work, restart = after_step(terms, now, way)
    if work <= ROUNDING:
        return True
    needs = work + (restart if way is Way.ON_DEMAND else terms.restart)
    steps = math.ceil(needs / terms.step - ROUNDING)
    return steps * terms.step <= now.time_left - terms.step + ROUNDING


class Outlook:
    """The least expected costs of one job's terms: `_cost[steps left, work left, standing, hypothesis]`, with
    work counted in steps of the outlook, which may be longer than those of the job."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.step = terms.step * max(1, math.ceil(terms.time / terms.step / STEPS))
        restart = terms.restart / self.step
        steps = int(terms.time / self.step + ROUNDING)
        self._work_max = math.ceil(terms.work / self.step + restart) + 1
        work = np.arange(self._work_max + 1.0)
        self._again = _Between(work - 1 + restart)
        self._cost = np.empty((steps + 1, len(work), len(STANDINGS), len(STAYS)), np.float32)
        self._cost[0] = np.where(work <= 0, 0, NEVER)[:, None, None]
        self._away_after = np.array((np.exp(-terms.step / AWAYS), -np.expm1(-terms.step / STAYS)))
        goes, comes = (-np.expm1(-self.step / mean) for mean in (STAYS, AWAYS))
        another = 1 - 0.5 ** (self.step / FADES_HOURS)
        for left in range(1, steps + 1):
            later = self._cost[left - 1].astype(float)
            later += another * (later.mean(axis=-1, keepdims=True) - later)
            self._fill(self._cost[left], later, goes, comes)

    def _fill(self, costs: NDArray[np.float32], later: Floats, goes: Floats, comes: Floats) -> None:
        """The costs with one step more to go."""
        none_away, none_there, spot, paid_away, paid_there = (
            later[:, each] for each in range(len(STANDINGS))
        )
        none_gone, paid_gone = (SPOT_GRID.stay_anew(each) * goes for each in (none_away, paid_away))
        none_back, paid_back = (SPOT_GRID.away_anew(each) * comes for each in (none_there, paid_there))
        wait_away, wait_there = none_away * (1 - comes) + none_back, none_gone + none_there * (1 - goes)
        on_away, on_there = paid_away * (1 - comes) + paid_back, paid_gone + paid_there * (1 - goes)
        on_spot = none_gone + spot * (1 - goes)
        dear, cheap = (p * self.step for p in (self.terms.on_demand_price, self.terms.spot_price))
        start_spot = cheap + self._again.of(on_spot)
        found = (
            np.minimum(wait_away, dear + self._again.of(on_away)),
            np.minimum(np.minimum(wait_there, dear + self._again.of(on_there)), start_spot),
            np.minimum(np.minimum(wait_there, dear + self._again.of(on_there)), cheap + _one_less(on_spot)),
            np.minimum(wait_away, dear + _one_less(on_away)),
            np.minimum(np.minimum(wait_there, dear + _one_less(on_there)), start_spot),
        )
        for standing, each in enumerate(found):
            costs[:, standing] = np.minimum(each, NEVER)
        costs[0] = 0

    def choose(self, now: Standing, weights: Floats) -> Choice:
        """The cheapest way that keeps the promise."""
        return self.choose_each([now], weights[None])[0]

    def choose_each(self, jobs: Sequence[Standing], weights: Floats) -> list[Choice]:
        """The same for several jobs of these terms at once; `weights`: a row for each."""
        certain = [[way for way in Way if is_certain(self.terms, now, way)] for now in jobs]
        expected = iter(self._expected(jobs, certain, weights))
        found = []
        for now, ways in zip(jobs, certain, strict=True):
            costs = {way: next(expected) for way in ways}
            cheapest = min(ways, key=lambda way: (costs[way], way is not now.way), default=Way.ON_DEMAND)
            found.append(Choice(cheapest, costs))  # if no way is certain, the best that can be done
        return found

    def _expected(self, jobs: Sequence[Standing], certain: list[list[Way]], weights: Floats) -> list[float]:
        """Of each job and each of its ways: the step itself, and what comes then."""
        terms, prices = self.terms, (0.0, self.terms.spot_price, self.terms.on_demand_price)
        asked = [(job, way) for job, ways in enumerate(certain) for way in ways]
        paid, steps = [], []
        for job, way in asked:
            work, restart = after_step(terms, jobs[job], way)
            paid.append(prices[ORDER[way]] * (terms.step + min(0.0, work)))  # the last step may end early
            steps.append((max(0.0, work) + restart) / self.step)
        rows = np.array([job for job, _ in asked], int)
        left = np.array([int((now.time_left - terms.step) / self.step + ROUNDING) for now in jobs], int)
        away = self._away_after[np.array([int(now.spot_there) for now in jobs], int)]
        if_away, if_there = self._costs(left[rows], np.array(steps), [ORDER[way] for _, way in asked])
        then = if_away * away[rows] + if_there * (1 - away[rows])
        expected: list[float] = (np.array(paid) + (weights[rows] * then).sum(axis=1)).tolist()
        return expected

    def _costs(self, left: Ints, steps: Floats, ways: list[int]) -> Floats:
        """If spot is then away and if it is there, by row and hypothesis; between two amounts of work."""
        low = np.minimum(steps.astype(int), self._work_max - 1)
        part = np.minimum(1.0, steps - low)[:, None]
        below, above = self._cost[left, np.array((low, low + 1))[:, None], AFTER[:, ways]].astype(float)
        found = _between(below, above, part)
        found[:, steps <= ROUNDING] = 0
        return found


STANDINGS: Final = ("none_away", "none_there", "spot", "paid_away", "paid_there")
ORDER: Final = {Way.WAIT: 0, Way.SPOT: 1, Way.ON_DEMAND: 2}
AFTER: Final = np.array(((0, 0, 3), (1, 2, 4)))  # standing after a step, if spot is then away, if it is there


class _Between:
    """Costs at amounts of work between those that were worked out."""

    def __init__(self, work: Floats) -> None:
        self.low = np.clip(np.floor(work).astype(int), 0, len(work) - 2)
        self.part = np.clip(work - self.low, 0, 1)[:, None]
        self.done = (work <= ROUNDING)[:, None]

    def of(self, costs: Floats) -> Floats:
        return np.where(self.done, 0.0, _between(costs[self.low], costs[self.low + 1], self.part))


def _one_less(costs: Floats) -> Floats:
    """Costs when a whole step of work has been done."""
    return np.concatenate((costs[:1], costs[:-1]))


def _between(low: Floats, high: Floats, part: Floats) -> Floats:
    """What cannot be made with a little more work is not cheap with a little less."""
    hopeless = (part > 0) & (np.maximum(low, high) >= NEVER / 2)
    return np.where(hopeless, NEVER, low * (1 - part) + high * part)
