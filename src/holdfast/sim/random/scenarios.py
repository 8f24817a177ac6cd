"""Random fleets, workloads and faults, from a seed: what a sweep runs.

The faults stop early enough that everything can be well again by the end; the last part of the run is for
that. Nothing here looks at what the core does: the same seed is the same story for every version of it.
"""

import random

from msgspec.structs import replace

from holdfast.model.place import Level, Place
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant
from holdfast.model.workload import Job, Needs, Restart, Service, Shape, Spread, Sweep, Training, Workload
from holdfast.sim.random.markets import enrich
from holdfast.sim.random.random_requests import ask
from holdfast.sim.scenario.scenario import (
    OF_PROVIDERS,
    Between,
    Change,
    Direction,
    Fault,
    NetworkTraits,
    PoolSetup,
    Program,
    Scenario,
    Trouble,
    WorkloadSetup,
)
from holdfast.sim.twins.provider import ProviderTraits

SETTLE_MS = 35 * MINUTE
ON_NODES = (
    Fault.CRASH,
    Fault.CRASH,
    Fault.KILL,
    Fault.HANG,
    Fault.HANG,
    Fault.SLOW,
    Fault.GRAY,
    Fault.AGENT_RESTART,
    Fault.SPOT_NOTICE,
    Fault.SPOT_TAKEN,
)
ON_CONTROL = (
    Fault.CONTROL_CRASH,
    Fault.CONTROL_CRASH,
    Fault.CONTROL_PAUSE,
    Fault.CLOCK_JUMP,
    Fault.STORE_OUTAGE,
    Fault.STORE_CUT,
    Fault.STORE_CRASH,
)
STEPS = (0, 1, 2, 3, 5, 8, 12)  # of a turn, at which a control plane crashes
TO_WORKLOADS = ("delete", "update", "update", "pause", "pause", "scale", "scale", "priority")
FLAKY_EVERY = 10
POOL_DELETED = 0.15  # of the stories
TO_NODES = ("drain", "cordon", "cordon")


