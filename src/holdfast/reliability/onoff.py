"""How long will it last, and when will it be back, when we have watched it come and go for a while?

Something is there or not: the spot capacity of a zone, an offer in a list. The rule: the times it stays and
the times it stays away are exponential, with two means that we do not know. What we believe of them is a
weight on each of a few hypotheses, a pair of means each; every look multiplies the weights by how well the
hypothesis foretold what was seen. Looks may be far apart: the chance to be there after a gap is known exactly
for such a process. Whoever decides weighs the hypotheses' answers, and so is careful for as long as little is
known, and bold afterwards.

A long stay makes the hypotheses of long stays likely, so the mixture foretells what real markets show (what
has lasted will last) though each hypothesis alone has no memory.

Refused: one best estimate of the two means. It takes the first hour of a market for the truth. Refused:
hazards by age. They need more events than a job sees in its life, and the mixture has most of what they give.

Where the numbers come from: means from 40 minutes to two days, a factor of four apart, because a market that
changes faster cannot be used and a slower one looks the same within a job's life. On public traces of spot
zones a grid twice as fine moved the cost of deadline jobs by less than a fifth of a percent.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MEANS_HOURS: Final = (0.7, 3.0, 12.0, 48.0)

STAYS: Final[Floats] = np.repeat(MEANS_HOURS, len(MEANS_HOURS))  # by hypothesis: the mean time it is there
AWAYS: Final[Floats] = np.tile(MEANS_HOURS, len(MEANS_HOURS))  # and away
USUALLY: Final[Floats] = STAYS / (STAYS + AWAYS)  # the share of time in which it is there
TINY: Final = 1e-6  # nothing is impossible


class Belief:
    """What is believed of one thing that comes and goes. Times are hours since any instant."""

    def __init__(self) -> None:
        self._log_weights: Floats = np.zeros(len(STAYS))
        self.seen_at: float | None = None
        self.there = False

    def see(self, at: float, there: bool) -> None:
        if self.seen_at is not None and at <= self.seen_at:
            return
        chance = np.clip(self._chances(at), TINY, 1 - TINY)
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
        return float(self.weights() @ (STAYS * -np.expm1(-within / STAYS)))

    def _chances(self, at: float) -> Floats:
        """To be there at that time, by hypothesis."""
        if self.seen_at is None:
            return USUALLY
        fades = np.exp(-(at - self.seen_at) * (1 / STAYS + 1 / AWAYS))
        found: Floats = USUALLY + (float(self.there) - USUALLY) * fades
        return found
