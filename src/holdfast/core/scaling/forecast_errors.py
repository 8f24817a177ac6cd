"""How far above a simple guess did demand rise within so much time, and which guess was best?

One `Lead` keeps the record for one length of time ahead. A few times within that length it notes what each
of several simple guesses (`forecast`) says now, waits until the time is over, and compares with the highest
demand that came. The errors of each guess go into a histogram that fades with age. What is asked of it
later, "the demand that is not exceeded with this probability", is a guess plus the quantile of its own past
errors: no shape of distribution is assumed, and a guess that is always wrong in the same way costs nothing.

The guess to use is the one whose answers, as they were given at the time, would have been the cheapest: too
little by one costs `confidence`, too much by one costs the rest (the pinball loss), counted in replicas. That
is the loss which is least at the true quantile, so guesses are compared at what they are used for.

Errors are kept as logarithms, one replica added: demand moves by factors when it is large, and by single
replicas when it is small. A record of few windows says little about rare peaks, so every histogram begins
with one imagined window whose error has a Pareto tail: with n windows seen, the next is beyond them with a
probability of about 1/(n+1). Ties, as in the beginning, go to the most careful guess, which is the first.

Refused: scaling the errors by recent volatility. On the recorded load where it was tried it bought nothing at
the same cost, perhaps because a guess that leans towards the recent peak is wide after restless hours anyway.

Where the numbers come from: `SAMPLES` a window (more are not independent); `HALF_LIFE_MS` of three days
forgets a release or a moved customer within a week (on one recorded load, one to ten days differed by less
than 1 % of the hours); `TAIL` of 3 is a demand with a variance and hardly more. `YOUNG` and `BETTER` are
judgement: a record's first hours should not decide for ever, nor a tie every minute.
"""

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.model.units import DAY, Instant, Millis

Floats = NDArray[np.float64]

MARKS: Final = (2 / 3, 0.98)  # guesses are compared at these probabilities: likely, and careful
MIDDLE: Final = sum(MARKS) / 2
YOUNG: Final = 3.0  # how the losses of a young record, all of them large, are forgotten: as 1/n^3
BETTER: Final = 0.9  # another guess is taken when it costs less than this share
SAMPLES: Final = 8
HALF_LIFE_MS: Final = 3 * DAY
TAIL: Final = 3.0
FAR: Final = 2.0
BINS: Final = 97
REACH: Final = 3.0  # errors of more than a factor of 20 are counted as that
FINEST: Final = 100.0  # one bin is about 0.1 % wide near no error, and 13 % of the error further out
LITTLE: Final = 0.02  # so much more evidence does not move a quantile: it is worked out anew after more
LEVEL_BIN: Final = 0.15  # of the last guess, which has no level of its own
_SPREAD: Final = math.asinh(REACH * FINEST)
EDGES: Final = np.sinh(np.linspace(-_SPREAD, _SPREAD, BINS)) / FINEST
LEVEL_EDGES: Final = np.arange(BINS) * LEVEL_BIN
_MARKS: Final = np.array(MARKS)[:, None]


class _Window:
    """One guess that waits for its outcome."""

    __slots__ = ("at", "bases", "given", "peak", "weight")

    def __init__(self, at: Instant, bases: Floats, given: Floats, weight: float) -> None:
        self.at, self.bases, self.given, self.weight = at, bases, given, weight
        self.peak = -1.0


class Record(msgspec.Struct, frozen=True):
    """What is kept of a `Lead` over a restart: half-precision numbers, some kilobytes."""

    lead_ms: Millis
    errors: bytes
    losses: bytes
    windows: float


