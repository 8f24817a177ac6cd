"""The clock of this host. The monotonic one goes on while the host sleeps: a lease must, too."""

import time

from holdfast.model.units import Instant


class HostClock:
    def wall(self) -> Instant:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> Instant:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
