"""The store's twin: a journal in memory, with the same fencing and with crash points."""

import enum

from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.units import Instant, Millis
from holdfast.ports.errors import Fenced, OutcomeUnknown, Unreachable
from holdfast.ports.store import Leadership


class CrashPoint(enum.StrEnum):
    NONE = "none"
    BEFORE = "before"  # the write is lost, the caller gets an error
    AFTER = "after"  # the write is durable, the caller gets an error


class SimStore:
    def __init__(self) -> None:
        self.entries: list[Event | Plan] = []
        self.leadership = Leadership("", 0, 0)
        self.down = False
        self.crash = CrashPoint.NONE

    async def lead(self, name: str, ttl_ms: Millis, now: Instant) -> Leadership:
        self._answer()
        held = self.leadership
        if held.leader == name and now < held.until:
            self.leadership = Leadership(name, held.generation, now + ttl_ms)
        elif now >= held.until:
            self.leadership = Leadership(name, held.generation + 1, now + ttl_ms)
        return self.leadership

    async def append(self, generation: int, expected: int, entries: tuple[Event | Plan, ...]) -> int:
        self._answer()
        if generation != self.leadership.generation:
            raise Fenced(f"generation {self.leadership.generation} leads, not {generation}")
        if expected != len(self.entries):
            raise Fenced(f"the journal has {len(self.entries)} entries, not {expected}")
        crash, self.crash = self.crash, CrashPoint.NONE
        if crash is CrashPoint.BEFORE:
            raise OutcomeUnknown("the store went away while writing")
        self.entries.extend(entries)
        if crash is CrashPoint.AFTER:
            raise OutcomeUnknown("the store went away while answering")
        return len(self.entries)

    async def read(self, since: int = 0) -> tuple[Event | Plan, ...]:
        self._answer()
        return tuple(self.entries[since:])

    def skip(self, ms: Millis) -> None:
        """Time passed in which the leader kept its leadership."""
        held = self.leadership
        self.leadership = Leadership(held.leader, held.generation, held.until + ms)

    def _answer(self) -> None:
        if self.down:
            raise Unreachable("the store does not answer")
