"""Limits where no control group keeps them: memory is enforced by looking, of processors a breach is told.

A replica counts with what it alone makes the machine hold: anonymous and shared memory of all its processes,
what several of them share counted once (the kernel's proportional set size), and memory that it holds open as
a file and has not mapped. Pages of files do not count, as the kernel can drop them: a control group would not
kill a program that maps a large model either. That sum is dear for large programs, so upper bounds that cost
next to nothing are asked first, and it is taken twice before anything is killed, because processes that fork
meanwhile may be counted twice.

A program can make that sum as dear as it likes: many processes that share much. So a look, which is beside
the loop, is over after `BUDGET_S`. What was not asked by then counts with the same share of its bound as what
was; what had most the last time is asked first, then what was never asked, then what was asked longest ago,
so that nothing large stays hidden. Only what was asked in this look counts: a process that has forked since
holds less. Such a sum may be wrong for a moment, so it must be too much in `DOUBTS` looks one after another;
and that it was estimated is said.

Refused: RLIMIT_AS. It limits addresses and not memory, and CUDA, the JVM and Go reserve hundreds of gigabytes
of those. Refused: stopping and continuing a program that uses more processors than it asked for, which breaks
its timers; without a control group the scheduler shares the machine fairly among all that runs.

What this cannot do: a program that takes everything within the second between two looks has the machine's own
out-of-memory killer as its limit.
"""

import random
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from holdfast.agent import procfs
from holdfast.agent.watch import holdings
from holdfast.agent.watch.holdings import Parts
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


class Known(NamedTuple):
    """Of one process, when it was last asked."""

    start: int
    look: int
    held: int


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
        machine = holdings.of_machine()
        over = {}
        for name, (root, most) in limited.items():
            pids = procfs.programs(root, seen, children)
            found = None
            if sum(seen[pid].pages for pid in pids) * procfs.PAGE + machine.shared > most:
                found = self._sum(name, {pid: seen[pid].start for pid in pids}, machine, most)
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

    def _sum(self, name: str, starts: dict[int, int], machine: Parts, most: int) -> Sum | None:
        """None: it holds no more than it may, as cheap bounds say."""
        bounds = {pid: holdings.bound_parts(pid) for pid in starts}
        unmapped = _unmapped(starts, time.monotonic() + BUDGET_S)
        if _total(_added(bounds.values()), sum(unmapped.values()), machine) <= most:
            return None
        found = [self._once(name, starts, bounds, unmapped, machine, most)]
        if found[0].exact and found[0].held > most:
            found.append(self._once(name, starts, bounds, unmapped, machine, most))
        least = min(found, key=lambda each: each.held)
        if least.held <= most:
            self._doubts.pop(name, None)
        return least

    def _once(
        self,
        name: str,
        starts: dict[int, int],
        bounds: dict[int, Parts],
        unmapped: Files,
        machine: Parts,
        most: int,
    ) -> Sum:
        before = self._known.pop(name, {})
        known = {pid: each for pid, each in before.items() if starts.get(pid) == each.start}
        until = time.monotonic() + BUDGET_S
        first, rest = _in_turn(bounds, known)
        asked = {pid: holdings.held_parts(pid) for pid in first}
        for pid in rest:
            asked[pid] = holdings.held_parts(pid)
            if time.monotonic() > until:
                break
        exact = len(asked) == len(bounds)
        if not exact:
            now = {pid: Known(starts[pid], self._look, sum(parts)) for pid, parts in asked.items()}
            self._known[name] = known | now
        held = _extrapolated(asked, set(first), bounds)
        files = sum(unmapped.values())
        if _total(held, 0, machine) <= most < _total(held, files, machine):
            files -= _mapped_too(list(bounds), unmapped)
        return Sum(_total(held, max(0, files), machine), exact=exact)


def _in_turn(bounds: dict[int, Parts], known: dict[int, Known]) -> tuple[list[int], list[int]]:
    """Those that are asked in any case, and the others."""
    first = sorted(known, key=lambda pid: -known[pid].held)[:LARGEST]
    rest = [pid for pid in sorted(bounds, key=lambda pid: -sum(bounds[pid])) if pid not in first]
    return first, sorted(rest, key=lambda pid: known[pid].look if pid in known else 0)


def _extrapolated(asked: dict[int, Parts], first: set[int], bounds: dict[int, Parts]) -> Parts:
    """Those that were not asked have as large a part of their bound as the others. `first` was chosen for its
    size, and speaks for nobody else."""
    held = _added(asked.values())
    sample = [pid for pid in asked if pid not in first]
    of, at_most = _added(asked[pid] for pid in sample), _added(bounds[pid] for pid in sample)
    rest = _added(bounds[pid] for pid in bounds if pid not in asked)
    more = [part * left // max(1, most) for part, left, most in zip(of, rest, at_most, strict=True)]
    return Parts(held.anonymous + more[0], held.shared + more[1])


def _added(parts: Iterable[Parts]) -> Parts:
    anonymous = shared = 0
    for part in parts:
        anonymous += part.anonymous
        shared += part.shared
    return Parts(anonymous, shared)


def _total(held: Parts, files: int, machine: Parts) -> int:
    """`files`: memory that is held as files, which may be mapped and so counted in `held` as well."""
    return min(held.anonymous, machine.anonymous) + min(held.shared + files, machine.shared)


def _mapped_too(pids: list[int], unmapped: Files) -> int:
    """How much of these files is mapped. It is dear to find out, and seldom matters."""
    inodes, until, found = {inode for _, inode in unmapped}, time.monotonic() + BUDGET_S, 0
    for done, pid in enumerate(pids, 1):
        found += holdings.mapped_bytes(pid, inodes)
        if time.monotonic() > until:
            return found * len(pids) // done
    return found


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
