"""Time for a control plane: never backwards, whatever the wall clock does.

Whether a key is good is a matter of the wall clock: its end is a date, and others read it by clocks of their
own. A wall clock can be wrong, and jump when somebody mends it. `HeldWall` follows it as long as it agrees
with the monotonic one within `JUMP_MS`; beyond that it goes on by the monotonic one and says so, until the
two agree again or a person starts the process anew. An hour is more than any step of NTP or mistake of a
time zone's half hour, and less than any key is worth.

Refused: to believe the wall clock whatever it says: set back, it brings expired keys to life. Refused: to
believe only the clock at the start: small corrections add up over months.
"""

from typing import Protocol

from holdfast.model.units import HOUR, Instant, Millis

JUMP_MS: Millis = 1 * HOUR


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


class HeldWall:
    """The wall clock, held while it is far from where the monotonic one says it should be."""

    def __init__(self, clock: Clock, start: Instant = 0) -> None:
        """`start`: what somebody who is trusted says that it is now; 0: the clock itself is."""
        self._clock = clock
        self._at, self._wall = clock.monotonic(), start or clock.wall()
        self._last = self._wall
        self.jump_ms: Millis = 0  # how far the clock is from what is believed, as long as it is held

    def __call__(self) -> Instant:
        at, wall = self._clock.monotonic(), self._clock.wall()
        expected = self._wall + at - self._at
        if abs(wall - expected) <= JUMP_MS:
            self.jump_ms = 0
            self._at, self._wall = at, wall
        else:
            self.jump_ms = wall - expected
            wall = expected
        self._last = max(self._last, wall)
        return self._last
