"""Time for a control plane: never backwards, whatever the wall clock does."""

from typing import Protocol

from holdfast.model.units import Instant, Millis


class Clock(Protocol):
    def wall(self) -> Instant: ...

    def monotonic(self) -> Instant: ...

    def era(self) -> str:
        """Which monotonic clock this is: a boot of a machine. Those of different eras cannot be compared."""


class SteadyClock:
    """Starts from the wall clock (or the last instant in the journal, if that is later) and goes on by the
    monotonic one, so that setting the wall clock back or forward changes nothing while we lead."""

    def __init__(self, clock: Clock, not_before: Instant = 0) -> None:
        self._clock, self.era = clock, clock.era()
        self.offset: Millis = max(clock.wall(), not_before) - clock.monotonic()

    def now(self) -> Instant:
        return self._clock.monotonic() + self.offset
