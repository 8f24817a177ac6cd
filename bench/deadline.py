"""What does a job with a deadline cost on spot, and is it ever late?

48 hours of work on recorded spot markets, deadlines of 52 and 70 hours (as far as a record reaches), restarts
of 0.02, 0.05 and 0.1 hours. The score is the share of what spot could save, 100 if all ran on spot without a
restart; a late job is counted apart. The oracle knows the record; everybody else has seen its past.

Single: one zone. Multi: several zones at a time, one look a step (`_deadline_world`). With many zones spot is
always found somewhere, so each record is run with two and three zones that are neighbours in the list, with
two and three far apart, and with all; the figure is the mean of all these jobs, by kind in `multi_sets`.

Jobs of the same terms go side by side, which is only a matter of speed: none knows of another.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import NamedTuple

from bench._deadline_policies import Greedy, OnDemand, Ours, UniformProgress, oracle
from bench._deadline_world import (
    RESTART_HOURS,
    Maker,
    Market,
    follow,
    markets,
    score,
    synthetic,
    terms_of,
)
from bench._records import source
from bench._say import say

DEADLINE_HOURS = (52.0, 70.0)
POLICIES: dict[str, Maker] = {
    "ours": Ours,
    "uniform_progress": UniformProgress,
    "greedy": Greedy,
    "on_demand": OnDemand,
}
MADE = 6
TOGETHER = 25  # markets that one process goes through at a time


class Job(NamedTuple):
    market: str
    deadline_hours: float
    restart_hours: float
    score: float
    launches: float
    late: bool


Runs = dict[str, list[Job]]  # by policy


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=int, default=1, help="take only every N-th record")
    parser.add_argument("--first", type=int, default=0, help="beginning with this one")
    parser.add_argument("--no-oracle", action="store_true", help="leave out the slowest part")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "spot_deadline"
    records = list(markets(folder)) if folder.exists() else []
    recorded = bool(records)
    if not recorded:
        say(f"no records in {folder}: made-up markets instead")
        records = list(synthetic(1, MADE))
    measured = source(recorded=recorded)
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
    """What came of every job, with word on the way: it takes minutes."""
    together: Runs = {name: [] for name in (*POLICIES, *(["oracle"] if with_oracle else []))}
    batches, begun, done = list(_batches(found)), time.monotonic(), 0
    with ProcessPoolExecutor(jobs) as pool:
        work = partial(_run_batch, with_oracle=with_oracle)
        for batch, runs in zip(
            batches, pool.map(work, batches) if jobs > 1 else map(work, batches), strict=True
        ):
            for name, all_ in runs.items():
                together[name] += all_
            done += len(batch)
            say(f"{kind}: {done} of {len(found)} markets, {time.monotonic() - begun:.0f} s")
    for deadline, restart in product(DEADLINE_HOURS, RESTART_HOURS):
        these = {
            name: [job for job in all_ if job[1:3] == (deadline, restart)] for name, all_ in together.items()
        }
        if these["ours"]:
            scores = ", ".join(f"{name} {_summary(all_)['score']:.1f}" for name, all_ in these.items())
            say(f"{kind}: deadline {deadline:g} h, restart {restart:g} h: {scores}")
    return together


def _batches(found: list[Market]) -> Iterator[list[Market]]:
    """Those in a batch have the same shape: the oracle takes them together."""
    alike: dict[tuple[float, tuple[int, ...]], list[Market]] = {}
    for market in found:
        alike.setdefault((market.step_hours, market.there.shape), []).append(market)
    for markets_ in alike.values():
        for begin in range(0, len(markets_), TOGETHER):
            yield markets_[begin : begin + TOGETHER]


def _run_batch(batch: list[Market], *, with_oracle: bool) -> Runs:
    runs: Runs = {}
    reach = batch[0].there.shape[1] * batch[0].step_hours
    for deadline, restart in product(DEADLINE_HOURS, RESTART_HOURS):
        if deadline > reach:
            continue
        terms = terms_of(batch[0], deadline, restart)
        for name, make in POLICIES.items():
            for market, done in zip(batch, follow(batch, terms, make()), strict=True):
                job = Job(market.name, deadline, restart, score(done.cost), done.launches, done.late)
                runs.setdefault(name, []).append(job)
        for market, (cost, launches) in zip(batch, oracle(batch, terms), strict=True) if with_oracle else ():
            job = Job(market.name, deadline, restart, score(cost), launches, late=False)
            runs.setdefault("oracle", []).append(job)
    return runs


def _summary(runs: list[Job]) -> dict[str, float]:
    return {
        "score": round(statistics.mean(job.score for job in runs), 2) if runs else 0.0,
        "misses": sum(job.late for job in runs),
        "launches_per_job": round(statistics.mean(job.launches for job in runs), 1) if runs else 0.0,
    }


def _by_set(runs: Runs) -> dict[str, dict[str, float]]:
    names = dict.fromkeys(job.market for job in runs["ours"])
    return {
        name: {
            policy: _summary([job for job in all_ if job.market == name])["score"]
            for policy, all_ in runs.items()
        }
        for name in names
    }
