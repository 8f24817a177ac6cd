"""How full does a cluster get?

Pods are drawn with replacement until 130 % of the GPUs have been asked for; what does not fit is turned away.
The method and the trace are those of Weng et al., USENIX ATC 2023.

A rule looks at the rows where the pod may be and fits, and says which to use; all rules have the
same rows (kind, taints and the like) and the same pods in the same order. Ours is the product's own `place`.
"Fragmentation gradient" is that paper's rule written from its description, with the trace itself as the task
mix (the ten commonest kinds of pod).
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from bench._fleet import ALIVE, fleet
from bench._records import tables
from holdfast.core.placement.placement import (
    Ask,
    allowed,
    fitting,
    place,
)
from holdfast.model.node import Node, NodeState
from holdfast.model.place import Place
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Ints, Room
from holdfast.model.workload import Needs, Spread

ASKED_SHARE = 1.3
MIX_CLASSES = 10


class Cluster(NamedTuple):
    name: str
    empty: Room
    pods: list[Resources]


Rule = Callable[[Room, Resources, Cluster, random.Random], bool]  # places one pod, or says that it cannot


def recorded(folder: Path) -> Iterator[Cluster]:
    """Every list of pods in the folder on every list of nodes, whatever their files are called."""
    for nodes, machines in tables(folder, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        room = Room(2048)
        for line in machines:
            kind = line["model"] if int(line["gpu"]) else ""
            capacity = Resources(
                int(line["cpu_milli"]), int(line["memory_mib"]), int(line["gpu"]) * GPU, kind
            )
            room.add(_node(line["sn"], capacity), open_=True)
        gpus = int(room.gpu_all.sum())
        size = f"{len(room.row):,} nodes, {gpus:,} GPUs"
        for name, asked in tables(folder, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")):
            pods = [_pod(line) for line in asked]
            yield Cluster(f"{nodes}, {name}: {size}, {len(pods):,} pods", room, pods)


def _pod(line: dict[str, str]) -> Resources:
    gpu_milli = int(line["num_gpu"]) * int(line["gpu_milli"])
    return Resources(int(line["cpu_milli"]), int(line["memory_mib"]), gpu_milli, line["gpu_spec"].strip("|"))


def synthetic(chance: random.Random, nodes: int = 600, kinds: int = 60) -> Cluster:
    """CPU demands that do not divide the machines evenly, as in real clusters: that is what strands GPUs."""
    found = []
    for _ in range(kinds):
        gpu_milli = chance.choice([200, 300, 500, 800, 1000, 1000, 1000, 1000, 2000, 4000, 8000])
        cpu_milli = round(chance.choice([2, 4, 8, 11, 12, 16]) * 1000 * max(gpu_milli, 500) / 1000)
        found.append(Resources(min(cpu_milli, 96_000), min(4 * cpu_milli, 393_216), gpu_milli))
    pods = [chance.choice(found) for _ in range(4000)]
    return Cluster(f"a synthetic cluster of {nodes} nodes", fleet(nodes), pods)


def _node(name: str, capacity: Resources) -> Node:
    return Node(
        id=name,
        pool="openb",
        offer="openb",
        place=Place("openb"),
        capacity=capacity,
        price_micro_usd=0,
        spot=False,
        state=NodeState.READY,
        since=0,
        verdict=ALIVE,
    )


def allocated(cluster: Cluster, rule: Rule, chance: random.Random) -> float:
    """The share of the cluster's GPUs in use when it is full. GPUs that no pod may use do not count."""
    room = cluster.empty.copy()
    total = int(room.gpu_free[room.open & allowed(room, Needs())].sum())
    order = random.Random(chance.random())  # what is asked does not depend on what the rule draws
    asked = used = 0
    while asked < ASKED_SHARE * total:
        pod = order.choice(cluster.pods)
        asked += pod.gpu_milli
        if rule(room, pod, cluster, chance):
            used += pod.gpu_milli
    return used / total


def ours(room: Room, pod: Resources, cluster: Cluster, chance: random.Random) -> bool:
    return bool(place(room, _ask(pod)))


def _ask(pod: Resources) -> Ask:
    return Ask(Needs(pod, spread=Spread.NONE))


