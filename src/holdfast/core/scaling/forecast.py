"""How much will a workload be asked for before more replicas could be ready, and how sure is that?

Demand is a number of replicas' worth of work, read now and then. What is asked for is not its mean at some
instant but its peak over a time ahead, because a replica that is let go now is missing for all of that time.
The answer is a distribution, from the workload's own past only.

The rule: several simple guesses at the peak are made all the time, each is remembered with its errors, and
the one that would have been the cheapest answers, plus the quantile of its own errors (`forecast_errors`).
The guesses are all combinations of

- where from: the last reading, or some of the way from it to the recent peak, which fades within half an
  hour. After restless hours the way up is short, so a load that jumps about is guessed by its peaks and a
  calm one by its level;
- where to: nowhere, half the present trend or all of it, or as on the days before at this time of day, and a
  week before;

and one that knows only how high it is at all times, for load that comes as bursts out of nothing.

Refused: one fitted model with a level, a trend and a season. Its spread is that of its own assumptions; the
first burst proves them wrong, and it needs weeks to know a season that many services do not have. Refused:
learning the weights of the guesses by regression. It was tried with hindsight only, on one recorded load,
and was then a few percent cheaper; learnt day by day from the past alone, boosted trees with its factor
still chosen by hindsight came to what the guesses take. Refused: the mean of all guesses, weighted by how
cheap they were: on made-up and recorded loads it was no better than the cheapest one. Refused readings: not a
number, negative, more than a million replicas, from before the last one; and a hundredfold jump until the
next reading confirms it.

Whatever the errors say, no peak is believed that is far beyond the highest seen: see `_believable`. Without
it a young record, whose largest error is also its 98th percentile, ordered a thousand times too much.

Memory is bounded (about 280 kB a workload; its summary about 25 kB), and a reading costs a few vector
operations.

Nothing more than twice what was ever asked for is foretold, whatever the errors of a young record say: with
one reading, everything could come, and nobody wants to pay for that. More than that is met when it comes.

Where the numbers come from: `FADE_MS` was chosen on one recorded load, where 20 minutes to 2 hours differed
by about 1 % of the hours; the trend is taken over an eighth of the time ahead, so that it has not long ended
(a quarter was a little worse there); if it is mere noise, a guess without it wins. `BUCKET_MS` is four values
an hour.
"""

import math
from typing import Final

import msgspec
import numpy as np

from holdfast.core.scaling.forecast_errors import (
    HALF_LIFE_MS,
    TAIL,
    Floats,
    Lead,
    Record,
)
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND, Instant, Millis

LEADS_MS: Final = (30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE, HOUR)
PULLS: Final = (1.0, 0.5, 0.25, 0.0)  # of the way to the recent peak; the most careful first
TRENDS: Final = (1.0, 0.5, 0.0)
RECENT_PEAK: Final = TRENDS.index(0.0)  # the way from the recent peak to nowhere else
WAYS: Final = len(PULLS) * (len(TRENDS) + 1) + 1
FADE_MS: Final = 30 * MINUTE
TREND_PART: Final = 0.125
BUCKET_MS: Final = 15 * MINUTE
DAY_BUCKETS: Final = DAY // BUCKET_MS
WEEK_BUCKETS: Final = 7 * DAY_BUCKETS
DEMAND_MAX: Final = 1e6
JUMP_MAX: Final = 100.0  # times the recent peak, and more than so many replicas: confirmed or refused
TWICE: Final = 2.0  # what was ever asked for is foretold to be passed, and no more
PROVEN_MS: Final = 6 * HOUR  # a record of so long: forecasts rest on it alone
HOLE_MS: Final = HOUR  # without readings for so long, what happened meanwhile is unknown
OLD_MAX: Final = 3  # so many readings from before the last one: the clock was put back
RISE_MAX: Final = math.log(2)  # by trend, over any lead: what doubles in that time is a burst, not a trend
BEYOND_MIN: Final = 2.0  # the highest ever is never held to be the highest possible
STUCK_CHANCE: Final = 1e-6  # a run of equal readings less likely than this is a broken signal


