"""A large world, made as a real one is: every node said hello, every replica was placed by a turn of the
loop.

So all indexes, dues and heard-at times are what they would be in life.
"""

import random
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from holdfast.core.turn import Append, Entry, Mind, turn
from holdfast.model import event as ev
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.replica import State
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import SECOND, Instant
from holdfast.model.workload import Job, Needs, Service, Shape, Spread, Training, Workload
from holdfast.model.world import World

ZONES = 4
NODES_A_RACK = 40
START: Instant = 1_000 * SECOND
STEP_MS = 10  # between two turns while the world is being made
TURNS_MAX = 200

MACHINES = (
    Resources(cpu_milli=32_000, memory_mib=128 * 1024),
    Resources(cpu_milli=32_000, memory_mib=128 * 1024),
    Resources(cpu_milli=64_000, memory_mib=512 * 1024, gpu_milli=8 * GPU, gpu_kind="a100"),
)
# weight, cpus, GiB, gpus
NEEDS = ((0.50, 1, 2, 0), (0.25, 2, 8, 0), (0.10, 4, 16, 0), (0.13, 4, 24, 1), (0.02, 16, 96, 4))


class Bench:
    """A leader's mind, its clock, and the nodes in the order of their rows."""

    def __init__(self, nodes: int, replicas: int, seed: int = 1) -> None:
        self.now = START
        self.journal: list[Entry] = []
        self.mind = Mind(World())
        self.dice = random.Random(seed)
        self.names = [f"node-{number:06d}" for number in range(nodes)]
        self._run([ev.LeaderChanged(at=self.now, leader="bench", generation=1)])
        self._run(self._nodes())
        self._run([ev.WorkloadApplied(at=self.now, workload=w) for w in workloads(self.dice, replicas)])
        self.settle()

    @property
    def world(self) -> World:
        return self.mind.world

    def rows(self) -> NDArray[np.int64]:
        return np.array(list(self.mind.senses.beats.row.values()), np.int64)

    def beat(self, rows: NDArray[np.int64]) -> None:
        """These were heard just now."""
        self.mind.senses.beats.beat(rows, np.full(len(rows), self.now, np.int64))

    def settle(self) -> None:
        """Turns until nothing is left to do, while agents start whatever they are given."""
        for _ in range(TURNS_MAX):
            self._run([])
            placed = [r for r in self.world.replicas.values() if r.state in (State.PLACED, State.STARTING)]
            if not placed and self.world.agenda.quiet(self.now):
                return
            at = self.now
            self._run([ev.ReplicaStarted(at=at, replica=r.id, node=r.node) for r in placed])
            self._run([ev.ReplicaReady(at=self.now, replica=r.id, node=r.node) for r in placed])
        raise RuntimeError("the world does not come to rest")

    def _run(self, inbox: list[ev.Event]) -> None:
        for step in turn(self.mind, inbox, self.now):
            if isinstance(step, Append):
                self.journal.extend(step.entries)
        self.now += STEP_MS

    def _nodes(self) -> list[ev.Event]:
        """A pool of a few offers; each node tells its own rack."""
        offers = [_offer(zone, kind) for zone in range(ZONES) for kind in range(len(MACHINES))]
        size = len(self.names)
        pool = Pool(name="pool", provider="bench", offers=tuple(offers), min=size, max=2 * size)
        hellos: list[ev.Event] = []
        for number, name in enumerate(self.names):
            offer = offers[number % len(offers)]
            rack = f"rack-{number // len(offers) // (NODES_A_RACK // len(MACHINES))}"
            place = replace(offer.place, rack=rack)
            hello = ev.NodeJoined(
                at=self.now, node=name, pool="pool", offer=offer.name, place=place, capacity=offer.capacity
            )
            hellos.append(hello)
        return [ev.PoolApplied(at=self.now, pool=pool), *hellos]


def _offer(zone: int, kind: int) -> Offer:
    place = Place("bench", "one", f"zone-{zone}", "rack-0")
    return Offer(f"zone-{zone}-{kind}", place, MACHINES[kind], 1_000_000 * (1 + kind))


def workloads(dice: random.Random, replicas: int) -> Iterator[Workload]:
    made = number = 0
    while made < replicas:
        shape, size = _shape(dice, replicas - made)
        _, cpus, gib, gpus = dice.choices(NEEDS, weights=[row[0] for row in NEEDS])[0]
        yield Workload(
            name=f"w{number}",
            shape=shape,
            needs=Needs(
                resources=Resources(cpus * 1000, gib * 1024, gpus * GPU),
                spread=dice.choice((Spread.PREFER, Spread.PREFER, Spread.NONE)),
            ),
            priority=dice.choice((0, 0, 5)),
        )
        made, number = made + size, number + 1


def _shape(dice: random.Random, most: int) -> tuple[Shape, int]:
    """Most workloads are small; a few hold much of the fleet."""
    kind = dice.random()
    if kind < 0.60:
        size = min(most, dice.choice((1, 2, 3, 3, 5, 8, 20, 60)))
        return Service(size), size
    if kind < 0.90:
        return Job(), 1
    size = min(most, dice.choice((4, 8, 16)))
    return Training(size, size), size
