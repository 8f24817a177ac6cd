"""Made-up clusters and the pods that are asked of them, in families that strain placement in many ways.

A family fixes what is typical (shares of GPUs, much CPU for each GPU, whole machines, ...); a seed draws the
machines, the classes of pods and how often each class is asked for. Nothing is drawn from a recorded cluster.
"""

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from bench._fleet import ALIVE
from bench._packing import Cluster
from holdfast.model.node import Node, NodeState
from holdfast.model.place import Place
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Room

PODS: Final = 2000
GIB: Final = 1024


class Shape(NamedTuple):
    """A kind of machine."""

    cpus: int
    memory_gib: int
    gpus: int
    kind: str = ""


class Family(NamedTuple):
    machines: tuple[Shape, ...]
    machine_kinds: tuple[int, int] = (1, 3)  # so many of the machines are drawn
    gpus: tuple[int, ...] = (200, 300, 500, 800, 1000, 1000, 1000, 1000, 2000, 4000, 8000)  # thousandths
    no_gpu: float = 0.0  # share of the classes that ask for no GPU
    cpus_a_gpu: tuple[float, float] = (2, 12)
    gib_a_cpu: tuple[float, float] = (2, 6)
    particular: float = 0.0  # share of the classes that ask for one kind of GPU
    classes: tuple[int, int] = (8, 60)
    skew: float = 0.0  # of how often a class is asked for: weight 1 / rank ** skew


A100 = Shape(96, 768, 8, "a100")
H100 = Shape(128, 1024, 8, "h100")
L4 = Shape(48, 192, 4, "l4")
T4 = Shape(32, 128, 2, "t4")
SMALL = Shape(16, 64, 1, "l4")
CPUS = Shape(64, 256, 0)
LEAN = Shape(64, 512, 8, "a100")
ALL = (A100, H100, L4, T4, SMALL, LEAN)
SHARES = (100, 200, 250, 300, 400, 500, 600, 700, 800, 900)

FAMILIES: Final[dict[str, Family]] = {
    "as the fleet": Family((A100, H100, L4, T4), (4, 4)),
    "mixed machines": Family(ALL, (2, 5)),
    "one machine": Family(ALL, (1, 1)),
    "shares": Family(ALL, gpus=(*SHARES, 1000)),
    "shares and wholes": Family(ALL, gpus=(*SHARES, *[1000] * 5, *[2000] * 3, *[4000] * 2)),
    "cpu heavy": Family(ALL, cpus_a_gpu=(8, 24)),
    "memory heavy": Family(ALL, gib_a_cpu=(6, 16)),
    "cpu light": Family(ALL, cpus_a_gpu=(0.5, 4)),
    "cpu and gpu work": Family((*ALL, CPUS), (2, 5), no_gpu=0.4),
    "whole machines": Family(
        (A100, H100, LEAN), gpus=(1000, 2000, 4000, 8000, 8000, 8000), cpus_a_gpu=(2, 10)
    ),
    "powers of two": Family(ALL, gpus=(1000, 2000, 4000, 8000)),
    "odd counts": Family(ALL, gpus=(1000, 2000, 3000, 5000, 6000, 7000)),
    "particular kinds": Family(ALL, (3, 5), particular=0.5),
    "skewed": Family(ALL, classes=(20, 60), skew=1.5),
    "few classes": Family(ALL, classes=(2, 5)),
}


def mixes(seeds: Iterator[int] | range, nodes: int = 100) -> Iterator[tuple[str, int, Cluster]]:
    for name in FAMILIES:
        for seed in seeds:
            yield name, seed, mix(name, seed, nodes)


def mix(name: str, seed: int, nodes: int = 100) -> Cluster:
    family, chance = FAMILIES[name], random.Random(f"{name} {seed}")
    shapes = chance.sample(family.machines, min(len(family.machines), chance.randint(*family.machine_kinds)))
    if not any(shape.gpus for shape in shapes):
        shapes.append(A100)
    weights = [chance.uniform(0.2, 1) for _ in shapes]
    room = Room(nodes)
    for number in range(nodes):
        shape = chance.choices(shapes, weights)[0] if number >= len(shapes) else shapes[number]
        room.add(_node(number, shape), open_=True)
    classes = [_pod(family, shapes, chance) for _ in range(chance.randint(*family.classes))]
    if not any(pod.gpu_milli for pod in classes):
        classes.append(Resources(4000, 16 * GIB, GPU))
    often = [1 / (rank + 1) ** family.skew for rank in range(len(classes))]
    return Cluster(f"{name}, seed {seed}", room, chance.choices(classes, often, k=PODS))


def _pod(family: Family, shapes: list[Shape], chance: random.Random) -> Resources:
    """Something that at least one of the machines could hold."""
    fed = [shape for shape in shapes if shape.gpus]
    gpu_milli = 0 if chance.random() < family.no_gpu else chance.choice(family.gpus)
    gpu_milli = min(gpu_milli, max(shape.gpus for shape in fed) * GPU)
    able = [shape for shape in (fed if gpu_milli else shapes) if shape.gpus * GPU >= gpu_milli]
    host = chance.choice(able)
    cpus = chance.uniform(*family.cpus_a_gpu) * max(gpu_milli, 250) / GPU
    cpus = max(1, min(round(cpus), host.cpus))
    memory = max(1, min(round(cpus * chance.uniform(*family.gib_a_cpu)), host.memory_gib))
    kind = host.kind if gpu_milli and chance.random() < family.particular else ""
    return Resources(cpus * 1000, memory * GIB, gpu_milli, kind)


def _node(number: int, shape: Shape) -> Node:
    return Node(
        id=f"node-{number:04d}",
        pool="made-up",
        offer=shape.kind or "cpu",
        place=Place("made-up"),
        capacity=Resources(shape.cpus * 1000, shape.memory_gib * GIB, shape.gpus * GPU, shape.kind),
        price_micro_usd=0,
        spot=False,
        state=NodeState.READY,
        since=0,
        verdict=ALIVE,
    )
