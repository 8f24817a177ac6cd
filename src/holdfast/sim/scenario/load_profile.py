"""How much is asked of a service over time: steps, or days with a peak, bursts on top of either, and noise.

The unit is that of the signal (requests in flight, unless another is said). Only signals that add up can be
pretended so: what a utilisation or a latency would be follows from programs that the simulator does not have.
"""

import math

import msgspec

from holdfast.model.scale import Signal
from holdfast.model.units import DAY, NEVER, SECOND, Instant, Millis


class LoadStep(msgspec.Struct, frozen=True):
    """From `at` on."""

    at: Instant
    value: float


class Burst(msgspec.Struct, frozen=True):
    """So much more, for a while."""

    at: Instant
    lasts_ms: Millis
    value: float


class Load(msgspec.Struct, frozen=True):
    signal: Signal = Signal.IN_FLIGHT
    base: float = 0.0  # at the beginning of each period
    peak: float = 0.0  # in its middle; below `base`: it stays at `base`
    period_ms: Millis = DAY
    steps: tuple[LoadStep, ...] = ()  # instead of base and peak; nothing before the first
    bursts: tuple[Burst, ...] = ()
    noise: float = 0.0  # standard deviation of each reading, as a share of it
    every_ms: Millis = 5 * SECOND  # the gateway counts and tells so often
    takes_ms: Millis = 1 * SECOND  # one request, when it is answered
    patience_ms: Millis = 0  # a request waits so long for an answer; 0: not at all

    def level(self, now: Instant) -> float:
        """Without the noise."""
        if self.steps:
            smooth = max(((s.at, s.value) for s in self.steps if s.at <= now), default=(0, 0.0))[1]
        else:
            day = (1 - math.cos(2 * math.pi * now / self.period_ms)) / 2
            smooth = self.base + max(0.0, self.peak - self.base) * day
        return smooth + sum(b.value for b in self.bursts if b.at <= now < b.at + b.lasts_ms)

    def next_jump(self, now: Instant) -> Instant:
        """The next one after this instant; a day that comes and goes is none."""
        return min((at for at in self._jumps() if at > now), default=NEVER)

    def last_change(self, before: Instant) -> Instant:
        """The last jump before this instant; a day that comes and goes is none."""
        return max((at for at in self._jumps() if at < min(before, NEVER)), default=0)

    def _jumps(self) -> list[Instant]:
        return [step.at for step in self.steps] + [
            at for b in self.bursts for at in (b.at, b.at + b.lasts_ms)
        ]

    @property
    def smooth(self) -> bool:
        """It changes between its jumps too."""
        return not self.steps and self.peak > self.base
