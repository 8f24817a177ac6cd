"""The benchmarks run, at a size that says nothing about speed, and report what others read from them."""

import gzip
import json
import random
from pathlib import Path

import pytest

from bench.__main__ import main, names
from bench._deadline_policies import oracle
from bench._deadline_world import follow, synthetic, terms_of
from bench._mixes import FAMILIES, mix
from bench._packing import RULES, SIMPLE, Cluster, allocated
from bench._scaling_policies import DEFAULT, Hpa, Ours
from bench._scaling_young import compare, drawn
from bench.deadline import POLICIES, parts
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Room
from tests.build import node

TINY = {
    "agents": ["--count", "20", "--seconds", "1"],
    "deadline": ["--every", "6", "--no-oracle", "--jobs", "1"],
    "decide": ["--nodes", "60", "--replicas", "120", "--large-nodes", "0", "--lose", "3", "--repeats", "1"],
    "detect": ["--nodes", "60", "--months", "0.02"],
    "failover": ["--rounds", "1", "--no-peers", "--load-minutes", "0", "--parts", "service"],
    "gateway": ["--no-peers", "--seconds", "0.3", "--rounds", "1"],
    "gateway_memory": ["--connections", "4", "--mib", "1", "--slow", "1", "--slow-s", "0.2"],
    "hostile": ["--seconds", "1", "--leader-timeout", "45"],
    "keys": ["--keys", "5", "--gateways", "1", "--changes", "2"],
    "market": ["--workloads", "30", "--offers", "24", "--repeats", "2"],
    "offers": ["--requests", "25"],
    "place": [
        "--nodes",
        "60",
        "--large-nodes",
        "0",
        "--repeats",
        "1",
        "--seeds",
        "1",
        "--quick",
        "--mixes",
        "0",
    ],
    "prefix": ["--requests", "300", "--repeats", "1"],
    "recover": ["--nodes", "60", "--replicas", "120"],
    "serving": ["--days", "0", "--made-days", "0.3"],
    "scaling": ["--hours", "0.5", "--young", "0"],
    "sim": ["--nodes", "20", "--hours", "0.2"],
    "start": ["--starts", "2"],
    "zombies": ["--seeds", "1", "--kinds", "cron", "owner_gone", "leaked"],
}
KEYS = {
    "agents": {"core", "rss_mb", "false_suspicions", "replaced_in_the_plan_s"},
    "deadline": {"single", "multi", "multi_sets"},
    "decide": {"quiet_ms", "lose_3_ms", "late_3_ms", "refused"},
    "detect": {"ours", "fixed_5s", "fixed_10s", "fixed_40s", "phi_8", "phi_12", "swim", "node_months"},
    "failover": {"kill", "hang", "exclusive_doubles", "false_failovers"},
    "gateway": {"holdfast", "over_admitted_tokens"},
    "gateway_memory": {"connections", "grown_mb", "slow_grown_mb", "slow_refused"},
    "hostile": {"kept_leadership", "doubles", "refused", "api_ms_p99", "rss_growth_mb", "journal_mb"},
    "keys": {"bytes_whole", "bytes_a_change", "in_force_ms_p50", "keeper_cpu_ms_a_change"},
    "market": {"replan_ms", "replan_alike_ms", "fold_us"},
    "offers": {"ours", "cheapest_single", "best_single", "static_list", "next_region", "oracle", "union"},
    "place": {"replicas_per_s", "gpus_allocated_percent_ours", "packing_more", "packing_mixes"},
    "prefix": {"infinite_bound_pct", "infinite_ours", "infinite_hashing", "pick_plain_8_us"},
    "recover": {"seconds", "without_snapshots_s", "same_world"},
    "serving": {"sets", "days"},
    "scaling": {"traces", "made_up"},
    "start": {"service as agent", "job as agent"},
    "sim": {"seconds", "node_hours_per_s", "violations", "false_failovers"},
    "zombies": {"false_clamps", "precision_pct", "recall_pct", "zombies", "five_times", "note_us"},
}
READ_RECORDS = {"deadline", "detect", "offers", "place", "prefix", "scaling", "serving"}


