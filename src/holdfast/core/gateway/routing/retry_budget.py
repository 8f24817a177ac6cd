"""May this request be sent again, and when is it late?

Sending again hides the failure of one replica, and finishes off a fleet that fails under load: everybody's
second try is load too. So tries are paid from a budget in proportion to what was asked first: retries at
most 10 % of requests and three a second (so that quiet services can retry at all), hedges at most 2 %. The
budget looks back over a window that fades exponentially: tries so far + 1 <= share x requests + rate x
window. At a steady pace that is exactly the share, and after a quiet time no more than one window's worth
can be spent at once.

A hedge is a second copy sent because the first is slow: after the 95th percentile of the time to the first
token, so one in twenty asks for it, and only while the fleet is below 70 % of what it can carry: above that
the copy makes others slow. A stream has stalled when no chunk came for eight times the 99th percentile of
the gaps, and at least five seconds: prefill of others in the same batch makes gaps that are long and
harmless.

Percentiles come from a histogram of logarithmic buckets (`Spread`): an eighth of a value wide, a fixed number
of them, O(1) to note. Counts are halved when they reach a size, so that what is usual follows the times;
for metrics, which must only grow, they are not.

Refused: a number of tries per request alone (three tries each is four times the load when all fail); exact
percentiles (a sorted window costs more than the request it watches).
"""

import math

RETRY_SHARE, RETRY_PER_S, RETRY_WINDOW_S = 0.10, 3.0, 10.0
HEDGE_SHARE, HEDGE_WINDOW_S = 0.02, 60.0
HEDGE_QUANTILE, HEDGE_SATURATION_MAX = 0.95, 0.7
STALL_QUANTILE, STALL_FACTOR, STALL_MIN_S = 0.99, 8.0, 5.0
STALL_UNKNOWN_S = 30.0
NOTED_MIN = 100  # below that many values a percentile means nothing

LEAST_S = 1e-4
PER_DOUBLING = 6  # buckets: each is 12 % wider than the one before
BUCKETS = 24 * PER_DOUBLING  # up to 1,678 s
FORGET_AT = 4096
REFRESH_EVERY = 64
FADE_EVERY = 0.005  # of the window: as exact as a budget has to be


class Spread:
    """How values, in seconds, are spread."""

    __slots__ = ("_known", "_stale", "counts", "forgets", "noted", "total_s")

    def __init__(self, *, forgets: bool = True) -> None:
        self.counts = [0] * BUCKETS
        self.noted = 0
        self.total_s = 0.0
        self.forgets = forgets
        self._known: dict[float, float] = {}  # quantiles asked for, as of a few values ago
        self._stale = 0

    def note(self, seconds: float) -> None:
        at = int(math.log2(seconds / LEAST_S) * PER_DOUBLING) + 1 if seconds > LEAST_S else 0
        self.counts[at if at < BUCKETS else BUCKETS - 1] += 1
        self.noted += 1
        self.total_s += seconds
        self._stale += 1
        if self._stale >= REFRESH_EVERY or self.noted < NOTED_MIN:
            self._stale = 0
            self._known.clear()
            if self.forgets and self.noted >= FORGET_AT:
                self._halve()

    def quantile(self, share: float) -> float:
        """Too large by a bucket at most, and never too small; 0.0 when nothing was noted."""
        known = self._known.get(share)
        if known is None:
            known = self._known[share] = self._count_up(share)
        return known

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper end in seconds, how many are at or below), for a histogram that others read."""
        found, so_far = [], 0
        for at, count in enumerate(self.counts):
            so_far += count
            found.append((upper_end(at), so_far))
        return found

    def _count_up(self, share: float) -> float:
        wanted, so_far = share * self.noted, 0
        for at, count in enumerate(self.counts):
            so_far += count
            if count and so_far >= wanted:
                return upper_end(at)
        return 0.0

    def _halve(self) -> None:
        self.counts = [count >> 1 for count in self.counts]
        before, self.noted = self.noted, sum(self.counts)
        self.total_s *= self.noted / before


def upper_end(bucket: int) -> float:
    return float(LEAST_S * 2 ** (bucket / PER_DOUBLING))


class Budget:
    __slots__ = ("_at", "_requests", "_tries", "per_s", "share", "window_s")

    def __init__(self, share: float, per_s: float, window_s: float, now: float) -> None:
        self.share = share
        self.per_s = per_s
        self.window_s = window_s
        self._requests = 0.0  # fading
        self._tries = 0.0
        self._at = now

    def request(self, now: float) -> None:
        if now - self._at > self.window_s * FADE_EVERY:
            self._fade(now)
        self._requests += 1

    def has(self, now: float) -> bool:
        self._fade(now)
        return self._tries + 1 <= self.share * self._requests + self.per_s * self.window_s

    def take(self, now: float) -> bool:
        if not self.has(now):
            return False
        self._tries += 1
        return True

    def _fade(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            kept = math.exp(-passed / self.window_s)
            self._requests *= kept
            self._tries *= kept
            self._at = now


class Tries:
    """The budgets of one service and what is usual for it."""

    __slots__ = ("first_token", "gaps", "hedges", "retries")

    def __init__(self, now: float) -> None:
        self.first_token = Spread()
        self.gaps = Spread()
        self.retries = Budget(RETRY_SHARE, RETRY_PER_S, RETRY_WINDOW_S, now)
        self.hedges = Budget(HEDGE_SHARE, 0.0, HEDGE_WINDOW_S, now)

    def request(self, now: float) -> None:
        """One came: not a retry or a hedge of it."""
        self.retries.request(now)
        self.hedges.request(now)

    def may_retry(self, now: float) -> bool:
        return self.retries.take(now)

    def hedge_after_s(self, saturation: float) -> float:
        """How long to wait for the first token before a second copy is sent; inf: none will be."""
        if saturation >= HEDGE_SATURATION_MAX or self.first_token.noted < NOTED_MIN:
            return math.inf
        return self.first_token.quantile(HEDGE_QUANTILE)

    def may_hedge(self, saturation: float, now: float) -> bool:
        return saturation < HEDGE_SATURATION_MAX and self.hedges.take(now)

    def stall_after_s(self) -> float:
        if self.gaps.noted < NOTED_MIN:
            return STALL_UNKNOWN_S
        return max(STALL_MIN_S, STALL_FACTOR * self.gaps.quantile(STALL_QUANTILE))
