"""How fast, and how well, are replicas placed?

Speed: a fleet of 10,000 and one of 100,000 nodes, a mix of workloads of 1 to 64 replicas with spread and GPU
constraints, until half of the GPUs or 25,000 replicas are asked for. Packing: pods drawn at random from a
trace of a real GPU cluster (openb, 1,523 nodes) until 130 % of its GPUs are asked for; the share of GPUs
allocated then, against simpler rules. The same on made-up clusters (`packing_more`), and on draws from
families of mixes that strain a rule in different ways (`packing_mixes`, `bench/_mixes.py`).
"""

import argparse
import math
import random
import statistics
from collections.abc import Iterator
from time import perf_counter

from bench._fleet import fleet, workloads
from bench._mixes import FAMILIES, mix
from bench._packing import RULES, SIMPLE, Cluster, allocated, recorded, synthetic
from bench._records import source
from bench._say import say
from holdfast.core.placement.placement import Ask, place
from holdfast.model.room import Room

REPLICAS_MAX = 25_000
SINGLES_MAX = 5_000
SYNTHETIC_SEEDS = (1, 5, 9)
FIRST_MIX = 1_000  # the rule was chosen on seeds below


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--large-nodes", type=int, default=100_000, help="0: leave the large fleet out")
    parser.add_argument("--repeats", type=int, default=3, help="of each speed measurement")
    parser.add_argument("--seeds", type=int, default=3, help="of the packing measurement")
    parser.add_argument("--mixes", type=int, default=20, help="draws of each made-up mix of pods; 0: none")
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
    found = list(recorded(folder))
    if not found:
        say(f"no nodes and pods in {folder}: packing is measured on made-up clusters only")
    made_up = [synthetic(random.Random(seed)) for seed in SYNTHETIC_SEEDS]
    clusters = [*found, *made_up]
    rules = [rule for rule in RULES if not (args.quick and rule == "fragmentation gradient")]
    measured = [_on(cluster, rules, args.seeds) for cluster in clusters]
    return {
        **source(recorded=bool(found)),
        **measured[0],
        "packing_more": measured[1:],
        "packing_mixes": {name: _mix(name, rules, args.mixes) for name in FAMILIES if args.mixes},
    }


def _on(cluster: Cluster, rules: list[str], seeds: int) -> dict[str, object]:
    measured: dict[str, object] = {"packing_on": cluster.name}
    for rule in rules:
        shares = list(_shares(cluster, rule, seeds))
        measured[f"gpus_allocated_percent_{rule.replace(' ', '_')}"] = {
            "mean": round(statistics.mean(shares), 2),
            "min": round(min(shares), 2),
            "max": round(max(shares), 2),
        }
    return measured


def _shares(cluster: Cluster, rule: str, seeds: int) -> Iterator[float]:
    for seed in range(max(seeds, 1)):
        yield 100 * allocated(cluster, RULES[rule], random.Random(seed))


def _mix(name: str, rules: list[str], draws: int) -> dict[str, object]:
    """The mean of each rule over the draws, and by how much ours is ahead of the best simple one, with twice
    the standard error of that."""
    drawn = [mix(name, seed) for seed in range(FIRST_MIX, FIRST_MIX + draws)]
    shares = {
        rule: [100 * allocated(each, RULES[rule], random.Random(seed)) for seed, each in enumerate(drawn)]
        for rule in rules
    }
    means = {rule: statistics.mean(found) for rule, found in shares.items()}
    best = max((rule for rule in rules if rule in SIMPLE), key=means.__getitem__)
    ahead = [a - b for a, b in zip(shares["ours"], shares[best], strict=True)]
    error = statistics.stdev(ahead) / math.sqrt(draws) if draws > 1 else 0.0
    lead = {"ahead": round(statistics.mean(ahead), 2), "noise": round(2 * error, 2)}
    return {**{rule.replace(" ", "_"): round(mean, 2) for rule, mean in means.items()}, **lead}
