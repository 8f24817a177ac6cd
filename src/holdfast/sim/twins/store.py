"""The store's twin: a journal in memory, with the same fencing and with crash points."""

import enum
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from holdfast.core.explain.history import lines
from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.told import VERDICT, Told
from holdfast.model.units import NEVER, Instant, Millis
from holdfast.model.workload import DEFAULT_PROJECT
from holdfast.ports.errors import Fenced, NotFound, OutcomeUnknown, Unreachable
from holdfast.ports.store import (
    ABSENT_MS,
    NOTHING,
    TAIL_COSTS,
    TAILS_BYTES_MAX,
    Leadership,
    Snapshot,
    Tail,
)

SNAPSHOTS_KEPT = 2


class CrashPoint(enum.StrEnum):
    NONE = "none"
    BEFORE = "before"  # the write is lost, the caller gets an error
    AFTER = "after"  # the write is durable, the caller gets an error


class SimStore:
    def __init__(self, clock: Callable[[], Instant]) -> None:
        self.clock = clock
        self.entries: list[Event | Plan] = []
        self.owners: dict[int, Mapping[str, str]] = {}  # by entry
        self.snapshots: list[Snapshot] = []  # the oldest first
        self.held = Leadership("", 0, 0)  # as it was granted: what is left of it is told by `until`
        self.until: Instant = 0
        self.planes: dict[str, tuple[str, Instant]] = {}  # address, when seen
        self.tails: dict[str, Tail] = {}  # the oldest first
        self.pruned = 0  # entries that are no longer kept
        self.down = False
        self.crash = CrashPoint.NONE

    # leadership

    async def lead(
        self, name: str, address: str, ttl_ms: Millis, above: int = 0, mine: int = 0
    ) -> Leadership:
        self._answer()
        free = self.clock() >= self.until
        if free or (self.held.leader, self.held.generation) == (name, mine):
            goes_on = not free and self.held.generation > above
            generation = self.held.generation if goes_on else max(self.held.generation, above) + 1
            self.held = Leadership(name, generation, ttl_ms, address)
            self.until = self.clock() + ttl_ms
            return replace(self._leadership(), granted=True)
        return self._leadership()

    async def resign(self, name: str, generation: int) -> None:
        self._answer()
        if (self.held.leader, self.held.generation) == (name, generation):
            self.until = min(self.until, self.clock())

    async def announce(self, name: str, address: str) -> tuple[str, ...]:
        self._answer()
        now = self.clock()
        self.planes = {one: seen for one, seen in self.planes.items() if seen[1] >= now - ABSENT_MS}
        self.planes[name] = (address, now)
        return tuple(self.planes[one][0] for one in sorted(self.planes))

    async def leader(self) -> Leadership:
        self._answer()
        return self._leadership()

    def skip(self, ms: Millis) -> None:
        """Time passed in which the leader kept its leadership."""
        self.until += ms

    # the journal

    async def append(
        self,
        generation: int,
        expected: int,
        entries: tuple[Event | Plan, ...],
        project_of: Mapping[str, str] = NOTHING,
    ) -> int:
        self._guard(generation)
        if expected != len(self.entries):
            raise Fenced(f"the journal has {len(self.entries)} entries, not {expected}")
        crash, self.crash = self.crash, CrashPoint.NONE
        if crash is CrashPoint.BEFORE:
            raise OutcomeUnknown("the store went away while writing")
        if project_of:
            self.owners |= dict.fromkeys(range(expected + 1, expected + len(entries) + 1), project_of)
        self.entries.extend(entries)
        if crash is CrashPoint.AFTER:
            raise OutcomeUnknown("the store went away while answering")
        return len(self.entries)

    async def read(self, since: int = 0, limit: int = 0) -> tuple[Event | Plan, ...]:
        self._answer()
        if since < self.pruned:
            raise NotFound(f"entries {since + 1} to {self.pruned} were pruned")
        return tuple(self.entries[since : since + limit if limit else None])

    async def save(self, generation: int, snapshot: Snapshot) -> None:
        self._guard(generation)
        if snapshot.length > len(self.entries):
            raise Fenced(f"the journal has {len(self.entries)} entries, not {snapshot.length}")
        others = [one for one in self.snapshots if one.length != snapshot.length]
        self.snapshots = sorted([*others, snapshot], key=lambda one: one.length)[-SNAPSHOTS_KEPT:]

    async def latest(self, before: int = 0) -> Snapshot | None:
        self._answer()
        fit = [one for one in self.snapshots if not before or one.length < before]
        return fit[-1] if fit else None

    async def prune(self, before: Instant) -> int:
        self._answer()
        self.tails = {name: tail for name, tail in self.tails.items() if tail.at >= before}
        if len(self.snapshots) < SNAPSHOTS_KEPT:
            return 0
        covered = self.snapshots[0].length - 1  # its last entry stays: the clock goes on from there
        old = next((n for n, entry in enumerate(self.entries) if entry.at >= before), covered)
        gone, self.pruned = self.pruned, max(self.pruned, min(old, covered))
        return self.pruned - gone

    async def history(
        self,
        *,
        node: str = "",
        workload: str = "",
        project: str = "",
        since: int = 0,
        before: int = 0,
        since_at: Instant = 0,
        until_at: Instant = 0,
        limit: int = 100,
    ) -> tuple[Told, ...]:
        self._answer()
        until = until_at or NEVER
        told = [
            line
            for line in self._told(since, before)
            if node in ("", line.node) and workload in ("", line.workload) and since_at <= line.at < until
            if not project or _of_project(line, project)
        ]
        before = before or int(bool(since_at or until_at))  # the newest, then
        if limit and len(told) > limit:
            if since and not before:
                return tuple(line for line in told if line.seq <= told[limit - 1].seq)
            return tuple(line for line in told if line.seq >= told[-limit].seq)
        return tuple(told)

    async def keep_tails(self, tails: tuple[Tail, ...]) -> None:
        self._answer()
        self.tails |= {tail.replica: tail for tail in tails}
        self.tails = dict(sorted(self.tails.items(), key=lambda item: item[1].at))
        size = sum(len(tail.data) + TAIL_COSTS for tail in self.tails.values())
        for tail in list(self.tails.values()) if size > TAILS_BYTES_MAX else ():
            if size > TAILS_BYTES_MAX:
                size -= len(self.tails.pop(tail.replica).data) + TAIL_COSTS

    async def tail(self, replica: str) -> Tail | None:
        self._answer()
        return self.tails.get(replica)

    # within

    def _told(self, since: int, before: int) -> Iterator[Told]:
        since = max(since, self.pruned)
        for seq, entry in enumerate(self.entries[since : before - 1 if before else None], since + 1):
            yield from lines(seq, entry, self.owners.get(seq, NOTHING))

    def _leadership(self) -> Leadership:
        held = self.held
        left_ms = max(0, self.until - self.clock())
        return Leadership(held.leader, held.generation, left_ms, held.address)

    def _guard(self, generation: int) -> None:
        self._answer()
        if generation != self.held.generation:
            raise Fenced(f"generation {self.held.generation} leads, not {generation}")

    def _answer(self) -> None:
        if self.down:
            raise Unreachable("the store does not answer")


def _of_project(line: Told, project: str) -> bool:
    if not line.workload:
        return line.kind == VERDICT
    return (line.project or DEFAULT_PROJECT) == project
