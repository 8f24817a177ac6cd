"""How many replica-hours does it take to serve recorded load, and how much of it is left unserved?

Every record of load, with cold starts of 60, 300 and 600 s, for ours with a confidence of 0.95 and with the
one that a workload file gets that says nothing, Kubernetes' autoscaler (hpa), Knative's (kpa), SkyServe's,
and one that looks ahead into the record as far as a cold start. Hours are a multiple of the ideal; a flap is
a change of direction of the wanted number. `bench/_scaling_world.py` says how it is counted.
"""

import argparse

from bench._records import source
from bench._say import say
from bench._scaling_policies import DEFAULT, Hpa, Kpa, LookAhead, Ours, SkyServe
from bench._scaling_world import STEP_S, Lane, Load, Maker, follow, loads, synthetic
from bench._scaling_young import compare, records

COLD_STARTS_S = (60, 300, 600)
FIRST_YOUNG = 100  # the rule was chosen on hours drawn with seeds below
POLICIES: dict[str, Maker] = {
    "ours": lambda load, cold: Ours(),
    "ours_default": lambda load, cold: Ours(DEFAULT),
    "hpa": lambda load, cold: Hpa(),
    "kpa": lambda load, cold: Kpa(),
    "skyserve": lambda load, cold: SkyServe(),
    "look_ahead": LookAhead,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="only records whose name contains this")
    parser.add_argument("--young", type=int, default=3, help="hours of each family of young records; 0: none")
    parser.add_argument("--hours", type=float, default=0, help="only the first hours of each record")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "load"
    found = list(loads(folder)) if folder.exists() else []
    made_up = not found
    if made_up:
        say(f"no records in {folder}: made-up load instead")
        found = list(synthetic(1))
    traces: list[dict[str, object]] = []
    for load in (load for load in found if args.only in load.name):
        if args.hours:
            load = load._replace(demand=load.demand[: max(2, int(args.hours * 3600 / STEP_S))])
        traces += _all(load)
    young = _young([] if made_up else found, args.young)
    return {"traces": traces, "made_up": made_up, "young": young} | source(recorded=not made_up)


def _young(found: list[Load], count: int) -> list[dict[str, object]]:
    """What the first hour costs, against target tracking that serves as much (`bench/_scaling_young.py`)."""
    measured: list[dict[str, object]] = []
    for name, hours in records(range(FIRST_YOUNG, FIRST_YOUNG + count), found) if count else ():
        for cold in (60, 600):
            young = compare(hours, cold, POLICIES["ours_default"], lambda target: lambda _, cold: Hpa(target))
            measured.append({"family": name, "cold_start_s": cold, "hours": count, **young._asdict()})
    return measured


def _all(load: Load) -> list[dict[str, object]]:
    lanes = {
        (cold, name): Lane(make(load, cold), cold, float(load.demand[0]))
        for cold in COLD_STARTS_S
        for name, make in POLICIES.items()
    }
    follow(load, list(lanes.values()))
    traces: list[dict[str, object]] = []
    for cold in COLD_STARTS_S:
        outcomes = {name: lanes[cold, name].outcome()._asdict() for name in POLICIES}
        traces.append({"name": load.name, "cold_start_s": cold, **outcomes})
        told = ", ".join(
            f"{name} {o['replica_hours_x']} x {o['unserved_pct']} %" for name, o in outcomes.items()
        )
        say(f"{load.name}, {cold} s: {told}")
    return traces
