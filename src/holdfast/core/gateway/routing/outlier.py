"""May this replica be asked?

The question: requests show within milliseconds what a probe shows within seconds, but a single bad answer
shows little. The rule, per replica:
- A connection that cannot be made ejects at once: nothing was asked, so nothing else can explain it.
- An answer of 5xx, a time-out or a stall ejects after three in a row, or when more than half of the last
  ten to twenty answers were such.
- 429 is not a failure. The replica says that it has enough: it is left alone for as long as it asks
  (cooling) and stays in good standing. Gateways that eject on 429 turn one busy replica into a stampede on
  the next.
- An ejected replica is out for a second, then two, four ... a minute. When its time is over it gets exactly
  one trial: a success lets it in again, a failure doubles the time. A trial of which nothing is heard for
  TRIAL_S seconds is over, and another may be given.
- Whoever comes new or comes back gets a tenth of its share, growing to all of it over half a minute: caches
  are cold, and a replica that fails under load should show it under a little.

Results of requests sent before the ejection may still come in. They change nothing while it is out:
failures of the same accident would double the back-off once each, and an old stream that ends well says
nothing of new ones.

Refused: latency outliers as a reason to eject (a slow replica is given less through its measured speed, and
a long prompt is not a fault); forgetting by the clock (three failures in a row are three in a row, however
far apart).
"""

IN, OUT, TRIAL = 0, 1, 2  # plain numbers: compared on every request

FAILURES_IN_A_ROW = 3
WINDOW, WINDOW_MIN = 20, 10
WINDOW_MASK = (1 << WINDOW) - 1
BACK_OFF_S, BACK_OFF_MAX_S = 1.0, 60.0
TRIAL_S = 30.0
COOL_DOWN_S, COOL_DOWN_MAX_S = 1.0, 60.0
SLOW_START_S, SLOW_START_SHARE = 30.0, 0.1


class Health:
    """The methods that take a result answer whether the replica went out or came in by it."""

    __slots__ = (
        "back_off_s",
        "barred_until",
        "early",
        "in_a_row",
        "readmitted_at",
        "results",
        "slow_until",
        "state",
        "window",
    )

    def __init__(self) -> None:
        self.state = IN
        self.barred_until = 0.0  # cooling, ejected, or waiting for the trial
        self.in_a_row = 0
        self.window = 0  # the last results, a bit each; 1: failed
        self.results = 0  # how many of its bits mean something
        self.back_off_s = 0.0
        self.readmitted_at = 0.0
        self.slow_until = 0.0
        self.early = False

    @property
    def ejected(self) -> bool:
        return self.state != IN

    def usable(self, now: float) -> bool:
        return self.state == IN and self.barred_until <= now

    def trial_due(self, now: float) -> bool:
        return self.state != IN and self.barred_until <= now

    def take_trial(self, now: float) -> None:
        """Before its time only when too many are out (fail open): that proves nothing when it goes wrong."""
        self.early = now < self.barred_until
        self.state = TRIAL
        if not self.early:
            self.barred_until = now + TRIAL_S

    def succeeded(self, now: float) -> bool:
        if self.state != IN:
            return self.state == TRIAL and self._readmit(now)
        self.in_a_row = 0
        self.window = self.window << 1 & WINDOW_MASK
        if self.results < WINDOW:
            self.results += 1
        return False

    def failed(self, now: float) -> bool:
        """5xx, a time-out, a stall: it was asked and did not answer as it should."""
        if self.state != IN:
            return self._failed_out(now)
        self.in_a_row += 1
        self.window = (self.window << 1 | 1) & WINDOW_MASK
        self.results = min(self.results + 1, WINDOW)
        mostly = self.results >= WINDOW_MIN and 2 * self.window.bit_count() > self.results
        return (mostly or self.in_a_row >= FAILURES_IN_A_ROW) and self._eject(now)

    def unreachable(self, now: float) -> bool:
        """No connection, or a probe that got none."""
        return self._failed_out(now) if self.state != IN else self._eject(now)

    def pushed_back(self, now: float, retry_after_s: float = 0.0) -> bool:
        """429: alive, and has enough for now."""
        came_in = self.state == TRIAL and self._readmit(now)
        if self.state == IN:
            wait = min(retry_after_s if retry_after_s > 0 else COOL_DOWN_S, COOL_DOWN_MAX_S)
            self.barred_until = max(self.barred_until, now + wait)
        return came_in

    def probed(self, good: bool, now: float) -> bool:
        """A good one ends the waiting, not the doubt: a trial is due. A bad one is a failure."""
        if not good:
            return self.failed(now)
        if self.state == OUT:
            self.barred_until = min(self.barred_until, now)
        return False

    def slow_start(self, now: float) -> None:
        self.slow_until = now + SLOW_START_S

    def share(self, now: float) -> float:
        left = self.slow_until - now
        return 1.0 if left <= 0 else max(SLOW_START_SHARE, 1 - left / SLOW_START_S)

    def _eject(self, now: float) -> bool:
        lasted = now - self.readmitted_at > BACK_OFF_MAX_S
        longer = BACK_OFF_S if lasted or not self.back_off_s else 2 * self.back_off_s
        self.back_off_s = min(longer, BACK_OFF_MAX_S)
        self.barred_until = now + self.back_off_s
        self.state = OUT
        return True

    def _failed_out(self, now: float) -> bool:
        if self.state == TRIAL:
            self.state = OUT
            if not self.early:
                self.back_off_s = min(2 * self.back_off_s, BACK_OFF_MAX_S)
                self.barred_until = now + self.back_off_s
        return False

    def _readmit(self, now: float) -> bool:
        self.state = IN
        self.barred_until = 0.0
        self.in_a_row = self.window = self.results = 0
        self.readmitted_at = now
        self.slow_start(now)
        return True
