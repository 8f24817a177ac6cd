"""What does a job with a deadline cost on spot, and is it ever late?

48 hours of work on recorded spot markets, deadlines of 52 and 70 hours (as far as a record reaches), restarts
of 0.02, 0.05 and 0.1 hours. The score is the share of what spot could save, 100 if all ran on spot without a
restart; a late job is counted apart. The oracle knows the record; everybody else has seen its past.

Single: one zone. Multi: several zones at a time, one look a step (`_deadline_world`). With many zones spot is
always found somewhere, so each record is run with two and three zones that are neighbours in the list, with
two and three far apart, and with all; the figure is the mean of all these jobs, by kind in `multi_sets`.
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

from bench._deadline_policies import Greedy, OnDemand, Ours, UniformProgress, oracle
from bench._deadline_world import (
    RESTART_HOURS,
    Maker,
    Market,
    Run,
    follow,
    markets,
    score,
    synthetic,
    terms_of,
)

DEADLINE_HOURS = (52.0, 70.0)
POLICIES: dict[str, Maker] = {
    "ours": Ours,
    "uniform_progress": UniformProgress,
    "greedy": Greedy,
    "on_demand": OnDemand,
}
MADE = 6


class Case(NamedTuple):
    """Jobs of the same terms, that one process goes through."""

    deadline_hours: float
    restart_hours: float
    markets: list[Market]
    with_oracle: bool


Runs = dict[str, list[tuple[str, float, float, bool]]]  # by policy: the market's name, score, launches, late


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=int, default=1, help="take only every N-th record")
    parser.add_argument("--first", type=int, default=0, help="beginning with this one")
    parser.add_argument("--no-oracle", action="store_true", help="leave out the slowest part")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "spot_deadline"
    records = list(markets(folder)) if folder.exists() else []
    if not records:
        print(f"no records in {folder}: made-up markets instead")
        records = list(synthetic(1, MADE))
    measured: dict[str, object] = {}
    for kind in ("single", "multi"):
        found = [market for its, market in records if its == kind][args.first :: max(1, args.every)]
        measured[f"{kind}_records"] = len(found)
        if kind == "multi":
            found = [part for number, market in enumerate(found) for part in parts(market, number)]
        runs = _all(kind, found, with_oracle=not args.no_oracle, jobs=args.jobs)
        measured[kind] = {name: _summary(all_) for name, all_ in runs.items()}
        if kind == "multi":
            measured["multi_sets"] = _by_set(runs)
    return measured


def parts(market: Market, number: int) -> Iterator[Market]:
    """Some of its zones: which, changes from record to record."""
    count = len(market.there)
    turn = [(number + zone) % count for zone in range(count)]
    sets = {
        "2 near": turn[:2],
        "2 far": turn[:: max(1, count // 2)][:2],
        "3 near": turn[:3],
        "3 far": turn[:: max(1, count // 3)][:3],
        "all": turn,
    }
    for name, zones in sets.items():
        yield market._replace(name=name, there=market.there[sorted(zones)])


def _all(kind: str, found: list[Market], *, with_oracle: bool, jobs: int) -> Runs:
    together: Runs = {name: [] for name in (*POLICIES, *(["oracle"] if with_oracle else []))}
    cases = [
        Case(deadline, restart, reaching, with_oracle)
        for deadline, restart in product(DEADLINE_HOURS, RESTART_HOURS)
        if (reaching := [m for m in found if m.there.shape[1] * m.step_hours >= deadline])
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for case, runs in zip(cases, pool.map(_case, cases) if jobs > 1 else map(_case, cases), strict=True):
            for name, all_ in runs.items():
                together[name] += all_
            said = ", ".join(f"{name} {_summary(all_)['score']:.1f}" for name, all_ in runs.items())
            print(
                f"{kind}: deadline {case.deadline_hours:g} h, restart {case.restart_hours:g} h: {said}",
                flush=True,
            )
    return together


def _case(case: Case) -> Runs:
    runs: Runs = {name: [] for name in POLICIES}
    for market in case.markets:
        terms = terms_of(market, case.deadline_hours, case.restart_hours)
        for name, make in POLICIES.items():
            done: Run = follow(market, terms, make())
            runs[name].append((market.name, score(done.cost), done.launches, done.late))
        if case.with_oracle:
            cost, launches = oracle(market, terms)
            runs.setdefault("oracle", []).append((market.name, score(cost), launches, False))
    return runs


def _summary(runs: list[tuple[str, float, float, bool]]) -> dict[str, float]:
    return {
        "score": round(statistics.mean(run[1] for run in runs), 2) if runs else 0.0,
        "misses": sum(run[3] for run in runs),
        "launches_per_job": round(statistics.mean(run[2] for run in runs), 1) if runs else 0.0,
    }


def _by_set(runs: Runs) -> dict[str, dict[str, float]]:
    names = dict.fromkeys(run[0] for run in runs["ours"])
    return {
        name: {
            policy: _summary([run for run in all_ if run[0] == name])["score"]
            for policy, all_ in runs.items()
        }
        for name in names
    }
