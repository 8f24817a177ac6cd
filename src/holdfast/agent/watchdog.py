"""Limits where no control group keeps them: memory is enforced by looking, of processors a breach is told.

A replica counts with what it alone makes the machine hold: anonymous and shared memory of all its processes,
what several of them share counted once (the kernel's proportional set size). Pages of files do not count, as
the kernel can drop them: a control group would not kill a program that maps a large model either. That sum is
dear for large programs, so two upper bounds that cost next to nothing are asked first, and it is taken twice
before anything is killed, because processes that fork meanwhile may be counted twice.

Refused: RLIMIT_AS. It limits addresses and not memory, and CUDA, the JVM and Go reserve hundreds of gigabytes
of those. Refused: stopping and continuing a program that uses more processors than it asked for, which breaks
its timers; without a control group the scheduler shares the machine fairly among all that runs.

What this cannot do: a program that takes everything within the second between two looks has the machine's own
out-of-memory killer as its limit.
"""

from holdfast.agent import procfs
from holdfast.model.resources import Resources
from holdfast.model.units import MINUTE, Instant, Millis
from holdfast.ports.runtime import Usage

LOOK_S = 1.0
SHARE = 50  # of the time, at most one part in so many goes into looking
OVERUSE_MS: Millis = MINUTE  # so long it uses more, before that is told
TOLD_AGAIN_MS: Millis = 10 * MINUTE
TOLERANCE = 1.2  # of its processors: measured in ticks, and a moment's burst harms nobody
TOLERANCE_MILLI = 100


def over_memory(roots: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Which of these replicas use more than they may (by their root process and MiB; 0: no limit), and how
    much."""
    limited = {name: (root, mib << 20) for name, (root, mib) in roots.items() if mib}
    if not limited:
        return {}
    seen = procfs.scan()
    children = procfs.families(seen)
    over = {}
    for name, (root, most) in limited.items():
        pids = procfs.programs(root, seen, children)
        if sum(seen[pid].pages for pid in pids) * procfs.PAGE <= most:
            continue
        if sum(map(procfs.unshared_bound, pids)) <= most:
            continue
        used = min(_held(pids), _held(pids))
        if used > most:
            over[name] = used >> 20
    return over


def _held(pids: list[int]) -> int:
    return sum(map(procfs.held_bytes, pids))


class Overuse:
    """Who has used more processors than it asked for, for long: told once, and seldom again."""

    def __init__(self) -> None:
        self._since: dict[str, Instant] = {}
        self._told: dict[str, Instant] = {}

    def found(self, used: dict[str, Usage], needs: dict[str, Resources], now: Instant) -> list[str]:
        over = [name for name, use in used.items() if use.cpu_milli > _most(needs[name])]
        self._since = {name: self._since.get(name, now) for name in over}
        self._told = {name: at for name, at in self._told.items() if name in used}
        ripe = [
            name
            for name, since in self._since.items()
            if now - since >= OVERUSE_MS and now - self._told.get(name, -TOLD_AGAIN_MS) >= TOLD_AGAIN_MS
        ]
        self._told.update(dict.fromkeys(ripe, now))
        return ripe


def _most(needs: Resources) -> float:
    return needs.cpu_milli * TOLERANCE + TOLERANCE_MILLI
