"""The benchmarks run, at a size that says nothing about speed, and report what others read from them."""

import gzip
import json
from pathlib import Path

import pytest

from bench.__main__ import main, names
from bench._deadline_policies import oracle
from bench._deadline_world import follow, synthetic, terms_of
from bench.deadline import POLICIES, parts

TINY = {
    "agents": ["--count", "20", "--seconds", "1"],
    "deadline": ["--every", "6", "--no-oracle", "--jobs", "1"],
    "decide": ["--nodes", "60", "--replicas", "120", "--large-nodes", "0", "--lose", "3", "--repeats", "1"],
    "detect": ["--nodes", "60", "--months", "0.02"],
    "failover": ["--rounds", "1", "--no-peers", "--load-minutes", "0", "--parts", "service"],
    "gateway": ["--no-peers", "--seconds", "0.3", "--rounds", "1"],
    "keys": ["--keys", "5", "--gateways", "1", "--changes", "2"],
    "market": ["--workloads", "30", "--offers", "24", "--repeats", "2"],
    "offers": ["--requests", "25"],
    "place": ["--nodes", "60", "--large-nodes", "0", "--repeats", "1", "--seeds", "1", "--quick"],
    "prefix": ["--requests", "300", "--repeats", "1"],
    "recover": ["--nodes", "60", "--replicas", "120"],
    "serving": ["--days", "0", "--made-days", "0.3"],
    "scaling": ["--hours", "0.5"],
    "sim": ["--nodes", "20", "--hours", "0.2"],
    "zombies": ["--seeds", "1", "--kinds", "cron", "owner_gone", "leaked"],
}
KEYS = {
    "agents": {"core", "rss_mb", "false_suspicions", "replaced_in_the_plan_s"},
    "deadline": {"single", "multi", "multi_sets"},
    "decide": {"quiet_ms", "lose_3_ms", "late_3_ms", "refused"},
    "detect": {"ours", "fixed_5s", "fixed_10s", "fixed_40s", "phi_8", "phi_12", "swim", "node_months"},
    "failover": {"kill", "hang", "exclusive_doubles", "false_failovers"},
    "gateway": {"holdfast", "over_admitted_tokens"},
    "keys": {"bytes_whole", "bytes_a_change", "in_force_ms_p50", "keeper_cpu_ms_a_change"},
    "market": {"replan_ms", "replan_alike_ms", "fold_us"},
    "offers": {"ours", "cheapest_single", "best_single", "static_list", "next_region", "oracle", "union"},
    "place": {"replicas_per_s"},
    "prefix": {"infinite_bound_pct", "infinite_ours", "infinite_hashing", "pick_plain_8_us"},
    "recover": {"seconds", "without_snapshots_s", "same_world"},
    "serving": {"sets", "days"},
    "scaling": {"traces", "made_up"},
    "sim": {"seconds", "node_hours_per_s", "violations", "false_failovers"},
    "zombies": {"false_clamps", "precision_pct", "recall_pct", "zombies", "five_times", "note_us"},
}


def test_every_benchmark_is_tried_here() -> None:
    assert set(TINY) == set(names())


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_prints_json_and_nothing_else_if_that_is_asked_for(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([name, *TINY[name], "--data", str(tmp_path), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured.keys() >= KEYS[name]


def test_each_detector_is_measured_alike(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["detect", *TINY["detect"], "--data", str(tmp_path), "--json"])
    measured = json.loads(capsys.readouterr().out)
    for detector in ("ours", "fixed_5s", "phi_12", "swim"):
        assert measured[detector].keys() >= {"false_per_node_month", "missed"}


def test_nobody_meets_a_deadline_for_less_than_whoever_knows_the_record() -> None:
    for kind, market in synthetic(seed=1, count=1):
        part = next(parts(market, 0)) if kind == "multi" else market
        terms = terms_of(part, deadline_hours=52.0, restart_hours=0.1)
        ((least, launches),) = oracle([part], terms)
        assert launches >= 1
        for make in POLICIES.values():
            (done,) = follow([part], terms, make())
            assert not done.late
            assert done.cost >= least - 0.5


def test_jobs_with_a_deadline_that_are_run_side_by_side_do_as_they_would_alone() -> None:
    made = [next(parts(market, 0)) for kind, market in synthetic(seed=2, count=3) if kind == "multi"]
    terms = terms_of(made[0], deadline_hours=52.0, restart_hours=0.1)
    for make in POLICIES.values():
        assert follow(made, terms, make()) == [follow([market], terms, make())[0] for market in made]
    assert oracle(made, terms) == [oracle([market], terms)[0] for market in made]


def test_each_way_to_serve_on_spot_is_measured_alike(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["serving", *TINY["serving"], "--data", str(tmp_path), "--json"])
    measured = json.loads(capsys.readouterr().out)
    for policies in measured["sets"].values():
        assert policies.keys() == {"ours", "spot_hedge", "round_robin", "even", "oracle"}
        assert policies["oracle"]["availability_pct"] == 100
        assert all(0 <= each["availability_pct"] <= 100 for each in policies.values())
        assert all(each["cost_pct"] > 0 for each in policies.values())


def test_a_record_of_spot_capacity_is_taken_whatever_its_file_is_called(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "spot_serving"
    folder.mkdir()
    record = {"set": "plenty", "step_s": 300, "zones": {"a": [4] * 40, "b": [4] * 40}}
    with gzip.open(folder / "anything.json.gz", "wt") as text:
        json.dump(record, text)
    main(["serving", "--days", "2", "--data", str(tmp_path), "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert measured["sets"].keys() == {"plenty"}
    ours = measured["sets"]["plenty"]["ours"]
    assert ours == {"availability_pct": 99.0, "cost_pct": 33.33}, "all but the first two minutes, all on spot"


def test_an_unknown_benchmark_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert ", ".join(sorted(TINY)) in capsys.readouterr().err
