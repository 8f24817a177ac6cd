"""The clock of this host. The monotonic one goes on while the host sleeps: a lease must, too."""

import functools
import time
from pathlib import Path

from holdfast.model.units import Instant

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostClock:
    def wall(self) -> Instant:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> Instant:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def era(self) -> str:
        return _boot()


@functools.cache
def _boot() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip()
