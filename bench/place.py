"""How fast, and how well, are replicas placed?

Speed: a fleet of 10,000 and one of 100,000 nodes, a mix of workloads of 1 to 64 replicas with spread and GPU
constraints, until half of the GPUs or 25,000 replicas are asked for. Packing: pods drawn at random from a
trace of a real GPU cluster (openb, 1,523 nodes) until 130 % of its GPUs are asked for; the share of GPUs
allocated then, against simpler rules.
"""

import argparse
import random
import statistics
from collections.abc import Iterator
from time import perf_counter

from bench._fleet import fleet, workloads
from bench._packing import RULES, Cluster, allocated, openb, synthetic
from bench._say import say
from holdfast.core.placement import Ask, place
from holdfast.model.room import Room

REPLICAS_MAX = 25_000
SINGLES_MAX = 5_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--large-nodes", type=int, default=100_000, help="0: leave the large fleet out")
    parser.add_argument("--repeats", type=int, default=3, help="of each speed measurement")
    parser.add_argument("--seeds", type=int, default=3, help="of the packing measurement")
    parser.add_argument("--quick", action="store_true", help="leave out the slow rules")


def run(args: argparse.Namespace) -> dict[str, object]:
    measured = _speed(args.nodes, args.repeats)
    if args.large_nodes:
        large = _speed(args.large_nodes, args.repeats)
        measured |= {f"{key}_100k_nodes": value for key, value in large.items()}
    return measured | _packing(args)


def _speed(nodes: int, repeats: int) -> dict[str, object]:
    empty = fleet(nodes)
    asks = list(workloads(random.Random(1), gpus=int(empty.gpu_all.sum()), replicas_max=REPLICAS_MAX))
    singles = [Ask(ask.needs) for ask in asks for _ in range(ask.count)][:SINGLES_MAX]
    random.Random(2).shuffle(singles)
    return _rate("replicas_per_s", empty, asks, repeats) | _rate("single_asks_per_s", empty, singles, repeats)


def _rate(name: str, empty: Room, asks: list[Ask], repeats: int) -> dict[str, object]:
    rates, placed = [], 0
    for _ in range(max(repeats, 1)):
        room = empty.copy()
        start = perf_counter()
        placed = sum(len(place(room, ask)) for ask in asks)
        rates.append(placed / (perf_counter() - start))
    wanted = sum(ask.count for ask in asks)
    return {
        name: round(statistics.median(rates)),
        f"{name}_range": [round(min(rates)), round(max(rates))],
        f"{name}_placed": f"{placed:,} of {wanted:,} asked, in {len(asks):,} asks",
    }


def _packing(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "placement"
    found = (folder / "nodes.csv.gz").exists() and (folder / "pods_default.csv.gz").exists()
    if not found:
        say(f"no trace in {folder}: packing is measured on a synthetic cluster instead")
    cluster = openb(folder) if found else synthetic(random.Random(0))
    rules = [rule for rule in RULES if not (args.quick and rule == "fragmentation gradient")]
    measured: dict[str, object] = {"packing_on": cluster.name}
    for rule in rules:
        shares = list(_shares(cluster, rule, args.seeds))
        measured[f"gpus_allocated_percent_{rule.replace(' ', '_')}"] = {
            "mean": round(statistics.mean(shares), 2),
            "min": round(min(shares), 2),
            "max": round(max(shares), 2),
        }
    return measured


def _shares(cluster: Cluster, rule: str, seeds: int) -> Iterator[float]:
    for seed in range(max(seeds, 1)):
        yield 100 * allocated(cluster, RULES[rule], random.Random(seed))
