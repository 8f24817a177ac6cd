"""Who decides in `bench scaling`. All but the one that looks ahead see the past and the present only."""

import math
from collections import deque

import msgspec
import numpy as np

from bench._scaling_world import STEP_S, Load
from holdfast.core.scaling.forecast import Tracker
from holdfast.core.scaling.replica_count import (
    Standing,
    Wishes,
    ours,
    target_tracking,
)
from holdfast.model.scale import Scale
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant

DEFAULT = Scale(min=1, max=1_000_000)  # as a workload file that says nothing of it
SCALE = msgspec.structs.replace(DEFAULT, confidence=0.95)


class Ours:
    def __init__(self, scale: Scale = SCALE) -> None:
        self._scale = scale
        self._wishes = Wishes()

    def want(self, at: Standing, seen: Tracker, now: Instant) -> int:
        return ours(self._scale, at, seen, self._wishes, now).wanted


class Hpa:
    """Kubernetes' horizontal autoscaler with its defaults: `target_tracking`."""

    def __init__(self, target: float = SCALE.target) -> None:
        self._scale = msgspec.structs.replace(SCALE, target=target)
        self._wishes = Wishes()

    def want(self, at: Standing, seen: Tracker, now: Instant) -> int:
        return target_tracking(self._scale, at, seen, self._wishes, now).wanted


class Recent:
    """The mean demand of the last minute."""

    def __init__(self) -> None:
        self._read: deque[float] = deque(maxlen=60 // STEP_S)

    def mean(self, demand: float) -> float:
        self._read.append(demand)
        return sum(self._read) / len(self._read)


class Kpa:
    """Knative's: the mean of 60 s; in panic, when the last 6 s (here: the last step) ask for twice what is
    ready, the most that was asked for, and no way down until a minute after it ends."""

    def __init__(self) -> None:
        self._recent = Recent()
        self._panic_until: Instant = 0

    def want(self, at: Standing, seen: Tracker, now: Instant) -> int:
        stable = math.ceil(self._recent.mean(seen.demand) / SCALE.target)
        quick = math.ceil(seen.demand / SCALE.target)
        if quick >= 2 * max(1, at.ready):
            self._panic_until = now + MINUTE
        if now < self._panic_until:
            return max(1, at.have, stable, quick)
        return max(1, stable, at.have // 2)


class SkyServe:
    """SkyServe's: the mean of 60 s; up when it was too little for 300 s, down when too much for 1,200 s."""

    def __init__(self) -> None:
        self._recent = Recent()
        self._up_since: Instant | None = None
        self._down_since: Instant | None = None

    def want(self, at: Standing, seen: Tracker, now: Instant) -> int:
        aim = max(1, math.ceil(self._recent.mean(seen.demand) / SCALE.target))
        self._up_since = (self._up_since or now) if aim > at.have else None
        self._down_since = (self._down_since or now) if aim < at.have else None
        if self._up_since is not None and now - self._up_since >= 300 * SECOND:
            self._up_since = None
            return aim
        if self._down_since is not None and now - self._down_since >= 1200 * SECOND:
            self._down_since = None
            return aim
        return at.have


class LookAhead:
    """Knows the record: exactly the peak of the coming cold start."""

    def __init__(self, load: Load, cold_start_s: int) -> None:
        steps = cold_start_s // STEP_S
        padded = np.concatenate([load.demand, np.full(steps, load.demand[-1])])
        self._peaks = np.lib.stride_tricks.sliding_window_view(padded, steps + 1).max(axis=1)

    def want(self, at: Standing, seen: Tracker, now: Instant) -> int:
        peak = float(self._peaks[(now - HOUR) // (STEP_S * SECOND)])
        return max(1, math.ceil(peak - 1e-9))
