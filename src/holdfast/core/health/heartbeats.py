"""How long is too long for this node to be silent?

The question: a heartbeat is late; is that news? The rule: a node is *late* when it has been silent for longer
than its own history makes likely: mean gap plus some deviations, or a fifth more than its longest recent gap,
whichever is more, within bounds. A node behind a lossy link earns more patience than one that has never
missed a beat. *Silent* and *long* follow after fixed further times; what they mean together with other
evidence is `detect`'s business.

Silence only counts while we were listening: when our own loop ran late by a second, every node is forgiven
that second.

Refused: the phi-accrual estimate of a probability. Its tail comes from a fitted normal distribution, and real
gaps are not normal: at thresholds where it is safe it is no quicker than the longest gap seen, and it cannot
be explained to the person whose node was called late. `python -m bench detect` measures both on the same
histories.

The columns are numpy arrays, one row a node, because every node is heard every second: 100,000 beats are then
a few vector operations, and asking whether anybody is late costs one comparison. This table is a sense, not a
part of the world: it is never journalled, and a new leader starts with an empty one.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from holdfast.model.policy import Detection
from holdfast.model.units import NEVER, Instant, Millis
from holdfast.model.verdict import Silence

CLASSES = (Silence.FRESH, Silence.LATE, Silence.SILENT, Silence.LONG)
LEARN = 0.05  # weight of the newest gap: about the last 20 beats
FORGET_GAP = 0.999  # the longest gap fades by half in about 700 beats
GAP_MARGIN = 1.2  # silence this much longer than the longest known gap is news
MANY = 100  # rounds that are worked out at once, at most
FADED = (1 - LEARN) ** np.arange(MANY + 1)
GAP_FADED = FORGET_GAP ** np.arange(MANY + 1)

Rows = NDArray[np.int64]
Times = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Beats:
    def __init__(self, policy: Detection, rows: int = 64) -> None:
        self.policy = policy
        self.row: dict[str, int] = {}
        self.ids: list[str] = [""] * rows
        self.unused = list(range(rows - 1, -1, -1))
        self.heard = np.zeros(rows, np.int64)
        self.acked = np.zeros(rows, np.int64)
        self.mean = np.zeros(rows)
        self.variance = np.zeros(rows)
        self.longest = np.zeros(rows)
        self.usual = np.zeros(rows, np.int64)
        self.grade = np.zeros(rows, np.int8)  # index into CLASSES
        self.look_at = np.full(rows, NEVER, np.int64)  # when the grade would change without a beat
        self.returned: list[int] = []  # rows heard again after a silence

    def add(self, node: str, now: Instant, *, quiet: bool = False) -> int:
        """Listen to a node from now on; a node already known starts afresh. One that was `quiet` for the
        leader before us is late until we hear it."""
        if node not in self.row:
            if not self.unused:
                self._grow()
            row = self.unused.pop()
            self.row[node], self.ids[row] = row, node
            self.mean[row], self.variance[row] = self.policy.beat_ms, (self.policy.beat_ms / 10) ** 2
            self.longest[row] = self.policy.beat_ms
        row = self.row[node]
        self.heard[row] = self.acked[row] = now
        self.grade[row] = 1 if quiet else 0
        one = np.array([row])
        self._settle(one)
        return row

    def remove(self, node: str) -> None:
        row = self.row.pop(node, None)
        if row is not None:
            self.ids[row] = ""
            self.look_at[row] = NEVER
            self.grade[row] = 0
            self.unused.append(row)

    def hear(self, heard: Mapping[str, Instant]) -> None:
        """These nodes were heard; of those we do not listen to it is no news."""
        rows = [(self.row[name], at) for name, at in heard.items() if name in self.row]
        if rows:
            columns = np.array(rows, np.int64)
            self.beat(columns[:, 0], columns[:, 1])

    def beat(self, rows: Rows, at: Times) -> None:
        """These nodes were heard at these instants."""
        gap = np.minimum(at - self.heard[rows], self.policy.late_max_ms).astype(np.float64)
        fresh = gap > 0
        if not fresh.all():
            rows, at, gap = rows[fresh], at[fresh], gap[fresh]
        off = gap - self.mean[rows]
        self.mean[rows] += LEARN * off
        self.variance[rows] = (1 - LEARN) * (self.variance[rows] + LEARN * off * off)
        self.longest[rows] = np.maximum(gap, self.longest[rows] * FORGET_GAP)
        self.heard[rows] = self.acked[rows] = at
        silent = self.grade[rows] > 0
        if silent.any():
            self.returned.extend(int(row) for row in rows[silent])
            self.grade[rows] = 0
        self._settle(rows)

    def _settle(self, rows: Rows) -> None:
        policy = self.policy
        likely = self.mean[rows] + policy.deviations * np.sqrt(self.variance[rows])
        usual = np.maximum(likely, GAP_MARGIN * self.longest[rows])
        self.usual[rows] = np.minimum(np.maximum(usual, policy.late_min_ms), policy.late_max_ms).astype(
            np.int64
        )
        self.look_at[rows] = self.heard[rows] + self.usual[rows]

    def next_look(self) -> Instant:
        return int(self.look_at.min())

    def changed(self, now: Instant) -> list[str]:
        """Nodes whose silence has another grade than when last asked."""
        names = [self.ids[row] for row in self.returned if self.ids[row]]
        self.returned.clear()
        rows = np.flatnonzero(self.look_at <= now)
        for row in rows:
            self._regrade(int(row), now)
        return list(dict.fromkeys([*names, *(self.ids[row] for row in rows)]))

    def _regrade(self, row: int, now: Instant) -> None:
        policy = self.policy
        late = int(self.usual[row])
        act = max(late + policy.act_ms, policy.silent_min_ms)
        steps = (late, act, max(policy.alone_ms, act))
        silent = now - int(self.heard[row])
        grade = sum(silent >= step for step in steps)
        self.grade[row] = grade
        self.look_at[row] = int(self.heard[row]) + steps[grade] if grade < len(steps) else NEVER

    def forgive(self, ms: Millis, now: Instant) -> None:
        """We did not listen for this long: nobody was silent in that time."""
        rows = np.array(list(self.row.values()), np.int64)
        if len(rows):
            self.heard[rows] = np.minimum(self.heard[rows] + ms, now)
            self.returned.extend(int(row) for row in rows[self.grade[rows] > 0])
            for row in rows:
                self._regrade(int(row), now)

    def beats_on_time(self, rows: Rows, gaps: Floats, came: Bools, heard: Times) -> None:
        """Many rounds at once, a line each, in which nobody was late: what `beat` would do one by one. Each
        of its averages is a sum, once it is divided by how far it has faded: so they are running sums."""
        count = came.cumsum(axis=0)
        faded, newest = FADED[count], FADED[count[-1]]
        sums = self.mean[rows] + (came * LEARN * gaps / faded).cumsum(axis=0)
        off = gaps - np.vstack([self.mean[rows], (faded * sums)[:-1]])
        spread = (came * off * off / faded).sum(axis=0)
        self.mean[rows] = newest * sums[-1]
        self.variance[rows] = newest * (self.variance[rows] + (1 - LEARN) * LEARN * spread)
        longest = np.maximum(self.longest[rows], (came * gaps / GAP_FADED[count]).max(axis=0))
        self.longest[rows] = GAP_FADED[count[-1]] * longest
        self.heard[rows] = self.acked[rows] = heard
        self._settle(rows)

    def silence(self, node: str, now: Instant) -> tuple[Silence, Millis, Millis]:
        """The grade, how long it has been silent, and what is usual for it."""
        row = self.row.get(node)
        if row is None:
            return Silence.FRESH, 0, 0
        return CLASSES[self.grade[row]], now - int(self.heard[row]), int(self.usual[row])

    def last_acked(self, node: str) -> Instant:
        row = self.row.get(node)
        return int(self.acked[row]) if row is not None else 0

    def fell_silent_since(self, instant: Instant) -> int:
        """How many that were heard after `instant` are late now."""
        return int(np.count_nonzero((self.grade > 0) & (self.heard >= instant)))

    def _grow(self) -> None:
        rows = len(self.ids)
        for name in ("heard", "acked", "mean", "variance", "longest", "usual", "grade"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.look_at = np.concatenate([self.look_at, np.full(rows, NEVER, np.int64)])
        self.ids.extend([""] * rows)
        self.unused = list(range(2 * rows - 1, rows - 1, -1))
