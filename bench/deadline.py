"""What does a job with a deadline cost on spot, and is it ever late?

48 hours of work on recorded spot markets, deadlines of 52 and 70 hours (as far as a record reaches), restarts
of 0.02, 0.05 and 0.1 hours. The score is the share of what spot could save, 100 if all ran on spot without a
restart; a late job is counted apart. Single: one zone. Multi: several zones at a time. The oracle knows the
record; everybody else has seen its past.
"""

import argparse
import statistics

from bench._deadline_policies import Greedy, OnDemand, Ours, UniformProgress, oracle
from bench._deadline_world import RESTART_HOURS, Maker, Market, follow, markets, score, synthetic, terms_of

DEADLINE_HOURS = (52.0, 70.0)
POLICIES: dict[str, Maker] = {
    "ours": Ours,
    "uniform_progress": UniformProgress,
    "greedy": Greedy,
    "on_demand": OnDemand,
}
MADE = 6


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=int, default=1, help="take only every N-th record")
    parser.add_argument("--no-oracle", action="store_true", help="leave out the slowest part")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "spot_deadline"
    records = list(markets(folder)) if folder.exists() else []
    if not records:
        print(f"no records in {folder}: made-up markets instead")
        records = list(synthetic(1, MADE))
    measured: dict[str, object] = {}
    for kind in ("single", "multi"):
        found = [market for its, market in records if its == kind][:: max(1, args.every)]
        measured[kind] = _all(kind, found, with_oracle=not args.no_oracle)
        measured[f"{kind}_records"] = len(found)
    return measured


def _all(kind: str, found: list[Market], *, with_oracle: bool) -> dict[str, object]:
    scores: dict[str, list[float]] = {name: [] for name in (*POLICIES, "oracle")}
    misses, launches = dict.fromkeys(POLICIES, 0), dict.fromkeys(POLICIES, 0)
    for deadline, restart in ((d, r) for d in DEADLINE_HOURS for r in RESTART_HOURS):
        for market in found:
            if market.there.shape[1] * market.step_hours < deadline:
                continue
            terms = terms_of(market, deadline, restart)
            for name, make in POLICIES.items():
                done = follow(market, terms, make())
                scores[name].append(score(done.cost))
                misses[name] += done.late
                launches[name] += done.launches
            if with_oracle:
                scores["oracle"].append(score(oracle(market, terms)))
        print(f"{kind}: deadline {deadline:g} h, restart {restart:g} h: {_so_far(scores)}", flush=True)
    measured: dict[str, object] = {}
    for name, all_ in scores.items():
        if all_:
            measured[name] = {"score": round(statistics.mean(all_), 2)}
            if name in misses:
                more = {"misses": misses[name], "launches_per_job": round(launches[name] / len(all_), 1)}
                measured[name] = {"score": round(statistics.mean(all_), 2), **more}
    return measured


def _so_far(scores: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.mean(all_):.1f}" for name, all_ in scores.items() if all_)
