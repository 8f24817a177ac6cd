"""How often are all replicas of a service ready on spot, and what does it cost?

Three replicas wanted, a cold start of 120 s, on demand at three times the price of spot (`_serving_world` has
the rules). Availability: the share of time with three ready. Cost: of three on demand, always on. The main
figures are those of each whole record, from its first step, cold. Those of days begun at random (30, as in
the published comparison) are beside them; they depend on which days were drawn. Everybody but the oracle has
only seen the past.
"""

import argparse
import random
import statistics
from collections.abc import Callable
from functools import partial

from bench._records import source
from bench._say import say
from bench._serving_policies import Even, Ours, RoundRobin, SpotHedge
from bench._serving_world import Outcome, Policy, Record, follow, oracle, records, synthetic

DAY_S = 86_400
POLICIES: dict[str, Callable[[int], Policy]] = {
    "ours": Ours,
    "spot_hedge": SpotHedge,
    "round_robin": RoundRobin,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=int, default=30, help="days begun at random, besides the whole record")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--made-days", type=float, default=6.0, help="length of a made-up market")
    parser.add_argument("--made", type=int, default=0, help="so many made-up markets of each kind as well")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "spot_serving"
    found = list(records(folder)) if folder.exists() else []
    made = args.made
    recorded = bool(found)
    if not recorded:
        say(f"no records in {folder}: made-up markets instead")
        made = max(1, made)
    for number in range(made):
        found += [
            record._replace(name=f"{record.name}-{number + 1}")
            for record in synthetic(args.seed + number, args.made_days)
        ]
    sets = {record.name: _whole(record) for record in found}
    days = {record.name: _days(record, args.days, args.seed) for record in found if args.days}
    return source(recorded=recorded) | {"sets": sets, "days": days}


def _whole(record: Record) -> dict[str, object]:
    measured = {name: _said(_follow(record, make)) for name, make in POLICIES.items()}
    measured["even"] = _said(_even(record))
    measured["oracle"] = _said(oracle(record))
    say(f"{record.name}: {_line(measured)}")
    return dict(measured)


def _follow(
    record: Record, make: Callable[[int], Policy], begin_s: int = 0, seconds: int | None = None
) -> Outcome:
    return follow(record, make(len(record.has)), begin_s, seconds)


def _even(record: Record) -> Outcome:
    """Which zones have the odd ones is chance: the mean over all choices."""
    return _mean([_follow(record, partial(Even, first=first)) for first in range(len(record.has))])


def _days(record: Record, count: int, seed: int) -> dict[str, object]:
    dice = random.Random(seed)
    last = max(0, record.seconds - DAY_S) // record.step_s
    begins = [dice.randint(0, last) * record.step_s for _ in range(count)]
    seconds = min(DAY_S, record.seconds)
    measured = {
        name: _said(_mean([_follow(record, make, begin, seconds) for begin in begins]))
        for name, make in POLICIES.items()
    }
    say(f"{record.name}, {count} days: {_line(measured)}")
    return dict(measured)


def _mean(found: list[Outcome]) -> Outcome:
    return Outcome(
        statistics.mean(o.availability_pct for o in found), statistics.mean(o.cost_pct for o in found)
    )


def _said(outcome: Outcome) -> dict[str, float]:
    return {name: round(value, 2) for name, value in outcome._asdict().items()}


def _line(measured: dict[str, dict[str, float]]) -> str:
    return ", ".join(
        f"{name} {m['availability_pct']:.2f}/{m['cost_pct']:.2f}" for name, m in measured.items()
    )
