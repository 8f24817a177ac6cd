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

Several zones are one market (`onoff.Zones`): spot is there if the last look found some.

Refused: rules of thumb such as keeping pace with a straight line from start to deadline (Uniform Progress).
They wait and pay at the wrong times, because how long a gap will last decides whether waiting pays, and a
line does not know. Refused: learning a policy from traces. It would know the zones it was trained on.
Refused: counting the restarts between zones as more work. They are losses of the market like any other, and
counted twice they made the job hurry.

Where the numbers come from: `STEPS` divides the time; twice as many moved the cost by a fifth of a percent.
"""

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.model.course import Way
from holdfast.reliability.onoff import AWAYS, STAYS, Floats

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
    """The least expected costs of one job's terms, by hypothesis: `_cost[steps left, standing, hypothesis,
    work left]`, with work counted in steps of the outlook, which may be longer than those of the job."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.step = terms.step * max(1, math.ceil(terms.time / terms.step / STEPS))
        self._restart = terms.restart / self.step
        steps = int(terms.time / self.step + ROUNDING)
        self._work_max = math.ceil(terms.work / self.step + self._restart) + 1
        work = np.arange(self._work_max + 1.0)
        self._cost = np.empty((steps + 1, len(STANDINGS), len(STAYS), len(work)), np.float32)
        self._cost[0] = np.where(work <= 0, 0, NEVER)
        self._away_after = (np.exp(-terms.step / AWAYS), -np.expm1(-terms.step / STAYS))  # if away, if there
        goes, comes = (-np.expm1(-self.step / mean)[:, None] for mean in (STAYS, AWAYS))
        for left in range(1, steps + 1):
            self._cost[left] = self._one_more(self._cost[left - 1], work, goes, comes)

    def _one_more(self, later: NDArray[np.float32], work: Floats, goes: Floats, comes: Floats) -> Floats:
        """The costs with one step more to go."""
        none_away, none_there, spot, paid_away, paid_there = later.astype(float)
        then = {
            "none_away": none_away * (1 - comes) + none_there * comes,
            "none_there": none_away * goes + none_there * (1 - goes),
            "spot": none_away * goes + spot * (1 - goes),
            "paid_away": paid_away * (1 - comes) + paid_there * comes,
            "paid_there": paid_away * goes + paid_there * (1 - goes),
        }
        again, on = work - 1 + self._restart, work - 1
        dear, cheap = (p * self.step for p in (self.terms.on_demand_price, self.terms.spot_price))
        start_away, start_there = (dear + _at(then[name], again) for name in ("paid_away", "paid_there"))
        start_spot = cheap + _at(then["spot"], again)
        found = np.stack(
            (
                np.minimum(then["none_away"], start_away),
                np.minimum(np.minimum(then["none_there"], start_there), start_spot),
                np.minimum(np.minimum(then["none_there"], start_there), cheap + _at(then["spot"], on)),
                np.minimum(then["none_away"], dear + _at(then["paid_away"], on)),
                np.minimum(np.minimum(then["none_there"], dear + _at(then["paid_there"], on)), start_spot),
            )
        )
        found[:, :, 0] = 0
        costs: Floats = np.minimum(found, NEVER)
        return costs

    def choose(self, now: Standing, weights: Floats) -> Choice:
        """The cheapest way that keeps the promise."""
        certain = [way for way in Way if is_certain(self.terms, now, way)]
        if not certain:  # nothing is: the best that can be done
            return Choice(Way.ON_DEMAND, {})
        costs = {way: self._expected(now, way, weights) for way in certain}
        return Choice(min(certain, key=lambda way: (costs[way], way is not now.way)), costs)

    def _expected(self, now: Standing, way: Way, weights: Floats) -> float:
        terms = self.terms
        work, restart = after_step(terms, now, way)
        left = int((now.time_left - terms.step) / self.step + ROUNDING)
        steps = (max(0.0, work) + restart) / self.step
        away = self._away_after[now.spot_there]
        if_away, if_there = AFTER[way]
        then = self._costs(left, if_away, steps) * away + self._costs(left, if_there, steps) * (1 - away)
        price = {Way.WAIT: 0.0, Way.SPOT: terms.spot_price, Way.ON_DEMAND: terms.on_demand_price}[way]
        used = terms.step + min(0.0, work)  # the last step may end early
        return price * used + float(weights @ then)

    def _costs(self, left: int, standing: int, steps: float) -> Floats:
        """By hypothesis, between two amounts of work."""
        if steps <= ROUNDING:
            return np.zeros(len(STAYS))
        low = min(int(steps), self._work_max - 1)
        part = min(1.0, steps - low)
        below, above = (self._cost[left, standing, :, at].astype(float) for at in (low, low + 1))
        return _between(below, above, np.float64(part))


STANDINGS: Final = ("none_away", "none_there", "spot", "paid_away", "paid_there")
AFTER: Final = {  # standing after a step, if spot is then away, and if it is there
    Way.WAIT: (0, 1),
    Way.SPOT: (0, 2),
    Way.ON_DEMAND: (3, 4),
}


def _at(costs: Floats, work: Floats) -> Floats:
    """Costs at amounts of work between those that were worked out."""
    low = np.clip(np.floor(work).astype(int), 0, costs.shape[1] - 2)
    part = np.clip(work - low, 0, 1)
    found = _between(costs[:, low], costs[:, low + 1], part)
    return np.where(work <= ROUNDING, 0.0, found)


def _between(low: Floats, high: Floats, part: Floats | np.float64) -> Floats:
    """What cannot be made with a little more work is not cheap with a little less."""
    hopeless = (part > 0) & ((low >= NEVER / 2) | (high >= NEVER / 2))
    return np.where(hopeless, NEVER, low * (1 - part) + high * part)
