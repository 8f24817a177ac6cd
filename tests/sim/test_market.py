"""Fleets on markets that come and go, and on providers that fail in the ways markets do: nothing unsafe ever
happens, and when it is over all is well and every machine is accounted for."""

import random
from typing import Any

import pytest

from holdfast.files.scenario.scenario_file import from_tables
from holdfast.model.units import HOUR, MINUTE
from holdfast.sim.result import Result
from holdfast.sim.run import Simulation

POOL: dict[str, Any] = {
    "name": "spot",
    "provider": "cloud",
    "zones": ["a", "b", "c"],
    "spot": True,
    "price": 0.3,
}
WEB: dict[str, Any] = {"name": "web", "replicas": 6, "cpus": 6, "memory": "8GiB"}


def run(tables: dict[str, Any], seed: int = 1) -> tuple[Result, Simulation]:
    sim = Simulation(from_tables(tables, "story.toml"), seed, history=False)
    result = sim.run()
    assert (result.violations, result.unmet, result.false_failovers) == ((), (), 0)
    return result, sim


def accounted_for(sim: Simulation) -> bool:
    """Every machine that costs money is one that the leader knows, and the other way round."""
    assert sim.leader is not None
    assert sim.leader.mind is not None
    machines = {name for provider in sim.providers.values() for name in provider.machines}
    return machines == set(sim.leader.mind.world.nodes)


@pytest.mark.parametrize("seed", range(12))
def test_a_fleet_on_a_market_that_comes_and_goes_ends_well(seed: int) -> None:
    dice = random.Random(f"market/{seed}")
    steps: list[dict[str, Any]] = [{"available": 4}]
    steps += [
        {
            "at": f"{dice.randint(1, 60)}m",
            "offer": dice.choice("abc"),
            "available": dice.choice((0, 0, 1, 3)),
            "price": dice.choice((0.1, 0.3, 2.0)),
        }
        for _ in range(12)
    ]
    steps.append({"at": "61m", "available": 5})
    tables = {
        "lasts": "2h",
        "pools": [
            {**POOL, "nodes": 4, "max": 9, "market": {"steps": steps}},
            {"name": "steady", "provider": "cloud", "zones": ["d"], "max": 6, "price": 1},
        ],
        "workloads": [WEB],
    }
    result, sim = run(tables, seed)
    assert result.settled
    assert accounted_for(sim)


@pytest.mark.parametrize(
    ("fault", "count"),
    [("launches fail", 1_000), ("provider late", 1_000), ("stock out", 100), ("offers vanish", 100)],
)
def test_a_thousand_launches_fail_at_once_and_all_is_well_afterwards(fault: str, count: int) -> None:
    tables = {
        "lasts": "30m",
        "pools": [{**POOL, "spot": False, "min": count, "max": count}],
        "workloads": [WEB],
        "faults": [{"at": "0s", "fault": fault, "provider": "cloud", "lasts": "5m"}],
    }
    result, sim = run(tables)
    assert result.settled
    assert accounted_for(sim)
    assert len(sim.providers["cloud"].machines) == count, "neither fewer nor more than were asked for"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "fault", ["provider late", "launches fail", "offers vanish", "price spike", "provider denies"]
)
def test_no_machine_is_forgotten_when_its_provider_fails_while_nodes_die(fault: str, seed: int) -> None:
    tables = {
        "lasts": "1h",
        "pools": [{**POOL, "spot": False, "nodes": 6, "max": 9}],
        "workloads": [WEB],
        "faults": [
            {"at": "30s", "fault": fault, "provider": "cloud", "lasts": "5m"},
            {"at": "1m", "fault": "crash", "nodes": ["zone:a"]},
            {"at": "4m", "fault": "crash", "nodes": ["spot-b"], "provider_knows": False},
        ],
    }
    result, sim = run(tables, seed)
    assert result.settled
    assert accounted_for(sim)


def test_a_price_spike_is_paid_for() -> None:
    pools = [{**POOL, "nodes": 2, "price": 1}]
    spike = {"at": "10m", "fault": "price spike", "provider": "cloud", "lasts": "20m", "factor": 4}
    _, calm = run({"lasts": "1h", "pools": pools})
    _, dear = run({"lasts": "1h", "pools": pools, "faults": [spike]})
    more = dear.bill().micro_usd - calm.bill().micro_usd
    assert abs(more - 2 * 3 * 1_000_000 * 20 * MINUTE // HOUR) < 10
