"""The advice of a what-if agrees with the runs that it stands under, or is not given."""

import re
from typing import Any

import pytest

from holdfast.cli.render import what_if_report
from holdfast.files.scenario.scenario_file import from_tables
from holdfast.sim.advice import advice
from holdfast.sim.run import Simulation

WEB: dict[str, Any] = {"name": "web", "replicas": 2, "cpus": 6, "memory": "4GiB", "availability": "99.9%"}
STEADY: dict[str, Any] = {"can_launch": False, "can_terminate": False}


def told(pool: dict[str, Any], *, lasts: str = "18h", web: dict[str, Any] | None = None, **more: Any) -> str:
    std = {"name": "std", "nodes": 4, "max": 8, "zones": ["a", "b", "c"], "price": 0.4, **pool}
    story = {"lasts": lasts, "settle": "10m", "pools": [std], "workloads": [{**WEB, **(web or {})}], **more}
    scenario = from_tables(story, "what-if.toml")
    first = Simulation(scenario)
    results = [first.run(), *(what_if_report.one(scenario, seed) for seed in (2, 3))]
    (line,) = advice(first, results)
    rows = [row for result in results for row in result.workloads if row.name == WEB["name"]]
    shown = sum(row.availability for row in rows) / len(results)
    return f"{line} [{shown:.6f}]"


def shares(line: str) -> list[float]:
    return [float(share) / 100 for share in re.findall(r"([\d.]+) % up", line)]


def test_mild_rates_take_few_copies_and_the_runs_agree() -> None:
    line = told({"mtbf": "60d"})
    assert "By the rates in this file" in line
    assert "something else decides" not in line
    assert shares(line)[0] >= 0.999
    assert line.endswith("[1.000000]")


def test_harsh_rates_of_nodes_that_cannot_be_replaced_take_more_nodes_than_there_are() -> None:
    line = told({"nodes": 3, "max": 3, "mtbf": "2h", "repair": "40m", **STEADY}, lasts="12h")
    assert "and its pools have 3 nodes at most" in line
    assert float(line.split("[")[1][:-1]) < 0.95


def test_harsh_rates_of_nodes_that_are_replaced_are_borne_out() -> None:
    line = told({"mtbf": "6h"})
    assert "By the rates in this file" in line
    assert "something else decides" not in line
    assert shares(line)[0] >= 0.999
    assert float(line.split("[")[1][:-1]) > 0.998


def test_the_racks_of_one_zone_are_one_domain_and_nothing_keeps_the_promise() -> None:
    zone = {"zones": ["a"], "racks_per_zone": 4, "mtbf": "60d"}
    line = told(zone, web={"spread_over": "rack"}, domain_mtbf="12h", domain_repair="30m", lasts="1d")
    assert "there is only one failure domain, and it fails as a whole" in line
    assert "4 domains" not in line
    assert shares(line)[0] < 0.98


def test_a_zone_that_fails_is_not_waited_for_where_a_training_beside_has_nodes_launched_in_it() -> None:
    """They tell the dead from the silent: the advice withdrew itself, with the target missed above it."""
    tuned = {"name": "tune", "kind": "training", "nodes_min": 2, "nodes_max": 4, "cpus": 8, "memory": "8GiB"}
    line = told(
        {"zones": ["a"], "mtbf": "2d", "nodes": 8, "max": 12},
        workloads=[WEB, {**tuned, "program": {"start": "30s", "run": "900h"}}],
        domain_mtbf="90m",
        domain_repair="40m",
        lasts="6h",
    )
    assert "By the rates in this file" in line
    assert "something else decides" not in line
    assert shares(line)[0] <= float(line.split("[")[1][:-1])
    assert "there is only one failure domain" in line


def test_what_the_rates_do_not_explain_is_no_reason_for_more_copies() -> None:
    """Nobody lets new nodes in, and all of them are cut off for an hour."""
    cut = {"at": "2h", "fault": "crash", "nodes": ["*"], "lasts": "2h"}
    line = told({"mtbf": "60d", "nodes": 3, "max": 3, **STEADY}, faults=[cut])
    assert "something else decides, and more replicas are no answer to it" in line
    assert "The cheapest" not in line


@pytest.mark.parametrize("faults", [[], [{"at": "2h", "fault": "hang", "nodes": ["std-a"], "lasts": "1m"}]])
def test_a_file_without_rates_is_asked_what_its_runs_lost(faults: list[dict[str, Any]]) -> None:
    line = told({}, faults=faults, lasts="6h")
    assert ("no node that suits it ever fails here" in line) == (not faults)
    assert ("By what the runs lost" in line) == bool(faults)