def by(score: Callable[[Room, Resources, Ints, Cluster, random.Random], Ints]) -> Rule:
    """The rule that takes the row with the lowest score."""

    def rule(room: Room, pod: Resources, cluster: Cluster, chance: random.Random) -> bool:
        rows = np.flatnonzero(fitting(room, _ask(pod), standby=False))
        if not len(rows):
            return False
        row = int(rows[np.argmin(score(room, pod, rows, cluster, chance))])
        room.take(row, pod, room.pick_devices(row, pod.gpu_milli))
        return True

    return rule


def _random(room: Room, pod: Resources, rows: Ints, cluster: Cluster, chance: random.Random) -> Ints:
    return np.roll(np.arange(len(rows)), chance.randrange(len(rows)))


def _first(room: Room, pod: Resources, rows: Ints, cluster: Cluster, chance: random.Random) -> Ints:
    return rows


def _left_over(room: Room, pod: Resources, rows: Ints, cluster: Cluster, chance: random.Random) -> Ints:
    """Best fit: the least of everything left, each against the largest node."""
    left = room.cpu[rows] / room.cpu_all.max() + room.memory[rows] / room.memory_all.max()
    return cast(
        Ints, np.rint(1e9 * (left + room.gpu_free[rows] / (GPU * room.gpu_all.max()))).astype(np.int64)
    )


def _dot_product(room: Room, pod: Resources, rows: Ints, cluster: Cluster, chance: random.Random) -> Ints:
    cpu, memory, gpu = room.cpu_all.max(), room.memory_all.max(), GPU * room.gpu_all.max()
    dot = room.cpu[rows] / cpu * pod.cpu_milli / cpu
    dot = dot + room.memory[rows] / memory * pod.memory_mib / memory
    return cast(
        Ints, np.rint(1e12 * (dot + room.gpu_free[rows] / gpu * pod.gpu_milli / gpu)).astype(np.int64)
    )


def _gradient(room: Room, pod: Resources, rows: Ints, cluster: Cluster, chance: random.Random) -> Ints:
    """The rise of the expected fragment; among equals the node with the fewest free GPUs."""
    mix = Counter(cluster.pods).most_common(MIX_CLASSES)
    cpu, memory, devices = room.cpu[rows], room.memory[rows], room.devices[rows]
    after = _with_pod(devices, pod.gpu_milli)
    rise = _fragment(cpu - pod.cpu_milli, memory - pod.memory_mib, after, mix)
    rise = rise - _fragment(cpu, memory, devices, mix)
    return cast(Ints, (rise << 20) + devices.sum(1))


def _with_pod(devices: Ints, gpu_milli: int) -> Ints:
    after = devices.copy()
    if gpu_milli >= GPU:
        whole = after == GPU
        after[whole & (whole.cumsum(1) <= gpu_milli // GPU)] = 0
    elif gpu_milli:
        tightest = np.where(after >= gpu_milli, after, 2 * GPU).argmin(1)
        after[np.arange(len(after)), tightest] -= gpu_milli
    return after


def _fragment(cpu: Ints, memory: Ints, devices: Ints, mix: list[tuple[Resources, int]]) -> Ints:
    """Free GPU that a pod drawn from the mix could not use, times the size of the mix."""
    free, whole, largest = devices.sum(1), (devices == GPU).sum(1), devices.max(1)
    total = np.zeros(len(cpu), np.int64)
    for pod, weight in mix:
        if pod.gpu_milli >= GPU:
            useless, fits = free - whole * GPU, whole >= pod.gpu_milli // GPU
        else:
            useless = np.where(devices < pod.gpu_milli, devices, 0).sum(1)
            fits = largest >= max(pod.gpu_milli, 1)
        fits = fits & (cpu >= pod.cpu_milli) & (memory >= pod.memory_mib) & bool(pod.gpu_milli)
        total += weight * np.where(fits, useless, free)
    return total


RULES: dict[str, Rule] = {
    "ours": ours,
    "fragmentation gradient": by(_gradient),
    "first fit": by(_first),
    "best fit": by(_left_over),
    "dot product": by(_dot_product),
    "random fit": by(_random),
}
SIMPLE = ("first fit", "best fit", "dot product", "random fit")
