"""Ways to meet a deadline: ours, and those it is measured against.

All of them have the same exact net: a job that could be late if it went on as it does is put on demand. So
they differ only in what they cost.
"""

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bench._deadline_world import Bools, Market, Move, View
from holdfast.core.spot.deadline_policy import (
    NEVER,
    Outlook,
    Terms,
    is_certain,
)
from holdfast.model.course import Way
from holdfast.reliability.onoff import Zones

Floats = NDArray[np.float64]

UNIT_HOURS = 0.02  # of work, in which the oracle counts


class Ours:
    """`core.spot.deadline_policy`, with what `reliability.onoff` believes of the zones."""

    outlooks: dict[Terms, Outlook] = {}  # noqa: RUF012 (worked out once for many jobs of the same terms)

    def begin(self, terms: Terms, zones: int, jobs: int) -> None:
        if terms not in self.outlooks:
            self.outlooks[terms] = Outlook(terms)
        self.outlook, self.zones = self.outlooks[terms], Zones(zones, jobs)

    def choose(self, hour: float, views: list[View]) -> list[Move]:
        who = np.array([view.job for view in views])
        tried = self.zones.look_at(hour, who).tolist()
        zones = [_first(view.zone, view.lost, other) for view, other in zip(views, tried, strict=True)]
        there = [
            view.zone is not None or (view.lost is None and view.look(zone))
            for view, zone in zip(views, zones, strict=True)
        ]
        self.zones.see(hour, who, np.array(zones), np.array(there))
        seen = [replace(view.now, spot_there=is_there) for view, is_there in zip(views, there, strict=True)]
        found = self.outlook.choose_each(seen, self.zones.weights(who))
        return [Move(choice.way, zone) for choice, zone in zip(found, zones, strict=True)]


def _first(*zones: int | None) -> int:
    return next(zone for zone in zones if zone is not None)


class OnDemand:
    def begin(self, terms: Terms, zones: int, jobs: int) -> None:
        pass

    def choose(self, hour: float, views: list[View]) -> list[Move]:
        return [Move(Way.ON_DEMAND)] * len(views)


class Greedy:
    """Spot whenever it is there, else wait; on demand when there is no other way, and to the end."""

    def begin(self, terms: Terms, zones: int, jobs: int) -> None:
        self.terms, self.count, self.next = terms, zones, [0] * jobs

    def choose(self, hour: float, views: list[View]) -> list[Move]:
        return [self.choose_one(hour, view) for view in views]

    def choose_one(self, hour: float, view: View) -> Move:
        found = self.spot(view)
        seen = replace(view.now, spot_there=found is not None)
        if seen.way is Way.ON_DEMAND:
            return Move(Way.ON_DEMAND)
        if found is not None and is_certain(self.terms, seen, Way.SPOT):
            return Move(Way.SPOT, found)
        return Move(Way.WAIT if is_certain(self.terms, seen, Way.WAIT) else Way.ON_DEMAND)

    def spot(self, view: View) -> int | None:
        """Where it is, or the next in turn if that has some."""
        if view.zone is not None:
            return view.zone
        turn = self.next[view.job]
        if view.lost is None and view.look(turn):
            return turn
        self.next[view.job] = ((turn if view.lost is None else view.lost) + 1) % self.count
        return None


class UniformProgress(Greedy):
    """Keeps pace with a straight line to the deadline (NSDI'24): spot when it is there, on demand when behind
    and until ahead by two restarts, else wait. Of its three known variants this one costs least."""

    def begin(self, terms: Terms, zones: int, jobs: int) -> None:
        super().begin(terms, zones, jobs)
        self.net = [False] * jobs

    def choose_one(self, hour: float, view: View) -> Move:
        terms, now, found = self.terms, view.now, self.spot(view)
        seen = replace(now, spot_there=found is not None)
        spot, wait = (is_certain(terms, seen, way) for way in (Way.SPOT, Way.WAIT))
        self.net[view.job] = self.net[view.job] or not (spot or wait)
        if self.net[view.job]:
            return Move(Way.ON_DEMAND)
        if found is not None and spot:
            return Move(Way.SPOT, found)
        ahead = 2 * terms.restart if now.way is Way.ON_DEMAND else 0.0
        behind = terms.work - now.work_left < (hour + ahead) * terms.work / terms.time
        return Move(Way.ON_DEMAND if behind or not wait else Way.WAIT)


def oracle(markets: list[Market], terms: Terms) -> list[tuple[float, float]]:
    """The least that it can cost, for whoever knows the record beforehand, and the launches that it takes: of
    markets with as many zones each.

    Backwards from the deadline; in each array the costs and the launches to come, by market and by work left.
    Only what matters is worked out: no step does more than `most`, so there is an amount of work that cannot
    be left yet, and one that can no longer be done."""
    step, again = terms.step / UNIT_HOURS, (terms.step - terms.restart) / UNIT_HOURS
    most, begun = math.ceil(step), math.ceil((terms.work + terms.restart) / UNIT_HOURS) + 2
    steps, there = round(terms.time / terms.step), np.array([market.there for market in markets])
    none = np.zeros((2, len(markets), begun + max(0, -math.floor(again)) + 1))
    none[0, :, 1:] = NEVER
    paid, spots = none.copy(), [none.copy() for _ in range(there.shape[1])]
    cheap, dear = terms.spot_price * terms.step, terms.on_demand_price * terms.step
    for at in range(steps - 1, -1, -1):
        columns = max(1, int(terms.work / UNIT_HOURS) - at * most - 1), min(begun, (steps - at) * most + 2)
        now = there[:, :, at].T[:, :, None]
        nothing = none[..., slice(*columns)]
        fresh = [_after(spot, again, cheap, 1, columns) for spot in spots]
        best = _least(nothing, _after(paid, again, dear, 1, columns))
        stays = _least(nothing, _after(paid, step, dear, 0, columns))
        for zone, new in enumerate(fresh):
            best, stays = _least(best, new, now[zone]), _least(stays, new, now[zone])
        for zone, spot in enumerate(spots):
            spot[..., slice(*columns)] = _least(best, _after(spot, step, cheap, 0, columns), now[zone])
        paid[..., slice(*columns)] = stays
        none[..., slice(*columns)] = best
    work = terms.work / UNIT_HOURS
    return [(_at(work, cost), _at(work, launches)) for cost, launches in zip(*none, strict=True)]


def _at(work: float, row: Floats) -> float:
    return float(np.interp(work, np.arange(len(row)), row))


def _after(then: Floats, less: float, price: float, launches: int, columns: tuple[int, int]) -> Floats:
    """With a step that does so much work (less than none, if its restart takes longer), at this price."""
    whole = math.ceil(less)
    part = whole - less  # of the way to the next amount of work
    begin, end = columns[0] - whole, columns[1] - whole
    done = min(max(0, -begin), end - begin)  # so many have no work left then
    found = np.zeros((*then.shape[:2], end - begin))
    found[..., done:] = then[..., begin + done : end] * (1 - part)
    found[..., done:] += then[..., begin + done + 1 : end + 1] * part
    found[0] += price
    found[1] += launches
    return found


def _least(first: Floats, other: Floats, can: Bools | None = None) -> Floats:
    """The cheaper way, by market and by work left."""
    better = other[0] < first[0]
    return np.where(better if can is None else better & can, other, first)
