"""How many replicas should a workload have now?

Too few and work is left undone; too many and somebody pays for nothing; to and fro and both. A replica that
is ordered now helps only after its lead time, and one that is let go now is missing for at least that long.

The rule (`ours`), with `forecast`:

- **Up**: the fewest replicas that are enough for the peak of the demand over the measured lead time, with
  the asked probability. Every reading is looked at anew, so a jump beyond the forecast acts at once.
- **Down**: only to what the coming hour will not ask back, by odds of two to one, and what is enough over
  the lead time with a fourth of the doubt; and to the most of what that was within the last lead time (or
  five minutes), if that is at least a tenth less. Between up and down lies what we have, and that stays:
  this is the hysteresis. Beyond the tenth its width is the workload's own restlessness: a load that jumps
  about keeps what it will need again. On noise around one level it turns a few times a day (the property
  tests).
  The window is no longer than what the past can speak of: n windows say nothing of what is rarer than 1 in
  n + 1, so a young record is asked for the coming minutes and not for the hour. Otherwise what is imagined of
  peaks, to go up with care, would be held for its first hours.
- **Young**: until its own past says otherwise a service holds what `target_tracking` would: no more, for then
  a young record's care costs more than everybody's rule; and no less before it has enough windows. Its past
  says otherwise when demand passed what target tracking holds more often than the confidence allows, or once
  by far (`Tracker.outgrown`); the forecast counts in that proportion. After six hours it counts fully.
- **Doubt**: a signal that is missing, old, stuck or no number never takes a replica away. It holds what
  there is, or rises to the fallback that was declared.
- **Zero** only when nothing was asked for so long as was declared, and whoever waits at zero wakes it at
  once.
- Least, most and scheduled minimums always hold; most and the budget before least.

`target_tracking` is the rule everybody knows (Kubernetes' autoscaler with its defaults), for comparison and
for whoever chooses it (`policy`). It holds a fixed share in reserve, too much for a calm load and too little
for a wild one.

Refused: a fixed cool-down instead of the odds. Five minutes are too short for a load that returns every
twenty, and too long for one that has ended. Refused: asking for the probability over a day instead of over
the lead time: then quick starts, which make shortages short, would ask for more replicas, not for fewer.
Refused: less than a fourth of the doubt where the record is too young for that. It took a tenth of the hours
of two recorded loads of an hour, but a service of four replicas on noise of 5 % then turned 28 times in six
hours instead of twice. Refused: a shorter window than an hour for all. With twenty minutes a recorded load of
14 days took 3 to 4 % fewer hours at cold starts of one and five minutes, but turned 30 to 60 % more often and
left 40 % more unserved at five; raising `confidence` to make up for that took the hours back.

Where the numbers come from: a `confidence` of 0.98, the default, says that work left undone is about fifty
times as bad as a replica that idles for as long. With 0.95 (twenty times) large services take fewer hours,
but small ones turn on noise: the window foretells the peak of the demand, not of what going up will ask for.
Refused: to let nothing go that going up asked for within the last hour. That held them, but took more hours
than 0.98 does (`bench/RESULTS.md`). `stay` 2/3, a fourth of the doubt and the tenth were chosen on one
recorded load (14 days) and on noise: each takes away reversals for few hours more. What a young record can
speak of has no number of its own. The tolerance, steps and times of target tracking are those of Kubernetes'
documentation.
"""

import math
from collections import deque
from typing import Final

import msgspec

from holdfast.core.scaling.forecast import Forecast, Tracker
from holdfast.model.scale import Scale, ScalePolicy, Signal, Window
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND, Instant, Millis, many, seconds

TOLERANCE: Final = 0.1  # a smaller change is not worth it: of the target's share, and of what is let go
SETTLE_MS: Final = 5 * MINUTE  # down goes to the most that was wanted within this time
STEP_MS: Final = 15 * SECOND
STEP_REPLICAS: Final = 4  # ... and up by this or by as many as there are, whichever is more, in a step
ROUNDING: Final = 1e-9
STAY: Final = 2 / 3  # what is let go is not asked back within the window, with this probability
SURER: Final = 4.0  # what stays is enough with a fourth of the doubt that makes us go up
FIRST_WEEKDAY: Final = 3  # 1970 began on a Thursday


