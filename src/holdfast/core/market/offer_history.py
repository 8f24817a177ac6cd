"""What do launches, losses and lists tell us of an offer, and how is it kept?

An offer is one kind of node in one place, on demand or spot. Two kinds of knowledge are kept of it. *Is it
there now*, and how does it come and go: a belief (`reliability.onoff`), fed by everything that shows it: a
list that has it or not, a launch granted or refused. *How does it behave when it is there*: are nodes that
were granted ever up, how long does that take, how long do they live, is it refused though it should be there.
Those are sums that fade.

Each event is a small function from a record to a record. None of them raises: whoever tells of the past late,
of negative durations or of the same thing twice, changes little or nothing. An event from before the record's
instant counts as if it came now; a look from before the last look is not taken for the present.

A list may be only a price list (`proves=False`): it tells prices, and nothing about whether there is one
left. What is missing from it is no offer, and is for the caller to take off the table.

Back-off is the offer's own: one that was refused is asked again after a while that doubles, and nothing else
waits for it. A launch that came up ends it, and so does a list that shows the offer again after it was away:
there is news, so there is no reason to wait.

Where the numbers come from. `MEANS_HOURS`: logs of GPU offers polled every few hours have stays from below a
poll to months; a factor of five apart from one hour to 26 days covers that with 25 hypotheses. `DOUBT`: a
list lags, and a refusal may be for another reason (quota, size), so one look may change what is believed by a
factor of fifty, not of a million. `HALF_LIFE_MS` has its reason beside it.

Refused: success ratios by offer alone. After ten refusals at night an offer that is back in the morning would
be avoided for days, and one that vanished a minute ago praised. Refused: a second, shorter memory for what
was refused lately. The belief has it already: right after a refusal the offer is away, and comes back at its
pace.
"""

import math
from typing import Final

import numpy as np
from msgspec.structs import replace

from holdfast.model.market import HALF_LIFE_MS, PRICES_KEPT, OfferRecord
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant, MicroUsd, Millis
from holdfast.reliability.onoff import Belief, Floats, Grid, chances

MEANS_HOURS: Final = (1.0, 5.0, 25.0, 125.0, 625.0)
GRID: Final = Grid.of(MEANS_HOURS)
DOUBT: Final = 0.02
NEVER_FADES: Final = math.inf  # the record fades as a whole
DOUBLINGS_MAX: Final = 20
WHY_LENGTH_MAX: Final = 80


def prior_log_weights(spot: bool) -> Floats:
    """Before anything was seen. Spot: any pair of means is as likely as another, so half of the time it is
    there. On demand is sold to be had: pairs are likelier the longer it stays for each time away, which makes
    it three quarters."""
    tilt: Floats = np.zeros(len(GRID.stays)) if spot else 0.25 * np.log(GRID.stays / GRID.aways)
    return tilt


# events


def asked(record: OfferRecord, at: Instant) -> OfferRecord:
    record = faded(record, at)
    return replace(record, asked=record.asked + 1)


def refused(
    record: OfferRecord,
    at: Instant,
    backoff_ms: Millis = 10 * SECOND,
    backoff_max_ms: Millis = 10 * MINUTE,
    why: str = "",
) -> OfferRecord:
    """There was none."""
    record = faded(record, at)
    hoped = record.hoped + _expected(record)
    record = replace(record, refused=record.refused + 1, hoped=hoped)
    return _backed_off(seen(record, at, there=False), at, backoff_ms, backoff_max_ms, why)


def failed(
    record: OfferRecord,
    at: Instant,
    backoff_ms: Millis = 10 * SECOND,
    backoff_max_ms: Millis = 10 * MINUTE,
    why: str = "",
) -> OfferRecord:
    """It was granted and never came up, or its provider failed. That says nothing about whether it is
    there."""
    record = faded(record, at)
    hoped = record.hoped + _expected(record)
    record = replace(record, failed=record.failed + 1, hoped=hoped)
    return _backed_off(record, at, backoff_ms, backoff_max_ms, why)


