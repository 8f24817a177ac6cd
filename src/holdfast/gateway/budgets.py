"""What is drawn of budgets that do not come back, over restarts; and how full limits a minute were.

A slice of a budget is written down before it is lent: after a crash it counts as spent. Of limits a minute
tranches are, as a leader journals them (`core.gateway.quota.leader_broker`): a keeper that did not end by
itself may have workers that still hold leases of it, and the next one takes all that was written for lent.
One that ended writes down how full its buckets are, and by the clock of the wall when that was: else each
restart would be worth a burst.
"""

from pathlib import Path

import msgspec

from holdfast.gateway.keyring import read_whole, write_whole
from holdfast.model.gateway import Tranche, key_of
from holdfast.model.units import SECOND, Instant


class Kept(msgspec.Struct):
    drawn: dict[str, int] = {}
    running: bool = False
    levels: dict[str, float] = {}  # of limits a minute that were not full when it ended
    ended_at: Instant = 0
    tranches: dict[str, Tranche] | None = None  # of limits a minute that are lent of; others are full


class Budgets:
    def __init__(self, file: Path) -> None:
        self.file = file
        kept = read_whole(file, Kept) if file.exists() else Kept()
        self.drawn, self.crashed = kept.drawn, kept.running
        self._running = kept.running
        self.tranches = kept.tranches  # None: nobody wrote them down
        self._unwritten = False  # the last time it could not be
        self._tranches: dict[str, Tranche] = dict(kept.tranches or {}) if kept.running else {}
        self.levels, self._ended_at = kept.levels, kept.ended_at

    def ended_s_ago(self, wall: Instant) -> float:
        """How long ago the last one ended; a clock that was set back since then says 0."""
        return max(0, wall - self._ended_at) / SECOND

    def begin(self, tranches: dict[str, Tranche] | None = None) -> None:
        self._tranches |= tranches or {}
        self._write(self.drawn, running=True)

    def forget(self, key: str) -> None:
        """A key was deleted: one that gets its name has spent nothing."""
        left = {scope: amount for scope, amount in self.drawn.items() if key_of(scope) != key}
        self._tranches = {
            name: each for name, each in self._tranches.items() if key_of(name.partition("|")[2]) != key
        }
        if left != self.drawn:
            self.drawn = left
            self._write(left, running=self._running)

    def draw(self, drawn: dict[str, int], tranches: dict[str, Tranche] | None = None) -> None:
        """Durable when this returns. What is given back is written down at the end."""
        if (
            tranches
            or self._unwritten
            or any(amount > self.drawn.get(scope, 0) for scope, amount in drawn.items())
        ):
            self._tranches |= tranches or {}
            self._write({**self.drawn, **drawn}, running=True)

    def begin_anew(self, drawn: dict[str, int]) -> None:
        """Less is drawn, because somebody said so."""
        self._write({**self.drawn, **drawn}, running=self._running)

    def better(self, tranches: dict[str, Tranche], full: tuple[str, ...]) -> None:
        if tranches or full:
            found = {**self._tranches, **tranches}
            self._tranches = {name: each for name, each in found.items() if name not in full}
            self._write(self.drawn, running=True)

    def end(self, drawn: dict[str, int], levels: dict[str, float] | None = None, wall: Instant = 0) -> None:
        self.levels, self._ended_at = levels or {}, wall
        self._write({**self.drawn, **drawn}, running=False)

    def _write(self, drawn: dict[str, int], *, running: bool) -> None:
        if running:
            kept = Kept(drawn, True, tranches=self._tranches)
        else:
            kept = Kept(drawn, False, self.levels, self._ended_at)
        self._unwritten = True
        write_whole(self.file, msgspec.json.encode(kept))
        self._unwritten = False
        self.drawn, self._running = drawn, running