class Forecast(msgspec.Struct, frozen=True):
    """The peak of demand over `ahead_ms`, in replicas' worth of work."""

    ahead_ms: Millis
    confidence: float
    peak: float  # not exceeded with this probability
    windows: float  # so many times have we seen what comes in such a time
    way: str  # the guess it rests on


class Summary(msgspec.Struct, frozen=True):
    """What a new leader needs to go on: kilobytes, to be journalled now and then."""

    at: Instant
    level: float
    high: float
    highest: float
    busy_at: Instant
    means: tuple[float, ...]
    same: float
    week: bytes  # half-precision, a value a bucket
    leads: tuple[Record, ...]


class Tracker:
    """The past of one workload's demand, and what follows. Levels are logarithms of demand + 1."""

    def __init__(self) -> None:
        self.at: Instant | None = None  # of the last reading taken
        self.demand = 0.0
        self._level = self._high = self._highest = 0.0
        self._busy_at: Instant = 0
        self._means = np.zeros(len(LEADS_MS))
        self._rises = np.zeros(len(LEADS_MS))  # of the level over each lead, by the trend
        self._seasonal = np.zeros(len(LEADS_MS))  # ... and by the days before
        self._leads = [Lead(lead, WAYS) for lead in LEADS_MS]
        self._week = np.full(WEEK_BUCKETS, np.nan)
        self._bucket = (-1, 0)  # the one being filled, and its readings so far
        self._same, self._run = 0.5, 0  # how often a reading equals the one before; how many just did
        self._doubted = 0.0
        self._old = 0
        self._guesses = np.zeros((len(LEADS_MS), WAYS))

    def see(self, at: Instant, demand: float) -> bool:
        """A reading. False: it was refused."""
        if not self._is_credible(at, demand):
            return False
        level = math.log1p(demand)
        if self.at is None:
            self._high = self._highest = self._means[:] = level
            self._busy_at = at
        else:
            self._move(at - self.at, at, level)
        self._note_sameness(demand)
        self.at, self.demand, self._level = at, demand, level
        if demand > 0.0:
            self._busy_at = at
        self._fill_bucket(at, level)
        self._guesses = self._guess()
        for lead, guesses in zip(self._leads, self._guesses, strict=True):
            lead.begin(at, guesses, level)
        return True

    def forecast(self, now: Instant, ahead_ms: Millis, confidence: float) -> Forecast:
        """The peak from now on. The last reading's age counts as time ahead: we know nothing since."""
        far = max(1, ahead_ms + (now - self.at if self.at is not None else 0))
        peak, number, way = self._peak(far, confidence)
        return Forecast(ahead_ms, confidence, peak, self._leads[number].windows, way_name(way))

    def chance(self, ahead_ms: Millis, capacity: float, confidence: float) -> float:
        """The probability that this much capacity is enough for so long."""
        if capacity < self.demand:
            return 0.0
        number = min(range(len(LEADS_MS)), key=lambda n: abs(math.log(LEADS_MS[n] / max(1, ahead_ms))))
        if self.at is None:
            return 0.0
        return self._leads[number].chance(self._guesses[number], math.log1p(capacity), confidence)

    def outgrown(self, ahead_ms: Millis, factor: float, confidence: float) -> float:
        """How far our past proves, 0 to 1, that so many times the recent peak is not enough for so long.

        What is passed within a shorter time is passed within this one; `PROVEN_MS` are proof."""
        last = next((n for n, lead in enumerate(LEADS_MS) if lead >= ahead_ms), len(LEADS_MS) - 1)
        known = self._leads[last]
        if known.windows * known.lead_ms >= PROVEN_MS:
            return 1.0
        return max(lead.outgrown(RECENT_PEAK, factor, confidence) for lead in self._leads[: last + 1])

    def reach_ms(self, confidence: float) -> Millis:
        """The longest time ahead over which our own past can speak of this probability: of n windows and the
        next one, each is as likely the highest, so n say nothing of what is rarer than 1 in n + 1."""
        needed = confidence / (1.0 - confidence)
        known = [lead for lead in self._leads if lead.windows >= needed]
        if not known:
            return 0
        if known[-1].lead_ms < LEADS_MS[-1]:
            return known[-1].lead_ms
        return int(known[-1].windows * LEADS_MS[-1] / needed)

    def asked(self, at: Instant) -> None:
        """Something was asked for, between two readings perhaps."""
        self._busy_at = at

    @property
    def busy_at(self) -> Instant:
        """When something was last asked for."""
        return self._busy_at

    def idle_ms(self, now: Instant) -> Millis:
        """For so long nothing was asked for."""
        return 0 if self.at is None else max(0, now - self._busy_at)

    def is_stuck(self) -> bool:
        """A signal that hardly ever repeated itself now does nothing else. Zero is not stuck but idle."""
        return self.demand > 0.0 and self._same**self._run < STUCK_CHANCE

    def summary(self) -> Summary:
        return Summary(
            at=self.at or 0,
            level=self._level,
            high=self._high,
            highest=self._highest,
            busy_at=self._busy_at,
            means=tuple(float(mean) for mean in self._means),
            same=self._same,
            week=self._week.astype(np.float16).tobytes(),
            leads=tuple(lead.record() for lead in self._leads),
        )

    @classmethod
    def restore(cls, summary: Summary) -> "Tracker":
        new = cls()
        if summary.at == 0:
            return new
        new.at, new._level = summary.at, summary.level
        new._high, new._highest = summary.high, summary.highest
        new.demand = math.expm1(summary.level)
        new._busy_at, new._same = summary.busy_at, summary.same
        if len(summary.means) == len(LEADS_MS):
            new._means = np.array(summary.means)
        week = np.frombuffer(summary.week, np.float16).astype(np.float64)
        if week.size == WEEK_BUCKETS:
            new._week = week
        kept = {record.lead_ms: record for record in summary.leads}
        for lead in new._leads:
            if lead.lead_ms in kept:
                lead.recall(kept[lead.lead_ms])
        new._guesses = new._guess()
        return new

    # What a reading changes

    def _is_credible(self, at: Instant, demand: float) -> bool:
        if not (0.0 <= demand <= DEMAND_MAX):  # false of what is not a number, too
            return False
        if self.at is not None and at <= self.at:
            self._old += 1
            if self._old < OLD_MAX:
                return False
            self.at = None  # the clock was put back; what was learnt stays
            for lead in self._leads:
                lead.forget_open()
        usual = JUMP_MAX * max(1.0, math.expm1(self._high))
        if self.at is not None and demand > usual and self._doubted <= usual:
            self._doubted = demand
            return False
        self._doubted, self._old = 0.0, 0
        return True

    def _move(self, gap: Millis, at: Instant, level: float) -> None:
        self._high = max(level, level + (self._high - level) * math.exp(-gap / FADE_MS))
        self._highest = max(level, level + (self._highest - level) * 0.5 ** (gap / HALF_LIFE_MS))
        learn = -np.expm1(-gap / _SPANS_MS)
        off = level - self._means
        self._rises = np.clip(learn * off / gap * _LEADS, 0.0, RISE_MAX)
        self._means += learn * off
        for lead in self._leads:
            if gap > max(HOLE_MS, lead.lead_ms):
                lead.forget_open()
            lead.hear(at, level)

    def _note_sameness(self, demand: float) -> None:
        if self.at is None:
            return
        if demand == self.demand:
            self._run += 1
            return
        for _ in range(min(self._run, 100)):
            self._same += 0.01 * (1.0 - self._same)
        self._same += 0.01 * (0.0 - self._same)
        self._run = 0

    def _fill_bucket(self, at: Instant, level: float) -> None:
        """The mean level of each quarter of an hour, for a week; at its start, what the days before say."""
        number = at // BUCKET_MS
        place = number % WEEK_BUCKETS
        if number != self._bucket[0]:
            self._seasonal = self._rises_before(place)
            self._bucket, self._week[place] = (number, 1), level
            return
        count = self._bucket[1] + 1
        self._week[place] += (level - self._week[place]) / count
        self._bucket = (number, count)

    def _rises_before(self, place: int) -> Floats:
        """By how much the level rose over each lead, on average, a day to a week before."""
        ahead = np.arange(HOUR // BUCKET_MS + 1)
        days = np.arange(DAY_BUCKETS, WEEK_BUCKETS + 1, DAY_BUCKETS)[:, None]
        before = self._week[(place - days + ahead) % WEEK_BUCKETS]
        before = before[~np.isnan(before).any(axis=1)]
        if not len(before):
            return np.zeros(len(LEADS_MS))
        rise = np.maximum.accumulate(before, axis=1).mean(axis=0) - before[:, 0].mean()
        rises: Floats = np.interp(_LEADS / BUCKET_MS, ahead, rise)
        return rises

    # What follows

    def _guess(self) -> Floats:
        """By lead and way. The last way is none: it stays zero."""
        guesses = np.zeros((len(LEADS_MS), WAYS))
        where_from = self._level + _PULLS * (self._high - self._level)
        where_to = np.column_stack([*(part * self._rises for part in TRENDS), self._seasonal])
        guesses[:, :-1] = (where_from[:, None] + where_to[:, None, :]).reshape(len(LEADS_MS), -1)
        return guesses

    def _peak(self, far: Millis, confidence: float) -> tuple[float, int, int]:
        """In replicas' worth, with the lead and the way it comes from; between two leads, in between."""
        if self.at is None:
            return 0.0, 0, 0
        number = next((n for n, lead in enumerate(LEADS_MS) if lead >= far), len(LEADS_MS) - 1)
        level, way = self._at_lead(number, confidence)
        if far > LEADS_MS[number]:  # beyond the longest: it spreads as the root of time
            level = self._level + (level - self._level) * math.sqrt(far / LEADS_MS[number])
        elif number and far < LEADS_MS[number]:
            shorter, _ = self._at_lead(number - 1, confidence)
            low, high = LEADS_MS[number - 1], LEADS_MS[number]
            level = shorter + (level - shorter) * math.log(far / low) / math.log(high / low)
        most = TWICE * math.expm1(self._highest)
        return max(self.demand, min(most, math.expm1(min(level, 30.0)))), number, way

    def _at_lead(self, number: int, confidence: float) -> tuple[float, int]:
        level, way = self._leads[number].quantile(self._guesses[number], confidence)
        return max(self._level, min(level, self._believable(number, confidence))), way

    def _believable(self, number: int, confidence: float) -> float:
        """Few errors say little about rare ones. But of n windows and one more, each is as likely the
        highest: the next is beyond the highest with a probability of 1/(n+1), and then by a Pareto factor."""
        beyond = 1.0 / ((self._leads[number].windows + 1.0) * (1.0 - confidence))
        return self._highest + math.log(max(BEYOND_MIN, beyond)) / TAIL


_LEADS: Final = np.array(LEADS_MS, np.float64)
_SPANS_MS: Final = _LEADS * TREND_PART
_PULLS: Final = np.array(PULLS)


def way_name(way: int) -> str:
    """A guess in plain words."""
    if way == WAYS - 1:
        return "how high it is at all times"
    pull, drift = divmod(way, len(TRENDS) + 1)
    start = {1.0: "the recent peak", 0.0: "the last reading"}.get(
        PULLS[pull], f"{PULLS[pull]:.0%} of the way to the recent peak"
    )
    onwards = ("and all of its trend", "and half of its trend", "", "and what the days before did")
    return f"{start} {onwards[drift]}".strip()