class Standing(msgspec.Struct, frozen=True):
    ready: int
    coming: int = 0  # ordered, not ready
    lead_ms: Millis = MINUTE  # from order to ready, as measured
    pending: int = 0  # requests that wait
    oldest_wait_ms: Millis = 0
    added_lately: int = 0  # within the last minute
    removed_lately: int = 0
    missing: tuple[Signal, ...] = ()  # of which nobody has told lately
    others: bool = False  # ... and others are told

    @property
    def have(self) -> int:
        return self.ready + self.coming


class Alternative(msgspec.Struct, frozen=True):
    """What else could have been done, what it costs, and how likely it is enough for the lead time."""

    name: str
    replicas: int
    replica_hours: float  # over the window
    enough: float


class Size(msgspec.Struct, frozen=True):
    wanted: int
    why: str
    demand: float | None = None
    lead: Forecast | None = None
    window: Forecast | None = None
    alternatives: tuple[Alternative, ...] = ()


class Wishes:
    """What was wanted lately. A new leader has none and begins with what there is."""

    def __init__(self) -> None:
        self._wanted: deque[tuple[Instant, int]] = deque()

    def most(self, now: Instant, wanted: int, have: int, within_ms: Millis) -> int:
        """The most that was wanted within this time, now included."""
        if not self._wanted:
            self._wanted.append((now, have))
        while self._wanted and self._wanted[-1][1] <= wanted:  # it can never be the most again
            self._wanted.pop()
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - within_ms:
            self._wanted.popleft()
        return self._wanted[0][1]


def floor(scale: Scale, now: Instant) -> int:
    """The least there must be now, by rule and by schedule."""
    local = now + scale.utc_offset_minutes * MINUTE
    return max([scale.min, *(window.replicas for window in scale.schedule if _is_on(window, local))])


def ceiling(scale: Scale, most: int | None = None) -> int:
    """The most there may be; `most`: what the budget allows."""
    return max(0, scale.max if most is None else min(scale.max, most))


def distrust(scale: Scale, at: Standing, seen: Tracker, now: Instant) -> str:
    """Why the signal cannot be relied on; empty if it can."""
    if seen.at is None:
        return "no reading yet" + (f" of {', '.join(at.missing)}" if at.missing and at.others else "")
    if at.missing:
        return f"{', '.join(at.missing)} missing"
    if now - seen.at > scale.stale_ms:
        return f"the last reading is {seconds(now - seen.at)} old"
    if seen.is_stuck():
        return "the signal is stuck at one value"
    return ""


def decide(
    scale: Scale, at: Standing, seen: Tracker, wishes: Wishes, now: Instant, most: int | None = None
) -> Size:
    """By the rule that was chosen for it."""
    return _RULES[scale.policy](scale, at, seen, wishes, now, most)


def ours(
    scale: Scale, at: Standing, seen: Tracker, wishes: Wishes, now: Instant, most: int | None = None
) -> Size:
    """The fewest that are enough over the lead time; down to what the window will not ask back."""
    doubt = distrust(scale, at, seen, now)
    size = _in_doubt(scale, at, doubt) if doubt else _by_forecast(scale, at, seen, wishes, now)
    return _within(scale, at, size, now, most)


