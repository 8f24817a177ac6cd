"""Ways to meet a deadline: ours, and those it is measured against.

All of them have the same exact net: a job that could be late if it went on as it does is put on demand. So
they differ only in what they cost.
"""

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bench._deadline_world import Look, Market, Move
from holdfast.core.deadline import NEVER, Outlook, Standing, Terms, is_certain
from holdfast.model.course import Way
from holdfast.reliability.onoff import Zones

Floats = NDArray[np.float64]

UNIT_HOURS = 0.02  # of work, in which the oracle counts


class Ours:
    """`core.deadline`, with what `reliability.onoff` believes of the zones."""

    outlooks: dict[Terms, Outlook] = {}  # noqa: RUF012 (worked out once for many jobs of the same terms)

    def begin(self, terms: Terms, zones: int) -> None:
        if terms not in self.outlooks:
            self.outlooks.clear()
            self.outlooks[terms] = Outlook(terms)
        self.outlook, self.zones = self.outlooks[terms], Zones(zones)

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, look: Look) -> Move:
        if lost is not None:
            self.zones.see(hour, lost, there=False)
        elif zone is not None:
            self.zones.see(hour, zone, there=True)
        else:
            tried = self.zones.look_at(hour)
            zone = tried if look(tried) else None
            self.zones.see(hour, tried, there=zone is not None)
        found = self.outlook.choose(replace(now, spot_there=zone is not None), self.zones.weights())
        return Move(found.way, zone or 0)


class OnDemand:
    def begin(self, terms: Terms, zones: int) -> None:
        pass

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, look: Look) -> Move:
        return Move(Way.ON_DEMAND)


class Greedy:
    """Spot whenever it is there, else wait; on demand when there is no other way, and to the end."""

    def begin(self, terms: Terms, zones: int) -> None:
        self.terms, self.count, self.next = terms, zones, 0

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, look: Look) -> Move:
        found = self.spot(zone, lost, look)
        seen = replace(now, spot_there=found is not None)
        if now.way is Way.ON_DEMAND:
            return Move(Way.ON_DEMAND)
        if found is not None and is_certain(self.terms, seen, Way.SPOT):
            return Move(Way.SPOT, found)
        return Move(Way.WAIT if is_certain(self.terms, seen, Way.WAIT) else Way.ON_DEMAND)

    def spot(self, zone: int | None, lost: int | None, look: Look) -> int | None:
        """Where it is, or the next in turn if that has some."""
        if zone is None and lost is None and look(self.next):
            return self.next
        if zone is None:
            self.next = ((self.next if lost is None else lost) + 1) % self.count
        return zone


class UniformProgress(Greedy):
    """Keeps pace with a straight line to the deadline (NSDI'24): spot when it is there, on demand when behind
    and until ahead by two restarts, else wait. Of its three known variants this one costs least."""

    def begin(self, terms: Terms, zones: int) -> None:
        super().begin(terms, zones)
        self.net = False

    def choose(self, hour: float, now: Standing, zone: int | None, lost: int | None, look: Look) -> Move:
        terms, found = self.terms, self.spot(zone, lost, look)
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


def oracle(market: Market, terms: Terms) -> tuple[float, float]:
    """The least that it can cost, for whoever knows the record beforehand, and the launches that it takes.

    Backwards from the deadline; in each array the costs and the launches to come, by work left."""
    step, again = terms.step / UNIT_HOURS, (terms.step - terms.restart) / UNIT_HOURS
    width = math.ceil((terms.work + terms.restart) / UNIT_HOURS) + 2
    none = np.zeros((2, width))
    none[0, 1:] = NEVER
    paid, spots = none.copy(), [none.copy() for _ in market.there]
    cheap, dear = terms.spot_price * terms.step, terms.on_demand_price * terms.step
    for at in range(round(terms.time / terms.step) - 1, -1, -1):
        fresh = [_after(spots[z], again, cheap, 1) for z in np.flatnonzero(market.there[:, at])]
        best = _least(none, _after(paid, again, dear, 1), *fresh)
        spots = [
            _least(best, _after(spots[z], step, cheap, 0)) if there else best
            for z, there in enumerate(market.there[:, at])
        ]
        paid = _least(none, _after(paid, step, dear, 0), *fresh)
        none = best
        for each in (none, paid, *spots):
            each[:, 0] = 0.0
    cost, launches = (float(np.interp(terms.work / UNIT_HOURS, np.arange(width), row)) for row in none)
    return cost, launches


def _after(then: Floats, less: float, price: float, launches: int) -> Floats:
    """With a step that does so much work (less than none, if its restart takes longer), at this price."""
    whole = math.ceil(less)
    part = whole - less  # of the way to the next amount of work
    before, width = max(0, -whole), then.shape[1]
    more = np.pad(then, ((0, 0), (0, before + 1)), mode="edge") if whole < 2 else then
    found = np.zeros_like(then)
    begin, count = max(0, whole), width - max(0, whole)
    found[:, begin:] = more[:, before : before + count] * (1 - part)
    found[:, begin:] += more[:, before + 1 : before + 1 + count] * part
    found[0, 1:] += price
    found[1, 1:] += launches
    return found


def _least(first: Floats, *others: Floats) -> Floats:
    """The cheapest way of each column."""
    best = first
    for other in others:
        best = np.where(other[0] < best[0], other, best)
    return best
