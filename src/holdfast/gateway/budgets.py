"""What is drawn of budgets that do not come back, over restarts; and whether the last keeper ended by itself.

A slice of a budget is written down before it is lent: after a crash it counts as spent. A keeper that did not
end by itself may have workers that still hold leases of it, and nobody knows how full its buckets were: the
next one begins with empty ones. One that ended writes down how full they are, and by the clock of the wall
when that was: else each restart would be worth a burst.
"""

from pathlib import Path

import msgspec

from holdfast.gateway.keyring import read_whole, write_whole
from holdfast.model.gateway import key_of
from holdfast.model.units import SECOND, Instant


class Kept(msgspec.Struct):
    drawn: dict[str, int] = {}
    running: bool = False
    levels: dict[str, float] = {}  # of limits a minute that were not full when it ended
    ended_at: Instant = 0


class Budgets:
    def __init__(self, file: Path) -> None:
        self.file = file
        kept = read_whole(file, Kept) if file.exists() else Kept()
        self.drawn, self.crashed = kept.drawn, kept.running
        self._running = kept.running
        self.levels, self._ended_at = kept.levels, kept.ended_at

    def ended_s_ago(self, wall: Instant) -> float:
        """How long ago the last one ended; a clock that was set back since then says 0."""
        return max(0, wall - self._ended_at) / SECOND

    def begin(self) -> None:
        self._write(self.drawn, running=True)

    def forget(self, key: str) -> None:
        """A key was deleted: one that gets its name has spent nothing."""
        left = {scope: amount for scope, amount in self.drawn.items() if key_of(scope) != key}
        if left != self.drawn:
            self.drawn = left
            self._write(left, running=self._running)

    def draw(self, drawn: dict[str, int]) -> None:
        """Durable when this returns. What is given back is written down at the end."""
        if any(amount > self.drawn.get(scope, 0) for scope, amount in drawn.items()):
            self._write({**self.drawn, **drawn}, running=True)

    def end(self, drawn: dict[str, int], levels: dict[str, float] | None = None, wall: Instant = 0) -> None:
        self.levels, self._ended_at = levels or {}, wall
        self._write({**self.drawn, **drawn}, running=False)

    def _write(self, drawn: dict[str, int], *, running: bool) -> None:
        kept = Kept(drawn, True) if running else Kept(drawn, False, self.levels, self._ended_at)
        write_whole(self.file, msgspec.json.encode(kept))
        self.drawn, self._running = drawn, running
