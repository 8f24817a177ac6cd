"""The benchmarks run, at a size that says nothing about speed, and report what others read from them."""

import json
from pathlib import Path

import pytest

from bench.__main__ import main, names

TINY = {
    "agents": ["--count", "20", "--seconds", "1"],
    "deadline": ["--every", "6", "--no-oracle"],
    "decide": ["--nodes", "60", "--replicas", "120", "--large-nodes", "0", "--lose", "3", "--repeats", "1"],
    "detect": ["--nodes", "60", "--months", "0.02"],
    "failover": ["--rounds", "1", "--no-peers", "--load-minutes", "0", "--parts", "service"],
    "place": ["--nodes", "60", "--large-nodes", "0", "--repeats", "1", "--seeds", "1", "--quick"],
    "recover": ["--nodes", "60", "--replicas", "120"],
    "sim": ["--nodes", "20", "--hours", "0.2"],
}
KEYS = {
    "agents": {"core", "rss_mb", "false_suspicions", "replaced_in_the_plan_s"},
    "deadline": {"single", "multi"},
    "decide": {"quiet_ms", "lose_3_ms", "late_3_ms", "refused"},
    "detect": {"ours", "fixed_5s", "fixed_10s", "fixed_40s", "phi_8", "phi_12", "swim", "node_months"},
    "failover": {"kill", "hang", "exclusive_doubles", "false_failovers"},
    "place": {"replicas_per_s"},
    "recover": {"seconds", "without_snapshots_s", "same_world"},
    "sim": {"seconds", "node_hours_per_s", "violations", "false_failovers"},
}


def test_every_benchmark_is_tried_here() -> None:
    assert set(TINY) == set(names())


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_ends_with_one_line_of_json(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([name, *TINY[name], "--data", str(tmp_path), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert measured.keys() >= KEYS[name]


def test_each_detector_is_measured_alike(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["detect", *TINY["detect"], "--data", str(tmp_path), "--json"])
    measured = json.loads(capsys.readouterr().out.splitlines()[-1])
    for detector in ("ours", "fixed_5s", "phi_12", "swim"):
        assert measured[detector].keys() >= {"false_per_node_month", "missed"}


def test_an_unknown_benchmark_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert ", ".join(sorted(TINY)) in capsys.readouterr().err