def _by_forecast(scale: Scale, at: Standing, seen: Tracker, wishes: Wishes, now: Instant) -> Size:
    lead = seen.forecast(now, at.lead_ms, scale.confidence)
    usual = _usual(scale, at, seen)
    lead = _bounded(lead, usual)
    window = seen.forecast(now, max(at.lead_ms, min(scale.down_window_ms, seen.reach_ms(STAY))), STAY)
    waiting = _for_those_waiting(scale, at)
    up = max(_replicas(lead.peak), waiting)
    sure = _bounded(seen.forecast(now, at.lead_ms, 1.0 - (1.0 - scale.confidence) / SURER), usual)
    stay = max(up, _replicas(max(window.peak, sure.peak)))
    longer = max(0, at.lead_ms - SETTLE_MS)
    stay = wishes.most(now, stay, at.have, SETTLE_MS + round(usual.outgrown * longer))
    wanted, why = at.have, "enough for the lead time, and the coming window may ask back what would be let go"
    if up > at.have:
        wanted = up
        why = f"demand {seen.demand:.1f} may reach {lead.peak:.1f} before more could be ready"
        if waiting == up and (waiting > _replicas(lead.peak) or not seen.demand):
            why = _who_waits(at)
    elif stay < at.have * (1.0 - TOLERANCE):
        wanted = stay
        why = f"demand {seen.demand:.1f} will hardly pass {window.peak:.1f} in {seconds(window.ahead_ms)}"
    if wanted == 0 or _is_idle(scale, at, seen, now):
        wanted, why = _zero_or_one(scale, at, seen, now)
    return Size(wanted, why, seen.demand, lead, window)


class Usual(msgspec.Struct, frozen=True):
    """What target tracking would hold, and how far our own past says that it is not enough."""

    peak: float
    outgrown: float  # 0: it always was enough, so nothing above it is foretold; 1: forecasts are free


def _usual(scale: Scale, at: Standing, seen: Tracker) -> Usual:
    outgrown = seen.outgrown(at.lead_ms, 1.0 / scale.target, scale.confidence)
    return Usual(seen.demand / scale.target, outgrown)


def _bounded(found: Forecast, usual: Usual) -> Forecast:
    trust = usual.outgrown if found.peak > usual.peak else _known(found)
    return msgspec.structs.replace(found, peak=usual.peak + trust * (found.peak - usual.peak))


def _known(found: Forecast) -> float:
    """Of so many windows and the next one, each is as likely the highest: how far they speak of this
    confidence."""
    return min(1.0, found.windows * (1.0 - found.confidence) / found.confidence)


def _for_those_waiting(scale: Scale, at: Standing) -> int:
    """In proportion to how much too long they wait, at most twice; those that come may be the answer."""
    most_ms = scale.per_replica.get(Signal.OLDEST_WAIT)
    if at.pending and at.ready and most_ms and not at.coming:
        return math.ceil(at.ready * min(2.0, at.oldest_wait_ms / most_ms) - ROUNDING)
    return 1 if at.pending else 0


def _who_waits(at: Standing) -> str:
    """What is in flight is demand; who waits is not yet, and at zero is all there is."""
    one = at.pending == 1
    who = f"{many(at.pending, 'request')} wait{'s' if one else ''}"
    since = f" for {'' if one else 'up to '}{seconds(at.oldest_wait_ms)}" if at.oldest_wait_ms else ""
    return f"{who}{since}, and {'too few answer' if at.ready else 'nobody answers'}"


def _is_idle(scale: Scale, at: Standing, seen: Tracker, now: Instant) -> bool:
    return scale.min == 0 and not at.pending and seen.idle_ms(now) >= scale.idle_ms


def _zero_or_one(scale: Scale, at: Standing, seen: Tracker, now: Instant) -> tuple[int, str]:
    if _is_idle(scale, at, seen, now):
        return 0, f"nothing was asked for {seconds(seen.idle_ms(now))}"
    if at.have == 0 and not at.pending and seen.demand == 0.0 and scale.min == 0:
        return 0, "nothing is asked for"
    return 1, "one stays until nothing was asked for long enough"


def _in_doubt(scale: Scale, at: Standing, doubt: str) -> Size:
    """Whatever the signal said: nothing is taken away, and who waits is served."""
    held = max(at.have, _for_those_waiting(scale, at))
    if scale.fallback > held:
        return Size(scale.fallback, f"{doubt}: the declared fallback")
    return Size(held, f"{doubt}: {_who_waits(at) if held > at.have else 'nothing is taken away'}")


