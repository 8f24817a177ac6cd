"""How soon is a failure seen, and how often is a healthy node called dead?

The same months of heartbeats for every detector: ours (the real tables, rules and questions of `core`), fixed
time-outs, phi accrual, and SWIM as memberlist does it. What happens to the nodes, and why with these numbers,
is told at the head of `bench/_truth.py`; how the others work, at the head of `bench/_rivals.py`.

For each: seconds from the true failure to the verdict that moves work elsewhere (p50, p99, max), failures
never seen, and verdicts on nodes that had not failed, per node-month, with their causes. For ours that
verdict is `dead`; `suspect` and `unreachable` move nothing and are counted apart.
"""

import argparse
from time import perf_counter

import numpy as np

from bench._listening import Listening
from bench._records import source
from bench._rivals import Score, swim
from bench._truth import BEAT_MS, KINDS, Truth, lanl, weibull
from holdfast.model.units import DAY

DETAILS = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--months", type=float, default=100.0, help="node-months in all")
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)


def run(args: argparse.Namespace) -> dict[str, object]:
    rounds = max(600, round(args.months * 30 * DAY / args.nodes / BEAT_MS))
    failures = lanl(args.data)
    wear = failures or weibull(args.seed)
    start = perf_counter()
    truth = Truth(args.nodes, rounds, wear, args.seed)
    ours = Listening(truth, args.seed)
    ours.run()
    took = perf_counter() - start
    months = truth.node_months
    scores = {"ours": ours.score, **ours.rivals.scores, "swim": swim(truth, args.seed)}
    measured: dict[str, object] = {name: _row(score, months) for name, score in scores.items()}
    return measured | {
        **source(recorded=failures is not None),
        "node_months": round(months, 2),
        "failures": len(truth.failures),
        "trouble": {
            "stalls": len(truth.stalls),
            "pauses": len(truth.pauses),
            "cuts": len(truth.cuts),
            "wear": wear.source,
        },
        "ours_by_kind": {kind: _seconds(_took(ours.score, kind)) for kind, _ in KINDS},
        "ours_verdicts_per_node_month": {name: round(n / months, 2) for name, n in ours.levels.items()},
        "ours_over_4s": len(ours.slowly),
        "ours_slow": ours.slowly[:DETAILS],
        "ours_wrong": ours.wrongly[:DETAILS],
        "seconds": round(took, 1),
    }


def _took(score: Score, kind: str = "") -> list[int]:
    return [ms for of, ms in score.took_ms if not kind or of == kind]


def _seconds(took_ms: list[int]) -> dict[str, float]:
    if not took_ms:
        return {}
    p50, p99, most = np.percentile(took_ms, (50, 99, 100)) / 1000
    return {"p50_s": round(float(p50), 2), "p99_s": round(float(p99), 2), "max_s": round(float(most), 2)}


def _row(score: Score, months: float) -> dict[str, object]:
    wrong = sum(score.false.values())
    return {
        **_seconds(_took(score)),
        "false_per_node_month": round(wrong / months, 4),
        "missed": score.missed,
        "false": wrong,
        "false_by_cause": dict(sorted(score.false.items())),
    }
