"""How much simulated life fits into a second?

A fleet of 1,000 nodes for 24 hours on one core: services, jobs, sweeps and trainings fill about half of it,
each node fails about once in 30 days, a training node a little more often by its program, and now and then a
rack or a zone is cut off. History is off, as in a sweep; every safety check is on, as always.
"""

import argparse
from time import perf_counter

from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND, Millis
from holdfast.model.workload import Job, Needs, Restart, Service, Sweep, Training, Workload
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    Between,
    Fault,
    PoolSetup,
    Program,
    Scenario,
    Trouble,
    WorkloadSetup,
)

MTBF_MS = 30 * DAY
ZONES = ("a", "b", "c")
RACKS = 8
CPU = Resources(cpu_milli=32_000, memory_mib=128 * 1024)
GPUS = Resources(cpu_milli=64_000, memory_mib=512 * 1024, gpu_milli=8 * GPU, gpu_kind="a100")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)


def run(args: argparse.Namespace) -> dict[str, object]:
    story = scenario(args.nodes, int(args.hours * HOUR), args.seed)
    start = perf_counter()
    result = Simulation(story, history=False).run()
    took = perf_counter() - start
    return {
        "seconds": round(took, 2),
        "node_hours_per_s": round(result.node_hours / took),
        "violations": len(result.violations),
        "violations_first": list(result.violations[:3]),
        "unmet": list(result.unmet[:3]),
        "nodes_lost": result.nodes_lost,
        "false_failovers": result.false_failovers,
        "turns": result.turns,
        "turn_us": round(1e6 * took / max(1, result.turns), 1),
        "journal_entries": result.journal_entries,
        "world": f"{args.nodes:,} nodes, {args.hours:g} h, {sum(w.slots for w in result.workloads):,} slots",
    }


def scenario(nodes: int, lasts_ms: Millis, seed: int) -> Scenario:
    return Scenario(
        name="bench",
        seed=seed,
        lasts_ms=lasts_ms,
        pools=(_pool("cpu", nodes - nodes // 3, CPU), _pool("gpu", nodes // 3, GPUS)),
        workloads=tuple(_workloads(nodes, lasts_ms)),
        troubles=tuple(_cuts(lasts_ms)),
    )


def _pool(name: str, nodes: int, capacity: Resources) -> PoolSetup:
    offers = tuple(
        Offer(f"{name}-{zone}{rack}", Place("east", "one", zone, f"{zone}{rack}"), capacity, 1_000_000)
        for zone in ZONES
        for rack in range(RACKS)
    )
    pool = Pool(name=name, provider="east", offers=offers, min=nodes, max=nodes + nodes // 5 + 2)
    return PoolSetup(pool, nodes, mtbf_ms=MTBF_MS)


def _workloads(nodes: int, lasts_ms: Millis) -> list[WorkloadSetup]:
    """About one replica a node in services, and a third of the GPUs in trainings."""
    tenth = max(1, nodes // 10)
    found = [_service(f"web{number}", max(2, tenth)) for number in range(8)]
    found.append(_service("ranker", max(2, tenth // 2), standby=2))
    for number in range(max(1, nodes // 60)):
        shape = Training(3, 4, standby=number % 2)
        training = Workload(f"train{number}", shape, _needs(16, 8), checkpoint_ms=10 * MINUTE)
        found.append(WorkloadSetup(training, Program(start_ms=20 * SECOND, crash_every_ms=12 * HOUR)))
    for number in range(max(2, nodes // 20)):
        job = Workload(
            f"job{number}", Job(), _needs(4, 1), restart=Restart(limit=1000), checkpoint_ms=5 * MINUTE
        )
        starts = number * (lasts_ms // 2) // max(2, nodes // 20)
        found.append(WorkloadSetup(job, Program(run_ms=2 * HOUR), at=starts))
    sweep = Workload("sweep", Sweep(4 * nodes, parallel=max(4, tenth)), _needs(2, 0))
    found.append(WorkloadSetup(sweep, Program(run_ms=20 * MINUTE)))
    return found


def _service(name: str, replicas: int, standby: int = 0) -> WorkloadSetup:
    return WorkloadSetup(Workload(name, Service(replicas, standby), _needs(2, 0)), Program())


def _needs(cpus: int, gpus: int) -> Needs:
    return Needs(resources=Resources(cpus * 1000, cpus * 4 * 1024, gpus * GPU))


def _cuts(lasts_ms: Millis) -> list[Trouble]:
    """Every four hours a cut: a rack from all others, a rack or a zone from the control plane only."""
    kinds = (("rack:a1", Between.ALL), ("rack:b2", Between.CONTROL), ("zone:c", Between.CONTROL))
    found = []
    for number, at in enumerate(range(30 * MINUTE, max(lasts_ms - HOUR, 0), 4 * HOUR)):
        where, between = kinds[number % len(kinds)]
        cut = Trouble(
            at=at,
            fault=Fault.PARTITION,
            nodes=(where,),
            lasts_ms=(20 + 20 * (number % 3)) * SECOND,
            between=between,
        )
        found.append(cut)
    return found
