"""What is remembered of one offer (one kind of node in one place, on demand or spot), and of the losses of
one service.

Counts are sums that fade: each is worth half after `HALF_LIFE_MS`, and all refer to the instant `at`. Nothing
here is an estimate; `core.market.offer_history` writes records and reads them. A record goes into snapshots,
so it is small: at most about 500 bytes.
"""

import msgspec

from holdfast.model.units import DAY, Instant, MicroUsd, Millis

# Shortages and prices of GPUs change with new models and large customers, within weeks. Two weeks keep some
# dozens of looks and launches alive, and forget a bad spring by summer.
HALF_LIFE_MS: Millis = 14 * DAY
PRICES_KEPT = 8


class OfferRecord(msgspec.Struct, frozen=True, array_like=True):
    key: str  # "pool/offer"
    at: Instant = 0  # to which the fading sums refer
    # launches
    asked: float = 0.0
    refused: float = 0.0  # there was none
    failed: float = 0.0  # granted or not answered, and never came up
    came_up: float = 0.0
    hoped: float = 0.0  # of the answered, how many we expected not to be refused
    ready_ms: float = 0.0  # mean time to ready, of those that came up
    ready_var: float = 0.0  # and its variance, ms squared
    # lives
    losses: float = 0.0  # nodes taken away or dead
    served_ms: float = 0.0  # node-time of those lost and of those we ended ourselves
    # the list
    prices: tuple[tuple[Instant, MicroUsd], ...] = ()  # changes, the latest last
    seen_at: Instant = 0  # by a list, a launch or a refusal; 0: never
    there: bool = False  # then
    log_weights: tuple[float, ...] = ()  # what is believed of its coming and going; empty: nothing
    # back-off of its own
    failures_in_a_row: int = 0
    retry_at: Instant = 0
    why: str = ""  # of the last refusal or failure
    taken_at: Instant = 0  # when it last took a spot node away; 0: never
    why_at: Instant = 0  # of `why`. What is new goes to the end: snapshots tell fields by their place


class Losses(msgspec.Struct, frozen=True):
    """Of a service on spot; `reliability.losses` writes and reads it. Times and rates are sums that fade."""

    at: Instant = 0  # to which they refer; 0: nothing was told yet
    short: bool = False  # since then: fewer are ready than wanted, and nobody planned that
    short_ms: float = 0.0
    watched_ms: float = 0.0
    alone: float = 0.0  # losses of one node at a time
    followed: float = 1.0
    cases: float = 2.0
    open: dict[str, Instant] = {}  # zones that took some and left some, and when
    last: dict[str, tuple[Instant, int]] = {}  # zones that took some a moment ago: since when, and how many


def key_of(pool: str, offer: str) -> str:
    return f"{pool}/{offer}"
