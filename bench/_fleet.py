"""A fleet and a mix of workloads that look like a real one, without being one."""

import random
from collections.abc import Iterator
from typing import TypeVar

from holdfast.core.placement.placement import Ask
from holdfast.model.node import Node, NodeState
from holdfast.model.place import Level as Domain
from holdfast.model.place import Place
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Room
from holdfast.model.verdict import Evidence, Level, Verdict
from holdfast.model.workload import Needs, Spread

Row = TypeVar("Row", bound=tuple[float, *tuple[object, ...]])

ZONES = 4
NODES_A_RACK = 40
ALIVE = Verdict(level=Level.ALIVE, rule="", evidence=Evidence(), since=0)

# share of the fleet, cpus, GiB, gpus, kind, micro-dollars an hour
MACHINES = (
    (0.40, 64, 256, 0, "", 3_000_000),
    (0.20, 96, 768, 8, "a100", 20_000_000),
    (0.15, 128, 1024, 8, "h100", 40_000_000),
    (0.15, 48, 192, 4, "l4", 4_000_000),
    (0.10, 32, 128, 2, "t4", 1_500_000),
)
# weight, cpus, GiB, gpus, kind
NEEDS = (
    (0.25, 1, 2, 0.0, ""),
    (0.20, 4, 16, 0.0, ""),
    (0.05, 16, 64, 0.0, ""),
    (0.08, 4, 16, 0.25, ""),
    (0.08, 4, 24, 0.5, "l4|t4"),
    (0.16, 8, 48, 1.0, ""),
    (0.08, 10, 80, 1.0, "a100"),
    (0.04, 24, 160, 2.0, "a100|h100"),
    (0.03, 48, 360, 4.0, "h100"),
    (0.03, 90, 700, 8.0, ""),
)
SIZES = ((0.35, 1, 1), (0.35, 2, 8), (0.20, 8, 24), (0.10, 24, 64))
SPREADS = (
    (0.45, Spread.PREFER, Domain.ZONE),
    (0.15, Spread.PREFER, Domain.RACK),
    (0.15, Spread.PREFER, Domain.NODE),
    (0.10, Spread.REQUIRE, Domain.NODE),
    (0.05, Spread.REQUIRE, Domain.RACK),
    (0.10, Spread.NONE, Domain.ZONE),
)


def fleet(size: int) -> Room:
    chance = random.Random(size)
    room = Room(size)
    for number in range(size):
        room.add(_node(number, chance), open_=chance.random() < 0.98)
    return room


def _node(number: int, chance: random.Random) -> Node:
    _, cpus, memory_gib, gpus, kind, price = _pick(MACHINES, chance)
    spot = chance.random() < 0.2
    return Node(
        id=f"node-{number:06d}",
        pool="pool",
        offer=kind or "cpu",
        place=Place("bench", "one", f"zone-{number % ZONES}", f"rack-{number // ZONES // NODES_A_RACK}"),
        capacity=Resources(cpus * 1000, memory_gib * 1024, gpus * GPU, kind),
        price_micro_usd=price // 3 if spot else price,
        spot=spot,
        state=NodeState.READY,
        since=0,
        verdict=ALIVE,
        labels={"disk": "nvme"} if chance.random() < 0.3 else {},
        taints=("batch-only",) if chance.random() < 0.05 else (),
    )


def workloads(chance: random.Random, gpus: int, replicas_max: int) -> Iterator[Ask]:
    """Until half of the GPUs are asked for."""
    asked = replicas = 0.0
    while asked < 0.5 * gpus and replicas < replicas_max:
        ask = _workload(chance)
        asked += ask.count * ask.needs.resources.gpu_milli / GPU
        replicas += ask.count
        yield ask


def _workload(chance: random.Random) -> Ask:
    _, cpus, memory_gib, gpus, kind = _pick(NEEDS, chance)
    _, low, high = _pick(SIZES, chance)
    _, spread, level = _pick(SPREADS, chance)
    needs = Needs(
        resources=Resources(cpus * 1000, memory_gib * 1024, round(gpus * GPU), kind),
        labels={"disk": "nvme"} if chance.random() < 0.1 else {},
        tolerates=("batch-only",) if chance.random() < 0.2 else (),
        spot=chance.random() < 0.6,
        spread=spread,
        spread_over=level,
    )
    return Ask(needs, count=chance.randint(low, high))


def _pick(rows: tuple[Row, ...], chance: random.Random) -> Row:
    return chance.choices(rows, weights=[row[0] for row in rows])[0]
