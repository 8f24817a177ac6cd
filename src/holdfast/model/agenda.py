"""What deserves a look: everything that changed since the last plan, and everything whose time has come.

This is how work follows change and not size. Fold notes each entry it writes, and the instant at which that
entry will need a look by itself (a time-out, a back-off, the end of a lease). A turn looks at what is noted
and at nothing else. A time noted and then overtaken by events wakes somebody for nothing, which is cheaper
than finding it in the heap.
"""

import heapq
from collections.abc import Iterator

from holdfast.model.units import NEVER, Instant

KINDS = ("node", "slot", "workload", "spread", "pool", "fleet")  # spread: workloads whose copies may part


class Agenda:
    def __init__(self) -> None:
        self.changed: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}  # ordered sets
        self.due: list[tuple[Instant, str, str]] = []
        self.room_freed = False  # somebody may fit now who did not before
        self.watched: dict[str, Instant] = {}  # by pool: when its budgets will be looked at; once is enough

    def note(self, kind: str, name: str) -> None:
        self.changed[kind][name] = None

    def at(self, when: Instant, kind: str, name: str) -> None:
        if when < NEVER:
            heapq.heappush(self.due, (when, kind, name))

    def quiet(self, now: Instant) -> bool:
        return not (any(self.changed.values()) or self.room_freed or (self.due and self.due[0][0] <= now))

    def next_due(self) -> Instant:
        return self.due[0][0] if self.due else NEVER

    def look(self, now: Instant) -> dict[str, dict[str, None]]:
        """Names to look at, by kind, in a stable order. Reads only."""
        names = {kind: dict(changed) for kind, changed in self.changed.items()}
        for _, kind, name in sorted(self._ripe(now)):
            names[kind][name] = None
        return names

    def settle(self, now: Instant) -> None:
        """All that was ripe at `now` has been looked at."""
        self.forget()
        self.room_freed = False
        while self.due and self.due[0][0] <= now:
            heapq.heappop(self.due)

    def forget(self) -> None:
        """What has changed."""
        for changed in self.changed.values():
            changed.clear()

    def _ripe(self, now: Instant) -> Iterator[tuple[Instant, str, str]]:
        """Walks only the top of the heap: children are never due before their parent."""
        stack = [0]
        while stack:
            i = stack.pop()
            if i < len(self.due) and self.due[i][0] <= now:
                yield self.due[i]
                stack += (2 * i + 1, 2 * i + 2)
