"""Ways to meet a deadline: ours, and those it is measured against.

All of them have the same exact net: a job that could be late if it went on as it does is put on demand. So
they differ only in what they cost.
"""

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bench._deadline_world import Market, Move, Tries
from holdfast.core.deadline import NEVER, Outlook, Standing, Terms, Way, is_certain
from holdfast.reliability.onoff import Belief

Floats = NDArray[np.float64]

LOOK_AHEAD_HOURS = 24.0  # a zone that lasts longer is no better
UNIT_HOURS = 0.01  # of work, in which the oracle counts


class Ours:
    """`core.deadline`, with a belief for each zone and one for the market as a whole."""

    outlooks: dict[Terms, Outlook] = {}  # noqa: RUF012 (worked out once for many jobs of the same terms)

    def begin(self, terms: Terms, zones: int) -> None:
        if terms not in self.outlooks:
            self.outlooks.clear()
            self.outlooks[terms] = Outlook(terms)
        self.terms, self.outlook = terms, self.outlooks[terms]
        self.zones, self.market = [Belief() for _ in range(zones)], Belief()

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, tries: Tries) -> Move:
        if lost is not None:
            self.zones[lost].see(hour, there=False)
        if zone is None:
            zone = self._look(hour, now, tries)
        else:
            self.zones[zone].see(hour, there=True)
        self.market.see(hour, there=zone is not None)
        stretch = 1.0
        if zone is not None and len(self.zones) > 1:
            stretch += self.terms.restart / self.zones[zone].stays_hours(now.time_left)
        found = self.outlook.choose(replace(now, spot_there=zone is not None), self.market.weights(), stretch)
        return Move(found.way, zone or 0)

    def _look(self, hour: float, now: Standing, tries: Tries) -> int | None:
        """The zone that is expected to last longest, of those that have spot."""
        horizon = min(now.time_left, LOOK_AHEAD_HOURS)
        for zone in sorted(range(len(self.zones)), key=lambda z: -self.zones[z].stays_hours(horizon)):
            there = tries(zone)
            self.zones[zone].see(hour, there)
            if there:
                return zone
        return None


class OnDemand:
    def begin(self, terms: Terms, zones: int) -> None:
        pass

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, tries: Tries) -> Move:
        return Move(Way.ON_DEMAND)


class Greedy:
    """Spot whenever it is there, else wait; on demand when there is no other way, and to the end."""

    def begin(self, terms: Terms, zones: int) -> None:
        self.terms, self.count, self.next = terms, zones, 0

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, tries: Tries) -> Move:
        found = self.spot(zone, tries)
        seen = replace(now, spot_there=found is not None)
        if now.way is Way.ON_DEMAND:
            return Move(Way.ON_DEMAND)
        if found is not None and is_certain(self.terms, seen, Way.SPOT):
            return Move(Way.SPOT, found)
        return Move(Way.WAIT if is_certain(self.terms, seen, Way.WAIT) else Way.ON_DEMAND)

    def spot(self, zone: int | None, tries: Tries) -> int | None:
        """Where it is, or the next in turn that has some."""
        if zone is not None:
            return zone
        for number in range(self.count):
            candidate = (self.next + number) % self.count
            if tries(candidate):
                self.next = candidate
                return candidate
        return None


class UniformProgress(Greedy):
    """Keeps pace with a straight line to the deadline (NSDI'24): spot when it is there, on demand when behind
    and until ahead by two restarts, else wait. Of its three known variants this one costs least."""

    def begin(self, terms: Terms, zones: int) -> None:
        super().begin(terms, zones)
        self.net = False

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, tries: Tries) -> Move:
        terms, found = self.terms, self.spot(zone, tries)
        seen = replace(now, spot_there=found is not None)
        spot, wait = (is_certain(terms, seen, way) for way in (Way.SPOT, Way.WAIT))
        self.net = self.net or not (spot or wait)
        if self.net:
            return Move(Way.ON_DEMAND)
        if found is not None and spot:
            return Move(Way.SPOT, found)
        ahead = 2 * terms.restart if now.way is Way.ON_DEMAND else 0.0
        behind = terms.work - now.work_left < (hour + ahead) * terms.work / terms.time
        return Move(Way.ON_DEMAND if behind or not wait else Way.WAIT)


def oracle(market: Market, terms: Terms) -> float:
    """The least that it can cost, for whoever knows the record beforehand."""
    step, again = terms.step / UNIT_HOURS, terms.restart / UNIT_HOURS
    work = np.arange(math.ceil(terms.work / UNIT_HOURS + again) + 2.0)
    done = work <= 0
    none = np.where(done, 0.0, NEVER)
    paid, spots = none.copy(), [none.copy() for _ in market.there]
    cheap, dear = terms.spot_price * terms.step, terms.on_demand_price * terms.step
    for at in range(round(terms.time / terms.step) - 1, -1, -1):
        start, on = dear + _at(paid, work, step - again), dear + _at(paid, work, step)
        fresh = [cheap + _at(spots[z], work, step - again) for z in np.flatnonzero(market.there[:, at])]
        best = np.minimum.reduce([none, start, *fresh])
        spots = [
            np.minimum(best, cheap + _at(spots[z], work, step)) if there else best
            for z, there in enumerate(market.there[:, at])
        ]
        paid = np.minimum.reduce([none, on, *fresh])
        none = best
        for each in (none, paid, *spots):
            each[done] = 0.0
    return float(np.interp(terms.work / UNIT_HOURS, work, none))


def _at(costs: Floats, work: Floats, less: float) -> Floats:
    left = work - less
    return np.where(left <= 0, 0.0, np.interp(left, work, costs))