def draw(seed: int, nodes: int = 50, hours: float = 2.0, policy: Policy | None = None) -> Scenario:
    dice = random.Random(f"scenario/{seed}")
    lasts = int(hours * HOUR)
    settle = min(SETTLE_MS, lasts // 2)
    pools = _pools(dice, nodes)
    controls = dice.choice((1, 2, 3))
    quiet_from = max(lasts - settle - MINUTE, MINUTE)
    workloads = _workloads(dice, nodes, quiet_from)
    changes, again = _changes(dice, pools, workloads, quiet_from)
    drawn = Scenario(
        name=f"seed-{seed}",
        title=f"drawn from seed {seed}",
        seed=seed,
        lasts_ms=lasts,
        settle_ms=settle,
        pools=pools,
        workloads=_flaky(seed, (*workloads, *again)),
        providers={name: _provider(dice) for name in sorted({setup.pool.provider for setup in pools})},
        network=NetworkTraits(
            delay_ms=dice.choice((1, 5, 30)),
            jitter_ms=dice.choice((5, 20, 60)),
            loss=dice.choice((0.0, 0.0005, 0.005, 0.02)),
        ),
        troubles=tuple(
            sorted(
                (_trouble(dice, pools, controls, quiet_from) for _ in range(dice.randint(1, 12))),
                key=lambda trouble: trouble.at,
            )
        ),
        changes=tuple(sorted((*changes, *_deleted(seed, pools, quiet_from)), key=lambda each: each.at)),
        control_planes=controls,
        policy=policy or Policy(),
    )
    return ask(enrich(drawn, quiet_from), quiet_from)


def _pools(dice: random.Random, nodes: int) -> tuple[PoolSetup, ...]:
    count = dice.choice((1, 2, 3))
    share = max(3, nodes // count)
    return tuple(_pool(dice, number, share) for number in range(count))


def _pool(dice: random.Random, number: int, nodes: int) -> PoolSetup:
    provider = dice.choice(("east", "west"))
    gpus = dice.choice((0, 0, 4, 8))
    spot = dice.random() < 0.3
    capacity = Resources(16_000, 65_536, gpus * 1000, dice.choice(("a100", "h100")) if gpus else "")
    offers = tuple(
        Offer(
            f"p{number}-{zone}{rack}", Place(provider, "r1", zone, f"{zone}{rack}"), capacity, 500_000, spot
        )
        for zone in ("a", "b", "c")[: dice.choice((2, 3))]
        for rack in range(dice.choice((1, 2)))
    )
    fixed = dice.random() < 0.2  # somebody's own machines: they cannot be launched or terminated
    pool = Pool(
        name=f"pool{number}",
        provider=provider,
        offers=offers,
        min=0 if fixed else dice.randint(nodes // 2, nodes),
        max=nodes if fixed else nodes + dice.randint(0, nodes),
        standby=0 if fixed else dice.choice((0, 0, 1, 2)),
        can_launch=not fixed,
        can_terminate=not fixed,
        can_reset=not fixed or dice.random() < 0.5,
    )
    return PoolSetup(pool, nodes)


def _provider(dice: random.Random) -> ProviderTraits:
    return ProviderTraits(
        boot_ms=dice.choice((20, 60, 180)) * SECOND,
        launch_fails=dice.choice((0.0, 0.0, 0.1)),
        never_boots=dice.choice((0.0, 0.0, 0.05)),
    )


def _workloads(dice: random.Random, nodes: int, quiet_from: Instant) -> tuple[WorkloadSetup, ...]:
    return tuple(_workload(dice, number, nodes, quiet_from) for number in range(dice.randint(3, 8)))


def _workload(dice: random.Random, number: int, nodes: int, quiet_from: Instant) -> WorkloadSetup:
    shape = _shape(dice, nodes)
    service = isinstance(shape, Service)
    gpu = dice.choice((0, 0, 500, 1000, 2000))
    needs = Needs(
        resources=Resources(dice.choice((500, 2000, 4000)), dice.choice((512, 4096, 8192)), gpu),
        spread=dice.choice((Spread.PREFER, Spread.PREFER, Spread.PREFER, Spread.NONE, Spread.REQUIRE)),
        spread_over=dice.choice((Level.ZONE, Level.ZONE, Level.RACK, Level.NODE)),
        spot=dice.random() < 0.8,
    )
    broken = dice.random() < 0.04
    workload = Workload(
        name=f"w{number}",
        shape=shape,
        needs=needs,
        priority=dice.choice((0, 0, 5, 10)),
        restart=Restart(limit=dice.choice((4, 1_000)) if broken else 1_000),
        checkpoint_ms=0 if service else dice.choice((0, 30 * SECOND, 5 * MINUTE)),
        after=(f"w{number - 1}",) if number and dice.random() < 0.1 else (),
    )
    program = Program(
        start_ms=dice.choice((500, 2_000, 20_000)),
        run_ms=0 if service else dice.choice((1, 10, 40)) * MINUTE,
        crash_every_ms=dice.choice((0, 0, 0, 30 * MINUTE)),
        fails_at_start=broken,
    )
    late = dice.random() < 0.3
    return WorkloadSetup(workload, program, dice.randint(1, quiet_from) if late else 0)


def _shape(dice: random.Random, nodes: int) -> Shape:
    kind = dice.choice(("service", "service", "job", "training", "sweep"))
    if kind == "service":
        return Service(dice.randint(1, max(1, nodes // 4)), standby=dice.choice((0, 0, 1)))
    if kind == "job":
        return Job(standby=dice.choice((0, 0, 1)))
    if kind == "training":
        most = dice.randint(2, max(2, nodes // 6))
        return Training(dice.randint(1, most), most, standby=dice.choice((0, 1)))
    return Sweep(dice.randint(2, nodes), parallel=dice.choice((0, 4, 10)))


def _flaky(seed: int, workloads: tuple[WorkloadSetup, ...]) -> tuple[WorkloadSetup, ...]:
    """In each tenth story most programs that end fail now and then, wherever they run. Dice of its own: the
    other stories stay as they were."""
    if seed % FLAKY_EVERY != FLAKY_EVERY - 1:
        return workloads
    dice = random.Random(f"flaky/{seed}")
    rates = {setup.workload.name: dice.choice((0.0, 0.1, 0.3, 0.6)) for setup in workloads}
    runs = {setup.workload.name: dice.choice((20 * SECOND, 2 * MINUTE)) for setup in workloads}
    return tuple(
        setup
        if isinstance(setup.workload.shape, Service) or not rates[setup.workload.name]
        else replace(
            setup,
            program=replace(
                setup.program, fails=rates[setup.workload.name], run_ms=runs[setup.workload.name]
            ),
        )
        for setup in workloads
    )


def _trouble(
    dice: random.Random, pools: tuple[PoolSetup, ...], controls: int, quiet_from: Instant
) -> Trouble:
    at = dice.randint(10 * SECOND, quiet_from)
    times, every = dice.choice((1, 1, 1, 3)), min(90 * SECOND, (quiet_from - at) // 4)
    left = max(quiet_from - at - (times - 1) * every, SECOND)
    lasts = min(dice.choice((2, 8, 25, 60, 400, 1200)) * SECOND, left)
    kind = dice.random()
    if kind < 0.55:
        return Trouble(
            at=at,
            fault=dice.choice(ON_NODES),
            nodes=_victims(dice, pools),
            lasts_ms=lasts,
            provider_knows=dice.random() < 0.5,
            times=times,
            every_ms=every,
        )
    if kind < 0.75:
        return Trouble(
            at=at,
            fault=Fault.PARTITION,
            nodes=_victims(dice, pools),
            lasts_ms=lasts,
            between=dice.choice((Between.ALL, Between.CONTROL)),
            direction=dice.choice((Direction.BOTH, Direction.BOTH, Direction.TO, Direction.FROM)),
        )
    if kind < 0.85:
        provider = dice.choice([setup.pool.provider for setup in pools])
        return Trouble(at=at, fault=dice.choice(OF_PROVIDERS), provider=provider, lasts_ms=lasts)
    return Trouble(
        at=at,
        fault=dice.choice(ON_CONTROL),
        control=dice.choice(("", f"cp-{dice.randint(1, controls)}")),
        lasts_ms=min(lasts, 2 * MINUTE),
        step=dice.choice(STEPS),
        jump_ms=dice.choice((-HOUR, -5 * SECOND, 5 * SECOND, HOUR)),
    )


def _victims(dice: random.Random, pools: tuple[PoolSetup, ...]) -> tuple[str, ...]:
    """Some nodes, a rack, a zone, or a share of the fleet."""
    setup = dice.choice(pools)
    names = _names(setup)
    kind = dice.random()
    if kind < 0.6:
        return tuple(dice.sample(names, min(len(names), dice.choice((1, 1, 2, 3)))))
    if kind < 0.75:
        return (f"rack:{dice.choice(setup.pool.offers).place.rack}",)
    if kind < 0.85:
        return (f"zone:{dice.choice(setup.pool.offers).place.zone}",)
    return tuple(dice.sample(names, max(1, len(names) * dice.choice((2, 4, 6)) // 10)))


def _names(setup: PoolSetup) -> list[str]:
    return [f"{setup.pool.name}-{chr(97 + n % 26)}{n // 26 or ''}" for n in range(setup.nodes)]


# what people do


def _changes(
    dice: random.Random,
    pools: tuple[PoolSetup, ...],
    workloads: tuple[WorkloadSetup, ...],
    quiet_from: Instant,
) -> tuple[tuple[Change, ...], tuple[WorkloadSetup, ...]]:
    """What people do, and what they apply again."""
    changes: list[Change] = []
    again: list[WorkloadSetup] = []
    for _ in range(dice.choice((0, 0, 1, 2, 3))):
        at = dice.randint(MINUTE, quiet_from)
        kind = dice.choice((*TO_WORKLOADS, *TO_NODES, "release brake"))
        setup = dice.choice(workloads)
        if kind in TO_NODES:
            changes += _to_node(dice, kind, dice.choice(_names(dice.choice(pools))), at, quiet_from)
        elif kind == "priority":
            other = replace(setup.workload, priority=dice.choice((0, 5, 10)))
            again.append(replace(setup, workload=other, at=max(at, setup.at + 1)))
        elif kind == "release brake":
            changes.append(Change(at, kind))
        else:
            changes += _to_workload(dice, kind, setup.workload, at, quiet_from)
    return tuple(sorted(changes, key=lambda change: change.at)), tuple(again)


def _deleted(seed: int, pools: tuple[PoolSetup, ...], quiet_from: Instant) -> tuple[Change, ...]:
    """Now and then somebody deletes a pool. Dice of its own: the other stories stay as they were."""
    dice = random.Random(f"pools/{seed}")
    if dice.random() >= POOL_DELETED:
        return ()
    at = dice.randint(MINUTE, quiet_from)
    return (Change(at, "delete pool", pool=dice.choice(pools).pool.name),)


def _to_node(dice: random.Random, kind: str, node: str, at: Instant, quiet_from: Instant) -> list[Change]:
    """Some are never given back: those stay empty."""
    taken = Change(at, kind, node=node, deadline_ms=dice.choice((30, 120, 300)) * SECOND)
    back = min(at + dice.choice((1, 10)) * MINUTE, quiet_from)
    given_back = [Change(back, "uncordon", node=node)] if dice.random() < 0.8 else []
    return [taken, *given_back]


def _to_workload(
    dice: random.Random, kind: str, workload: Workload, at: Instant, quiet_from: Instant
) -> list[Change]:
    if kind == "pause":
        back = min(at + dice.choice((1, 20, 200, 900)) * SECOND, quiet_from)
        resumed = [Change(back, "resume", workload=workload.name)] if dice.random() < 0.8 else []
        return [Change(at, kind, workload=workload.name), *resumed]
    if kind == "scale" and isinstance(workload.shape, Service):
        replicas = dice.randint(1, 2 * workload.shape.replicas)
        return [Change(at, kind, workload=workload.name, replicas=replicas)]
    return [Change(at, "update" if kind == "scale" else kind, workload=workload.name)]