def _within(scale: Scale, at: Standing, size: Size, now: Instant, most: int | None) -> Size:
    """Steps, then the bounds, which hold whatever the steps say."""
    wanted, why = size.wanted, size.why
    if scale.up_per_minute and not (at.have == 0 and at.pending):
        wanted = min(wanted, max(at.have, at.have + scale.up_per_minute - at.added_lately))
    if scale.down_per_minute:
        wanted = max(wanted, min(at.have, at.have - scale.down_per_minute + at.removed_lately))
    if wanted != size.wanted:
        why = f"{why}; {size.wanted} in steps"
    low, high = floor(scale, now), ceiling(scale, most)
    if wanted > high:
        return msgspec.structs.replace(size, wanted=high, why=f"{why}; at most {many(high, 'replica')}")
    if wanted < low:
        least = min(low, high)
        return msgspec.structs.replace(size, wanted=least, why=f"{why}; at least {many(least, 'replica')}")
    return msgspec.structs.replace(size, wanted=wanted, why=why)


def target_tracking(
    scale: Scale, at: Standing, seen: Tracker, wishes: Wishes, now: Instant, most: int | None = None
) -> Size:
    """Kubernetes' rule: as many as bring the utilisation to its target, unless it is near."""
    doubt = distrust(scale, at, seen, now)
    if doubt:
        return _within(scale, at, _in_doubt(scale, at, doubt), now, most)
    wanted = at.have
    if at.have == 0 or abs(seen.demand / at.have / scale.target - 1.0) > TOLERANCE:
        wanted = max(1, _replicas(seen.demand, scale.target))
        wanted = min(wanted, max(at.have + STEP_REPLICAS, 2 * at.have))
    settled = wishes.most(now, wanted, at.have, SETTLE_MS)
    if wanted < at.have:
        wanted = min(at.have, settled)
    if wanted <= 1 and (at.have == 0 or _is_idle(scale, at, seen, now)):
        wanted = 1 if at.pending or (at.have == 0 and seen.demand > 0.0) else 0
    why = f"target tracking: demand {seen.demand:.1f}, and {scale.target:.0%} of each replica shall be used"
    if at.have == 0 and at.pending and not seen.demand:
        why = _who_waits(at)
    return _within(scale, at, Size(wanted, why, seen.demand), now, most)


_RULES: Final = {ScalePolicy.FORECAST: ours, ScalePolicy.TARGET_TRACKING: target_tracking}


def weigh(scale: Scale, at: Standing, seen: Tracker, size: Size) -> Size:
    """The decision beside what else could have been done; for whoever asks why."""
    hours = scale.down_window_ms / HOUR
    enough = seen.forecast(seen.at or 0, at.lead_ms, scale.confidence).peak
    others = {
        "as decided": size.wanted,
        "one fewer": size.wanted - 1,
        "one more": size.wanted + 1,
        "as it is": at.have,
        "forecast": max(1, _replicas(enough)),
        "target tracking": max(1, _replicas(seen.demand, scale.target)),
        "demand as read": _replicas(seen.demand),
    }
    found = tuple(
        Alternative(
            name,
            replicas,
            replicas * hours,
            seen.chance(at.lead_ms, float(replicas), scale.confidence),
        )
        for name, replicas in others.items()
        if replicas >= 0 and name != scale.policy
    )
    return msgspec.structs.replace(size, alternatives=found)


def _replicas(demand: float, share: float = 1.0) -> int:
    return math.ceil(demand / share - ROUNDING)


def _is_on(window: Window, local: Instant) -> bool:
    day, of_day = divmod(local, DAY)
    minute, weekday = of_day // MINUTE, (day + FIRST_WEEKDAY) % 7
    start, end = window.start_minute, window.end_minute
    if start < end:
        return weekday in window.days and start <= minute < end
    late = weekday in window.days and minute >= start
    return late or ((weekday - 1) % 7 in window.days and minute < end)
