"""The detectors of others, on the same histories.

*Fixed*: silence longer than a number. *Phi accrual* (Hayashibara et al., 2004): the last 1,000 gaps between
beats, a normal distribution fitted to them (deviation at least 100 ms), and a threshold on how unlikely the
present silence is; `pause` is the extra patience that Akka adds to the mean, 3 s by default. *SWIM*: in
`swim`.

A verdict needs somebody who looks. Fixed and phi look all the time, except while the observer's loop stands
still; at the end of such a pause a coin decides (the same one for all) whether the timers see the silence or
the sockets are read first.
"""

from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench._truth import Failure, Ints, Truth
from holdfast.model.units import SECOND, Instant

WINDOW: Final = 1_000
DEVIATION_MIN_MS: Final = 100.0
FIRST_GAPS: Final = (750, 1_250)  # what Akka believes before it has heard anything, at one beat a second
WORTH_A_LOOK_MS: Final = 1_400  # nobody here is suspicious of less


class Score:
    """What a detector came to."""

    def __init__(self) -> None:
        self.took_ms: list[tuple[str, int]] = []  # kind of failure, from the failure to the verdict
        self.missed = 0
        self.false: dict[str, int] = {}  # by cause

    def wrong(self, cause: str) -> None:
        self.false[cause] = self.false.get(cause, 0) + 1


class Gaps:
    """Fixed time-outs and phi accrual: both know nothing but gaps."""

    FIXED: Final = {"fixed_5s": 5 * SECOND, "fixed_10s": 10 * SECOND, "fixed_40s": 40 * SECOND}
    PHI: Final = {
        "phi_8": (8, 0),
        "phi_12": (12, 0),
        "phi_8_pause_3s": (8, 3 * SECOND),
        "phi_12_pause_3s": (12, 3 * SECOND),
    }

    def __init__(self, truth: Truth, now: Instant) -> None:
        self.truth = truth
        self.last = np.full(truth.nodes, now, np.int64)
        self.window = np.zeros((truth.nodes, WINDOW), np.int64)
        self.window[:, :2] = FIRST_GAPS
        self.seen = np.full(truth.nodes, 2, np.int64)
        self.sum = np.full(truth.nodes, sum(FIRST_GAPS), np.int64)
        self.squares = np.full(truth.nodes, sum(gap * gap for gap in FIRST_GAPS), np.int64)
        self.scores = {name: Score() for name in (*self.FIXED, *self.PHI)}
        self.factor = {name: NormalDist().inv_cdf(1 - 10.0**-phi) for name, (phi, _) in self.PHI.items()}

    def hear(self, nodes: Ints, at: Ints, looked: Instant | None = None) -> None:
        """`looked`: the last instant at which somebody looked before these were read."""
        gap = at - self.last[nodes]
        if (gap > WORTH_A_LOOK_MS).any():
            for late in np.flatnonzero(gap > WORTH_A_LOOK_MS):
                self._look(int(nodes[late]), int(at[late]) if looked is None else looked)
        new = gap > 0
        if not new.all():
            nodes, at, gap = nodes[new], at[new], gap[new]
        self.last[nodes] = at
        place = self.seen[nodes] % WINDOW
        old = self.window[nodes, place]
        self.window[nodes, place] = gap
        self.sum[nodes] += gap - old
        self.squares[nodes] += gap * gap - old * old
        self.seen[nodes] += 1

    def _look(self, node: int, at: Instant) -> None:
        last = int(self.last[node])
        for name, patience in self.patience(node).items():
            if at - last > patience:
                self.scores[name].wrong(self.truth.cause(node, last, last + int(patience)))

    def patience(self, node: int) -> dict[str, float]:
        """How long a silence of this node each detector bears."""
        count = min(int(self.seen[node]), WINDOW)
        mean = int(self.sum[node]) / count
        variance = max(0.0, int(self.squares[node]) / count - mean * mean)
        deviation = max(DEVIATION_MIN_MS, variance**0.5)
        phi = {n: mean + pause + self.factor[n] * deviation for n, (_, pause) in self.PHI.items()}
        return {**self.FIXED, **phi}

    def conclude(self, failure: Failure) -> None:
        """The failure is over: when did each of them see it?"""
        last = int(self.last[failure.node])
        for name, patience in self.patience(failure.node).items():
            score, verdict = self.scores[name], self.truth.after_pause(last + int(patience))
            if verdict < failure.start:
                score.wrong(self.truth.cause(failure.node, last, verdict))
            if verdict >= failure.end:
                score.missed += 1
            else:
                score.took_ms.append((failure.kind, max(0, verdict - failure.start)))
        self.last[failure.node] = failure.end


# SWIM, with the numbers of memberlist for a local network

PERIOD_MS: Final = 1_000  # each member probes one other
ACK_MS: Final = 500  # then three others are asked to probe it, until the period is over
SUSPICION: Final = 4  # times log10(n + 1) periods at least, six times that at most
SUSPICION_MOST: Final = 6
CONFIRMATIONS: Final = SUSPICION - 2  # further members that must suspect it for the shortest time
GOSSIP_MS: Final = 200


def swim(truth: Truth, seed: int) -> Score:
    """Peers probe each other, so the observer's links and pauses do not matter, and this ground truth (only
    the observer is ever cut off) is kind to it. What counts against it is the time that a suspect is given to
    deny. A verdict needs gossip to reach the observer."""
    chance, score = np.random.default_rng([seed, 4]), Score()
    least = SUSPICION * np.log10(truth.nodes + 1) * PERIOD_MS
    spread_ms = GOSSIP_MS * np.log2(truth.nodes + 1) / 2  # until most members have heard something
    for failure in truth.failures:
        suspected, timeout = _suspicion(chance, least)
        verdict = truth.after_pause(failure.start + int(suspected + timeout + spread_ms))
        if verdict >= failure.end:
            score.missed += 1
        else:
            score.took_ms.append((failure.kind, verdict - failure.start))
    for stall in truth.stalls:
        if stall.end - stall.start > ACK_MS:
            suspected, timeout = _suspicion(chance, least)
            denied = stall.end - stall.start + spread_ms * (1 + chance.standard_exponential())
            if suspected < stall.end - stall.start and denied > suspected + timeout:
                score.wrong("stall")
    return score


def _suspicion(chance: np.random.Generator, least: float) -> tuple[float, float]:
    """When the first member suspects a silent one, and how long the suspicion then lasts."""
    probes: NDArray[np.float64] = np.cumsum(chance.standard_exponential(CONFIRMATIONS + 1)) * PERIOD_MS
    first, confirmed = probes[0] + PERIOD_MS, probes[1:] - probes[0]
    most = SUSPICION_MOST * least
    for count in range(CONFIRMATIONS + 1):
        share = np.log(count + 1) / np.log(CONFIRMATIONS + 1)
        timeout = max(least, most - share * (most - least))
        if count == CONFIRMATIONS or timeout <= confirmed[count]:
            return float(first), float(timeout)
    raise AssertionError("the last step always returns")