def came_up(record: OfferRecord, at: Instant, took_ms: Millis) -> OfferRecord:
    """It joined, so long after it was asked for."""
    record = faded(record, at)
    count, off = record.came_up + 1, max(0, took_ms) - record.ready_ms
    mean = record.ready_ms + off / count
    var = (record.ready_var * record.came_up + off * (max(0, took_ms) - mean)) / count
    hoped = record.hoped + _expected(record)
    record = replace(record, came_up=count, ready_ms=mean, ready_var=max(0.0, var), hoped=hoped)
    record = replace(record, failures_in_a_row=0, retry_at=0, why="", why_at=0)
    return seen(record, at - max(0, took_ms), there=True)


def preempted(record: OfferRecord, at: Instant, served_ms: Millis) -> OfferRecord:
    """A node was taken away, or died, after so long."""
    record = faded(record, at)
    return replace(record, losses=record.losses + 1, served_ms=record.served_ms + max(0, served_ms))


def taken(record: OfferRecord, at: Instant) -> OfferRecord:
    """Spot that is taken away is not there, for now; for some minutes it may take more."""
    return replace(seen(record, at, there=False), taken_at=max(record.taken_at, at))


def ended(record: OfferRecord, at: Instant, served_ms: Millis) -> OfferRecord:
    """We let a node go ourselves: it lived so long at least."""
    record = faded(record, at)
    return replace(record, served_ms=record.served_ms + max(0, served_ms))


def listed(
    record: OfferRecord, at: Instant, there: bool, price_micro_usd: MicroUsd = 0, *, proves: bool = True
) -> OfferRecord:
    """A list has it or not; `proves`: only what can be had is in that list."""
    record = faded(record, at)
    if there and price_micro_usd > 0:
        record = priced(record, at, price_micro_usd)
    if not proves:
        return record
    if there and not record.there and at > record.seen_at:
        record = replace(record, failures_in_a_row=0, retry_at=0, why="", why_at=0)
    return seen(record, at, there)


def priced(record: OfferRecord, at: Instant, price_micro_usd: MicroUsd) -> OfferRecord:
    if record.prices and (record.prices[-1][1] == price_micro_usd or at < record.prices[-1][0]):
        return record
    return replace(record, prices=(*record.prices, (at, price_micro_usd))[-PRICES_KEPT:])


def seen(record: OfferRecord, at: Instant, there: bool) -> OfferRecord:
    if at < record.seen_at:
        return record
    at = max(at, record.seen_at + 1)
    before = record.seen_at / HOUR if record.seen_at else None
    belief = Belief(GRID, record.log_weights, before, record.there, DOUBT, NEVER_FADES)
    belief.see(at / HOUR, there)
    return replace(record, seen_at=at, there=there, log_weights=belief.log_weights)


def _backed_off(
    record: OfferRecord, at: Instant, backoff_ms: Millis, backoff_max_ms: Millis, why: str
) -> OfferRecord:
    row = record.failures_in_a_row
    wait = min(backoff_ms << min(row, DOUBLINGS_MAX), backoff_max_ms)
    retry_at = max(record.retry_at, at + wait)
    return replace(record, failures_in_a_row=row + 1, retry_at=retry_at, why=why[:WHY_LENGTH_MAX], why_at=at)


# time


def fade(since_ms: float) -> float:
    return float(0.5 ** (max(0.0, since_ms) / HALF_LIFE_MS))


def faded(record: OfferRecord, at: Instant) -> OfferRecord:
    """The same at that instant, later: everything is worth less, what is believed too."""
    if at <= record.at:
        return record
    left = fade(at - record.at)
    return replace(
        record,
        at=at,
        asked=record.asked * left,
        refused=record.refused * left,
        failed=record.failed * left,
        came_up=record.came_up * left,
        hoped=record.hoped * left,
        losses=record.losses * left,
        served_ms=record.served_ms * left,
        log_weights=tuple([weight * left for weight in record.log_weights]),
    )


# what a single record says; the market asks the same of all records at once


def weights(record: OfferRecord, spot: bool) -> Floats:
    """Of the hypotheses of how it comes and goes; together one."""
    raw = np.exp(prior_log_weights(spot) + (np.array(record.log_weights) if record.log_weights else 0.0))
    found: Floats = raw / raw.sum()
    return found


def chance_there(record: OfferRecord, spot: bool, now: Instant) -> float:
    since = max(0, now - record.seen_at) / HOUR if record.seen_at else None
    return float(weights(record, spot) @ chances(GRID, since, record.there))


def _expected(record: OfferRecord) -> float:
    """The chance, before the answer was known, that it would not be refused."""
    return chance_there(record, False, record.at)