def test_every_benchmark_is_tried_here() -> None:
    assert set(TINY) == set(names())


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_prints_json_and_nothing_else_if_that_is_asked_for(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([name, *TINY[name], "--data", str(tmp_path), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured.keys() >= KEYS[name]
    if name in READ_RECORDS:
        assert measured["data"] == "synthetic"


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


def _lines(*objects: dict[str, object]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


TINY_RECORDS: dict[str, dict[str, str]] = {
    "deadline": {"spot_deadline/x.jsonl": _lines({"env": "x", "step_s": 600, "available": "10" * 300})},
    "detect": {
        "failures/x.csv": "System,nodes,nodenum,Prob Started,Prob Fixed\n"
        + "".join(f"1,200,7,0{month}/01/2001 10:00,0{month}/01/2001 11:00\n" for month in range(1, 9))
    },
    "offers": {
        "offers/x.csv": "t,instance,region,zone,acc,count,price,spot\n"
        + "".join(f"{t},p_i,r,z,{'L4' if t % 50_400 else '-'},1,1.0,\n" for t in range(0, 2_520_000, 25_200))
    },
    "place": {
        "placement/machines.csv": "sn,cpu_milli,memory_mib,gpu,model\nn1,32000,65536,2,T4\n",
        "placement/pods_a.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,1024,1,500,\n",
        "placement/pods_b.csv": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,1024,2,1000,\n",
    },
    "prefix": {
        f"load/{name}.jsonl": _lines(
            *(
                {"timestamp": 99 * n, "input_length": 600, "output_length": 9, "hash_ids": [0, n]}
                for n in range(40)
            )
        )
        for name in ("a", "b")
    },
    "scaling": {"load/x.csv": "t_seconds,rate_rps\n" + "".join(f"{60 * n},{1 + n % 3}\n" for n in range(9))},
    "serving": {"spot_serving/x.json": json.dumps({"set": "x", "step_s": 600, "zones": {"a": [4] * 20}})},
}


@pytest.mark.parametrize("name", sorted(READ_RECORDS))
def test_a_benchmark_takes_records_whatever_their_files_are_called(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path, text in TINY_RECORDS[name].items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    for stranger in ("notes.csv", "notes.jsonl", "notes.json", "broken.csv.gz"):
        (file.parent / stranger).write_text("nothing of the kind\n")
    main([name, *TINY[name], "--data", str(tmp_path), "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert measured["data"] == "recorded"
    if name == "place":
        on = [measured["packing_on"], *(each["packing_on"] for each in measured["packing_more"])]
        assert ["pods_a" in on[0], "pods_b" in on[1]] == [True, True]
    if name == "prefix":
        assert (measured["trace"], [each["trace"] for each in measured["more_traces"]]) == ("a", ["b"])


def test_an_unknown_benchmark_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert ", ".join(sorted(TINY)) in capsys.readouterr().err


def test_every_packing_rule_is_held_to_the_same_constraints() -> None:
    room = Room(4)
    for number, taints in enumerate(((), ("batch-only",))):
        room.add(node(f"n{number}", gpus=8, taints=taints), open_=True)
    cluster = Cluster("tainted", room, [Resources(1000, 1024, GPU)])
    for name, rule in RULES.items():
        assert allocated(cluster, rule, random.Random(1)) == 1.0, name
        taken = room.copy()
        while rule(taken, cluster.pods[0], cluster, random.Random(1)):
            pass
        assert taken.gpu_free[taken.row["n1"]] == 8 * GPU, f"{name} ignores the taint"


def test_every_packing_rule_is_asked_for_the_same_pods() -> None:
    found = mix("mixed machines", seed=3, nodes=10)
    asked: dict[str, list[Resources]] = {name: [] for name in SIMPLE}
    for name in SIMPLE:

        def noted(
            room: Room, pod: Resources, cluster: Cluster, chance: random.Random, of: str = name
        ) -> bool:
            asked[of].append(pod)
            return RULES[of](room, pod, cluster, chance)

        allocated(found, noted, random.Random(1))
    assert len({tuple(pods) for pods in asked.values()}) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_on_made_up_mixes_ours_packs_as_well_as_the_best_simple_rule(family: str) -> None:
    shares = dict.fromkeys(("ours", *SIMPLE), 0.0)
    for seed in range(4):
        cluster = mix(family, seed=2_000 + seed, nodes=40)
        for name in shares:
            shares[name] += 100 * allocated(cluster, RULES[name], random.Random(seed)) / 4
    assert shares["ours"] >= shares["random fit"] - 0.5
    assert shares["ours"] >= max(shares[name] for name in SIMPLE) - 2.0, (
        "twice the standard error of few draws"
    )


@pytest.mark.parametrize("family", ["requests", "part of a day", "ramps"])
@pytest.mark.parametrize("cold_start_s", [60, 600])
def test_a_first_hour_costs_no_more_than_with_target_tracking(family: str, cold_start_s: int) -> None:
    found = compare(
        drawn(family, range(2)),
        cold_start_s,
        lambda load, cold: Ours(DEFAULT),
        lambda target: lambda load, cold: Hpa(target),
        targets=(0.7,),
    )
    assert found.replica_hours_x <= 1.05 * found.hpa_hours_x
    assert found.unserved_pct <= found.hpa_unserved_pct + 0.1
