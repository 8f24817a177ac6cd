"""The heart of the simulation: simulated time and what happens next.

One heap of (time, number, what). Ties are broken by the number, so the order never depends on anything but
the seed.
"""

import heapq
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.model.units import NEVER, Instant, Millis

T = TypeVar("T")


Pending = tuple[Instant, int, Callable[..., None], tuple[object, ...]]


class Kernel:
    """Things that happen are in `_heap`; what only ticks along (rounds of beats, renewals, the meter) is in
    `_pulse`, so that a quiet stretch can be recognised, and its beats be worked out all at once."""

    def __init__(self) -> None:
        self.now: Instant = 0
        self.events = 0
        self._heap: list[Pending] = []
        self._pulse: list[Pending] = []
        self._number = 0

    def at(self, when: Instant, what: Callable[..., None], *args: object) -> None:
        self._number += 1
        heapq.heappush(self._heap, (max(when, self.now), self._number, what, args))

    def after(self, delay: int, what: Callable[..., None], *args: object) -> None:
        self.at(self.now + delay, what, *args)

    def tick(self, delay: int, what: Callable[..., None]) -> None:
        self._number += 1
        heapq.heappush(self._pulse, (self.now + delay, self._number, what, ()))

    def next_event(self) -> Instant:
        return self._heap[0][0] if self._heap else NEVER

    def skip(self, ms: Millis) -> None:
        """Time passes in which nothing but ticking happens."""
        self.now += ms
        self._pulse = [(when + ms, number, what, args) for when, number, what, args in self._pulse]

    def run_until(self, end: Instant) -> None:
        while heap := min((h for h in (self._heap, self._pulse) if h), default=None, key=lambda h: h[0][:2]):
            if heap[0][0] > end:
                break
            self.now, _, what, args = heapq.heappop(heap)
            self.events += 1
            what(*args)
        self.now = end


def immediately(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of a twin, which never waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a twin must not wait")
