"""Random prices, markets, budgets, loads and signals that fail: what a drawn story has beside its faults.

They are drawn from dice of their own, after everything else, so that a fleet and its faults are the same with
and without them. Money may run out in the middle: then nothing runs any more, and that is well.
"""

import random

from msgspec.structs import replace

from holdfast.model.money import Budget
from holdfast.model.pool import Pool
from holdfast.model.scale import Scale, Signal
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant, MicroUsd, Millis
from holdfast.model.workload import Service
from holdfast.sim.scenario.load_profile import Burst, Load, LoadStep
from holdfast.sim.scenario.market import Market, Step, market
from holdfast.sim.scenario.scenario import (
    OF_SIGNALS,
    PoolSetup,
    Scenario,
    Trouble,
    WorkloadSetup,
)

PRICES = (200_000, 500_000, 500_000, 1_000_000, 2_000_000)
EVERY_MS = 10 * SECOND


def enrich(scenario: Scenario, quiet_from: Instant) -> Scenario:
    dice = random.Random(f"market/{scenario.seed}")
    pools = tuple(_pool(dice, setup, quiet_from, scenario.lasts_ms) for setup in scenario.pools)
    rate = sum(_rate(setup) for setup in pools)
    policy = replace(scenario.policy, budget=_budget(dice, rate, scenario.lasts_ms))
    workloads = _workloads(dice, scenario.workloads, quiet_from)
    troubles = (*scenario.troubles, *_signal_troubles(dice, workloads, quiet_from))
    return replace(
        scenario,
        pools=pools,
        policy=policy,
        workloads=workloads,
        troubles=tuple(sorted(troubles, key=lambda trouble: trouble.at)),
    )


# pools


def _pool(dice: random.Random, setup: PoolSetup, quiet_from: Instant, lasts_ms: Millis) -> PoolSetup:
    pool = setup.pool
    offers = tuple(replace(offer, price_micro_usd=dice.choice(PRICES)) for offer in pool.offers)
    lists = pool.can_launch and dice.random() < 0.4
    pool = replace(
        pool,
        offers=offers,
        lists_offers=lists,
        lists_stock=lists and dice.random() < 0.5,
        price_max_micro_usd=dice.choice((None, None, None, 600_000, 1_500_000)),
    )
    setup = replace(setup, pool=pool)
    setup = replace(setup, pool=replace(pool, budget=_budget(dice, _rate(setup), lasts_ms)))
    moves = pool.can_launch and dice.random() < 0.4
    return replace(setup, market=_market(dice, pool, setup.nodes, quiet_from)) if moves else setup


def _rate(setup: PoolSetup) -> MicroUsd:
    """What the nodes that are there cost an hour."""
    offers = setup.pool.offers
    return sum(offers[number % len(offers)].price_micro_usd for number in range(setup.nodes))


def _budget(dice: random.Random, rate: MicroUsd, lasts_ms: Millis) -> Budget:
    kind = dice.random()
    if kind < 0.6:
        return Budget()
    if kind < 0.9:
        return Budget(hour_micro_usd=int(rate * dice.choice((0.8, 1.0, 1.2, 2.0))))
    return Budget(month_micro_usd=int(rate * lasts_ms / HOUR * dice.choice((0.4, 0.8, 1.5, 4.0))))


def _market(dice: random.Random, pool: Pool, nodes: int, quiet_from: Instant) -> Market:
    """It comes and goes, and at last there is something of everything."""
    each = nodes // len(pool.offers) + 1
    steps: dict[str, list[Step]] = {}
    for offer in pool.offers:
        moves = [Step(0, 2 * each, offer.price_micro_usd)]
        for _ in range(dice.choice((0, 1, 3))):
            left, price = dice.choice((0, each // 2, each, 3 * each)), dice.choice(PRICES)
            moves.append(Step(dice.randint(MINUTE, quiet_from), left, price))
        moves.append(Step(quiet_from, 2 * each + pool.max))
        steps[offer.name] = moves
    return market(steps)


# services


def _workloads(
    dice: random.Random, setups: tuple[WorkloadSetup, ...], quiet_from: Instant
) -> tuple[WorkloadSetup, ...]:
    """Applied again, a service scales as before."""
    made: dict[str, tuple[Scale, Load] | None] = {}
    found = []
    for setup in setups:
        workload = setup.workload
        if not isinstance(workload.shape, Service):
            found.append(setup)
            continue
        if workload.name not in made:
            made[workload.name] = _scaled(dice, workload.shape, quiet_from) if dice.random() < 0.5 else None
        chosen = made[workload.name]
        if chosen is not None:
            shape = replace(workload.shape, scale=chosen[0])
            setup = replace(setup, workload=replace(workload, shape=shape), load=chosen[1])
        found.append(setup)
    return tuple(found)


def _scaled(dice: random.Random, shape: Service, quiet_from: Instant) -> tuple[Scale, Load]:
    most = 2 * shape.replicas + 1
    scale = Scale(
        min=dice.choice((0, 1, 1, max(1, shape.replicas // 2))),
        max=most,
        per_replica={Signal.IN_FLIGHT: 4.0},
        down_window_ms=dice.choice((10 * MINUTE, HOUR)),
        up_per_minute=dice.choice((0, 0, 2)),
        down_per_minute=dice.choice((0, 0, 2)),
        idle_ms=dice.choice((2, 10)) * MINUTE,
        fallback=dice.choice((0, 0, shape.replicas)),
    )
    return scale, _load(dice, 4.0 * most, quiet_from)


def _load(dice: random.Random, most: float, quiet_from: Instant) -> Load:
    at = sorted(dice.randint(0, quiet_from) for _ in range(dice.choice((1, 3, 6))))
    shares = (0.0, 0.1, 0.3, 0.7, 1.0, 1.5)
    steps = tuple(LoadStep(when, most * dice.choice(shares)) for when in at)
    burst = Burst(dice.randint(0, quiet_from), dice.choice((20, 120, 600)) * SECOND, most * dice.random())
    smooth = dice.random() < 0.4
    return Load(
        base=most * dice.choice((0.0, 0.2)),
        peak=most * dice.choice((0.2, 0.6, 1.1)),
        period_ms=dice.choice((20, 60, 180)) * MINUTE,
        steps=() if smooth else steps,
        bursts=(burst,) if dice.random() < 0.3 and burst.at + burst.lasts_ms < quiet_from else (),
        noise=dice.choice((0.0, 0.05, 0.2)),
        every_ms=EVERY_MS,
        patience_ms=dice.choice((0, 0, 5 * MINUTE)),
    )


def _signal_troubles(
    dice: random.Random, workloads: tuple[WorkloadSetup, ...], quiet_from: Instant
) -> tuple[Trouble, ...]:
    named = sorted({setup.workload.name for setup in workloads if setup.load is not None})
    count = dice.choice((0, 1, 2)) if named else 0
    found = []
    for _ in range(count):
        at = dice.randint(10 * SECOND, quiet_from)
        lasts = min(dice.choice((30, 120, 900)) * SECOND, max(quiet_from - at, SECOND))
        fault, name = dice.choice(OF_SIGNALS), dice.choice(("", *named))
        found.append(Trouble(at=at, fault=fault, lasts_ms=lasts, workload=name))
    return tuple(found)
