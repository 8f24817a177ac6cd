"""A service on spot in zones whose capacity was recorded: who holds which nodes when, and what they cost.

The record says by zone and step how many spot nodes can be had. Life goes on in ticks of 30 s within a step.
At the start of a step a zone takes away what is more than it has, the newest first, without notice. A launch
in a zone that has no more is refused at once and at no cost; a policy decides every tick, and may try each
zone until it is refused. Spot or on demand, a node is paid from its launch and is ready after the cold start.
What a zone has is not seen, except by trying.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import msgspec
import numpy as np

from bench._records import objects

WANTED = 3
COLD_START_S = 120
TICK_S = 30
ON_DEMAND_PRICE = 3.0  # spot is 1
ON_DEMAND = -1


class Record(NamedTuple):
    """`has[zone][step]`: how many spot nodes can be had."""

    name: str
    step_s: int
    has: list[list[int]]

    @property
    def seconds(self) -> int:
        return self.step_s * min(len(row) for row in self.has)


class Node(msgspec.Struct, eq=False):
    zone: int  # or ON_DEMAND
    ready_at: int


class Held:
    """The nodes of one service, oldest first."""

    def __init__(self, zones: int) -> None:
        self.nodes: list[Node] = []
        self.has = [0] * zones
        self.now = 0

    def spot(self) -> list[Node]:
        return [node for node in self.nodes if node.zone != ON_DEMAND]

    def on_demand(self) -> list[Node]:
        return [node for node in self.nodes if node.zone == ON_DEMAND]

    def in_zone(self, zone: int) -> int:
        return sum(node.zone == zone for node in self.nodes)

    def is_ready(self, node: Node) -> bool:
        return node.ready_at <= self.now

    def try_spot(self, zone: int) -> bool:
        if self.in_zone(zone) >= self.has[zone]:
            return False
        self.nodes.append(Node(zone, self.now + COLD_START_S))
        return True

    def launch_on_demand(self) -> None:
        self.nodes.append(Node(ON_DEMAND, self.now + COLD_START_S))

    def let_go(self, node: Node) -> None:
        self.nodes.remove(node)

    def step(self, has: list[int]) -> Counter[int]:
        """What the zones take away now."""
        self.has, lost = has, Counter[int]()
        for zone, most in enumerate(has):
            for node in [node for node in self.nodes if node.zone == zone][most:]:
                self.nodes.remove(node)
                lost[zone] += 1
        return lost


class Policy(Protocol):
    def act(self, held: Held, lost: Counter[int]) -> None: ...


class Outcome(NamedTuple):
    availability_pct: float
    cost_pct: float


def follow(record: Record, policy: Policy, begin_s: int = 0, seconds: int | None = None) -> Outcome:
    held, enough, paid, ticks, last = Held(len(record.has)), 0, 0.0, 0, -1
    end = begin_s + (record.seconds - begin_s if seconds is None else seconds)
    for now in range(begin_s, end, TICK_S):
        held.now, step, lost = now, now // record.step_s, Counter[int]()
        if step != last:
            lost, last = held.step([row[step] for row in record.has]), step
        policy.act(held, lost)
        enough += sum(held.is_ready(node) for node in held.nodes) >= WANTED
        paid += sum(ON_DEMAND_PRICE if node.zone == ON_DEMAND else 1.0 for node in held.nodes)
        ticks += 1
    return Outcome(100 * enough / ticks, 100 * paid / ticks / (WANTED * ON_DEMAND_PRICE))


def oracle(record: Record) -> Outcome:
    """Less than this nobody pays who is never short: whoever knows the record launches a cold start ahead,
    holds spot wherever it will be, on demand for the rest, and changes between zones for nothing."""
    has = np.array([row[: record.seconds // record.step_s] for row in record.has])
    ticks = np.arange(record.seconds // TICK_S) * TICK_S
    launched = has[:, np.maximum(0, ticks - COLD_START_S) // record.step_s]
    ready = np.minimum(WANTED, np.minimum(launched, has[:, ticks // record.step_s]).sum(axis=0))
    grown = np.clip(np.diff(ready), 0, None).sum(), np.clip(-np.diff(ready), 0, None).sum()
    cold = (grown[0] + grown[1] * ON_DEMAND_PRICE) * COLD_START_S / TICK_S
    paid = ready.sum() + (WANTED - ready).sum() * ON_DEMAND_PRICE + cold
    return Outcome(100.0, 100 * float(paid) / len(ticks) / (WANTED * ON_DEMAND_PRICE))


# the records


def records(folder: Path) -> Iterator[Record]:
    """Every record in the folder, whatever its file is called."""
    for name, found in objects(folder, ".json", ("step_s", "zones")):
        for record in found:
            zones = cast(dict[str, list[int]], record["zones"])
            step_s = round(cast(float, record["step_s"]))
            yield Record(str(record.get("set", name)), step_s, [zones[zone] for zone in sorted(zones)])


def synthetic(seed: int, days: float = 6.0) -> Iterator[Record]:
    """Where there are no records: a few large zones, some small ones, and many that have one node or none."""
    dice = np.random.default_rng(seed)
    for name, zones, most, step_s in (
        ("made-large", 3, 16, 300),
        ("made-small", 4, 4, 300),
        ("made-ones", 9, 1, 195),
    ):
        steps = round(days * 86_400 / step_s)
        yield Record(name, step_s, [_made(dice, steps, most, step_s) for _ in range(zones)])


def _made(dice: np.random.Generator, steps: int, most: int, step_s: int) -> list[int]:
    """A zone that comes and goes at rates of its own, in ramps of a few steps, not always to the full."""
    means_h = np.exp(dice.uniform(np.log((0.5, 2.0)), np.log((8.0, 24.0))))  # away, there
    row: list[int] = []
    there, level = bool(dice.random() < means_h[1] / means_h.sum()), 0.0
    while len(row) < steps:
        ramp = most / dice.integers(1, 6)
        top = most if dice.random() < 0.6 else int(dice.integers(1, most + 1))
        for _ in range(max(1, round(dice.exponential(means_h[int(there)]) * 3600 / step_s))):
            level += float(np.clip((top if there else 0) - level, -ramp, ramp))
            row.append(round(level))
        there = not there
    return row[:steps]
