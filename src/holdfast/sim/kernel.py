"""The heart of the simulation: simulated time and what happens next.

One heap of (time, number, what). Ties are broken by the number, so the order never depends on anything but
the seed.
"""

import heapq
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.model.units import Instant

T = TypeVar("T")


class Kernel:
    def __init__(self) -> None:
        self.now: Instant = 0
        self.events = 0
        self._heap: list[tuple[Instant, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0

    def at(self, when: Instant, what: Callable[..., None], *args: object) -> None:
        self._number += 1
        heapq.heappush(self._heap, (max(when, self.now), self._number, what, args))

    def after(self, delay: int, what: Callable[..., None], *args: object) -> None:
        self.at(self.now + delay, what, *args)

    def run_until(self, end: Instant) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
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
