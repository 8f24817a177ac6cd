"""What do the signals say: how many replicas' worth of work is there?

Everybody who serves a workload may tell how it goes: gateways, the replicas themselves, their nodes, a query.
Each source's last word on each signal is kept. What adds up is added over the sources, what is felt (latency,
the oldest wait) is the worst, shares of use are averaged. Every signal is then turned into replicas by what
one replica takes of it, and the largest of them counts: the first to be exhausted is the one that hurts.

A word that cannot be true (no number, negative, absurdly large, from the past) is not taken. A source that
has not spoken for a while does not count any more; a signal without any source is *missing*, and then the
rest may make a service grow, but nothing may make it shrink. Whether a signal is stuck is for `forecast` to
say, which knows how often it repeats itself.

Refused: averaging over time here. `forecast` needs the readings as they are, and smooths as it must.
"""

import math

import msgspec

from holdfast.model.scale import AVERAGED, LARGEST, Scale, Signal
from holdfast.model.units import Instant

VALUE_MAX = 1e12
SOURCES_MAX = 1_000  # of one workload
ASKS = (Signal.IN_FLIGHT, Signal.QUEUE, Signal.REQUESTS, Signal.TOKENS)
FASTER_MAX = 2.0  # a latency says that more are needed, hardly how many


class Reading(msgspec.Struct, frozen=True):
    """What all signals come to at an instant."""

    demand: float = 0.0  # replicas' worth of work
    waiting: float = 0.0  # requests that nobody answers yet
    oldest_wait_ms: float = 0.0
    at: Instant = 0  # of the oldest word that it rests on
    known: tuple[tuple[Signal, float], ...] = ()
    missing: tuple[Signal, ...] = ()

    def __str__(self) -> str:
        parts = [f"{signal} {value:g}" for signal, value in self.known]
        parts += [f"{signal} missing" for signal in self.missing]
        return ", ".join(parts) or "no signals"


class Word(msgspec.Struct):
    at: Instant
    value: float


class Heard(msgspec.Struct, frozen=True):
    """What was last heard of one signal, for whoever asks why."""

    at: Instant  # of the latest word
    sources: int  # that count; 0: the signal is missing
    value: float = 0.0


class Signals:
    """The last words of all sources about one workload."""

    def __init__(self) -> None:
        self._words: dict[Signal, dict[str, Word]] = {}
        self._heard_at: dict[Signal, Instant] = {}  # whoever said it, and whether it still counts or not

    def hear(self, source: str, signal: Signal, value: float, at: Instant) -> bool:
        """Was it taken?"""
        if not true(value):
            return False
        words = self._words.setdefault(signal, {})
        last = words.get(source)
        if last is None:
            if len(words) >= SOURCES_MAX:
                return False
            words[source] = Word(at, value)
        elif at < last.at:
            return False
        else:
            last.at, last.value = at, value
        self._heard_at[signal] = max(at, self._heard_at.get(signal, at))
        return True

    def last(self, signal: Signal, since: Instant) -> Heard | None:
        """Together with what all others said since then. None: nobody ever spoke of it."""
        if signal not in self._heard_at:
            return None
        fresh = [word.value for word in self._words.get(signal, {}).values() if word.at >= since]
        value = together(signal, fresh) if fresh else 0.0
        return Heard(self._heard_at[signal], len(fresh), value)

    def read(self, scale: Scale, ready: int, now: Instant) -> Reading:
        """`ready`: replicas that the shares of use and the latency are those of."""
        self.forget(now - scale.stale_ms)
        known: dict[Signal, float] = {}
        oldest = now
        for signal in (*scale.per_replica, Signal.QUEUE, Signal.OLDEST_WAIT):
            words = self._words.get(signal, {}).values()
            if words:
                known[signal] = together(signal, [word.value for word in words])
                oldest = min(oldest, *(word.at for word in words))
        wanted = [signal for signal in scale.per_replica if signal in known]
        demands = [in_replicas(signal, known[signal], scale.per_replica[signal], ready) for signal in wanted]
        return Reading(
            demand=max(demands, default=0.0),
            waiting=known.get(Signal.QUEUE, 0.0),
            oldest_wait_ms=known.get(Signal.OLDEST_WAIT, 0.0),
            at=oldest if known else 0,
            known=tuple(known.items()),
            missing=tuple(signal for signal in scale.per_replica if signal not in known),
        )

    def are_zero(self, scale: Scale) -> bool:
        """By the last words of everybody nothing is asked for."""
        counted = (self._words.get(signal, {}) for signal in asking(scale))
        return not any(word.value for words in counted for word in words.values())

    def forget(self, before: Instant) -> None:
        """Words that are too old to count, of signals that nobody reads too: they would keep others out."""
        for words in self._words.values():
            for source in [source for source, word in words.items() if word.at < before]:
                del words[source]


def asking(scale: Scale) -> tuple[Signal, ...]:
    """The signals by which somebody asks for something. A request may be over before anybody tells of those
    in flight, so it counts by whichever signal it shows."""
    return tuple(dict.fromkeys((*scale.per_replica, *ASKS)))


def true(value: float) -> bool:
    """Could it be?"""
    return math.isfinite(value) and 0 <= value <= VALUE_MAX


def together(signal: Signal, values: list[float]) -> float:
    if signal in LARGEST:
        return max(values)
    return sum(values) / len(values) if signal in AVERAGED else sum(values)


def in_replicas(signal: Signal, value: float, per_replica: float, ready: int) -> float:
    """How many replicas it would keep busy as far as each is meant to be."""
    if per_replica <= 0:
        return 0.0
    match signal:
        case Signal.CPU | Signal.GPU:
            return ready * value / per_replica
        case Signal.LATENCY | Signal.OLDEST_WAIT:
            return ready * min(FASTER_MAX, value / per_replica)
        case _:
            return value / per_replica
