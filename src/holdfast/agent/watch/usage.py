"""What each replica uses: its whole tree, from its control group where there is one, else from /proc.

CPU is a rate, over the time since it was last asked. Without a group the sum of resident pages counts what
processes share more than once. Where there are very many processes, an answer may be as old as the look at
them was dear, so that they do not keep the agent from its work.
"""

import time

from holdfast.agent import cgroup, procfs
from holdfast.model.units import Instant, Millis
from holdfast.ports.runtime import Usage

OFTEN_MS: Millis = 200  # asked again sooner, the answer is the same: /proc counts in ticks of 10 ms
SHARE = 20  # of the time, at most one part in so many goes into looking

_US_A_TICK = 1_000_000 // procfs.TICKS


class Meter:
    def __init__(self) -> None:
        self._last: dict[str, tuple[int, Instant, int]] = {}  # cpu time in us, when, and the rate
        self._seen: dict[int, procfs.Seen] = {}
        self._children: dict[int, list[int]] = {}
        self._at: Instant = 0  # when all processes were looked at
        self._cost: Millis = 0

    def drop(self, replica: str) -> None:
        self._last.pop(replica, None)

    def read(self, running: dict[str, tuple[int, str]], now: Instant) -> dict[str, Usage]:
        """Of replicas, by their shim and their control group (empty: none)."""
        used = {}
        looked = False
        for name, (shim, group) in running.items():
            cpu_us = cgroup.cpu_us(group) if group else -1
            memory = cgroup.memory_bytes(group) if group else -1
            at = now
            if cpu_us < 0 or memory < 0:
                looked = looked or self._look(now)
                ticks, resident = _of_tree(shim, self._seen, self._children)
                at = self._at if cpu_us < 0 else now
                cpu_us = ticks * _US_A_TICK if cpu_us < 0 else cpu_us
                memory = resident if memory < 0 else memory
            used[name] = Usage(self._rate(name, cpu_us, at), memory >> 20)
        return used

    def _look(self, now: Instant) -> bool:
        """At all processes, unless that was dear a moment ago."""
        if not self._seen or now - self._at >= SHARE * self._cost:
            began = time.monotonic()
            self._seen = procfs.scan()
            self._children = procfs.families(self._seen)
            self._at, self._cost = now, int((time.monotonic() - began) * 1000)
        return True

    def _rate(self, name: str, cpu_us: int, now: Instant) -> int:
        """In thousandths of a CPU; nothing the first time."""
        before, at, rate = self._last.setdefault(name, (cpu_us, now, 0))
        if now - at >= OFTEN_MS:
            rate = max(0, cpu_us - before) // (now - at)
            self._last[name] = (cpu_us, now, rate)
        return rate


def _of_tree(shim: int, seen: dict[int, procfs.Seen], children: dict[int, list[int]]) -> tuple[int, int]:
    """Ticks of all, the shim's included: what ended and was reaped by it is counted there."""
    pids = procfs.descendants(shim, seen, children)
    ticks = sum(seen[pid].ticks for pid in [shim, *pids] if pid in seen)
    held = procfs.programs(shim, seen, children)
    return ticks, sum(seen[pid].pages for pid in held) * procfs.PAGE
