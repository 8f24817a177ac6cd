"""A market over time: how many nodes of an offer can be had, and at which price.

The question: what did the market have at this instant? A `Track` answers it for one offer, as steps: at each
of its instants the number that can be had and the price change, and hold until the next. Before the first
step its first values hold, after the last its last. A `Market` is a track for each offer it knows; an offer
it does not know can always be had, at the price that the pool says.

`SimProvider` goes by it: a launch where all that can be had is running already is refused; a spot machine
above the number is taken away with notice, the newest first (a trace of numbers does not say which; so the
least work is lost, and the same run has the same story); and offers show the price of the day. Machines on
demand keep their price and are never taken away.

Interpolation between the steps was refused: a trace that was polled every seven hours does not know when in
between something changed, and whoever reads it should be as late as the poll was. Steps are in the scenario
itself or in trace files (`traces`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.units import NEVER, Instant, MicroUsd, Millis

PLENTY = 1_000_000  # of what the market says nothing about
UNSAID = -1


class Step(msgspec.Struct, frozen=True):
    """From `at` on. `UNSAID`: as before, or as the pool says."""

    at: Instant
    available: int = UNSAID
    price_micro_usd: MicroUsd = UNSAID


class Track(msgspec.Struct, frozen=True):
    """One offer. The instants rise, and each differs from the one before it."""

    at: tuple[Instant, ...]
    available: tuple[int, ...]
    price_micro_usd: tuple[MicroUsd, ...]

    @classmethod
    def of(cls, steps: Iterable[Step]) -> "Track":
        """From steps in any order; of two at the same instant, the later one says more."""
        said: dict[Instant, tuple[int, MicroUsd]] = {}
        available, price = UNSAID, UNSAID
        for step in sorted(steps, key=lambda step: step.at):
            available = available if step.available == UNSAID else step.available
            price = price if step.price_micro_usd == UNSAID else step.price_micro_usd
            said[step.at] = (available, price)
        kept: list[tuple[Instant, int, MicroUsd]] = []
        for at, (count, cost) in said.items():
            if not kept or kept[-1][1:] != (count, cost):
                kept.append((at, count, cost))
        columns = tuple(zip(*kept, strict=True)) or ((), (), ())
        return cls(*columns)

    def _row(self, now: Instant) -> int:
        return max(0, bisect_right(self.at, now) - 1)

    def left(self, now: Instant) -> int:
        """How many can be had in all, those that run included."""
        found = self.available[self._row(now)] if self.at else UNSAID
        return PLENTY if found == UNSAID else found

    def price(self, now: Instant, otherwise: MicroUsd) -> MicroUsd:
        found = self.price_micro_usd[self._row(now)] if self.at else UNSAID
        return otherwise if found == UNSAID else found

    def next_change(self, now: Instant) -> Instant:
        row = bisect_right(self.at, now)
        return self.at[row] if row < len(self.at) else NEVER


NOTHING_KNOWN = Track((), (), ())


class Market(msgspec.Struct, frozen=True):
    tracks: dict[str, Track]  # by offer

    def of(self, offer: str) -> Track:
        return self.tracks.get(offer, NOTHING_KNOWN)

    def next_change(self, now: Instant) -> Instant:
        return min((track.next_change(now) for track in self.tracks.values()), default=NEVER)

    def last_change(self, before: Instant) -> Instant:
        """The last instant before this one at which anything changed."""
        found = [at for track in self.tracks.values() for at in track.at if 0 < at < before]
        return max(found, default=0)


def by_numbers(step_ms: Millis, counts: Iterable[int]) -> Track:
    """A trace of numbers, one every `step_ms`."""
    return Track.of(Step(number * step_ms, count) for number, count in enumerate(counts))


def market(steps: Mapping[str, Iterable[Step]]) -> Market:
    return Market({offer: Track.of(some) for offer, some in steps.items()})
