"""How long will it last, and when will it be back, when we have watched it come and go for a while?

Something is there or not: the spot capacity of a zone, an offer in a list. The rule: the times it stays and
the times it stays away are exponential, with two means that we do not know. What we believe of them is a
weight on each of a few hypotheses, a pair of means each; every look multiplies the weights by how well the
hypothesis foretold what was seen. Looks may be far apart: the chance to be there after a gap is known exactly
for such a process. Whoever decides weighs the hypotheses' answers, and so is careful for as long as little is
known, and bold afterwards.

A long stay makes the hypotheses of long stays likely, so the mixture foretells what real markets show (what
has lasted will last) though each hypothesis alone has no memory. Markets change, so evidence fades: a bad
hour must not be held against a zone for ever.

No two stays are quite alike. Where many were watched, one pair of means would have all the weight and the
first long gap after many short ones would be waited for as if it were short; so with every change one mean in
ten is drawn anew (`Beliefs`). Whoever plans ahead counts on the same (`Grid.stay_anew`, `away_anew`).

Several zones are one market as whoever looks lives through it: there when the last look found some, and away
when it did not. One look at a time: at the zone that promises most, which is the chance that it is there now
times how long it is then expected to stay.

Refused: one best estimate of the two means. It takes the first hour of a market for the truth. Refused:
hazards by age. They need more events than a job sees in its life, and the mixture has most of what they give.

Where the numbers come from: means from 40 minutes to two days, a factor of four apart, because a market that
changes faster cannot be used and a slower one looks the same within a job's life. On public traces of spot
zones a grid twice as fine moved the cost of deadline jobs by less than a fifth of a percent. Away has one
mean more, 7 minutes, for what is back before a job has been moved. Half of the evidence is gone in a day, as
days and nights differ. One mean in ten: of 0.1, 0.3 and 0.6 the best on one half of the windows with several
zones, and better than none on the other half too; with one zone it made no difference. Looks count a stay of
four hours at most: beyond that, finding one soon matters more. Whoever watches something slower brings means
of their own (a `Grid`) and another pace of fading, and whoever is told things that are sometimes wrong, a
share of doubt. A belief can be written down (`log_weights`, `seen_at`, `there`) and taken up again.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int_]
Bools = NDArray[np.bool_]

MEANS_HOURS: Final = (0.7, 3.0, 12.0, 48.0)
AWAY_HOURS: Final = (0.12, *MEANS_HOURS)
LOOK_AHEAD_HOURS: Final = 4.0
FADES_HOURS: Final = 24.0
ANEW: Final = 0.1
TINY: Final = 1e-6  # nothing is impossible


class Grid(NamedTuple):
    """The hypotheses: mean times there and away, the share of time there, and how fast a look fades. Every
    pair of means, those of one stay beside each other."""

    stays: Floats
    aways: Floats
    usually: Floats
    pace: Floats
    shape: tuple[int, int]  # how many means there are of each

    @classmethod
    def of(cls, stays_hours: Sequence[float], aways_hours: Sequence[float] = ()) -> "Grid":
        """Every pair of a mean stay and a mean time away; the same means for both, if only one is given."""
        apart = aways_hours or stays_hours
        stays, aways = np.repeat(stays_hours, len(apart)), np.tile(apart, len(stays_hours))
        shape = len(stays_hours), len(apart)
        return cls(stays, aways, stays / (stays + aways), 1 / stays + 1 / aways, shape)

    def stay_anew(self, values: Floats) -> Floats:
        """By hypothesis, when a stay has ended: some of the next ones have another mean."""
        return self._anew(values, -2)

    def away_anew(self, values: Floats) -> Floats:
        """The same when a time away has ended."""
        return self._anew(values, -1)

    def _anew(self, values: Floats, axis: int) -> Floats:
        apart = values.reshape(*values.shape[:-1], *self.shape)
        mixed: Floats = (1 - ANEW) * apart + ANEW * apart.mean(axis=axis, keepdims=True)
        return mixed.reshape(values.shape)


SPOT_GRID: Final = Grid.of(MEANS_HOURS, AWAY_HOURS)
STAYS: Final[Floats] = SPOT_GRID.stays
AWAYS: Final[Floats] = SPOT_GRID.aways


class Belief:
    """What is believed of one thing that comes and goes. Times are hours since any instant."""

    def __init__(
        self,
        grid: Grid = SPOT_GRID,
        log_weights: Sequence[float] = (),
        seen_at: float | None = None,
        there: bool = False,
        doubt: float = TINY,
        fades_hours: float = FADES_HOURS,
    ) -> None:
        """`log_weights`: as they were written down; none: as likely as one another. `doubt`: the share of
        looks that may be wrong. `fades_hours`: half of the evidence is gone after so long."""
        self.grid, self.doubt, self.fades_hours = grid, doubt, fades_hours
        self._log_weights: Floats = np.array(log_weights) if log_weights else np.zeros(len(grid.stays))
        self.seen_at = seen_at
        self.there = there

    @property
    def log_weights(self) -> tuple[float, ...]:
        """To write down; the greatest is 0."""
        return tuple(self._log_weights.tolist())

    def see(self, at: float, there: bool) -> None:
        if self.seen_at is not None and at <= self.seen_at:
            return
        chance = np.minimum(np.maximum(self._chances(at), self.doubt), 1 - self.doubt)
        if self.seen_at is not None:
            self._log_weights *= 0.5 ** ((at - self.seen_at) / self.fades_hours)
        self._log_weights += np.log(chance if there else 1 - chance)
        self._log_weights -= self._log_weights.max()
        self.seen_at, self.there = at, there

    def weights(self) -> Floats:
        """Of the hypotheses; together one."""
        raw = np.exp(self._log_weights)
        weights: Floats = raw / raw.sum()
        return weights

    def chance_there(self, at: float) -> float:
        return float(self.weights() @ self._chances(at))

    def stays_hours(self, within: float) -> float:
        """How long it is expected to stay, if it is there; more than `within` is of no use."""
        return float(self.weights() @ self._stays(within))

    def promises(self, at: float, within: float) -> float:
        """Hours to be had, if one tries at that time: that it is there, times how long it then stays."""
        return float(self.weights() @ (self._chances(at) * self._stays(within)))

    def _stays(self, within: float) -> Floats:
        found: Floats = self.grid.stays * -np.expm1(-within / self.grid.stays)
        return found

    def _chances(self, at: float) -> Floats:
        """To be there at that time, by hypothesis."""
        return chances(self.grid, None if self.seen_at is None else at - self.seen_at, self.there)


def chances(grid: Grid, since_hours: float | None, there: bool) -> Floats:
    """To be there, by hypothesis, so long after it was seen there or away; none: it was never seen."""
    if since_hours is None:
        return grid.usually
    fades = np.exp(-since_hours * grid.pace)
    found: Floats = grid.usually + (float(there) - grid.usually) * fades
    return found


class Beliefs:
    """What is believed of many things at once, a row each; as `Belief`, but one mean in ten is drawn anew
    when something comes or goes."""

    def __init__(self, count: int, grid: Grid = SPOT_GRID) -> None:
        self.grid = grid
        self._log_weights = np.zeros((count, len(grid.stays)))
        self._seen_at, self._there = np.full(count, np.nan), np.zeros(count, np.bool_)

    def see(self, at: float, rows: Ints, there: Bools) -> None:
        since, known = at - self._seen_at[rows], self._log_weights[rows]
        chance = np.clip(self._chances(at, rows), TINY, 1 - TINY)
        known *= np.where(np.isnan(since), 1.0, 0.5 ** (since / FADES_HOURS))[:, None]
        known += np.log(np.where(there[:, None], chance, 1 - chance))
        self._log_weights[rows] = known - known.max(axis=1, keepdims=True)
        changed = ~np.isnan(since) & (self._there[rows] != there)
        self._seen_at[rows], self._there[rows] = at, there
        self._begin_anew(rows[changed & ~there], self.grid.stay_anew)
        self._begin_anew(rows[changed & there], self.grid.away_anew)

    def _begin_anew(self, rows: Ints, anew: Callable[[Floats], Floats]) -> None:
        if len(rows):
            mixed = anew(self.weights(rows))
            self._log_weights[rows] = np.log(mixed / mixed.max(axis=1, keepdims=True))

    def weights(self, rows: Ints) -> Floats:
        raw = np.exp(self._log_weights[rows])
        weights: Floats = raw / raw.sum(axis=1, keepdims=True)
        return weights

    def promises(self, at: float, rows: Ints, within: float) -> Floats:
        stays = self.grid.stays * -np.expm1(-within / self.grid.stays)
        found: Floats = (self.weights(rows) * self._chances(at, rows) * stays).sum(axis=1)
        return found

    def _chances(self, at: float, rows: Ints) -> Floats:
        since = (at - self._seen_at[rows])[:, None]
        fades = np.where(np.isnan(since), 0.0, np.exp(-since * self.grid.pace))
        found: Floats = self.grid.usually + (self._there[rows, None] - self.grid.usually) * fades
        return found


class Zones:
    """What each of several watchers believes of its zones, and of its market as a whole. `who` are watchers,
    and each knows only what it has seen itself."""

    def __init__(self, count: int, watchers: int = 1) -> None:
        self.count = count
        self.each, self.whole = Beliefs(watchers * count), Beliefs(watchers)

    def see(self, at: float, who: Ints, zones: Ints, there: Bools) -> None:
        self.each.see(at, who * self.count + zones, there)
        self.whole.see(at, who, there)

    def look_at(self, at: float, who: Ints) -> Ints:
        """Where each should try next."""
        rows = (who[:, None] * self.count + np.arange(self.count)).ravel()
        promises = self.each.promises(at, rows, LOOK_AHEAD_HOURS).reshape(len(who), self.count)
        zones: Ints = promises.argmax(axis=1)
        return zones

    def weights(self, who: Ints) -> Floats:
        return self.whole.weights(who)
