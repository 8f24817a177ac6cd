"""The node's lease, where agent and shims can both see it: one small file, changed in place.

The agent writes it through a mapping: a store to memory, which cannot fail because the disk is full or has
become read-only. A shim reads it when the end it last saw has come. The end is there twice, so that a reading
in the middle of a change is noticed, and with the id of the boot, because the clock starts anew with every
boot and an end from before it would be a lease that nobody gave.

Each lease that is given after one has lapsed is a new term. A shim knows the term its replica was started in:
so when a whole machine was stopped and the agent wakes first and renews, the shim still sees that in between
there was no lease.
"""

import mmap
import os
import time

_DIGITS = 20
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SIZE = 36 + 4 * (1 + _DIGITS) + 1
_READINGS = 100  # a change takes less than a microsecond: a reading that stays torn is a broken file


def boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def read(handle: int, boot: str) -> tuple[int, int]:
    """When the lease ends, on the boot-time clock (0: there is none), and its term."""
    for _ in range(_READINGS):
        parts = os.pread(handle, _SIZE, 0).split()
        if len(parts) != 5 or parts[0] != boot.encode():
            return 0, 0
        if parts[1:3] == parts[3:5] and parts[1].isdigit() and parts[2].isdigit():
            return int(parts[1]), int(parts[2])
    return 0, 0


class Lease:
    """The agent's side. It is only ever prolonged."""

    def __init__(self, path: str) -> None:
        self._boot = boot_id()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.until, self.term = read(handle, self._boot)
            os.pwrite(handle, self._line(), 0)  # takes its room on the disk
            self._map = mmap.mmap(handle, _SIZE)
        finally:
            os.close(handle)

    def renew(self, until: int) -> None:
        if until > self.until:
            lapsed = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 >= self.until
            self.term += lapsed
            self.until = until
            self._map[:] = self._line()

    def close(self) -> None:
        self._map.close()

    def _line(self) -> bytes:
        once = f"{self.until:0{_DIGITS}} {self.term:0{_DIGITS}}"
        return f"{self._boot} {once} {once}\n".encode()
