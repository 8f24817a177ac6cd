"""Limits where no control group keeps them: memory is enforced by looking, of processors a breach is told.

A replica counts with what it alone makes the machine hold: anonymous and shared memory of all its processes,
what several of them share counted once (the kernel's proportional set size), and memory that it holds open as
a file and has not mapped. Pages of files do not count, as the kernel can drop them: a control group would not
kill a program that maps a large model either. That sum is dear for large programs, so upper bounds that cost
next to nothing are asked first, and it is taken twice before anything is killed, because processes that fork
meanwhile may be counted twice.

A program can make that sum as dear as it likes: many processes that share much. So a look, which is beside
the loop, is over after `BUDGET_S` and goes on from there the next time: the largest first, then those that
were never asked, then those that were asked longest ago. Until each was, the rest counts with the same share
of its bound as those that are known. That may be wrong for a moment, so such a sum must be too much in
`DOUBTS` looks one after another; and that it was estimated is said.

Refused: RLIMIT_AS. It limits addresses and not memory, and CUDA, the JVM and Go reserve hundreds of gigabytes
of those. Refused: stopping and continuing a program that uses more processors than it asked for, which breaks
its timers; without a control group the scheduler shares the machine fairly among all that runs.

What this cannot do: a program that takes everything within the second between two looks has the machine's own
out-of-memory killer as its limit.
"""

import random
import time
from collections.abc import Collection

from holdfast.agent import holdings, procfs
from holdfast.model.resources import Resources
from holdfast.model.units import MINUTE, Instant, Millis
from holdfast.ports.runtime import Usage

LOOK_S = 1.0
SHARE = 20  # of the time, at most one part in so many goes into looking
BUDGET_S = 0.2  # for what is dear about one replica
LARGEST = 4  # of its processes are asked each time
DOUBTS = 3
OVERUSE_MS: Millis = MINUTE  # so long it uses more, before that is told
TOLD_AGAIN_MS: Millis = 10 * MINUTE
TOLERANCE = 1.2  # of its processors: measured in ticks, and a moment's burst harms nobody
TOLERANCE_MILLI = 100

Files = dict[tuple[int, int], int]  # bytes, by device and inode


class Known:
    """Of one process, when it was last asked."""

    __slots__ = ("anonymous", "at", "bound", "shared", "start")

    def __init__(self, start: int, bound: int, at: int, parts: tuple[int, int]) -> None:
        self.start, self.bound, self.at = start, bound, at
        self.anonymous, self.shared = parts


class Sum:
    """What a replica holds. `exact`: each of its processes was asked in this look."""

    def __init__(self, held: int, *, exact: bool) -> None:
        self.held, self.exact = held, exact

    def __str__(self) -> str:
        return f"{'' if self.exact else 'about '}{self.held >> 20} MiB"


class Memory:
    """Who holds more than it may. What was learnt in one look helps the next."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, Known]] = {}  # of replicas that could not be looked at in one go
        self._doubts: dict[str, int] = {}
        self._look = 0

    @property
    def estimated(self) -> set[str]:
        """Those of the last look whose sum is no exact one."""
        return set(self._known)

    def over(self, roots: dict[str, tuple[int, int]]) -> dict[str, Sum]:
        """Which of these replicas use more than they may (by their root process and MiB; 0: no limit), and
        how much. To be called in a thread of its own, never twice at a time."""
        limited = {name: (root, mib << 20) for name, (root, mib) in roots.items() if mib}
        for name in self._known.keys() - limited.keys():
            self._forget(name)
        if not limited:
            return {}
        self._look += 1
        seen = procfs.scan()
        children = procfs.families(seen)
        shared = holdings.shared_memory()
        over = {}
        for name, (root, most) in limited.items():
            pids = procfs.descendants(root, seen, children)
            found = None
            if sum(seen[pid].pages for pid in pids) * procfs.PAGE + shared > most:
                found = self._sum(name, {pid: seen[pid].start for pid in pids}, most)
            if found is None:
                self._forget(name)
            elif found.held > most and self._is_sure(name, found):
                over[name] = found
        return over

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._doubts.pop(name, None)

    def _is_sure(self, name: str, found: Sum) -> bool:
        self._doubts[name] = self._doubts.get(name, 0) + 1
        return found.exact or self._doubts[name] >= DOUBTS

    def _sum(self, name: str, starts: dict[int, int], most: int) -> Sum | None:
        """None: it holds no more than it may, as cheap bounds say."""
        until = time.monotonic() + BUDGET_S
        bounds = {pid: holdings.unshared_bound(pid) for pid in starts}
        unmapped = _unmapped(starts, until)
        if sum(bounds.values()) + sum(unmapped.values()) <= most:
            return None
        first = self._once(name, starts, bounds, unmapped, most)
        if not first.exact or first.held <= most:
            if first.held <= most:
                self._doubts.pop(name, None)
            return first
        second = self._once(name, starts, bounds, unmapped, most)
        return min(first, second, key=lambda each: each.held)

    def _once(
        self, name: str, starts: dict[int, int], bounds: dict[int, int], unmapped: Files, most: int
    ) -> Sum:
        before = self._known.get(name, {})
        known = {pid: each for pid, each in before.items() if starts.get(pid) == each.start}
        until = time.monotonic() + BUDGET_S
        asked = 0
        for pid in _in_turn(bounds, known):
            if asked and time.monotonic() > until:
                break
            known[pid] = Known(starts[pid], bounds[pid], self._look, holdings.held_parts(pid))
            asked += 1
        exact = asked == len(bounds)
        self._known.pop(name, None)
        if not exact:
            self._known[name] = known
        return Sum(_total(known, bounds, unmapped, most), exact=exact)


def _in_turn(bounds: dict[int, int], known: dict[int, Known]) -> list[int]:
    by_size = sorted(bounds, key=lambda pid: -bounds[pid])
    rest = sorted(by_size[LARGEST:], key=lambda pid: known[pid].at if pid in known else 0)
    return by_size[:LARGEST] + rest


def _total(known: dict[int, Known], bounds: dict[int, int], unmapped: Files, most: int) -> int:
    """Memory that is held as a file may be mapped as well. It counts once, which is dear to find out and
    seldom matters."""
    anonymous = sum(each.anonymous for each in known.values())
    shared = sum(each.shared for each in known.values())
    of = sum(each.bound for each in known.values())
    rest = sum(bounds[pid] for pid in bounds if pid not in known)
    if rest and of:
        more = 1 + rest / of
        anonymous, shared = int(anonymous * more), int(shared * more)
    files = sum(unmapped.values())
    if anonymous + max(shared, files) <= most < anonymous + shared + files:
        until = time.monotonic() + BUDGET_S
        for pid in bounds:
            files -= holdings.mapped_bytes(pid, {inode for _, inode in unmapped})
            if time.monotonic() > until:
                return anonymous + max(shared, files)
    return anonymous + shared + max(0, files)


def _unmapped(pids: Collection[int], until: float) -> Files:
    """Memory that these processes hold open as files without a name, each once. Where they are too many for a
    look, it is others the next time."""
    found: Files = {}
    devices = holdings.memory_devices()
    for pid in random.sample(list(pids), len(pids)):
        for seen in holdings.nameless(pid):
            if seen.st_dev in devices:
                found[seen.st_dev, seen.st_ino] = seen.st_blocks * holdings.BLOCK
        if time.monotonic() > until:
            break
    return found


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
