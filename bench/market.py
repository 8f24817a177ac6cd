"""How long does it take to decide anew where a thousand workloads would be launched, among 500 offers?

Every offer has a record with a month of lists, launches and losses. A turn: one record has changed, so
nothing that was worked out before is of use; then each workload's offers are ranked and the best one or two
are taken, with their reasons. The workloads are all different (no two ask for the same) or of forty kinds, as
fleets are. A whole turn is more: `decide` for workloads (of forty sizes) that find no room at all, with what
it takes to make seats, look for room, and order. And what it costs to fold one event into a record.

Median of the repeats, with the range: the machine may be shared, so processor time is given too.
"""

import argparse
import statistics
from time import perf_counter, process_time

import numpy as np

from holdfast.core.decide import decide
from holdfast.core.market.offer_history import (
    asked,
    came_up,
    listed,
    preempted,
    refused,
)
from holdfast.core.market.offers import suits
from holdfast.core.market.rank import Ask, hedge, rank
from holdfast.core.state import fold
from holdfast.model.action import LaunchNode
from holdfast.model.event import PoolApplied, WorkloadApplied
from holdfast.model.market import OfferRecord, key_of
from holdfast.model.offer_table import Table
from holdfast.model.place import Place
from holdfast.model.policy import CapacityPolicy, Policy
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import DAY, HOUR, MINUTE
from holdfast.model.workload import Needs, Service, Workload
from holdfast.model.world import World

NOW = 1_700_000_000_000
GPUS = ("h100", "a100", "l40s", "t4")
KINDS_OF_WORKLOAD = 40


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", type=int, default=1_000)
    parser.add_argument("--offers", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=9)


def run(args: argparse.Namespace) -> dict[str, object]:
    table, records, fold_us = _market(args.offers)
    different = _workloads(args.workloads, args.workloads)
    alike = _workloads(args.workloads, KINDS_OF_WORKLOAD)
    measured: dict[str, object] = {"offers": len(records), "workloads": args.workloads}
    for name, workloads in (("replan_ms", different), ("replan_alike_ms", alike)):
        took = [
            _replan(table, records[repeat % len(records)], repeat, workloads)
            for repeat in range(args.repeats)
        ]
        for kind, times in zip((name, f"{name}_cpu"), zip(*took, strict=True), strict=True):
            measured[kind] = round(statistics.median(times), 1)
            measured[f"{kind}_range"] = [round(min(times), 1), round(max(times), 1)]
    turns = [_turn(args.workloads, args.offers) for _ in range(min(3, args.repeats))]
    for kind, times in zip(("turn_ms", "turn_ms_cpu"), zip(*turns, strict=True), strict=True):
        measured[kind] = round(statistics.median(times), 1)
        measured[f"{kind}_range"] = [round(min(times), 1), round(max(times), 1)]
    return measured | {"fold_us": round(fold_us, 1)}


def _turn(workloads: int, offers: int) -> tuple[float, float]:
    """The first turn in which seats without room order their nodes."""
    world = World(Policy(capacity=CapacityPolicy(launches_at_once=workloads)))
    made = tuple(
        Offer(
            f"o{number}",
            Place("p", "r", f"z{number % 7}", f"k{number}"),
            Resources(4_000 + 1_000 * (number % 9), 16_384),
            500_000 + 7_919 * number % 400_000,
            number % 2 == 0,
        )
        for number in range(offers)
    )
    fold.observe(world, PoolApplied(at=NOW, pool=Pool("pool", "p", made, max=workloads)))
    for number in range(workloads):
        needs = Needs(Resources(1_000 + 100 * (number % KINDS_OF_WORKLOAD), 512))
        wanted = Workload(f"w{number}", Service(1), needs)
        fold.observe(world, WorkloadApplied(at=NOW, workload=wanted))
    fold.accept(world, decide(world, NOW))
    start, cpu = perf_counter(), process_time()
    plan = decide(world, NOW + 1)
    took = 1000 * (perf_counter() - start), 1000 * (process_time() - cpu)
    if not any(isinstance(action, LaunchNode) for action in plan.actions):
        raise ValueError("nothing was ordered")
    return took


def _replan(
    table: Table, changed: OfferRecord, repeat: int, workloads: list[tuple[Needs, Ask]]
) -> tuple[float, float]:
    """Milliseconds, by the clock and of the processor."""
    now = NOW + repeat * MINUTE
    start, cpu = perf_counter(), process_time()
    table.note(refused(changed, now))
    launched = [hedge(rank(table, ask, now, suits(table, needs))) for needs, ask in workloads]
    took = 1000 * (perf_counter() - start), 1000 * (process_time() - cpu)
    if not all(launched):
        raise ValueError("a workload found no offer")
    return took


def _market(offers: int) -> tuple[Table, list[OfferRecord], float]:
    dice = np.random.default_rng(1)
    table, records, folds, took = Table(), [], 0, 0.0
    for number in range(offers):
        place = Place(f"p{number % 24}", f"r{number % 5}", f"z{number % 3}")
        gpus = int(dice.choice([1, 2, 4, 8]))
        capacity = Resources(8000 * gpus, 65_536 * gpus, gpus * GPU, GPUS[number % len(GPUS)])
        offer = Offer(
            f"o{number}", place, capacity, int(dice.integers(500_000, 4_000_000)) * gpus, number % 2 == 0
        )
        record = OfferRecord(key_of("pool", offer.name))
        start = perf_counter()
        for look in range(100):
            record = listed(record, NOW - 30 * DAY + look * 7 * HOUR, bool(dice.random() < 0.7), 1 + look)
        record = came_up(asked(record, NOW - DAY), NOW - DAY, 2 * MINUTE)
        record = preempted(record, NOW - HOUR, 20 * HOUR)
        took, folds = took + perf_counter() - start, folds + 103
        table.put(Pool("pool", place.provider, (offer,)), offer, record)
        records.append(record)
    return table, records, 1e6 * took / folds


def _workloads(count: int, kinds: int) -> list[tuple[Needs, Ask]]:
    found = []
    for number in range(count):
        kind = number % kinds
        gpu = GPU * (1, 1, 2, 4)[kind % 4]
        needs = Needs(Resources(1000 + kind, 1024, gpu, GPUS[kind % 3] if kind % 5 else ""))
        ask = Ask(wanted_ms=HOUR + kind * MINUTE, loss_ms=10 * MINUTE, wait_micro_usd=100_000)
        found.append((needs, ask))
    return found
