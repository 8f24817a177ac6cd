"""Random requests, gateways and limits: what one in six drawn stories has beside all else.

They are drawn from dice of their own, so that a fleet and its faults are the same with and without them.
Requests come in short stretches, most of them around a fault, for that is when they teach something, and a
sweep of thousands of stories has to pay for each of them.
"""

import random

from msgspec.structs import replace

from holdfast.model.gateway import GLOBAL, Limits, scope_of_key, scope_of_model, scope_of_team
from holdfast.model.scale import Signal
from holdfast.model.units import MINUTE, SECOND, Instant
from holdfast.model.workload import Serves, Service
from holdfast.sim.scenario.load_profile import Burst, Load
from holdfast.sim.scenario.scenario import (
    Between,
    Fault,
    GatewayTraits,
    Scenario,
    Trouble,
    WorkloadSetup,
)
from holdfast.sim.traffic.requests import Requests

SHARE = 1 / 6  # of the stories
TEAM = "team"
EVERY_MS = 10 * SECOND
BEFORE_MS = 15 * SECOND  # a fault, so that requests are on their way


def ask(scenario: Scenario, quiet_from: Instant) -> Scenario:
    dice = random.Random(f"requests/{scenario.seed}")
    shapes = {setup.workload.name: setup.workload.shape for setup in scenario.workloads}
    services = [name for name, shape in shapes.items() if isinstance(shape, Service)]
    if not services or dice.random() >= SHARE:
        return scenario
    name = dice.choice(services)
    gateways = _gateways(dice)
    troubles = (*scenario.troubles, *_troubles(dice, gateways.count, quiet_from))
    asked = _load(dice, troubles, quiet_from), _requests(dice)
    serves = Serves(concurrent=dice.choice((0, 2, 8)))
    setups = tuple(
        _asked(setup, serves, *asked) if setup.workload.name == name else setup
        for setup in scenario.workloads
    )
    return replace(
        scenario,
        workloads=setups,
        gateways=gateways,
        limits=_limits(dice, name),
        troubles=tuple(sorted(troubles, key=lambda trouble: trouble.at)),
    )


def _asked(setup: WorkloadSetup, serves: Serves, load: Load, requests: Requests) -> WorkloadSetup:
    shape = setup.workload.shape
    assert isinstance(shape, Service)
    workload = replace(setup.workload, shape=replace(shape, serves=serves))
    program = replace(setup.program, at_once=0 if serves.concurrent == 0 else 2 * serves.concurrent)
    return replace(setup, workload=workload, program=program, load=load, requests=requests)


def _gateways(dice: random.Random) -> GatewayTraits:
    return GatewayTraits(
        count=dice.choice((1, 2, 3)),
        patience_ms=dice.choice((5, 30, 120)) * SECOND,
        held=dice.choice((5, 100, 1_000)),
        first_byte_ms=dice.choice((5, 20, 120)) * SECOND,
        hedge=dice.random() < 0.3,
        fail_open=dice.random() < 0.2,
        continues=dice.random() < 0.3,
    )


def _requests(dice: random.Random) -> Requests:
    return Requests(
        prompt=dice.choice((50, 500, 3_000)),
        answer=dice.choice((20, 100, 400)),
        answer_max=dice.choice((0, 0, 200)),
        keys=dice.choice((("app",), ("app", "batch"))),
        team=dice.choice(("", TEAM)),
        beginnings=dice.choice((0, 3, 20)),
    )


def _limits(dice: random.Random, name: str) -> dict[str, Limits]:
    """Some bind, some do not."""
    scopes = (GLOBAL, scope_of_key("app"), scope_of_model(name), scope_of_team(TEAM))
    chosen = [scope for scope in scopes if dice.random() < 0.4]
    return {scope: _limit(dice) for scope in chosen}


def _limit(dice: random.Random) -> Limits:
    per_min = dice.choice((30_000, 200_000, 1_000_000))
    return Limits(
        tokens_per_min=per_min,
        tokens_burst=dice.choice((None, None, per_min // 3)),
        requests_per_min=dice.choice((None, None, None, 100)),
        concurrent=dice.choice((None, None, None, 8)),
        tokens_total=dice.choice((None, None, None, 100_000)),
    )


def _load(dice: random.Random, troubles: tuple[Trouble, ...], quiet_from: Instant) -> Load:
    bursts = []
    for _ in range(dice.choice((1, 2, 3))):
        around = dice.choice(troubles).at - BEFORE_MS if troubles else 0
        at = around if dice.random() < 0.7 else dice.randint(0, quiet_from)
        lasts = min(dice.choice((30, 60)) * SECOND, max(quiet_from - at, SECOND))
        bursts.append(Burst(max(0, at), lasts, dice.choice((1.0, 3.0, 10.0))))
    return Load(signal=Signal.REQUESTS, bursts=tuple(bursts), every_ms=EVERY_MS)


def _troubles(dice: random.Random, gateways: int, quiet_from: Instant) -> list[Trouble]:
    found = []
    for _ in range(dice.choice((0, 1, 2))):
        at = dice.randint(MINUTE, max(quiet_from, MINUTE))
        lasts = min(dice.choice((1, 3, 10, 60)) * SECOND, max(quiet_from - at, SECOND))
        fault = dice.choice((Fault.GATEWAY_CRASH, Fault.PARTITION))
        between = dice.choice((Between.ALL, Between.CONTROL))
        which = f"gw-{dice.randint(1, gateways)}"
        found.append(Trouble(at=at, fault=fault, lasts_ms=lasts, between=between, gateway=which))
    return found