class Lead:
    """`ways` guesses over `lead_ms`. The last way is a guess of zero: its "errors" are the demand itself."""

    def __init__(self, lead_ms: Millis, ways: int) -> None:
        self.lead_ms = lead_ms
        self.windows = 0.0  # so many, independent ones, have been compared
        self._rows = np.arange(ways)
        self._edges = np.vstack([np.tile(EDGES, (ways - 1, 1)), LEVEL_EDGES])
        self._errors = np.zeros((ways, BINS))
        self._losses = np.zeros((len(MARKS), ways))
        self._open: list[_Window] = []
        self._cuts: dict[float, Floats] = {}
        self._marked: Floats | None = None  # the quantiles of all marks, while they hold
        self._fresh = 0.0  # windows compared since the quantiles were worked out
        self._is_new = True
        self._chosen = [0 for _ in MARKS]

    def begin(self, at: Instant, bases: Floats, level: float) -> None:
        """These are the guesses now; note them if the last were noted long enough ago."""
        if self._is_new:
            self._imagine(bases, level)
        since = at - self._open[-1].at if self._open else self.lead_ms // SAMPLES
        if since * SAMPLES >= self.lead_ms:
            if self._marked is None:
                self._marked = np.array([self._cut(mark) for mark in MARKS])
            given = np.expm1(np.minimum(bases + self._marked, 30.0))
            self._open.append(_Window(at, bases, given, min(1.0, since / self.lead_ms)))

    def hear(self, at: Instant, level: float) -> None:
        """A reading. Windows that end by now are compared; the reading that ends one belongs to it."""
        over = 0
        for window in self._open:
            if window.peak < 0 or at - window.at <= self.lead_ms:
                window.peak = max(window.peak, level)
            over += at - window.at >= self.lead_ms
        for window in self._open[:over]:
            self._compare(window)
        del self._open[:over]

    def forget_open(self) -> None:
        """There was a hole in the readings: nobody knows the peaks of these windows."""
        self._open.clear()

    def quantile(self, bases: Floats, confidence: float) -> tuple[float, int]:
        """The (logarithmic) peak not exceeded with this probability, and the way that says so."""
        way = self._best(confidence)
        return float(bases[way] + self._cut(confidence)[way]), way

    def chance(self, bases: Floats, level: float, confidence: float) -> float:
        """The probability that the peak is not above this, as the way for `confidence` has it."""
        way = self._best(confidence)
        errors = self._errors[way]
        seen = np.interp(level - bases[way], self._edges[way], np.cumsum(errors))
        return float(seen / max(errors.sum(), 1e-9))

    def outgrown(self, way: int, factor: float, confidence: float) -> float:
        """How far the windows seen prove that so many times this guess is too little for this confidence.
        Proof (1) is one window more than the confidence allows for, or one look at `FAR` times that."""
        upto = np.cumsum(self._errors[way])
        over = np.log([factor, FAR * factor])
        imagined = max(0.0, float(upto[-1]) - self.windows) * np.exp(-TAIL * over)
        seen = upto[-1] - np.interp(over, self._edges[way], upto) - imagined
        short, far = np.maximum(0.0, seen).tolist()
        allowed = (1.0 - confidence) * self.windows
        return float(min(1.0, (short + (SAMPLES - 1) * far) / (allowed + 1.0)))

    def record(self) -> Record:
        errors, losses = self._errors.astype(np.float16), self._losses.astype(np.float32)
        return Record(self.lead_ms, errors.tobytes(), losses.tobytes(), self.windows)

    def recall(self, record: Record) -> None:
        """A record of another shape is left alone: an older version knew other ways."""
        if len(record.errors) != 2 * self._errors.size or len(record.losses) != 4 * self._losses.size:
            return
        errors, losses = np.frombuffer(record.errors, np.float16), np.frombuffer(record.losses, np.float32)
        if np.isfinite(errors).all() and np.isfinite(losses).all() and errors.any():
            self._errors = errors.astype(np.float64).reshape(self._errors.shape)
            self._losses = losses.astype(np.float64).reshape(self._losses.shape)
            self.windows, self._is_new = record.windows, False
            self._forget_cuts()
            self._choose()

    def _imagine(self, bases: Floats, level: float) -> None:
        """One window of which we only know the tail: beyond the first reading by a Pareto factor."""
        beyond = np.maximum(self._edges + bases[:, None] - level, 0.0)
        left = np.exp(-TAIL * beyond)
        left[:, 0], left[:, -1] = 1.0, 0.0
        self._errors[:, 1:] = left[:, :-1] - left[:, 1:]
        self._is_new = False

    def _compare(self, window: _Window) -> None:
        fade = 0.5 ** (window.weight * self.lead_ms / HALF_LIFE_MS)
        self._errors *= fade
        self._errors[self._rows, _bins(window.peak - window.bases)] += window.weight
        short = math.expm1(window.peak) - window.given
        loss = np.maximum(_MARKS * short, (_MARKS - 1.0) * short)
        self.windows = self.windows * fade + window.weight
        self._losses += window.weight * YOUNG / (self.windows + YOUNG) * (loss - self._losses)
        self._choose()
        self._fresh += window.weight
        if self._fresh > LITTLE * self.windows:
            self._forget_cuts()
            self._fresh = 0.0

    def _forget_cuts(self) -> None:
        self._cuts.clear()
        self._marked = None

    def _choose(self) -> None:
        """The cheapest way, by enough: to and fro between two that are alike would move the answer."""
        for mark, best in enumerate(self._losses.argmin(axis=1).tolist()):
            if self._losses[mark, best] < BETTER * self._losses[mark, self._chosen[mark]]:
                self._chosen[mark] = best

    def _best(self, confidence: float) -> int:
        return self._chosen[0] if confidence < MIDDLE else self._chosen[1]

    def _cut(self, confidence: float) -> Floats:
        """By way, the quantile of its errors."""
        found = self._cuts.get(confidence)
        if found is None:
            upto = np.cumsum(self._errors, axis=1)
            wanted = confidence * upto[:, -1]
            bin_ = np.maximum(1, np.argmax(upto >= wanted[:, None] - 1e-9, axis=1))
            below, above = upto[self._rows, bin_ - 1], upto[self._rows, bin_]
            part = np.minimum(1.0, np.maximum(0.0, (wanted - below) / np.maximum(above - below, 1e-9)))
            low, high = self._edges[self._rows, bin_ - 1], self._edges[self._rows, bin_]
            found = self._cuts[confidence] = low + (high - low) * part
        return found


def _bins(errors: Floats) -> NDArray[np.int64]:
    """The first bin whose edge is not below."""
    at = (np.arcsinh(errors * FINEST) / _SPREAD + 1.0) * ((BINS - 1) / 2)
    at[-1] = errors[-1] / LEVEL_BIN
    bins: NDArray[np.int64] = np.minimum(np.maximum(np.ceil(at - 1e-9), 0), BINS - 1).astype(np.int64)
    return bins
