"""What really happened to a fleet: the histories on which detectors are compared.

Every number has a reason. Trouble comes more often than in life, so that a run of minutes meets each kind
many times; read the rates of false failovers as a comparison, not as a forecast.

One beat a second. An ordinary node is 5 ms away, with an exponential tail of 20 ms and one beat in 2,000
lost: a busy data centre, and the defaults of our simulator. One node in ten is far away: 40 ms, a tail of 60
ms, one beat in a hundred lost: a stranger's machine on a home line.

Not failures: a node *stalls* about once an hour for 0.1 to 2.5 s (log-normal, median 0.3 s): a garbage
collection, a full disk queue, a live migration. In half of the stalls only the agent stands still and the
kernel answers probes, in the other half the whole machine does. The observer's own loop *pauses*, four times
a day for 1 to 20 s: its own machine stalls or swaps. A *cut* of 5 to 60 s, six times a day, separates the
observer from a rack or from 1 to 5 % of the nodes, and a *router* that fails over, twice a day, from 30 % of
them for 15 s; their peers reach them all the while. An agent that hears no answer for 5 s connects anew and
says hello, so a node comes back from a cut, or from a long pause of ours, with a hello.

Failures: when they come and how long a repair takes is drawn from the record of LANL (systems of 100 nodes
and more), with time shortened so that a node fails every three days on average: a year of LANL would give one
failure a node. Without that record, a Weibull distribution of shape 0.7, which is what was published about
it. 40 % lose power (silent; in half of these the provider finds out within a minute), 30 % hang (silent, and
the provider says that it runs), 30 % lose all their processes (the host lives: it closes the link and refuses
probes).
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench._records import tables
from holdfast.model.units import DAY, HOUR, MINUTE, NEVER, SECOND, Instant, Millis

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BEGIN: Final[Instant] = 1_000 * SECOND
BEAT_MS: Final = 1 * SECOND
PHASES_MS: Final = 700  # nodes send in the first part of a second, so that a round arrives within it
NEAR: Final = (5, 20, 0.0005)  # delay, mean of the tail, loss
FAR: Final = (40, 60, 0.01)
FAR_SHARE: Final = 0.1
RACK: Final = 20
STALLS_AN_HOUR: Final = 1.0
STALL_MEDIAN_MS, STALL_SIGMA, STALL_MIN_MS, STALL_MAX_MS = 300, 0.8, 100, 2_500
PAUSES_A_DAY, PAUSE_MIN_S, PAUSE_MAX_S = 4, 1, 20
CUTS_A_DAY, CUT_MIN_MS, CUT_MAX_MS = 6, 5_000, 60_000
ROUTERS_A_DAY, ROUTER_MS, ROUTER_SHARE = 2, 15_000, 0.3
GIVE_UP_LINK_MS: Final = 5 * SECOND
HELLO_MS: Final = 2 * SECOND  # an agent without a link tries about so often
MTBF_MS: Final = 3 * DAY
REPAIR_MIN_MS, REPAIR_MAX_MS = 1 * MINUTE, 1 * HOUR
KINDS: Final = (("power", 0.4), ("hang", 0.3), ("kill", 0.3))
PROVIDER_KNOWS: Final = 0.5
CHUNK: Final = 128  # rounds made at once
LANL_NODES_MIN: Final = 100
LANL_COLUMNS: Final = ("System", "nodes", "nodenum", "Prob Started", "Prob Fixed")
LANL_TIME: Final = "%m/%d/%Y %H:%M"


class Failure(msgspec.Struct, frozen=True):
    node: int
    start: Instant
    end: Instant
    kind: str
    known_at: Instant = NEVER  # when its provider finds out


class Stall(msgspec.Struct, frozen=True):
    node: int
    start: Instant
    end: Instant
    heard_at: Instant  # the beat it sends when it is over
    whole: bool


class Cut(msgspec.Struct, frozen=True):
    kind: str
    start: Instant
    end: Instant
    hello_at: dict[int, Instant]  # by node


class Pause(msgspec.Struct, frozen=True):
    start: Instant
    end: Instant
    timers_first: bool  # at its end timers are due and sockets are full: which is served first?


Fault = Failure | Stall | Cut
Spell = TypeVar("Spell", Failure, Stall)


class Wear(msgspec.Struct, frozen=True):
    """Times between failures of a node and of repairs, to draw from; both already shortened."""

    source: str
    between_ms: list[int]
    repair_ms: list[int]


class Truth:
    def __init__(self, nodes: int, rounds: int, wear: Wear, seed: int) -> None:
        self.nodes, self.rounds = nodes, rounds
        self.end = BEGIN + rounds * BEAT_MS
        self.random = np.random.default_rng([seed, 1])
        self.beat_random = np.random.default_rng([seed, 2])
        far = self.random.random(nodes) < FAR_SHARE
        self.delay, self.tail, self.loss = (np.where(far, f, n) for n, f in zip(NEAR, FAR, strict=True))
        self.phase = self.random.integers(0, PHASES_MS, nodes)
        self.pauses = self._pauses()
        self.failures = self._failures(wear)
        self.stalls = self._stalls()
        self.cuts = self._cuts()
        self.failures_of = _by_node(nodes, self.failures)
        self.stalls_of = _by_node(nodes, self.stalls)
        self.by_chunk: dict[int, list[Fault]] = {}
        faults: tuple[Fault, ...] = (*self.stalls, *self.failures, *self.cuts)
        for fault in faults:
            self._file(fault)

    @property
    def node_months(self) -> float:
        return self.nodes * self.rounds * BEAT_MS / (30 * DAY)

    # what happens

    def _moments(self, a_day: float, most: int = 1_000_000) -> list[Instant]:
        """So many a day, at least one, in whole seconds, away from the edges."""
        count = min(most, max(1, round(a_day * self.rounds * BEAT_MS / DAY)))
        edge = min(60, self.rounds // 4)
        drawn = self.random.integers(edge, max(edge + 1, self.rounds - edge), count)
        return sorted(BEGIN + int(second) * SECOND for second in drawn)

    def _pauses(self) -> list[Pause]:
        found: list[Pause] = []
        for start in self._moments(PAUSES_A_DAY):
            if found and start <= found[-1].end + MINUTE:
                continue
            lasts = int(np.exp(self.random.uniform(np.log(PAUSE_MIN_S), np.log(PAUSE_MAX_S + 1))))
            found.append(Pause(start, start + lasts * SECOND, bool(self.random.random() < 0.5)))
        return found

    def _failures(self, wear: Wear) -> list[Failure]:
        found = []
        names, shares = [kind for kind, _ in KINDS], [share for _, share in KINDS]
        for node in range(self.nodes):
            at = BEGIN - int(self.random.random() * self._draw(wear.between_ms))
            while True:
                at += self._draw(wear.between_ms)
                if at >= self.end - REPAIR_MIN_MS:
                    break
                lasts = min(max(self._draw(wear.repair_ms), REPAIR_MIN_MS), REPAIR_MAX_MS)
                if at > BEGIN + MINUTE:
                    kind = str(self.random.choice(names, p=shares))
                    knows = kind == "power" and self.random.random() < PROVIDER_KNOWS
                    known = at + int(self.random.integers(5_000, 60_000)) if knows else NEVER
                    found.append(Failure(node, at, at + lasts, kind, known))
                at += lasts + 2 * MINUTE
        return sorted(found, key=lambda failure: failure.start)

    def _draw(self, values: list[int]) -> int:
        return values[int(self.random.integers(len(values)))]

    def _stalls(self) -> list[Stall]:
        hours = self.rounds * BEAT_MS / HOUR
        count = int(self.random.poisson(STALLS_AN_HOUR * hours * self.nodes))
        nodes = self.random.integers(0, self.nodes, count)
        starts = np.sort(self.random.integers(BEGIN, self.end, count))
        drawn = STALL_MEDIAN_MS * np.exp(STALL_SIGMA * self.random.standard_normal(count))
        lasts = np.clip(drawn, STALL_MIN_MS, STALL_MAX_MS).astype(np.int64)
        travel = (self.delay[nodes] + self.random.standard_exponential(count) * self.tail[nodes]).astype(
            np.int64
        )
        whole = self.random.random(count) < 0.5
        rows = zip(
            nodes.tolist(), starts.tolist(), lasts.tolist(), travel.tolist(), whole.tolist(), strict=True
        )
        return [Stall(n, at, at + ms, at + ms + wire, all_) for n, at, ms, wire, all_ in rows]

    def _cuts(self) -> list[Cut]:
        found = []
        for start in self._moments(CUTS_A_DAY):
            lasts = int(np.exp(self.random.uniform(np.log(CUT_MIN_MS), np.log(CUT_MAX_MS))))
            if self.random.random() < 0.5:
                rack = int(self.random.integers(0, max(1, self.nodes // RACK)))
                inside = np.arange(rack * RACK, min((rack + 1) * RACK, self.nodes))
            else:
                share = self.random.uniform(0.01, 0.05)
                inside = self.random.permutation(self.nodes)[: max(1, int(share * self.nodes))]
            found.append(self._cut("cut", start, lasts, inside))
        for start in self._moments(ROUTERS_A_DAY):
            inside = self.random.permutation(self.nodes)[: max(1, int(ROUTER_SHARE * self.nodes))]
            found.append(self._cut("router", start, ROUTER_MS, inside))
        return sorted(found, key=lambda cut: cut.start)

    def _cut(self, kind: str, start: Instant, lasts: Millis, inside: Ints) -> Cut:
        end = start + lasts
        hello = self.random.integers(0, HELLO_MS, len(inside))
        return Cut(kind, start, end, {int(n): end + int(ms) for n, ms in zip(inside, hello, strict=True)})

    def _file(self, fault: Fault) -> None:
        last = fault.end + (HELLO_MS if isinstance(fault, Cut) else SECOND)
        for chunk in range(_chunk(fault.start), _chunk(last) + 1):
            self.by_chunk.setdefault(chunk, []).append(fault)

    # what arrives

    def arrivals(self, chunk: int) -> Ints:
        """When the beat of each round (row) of each node (column) reaches the observer; NEVER if it does not.

        A beat that would arrive after its second arrives at the second's end.
        """
        rounds = min(CHUNK, self.rounds - chunk * CHUNK)
        shape = (rounds, self.nodes)
        begins = BEGIN + (chunk * CHUNK + np.arange(rounds))[:, None] * BEAT_MS
        sent = begins + self.phase
        wire = self.delay + self.beat_random.standard_exponential(shape) * self.tail
        arrives: Ints = np.minimum(sent + wire.astype(np.int64), begins + BEAT_MS - 1)
        arrives[self.beat_random.random(shape) < self.loss] = NEVER
        for fault in self.by_chunk.get(chunk, ()):
            match fault:
                case Stall(node=node, start=start, end=end, heard_at=heard):
                    column = arrives[:, node]
                    column[(sent[:, node] >= start) & (sent[:, node] < end)] = NEVER
                    row = (heard - int(begins[0, 0])) // BEAT_MS
                    if 0 <= row < rounds:
                        column[row] = min(column[row], heard)
                case Failure(node=node, start=start, end=end):
                    arrives[(sent[:, node] >= start) & (sent[:, node] < end), node] = NEVER
                case Cut(start=start, hello_at=hello_at):
                    inside = np.fromiter(hello_at, np.int64)
                    until = np.fromiter(hello_at.values(), np.int64)
                    cut = (sent[:, inside] >= start) & (sent[:, inside] < until)
                    part = arrives[:, inside]
                    part[cut] = NEVER
                    arrives[:, inside] = part
        return arrives

    # what is true at an instant

    def failure_at(self, node: int, at: Instant) -> Failure | None:
        return _covering(self.failures_of[node], at)

    def stall_at(self, node: int, at: Instant) -> Stall | None:
        return _covering(self.stalls_of[node], at)

    def is_cut(self, node: int, at: Instant) -> bool:
        return any(cut.start <= at < cut.end and node in cut.hello_at for cut in self.cuts)

    def after_pause(self, at: Instant) -> Instant:
        """Nobody looks while the observer stands still."""
        return next((pause.end for pause in self.pauses if pause.start <= at < pause.end), at)

    def cause(self, node: int, since: Instant, until: Instant) -> str:
        """Why was this node, which had not failed, not heard?"""
        for cut in self.cuts:
            if cut.start <= until and since <= cut.hello_at.get(node, 0):
                return cut.kind
        if any(pause.start <= until and since <= pause.end for pause in self.pauses):
            return "pause"
        stalls = self.stalls_of[node]
        found = bisect_right(stalls, until, key=lambda stall: stall.start)
        return "stall" if found and stalls[found - 1].end >= since else "loss"


def _chunk(at: Instant) -> int:
    return (at - BEGIN) // (CHUNK * BEAT_MS)


def _by_node(nodes: int, faults: list[Spell]) -> list[list[Spell]]:
    found: list[list[Spell]] = [[] for _ in range(nodes)]
    for fault in faults:
        found[fault.node].append(fault)
    return found


def _covering(faults: list[Spell], at: Instant) -> Spell | None:
    found = bisect_right(faults, at, key=lambda fault: fault.start)
    return faults[found - 1] if found and faults[found - 1].end > at else None


# failures of a real fleet


def lanl(folder: Path) -> Wear | None:
    """Shortened so that a node fails once in `MTBF_MS`; None if the record is not there."""
    down: dict[tuple[str, str, str], list[tuple[datetime, datetime]]] = {}
    for name, rows in tables(folder / "failures", LANL_COLUMNS):
        for row in rows:
            if int(row["nodes"] or 0) >= LANL_NODES_MIN and row["Prob Started"] and row["Prob Fixed"]:
                start, end = (datetime.strptime(row[k], LANL_TIME) for k in ("Prob Started", "Prob Fixed"))
                down.setdefault((name, row["System"], row["nodenum"]), []).append((start, end))
    return _shortened("LANL", *_intervals(down.values())) if down else None


def _intervals(nodes: Iterable[list[tuple[datetime, datetime]]]) -> tuple[list[float], list[float]]:
    """Seconds between two failures of the same node, and of repairs."""
    between: list[float] = []
    repair: list[float] = []
    for spells in nodes:
        spells.sort()
        repair += [(end - start).total_seconds() for start, end in spells if end > start]
        pairs = itertools.pairwise(spells)
        between += [(b[0] - a[1]).total_seconds() for a, b in pairs if b[0] > a[1]]
    return between, repair


def weibull(seed: int) -> Wear:
    chance = np.random.default_rng([seed, 3])
    between = chance.weibull(0.7, 10_000).tolist()
    repair = np.exp(chance.normal(-6.0, 1.3, 10_000)).tolist()
    return _shortened("Weibull 0.7", between, repair)


def _shortened(source: str, between: list[float], repair: list[float]) -> Wear:
    factor = MTBF_MS / float(np.mean(between))
    return Wear(source, [int(b * factor) for b in between], [int(r * factor) for r in repair])
