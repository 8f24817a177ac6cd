"""Rounds of harm to a service: one node at a time, and the next only when the fleet is whole again.

A round begins at a random moment of the heartbeat and ends when a client that follows the events has learnt
of the replacement and got its first answer from it. Beside this time from outside stand the control plane's
own instants (verdict, placed, started, ready), counted from the same fault, to show where the time goes.
"""

import math
import random
import time
from collections.abc import Callable, Iterable

from bench._failover_fleet import Fault, Fleet, Line, first_answer, port_of
from bench._say import say

CALM_S = 1.0  # of quiet before each fault
DEAD = "dead"

Times = dict[str, float]


def tell(text: str) -> None:
    say(f"  {time.strftime('%H:%M:%S')} {text}")


def summary(values: Iterable[float]) -> dict[str, float]:
    """By nearest rank: below a hundred rounds the 99th percentile is the worst one."""
    ranked = sorted(values)
    if not ranked:
        return {}

    def rank(share: float) -> float:
        return round(ranked[max(0, math.ceil(share * len(ranked)) - 1)], 3)

    return {"p50_s": rank(0.5), "p99_s": rank(0.99), "max_s": rank(1.0)}


def collected(rounds: list[Times]) -> dict[str, object]:
    """The time from outside first, then the median of each instant on the way."""
    way = {key: summary(each[key] for each in rounds)["p50_s"] for key in (rounds[0] if rounds else {})}
    total = way.pop("total", None)
    assert total is not None or not rounds
    return {**summary(each["total"] for each in rounds), "rounds": len(rounds), "median_s": way}


def repeat(fleet: Fleet, deed: str, rounds: int, beat_s: float, one: Callable[[str], Times]) -> list[Times]:
    done: list[Times] = []
    chance = random.Random(f"{deed} {beat_s}")
    for number in range(rounds):
        fleet.whole()
        time.sleep(CALM_S + chance.uniform(0, beat_s))
        done.append(one(deed))
        tell(f"{deed} {number + 1}/{rounds}: {done[-1]['total']:.2f} s")
    fleet.whole()
    return done


def replaced(fleet: Fleet, workload: str) -> Callable[[str], Times]:
    """One round: a copy is started elsewhere."""

    def one(deed: str) -> Times:
        old = fleet.ready(workload)
        fault = fleet.harm(old["node"], deed)

        def news(start: str) -> Callable[[Line], bool]:
            return lambda line: line.workload == workload and line.text.startswith(start)

        ready = fleet.watch.wait(fault.mark, news("ready on"))
        started = fleet.watch.wait(fault.mark, news("started on"))
        answered = first_answer(port_of(started), ready.subject)
        placed = fleet.watch.wait(fault.mark, news("PlaceReplica"))
        fleet.clear(old["node"])
        return {
            "total": answered - fault.at,
            **verdicts(fleet, fault),
            **{
                key: line.at_s - fault.wall
                for key, line in (("placed", placed), ("started", started), ("ready", ready))
            },
            "known": ready.seen - fault.at,
        }

    return one


def promoted(fleet: Fleet, workload: str) -> Callable[[str], Times]:
    """One round: a warm copy takes over. It says its role to whoever asks, so we ask all the time."""

    def one(deed: str) -> Times:
        old, spare = fleet.ready(workload), fleet.ready(workload, "standby")
        port = int(spare["address"].rpartition(":")[2])
        fault = fleet.harm(old["node"], deed)
        answered = first_answer(port, f"{spare['id']} active")
        promotion = fleet.watch.wait(
            fault.mark, lambda line: line.workload == workload and line.text.startswith("PromoteStandby")
        )
        fleet.clear(old["node"])
        instants = verdicts(fleet, fault)
        total = answered - fault.at
        return {
            "total": total,
            **instants,
            "promoted": promotion.at_s - fault.wall,
            "after_verdict": total - instants["verdict"],
        }

    return one


def verdicts(fleet: Fleet, fault: Fault) -> Times:
    """When it was first doubted, and when it was given up."""

    def first(start: str) -> float:
        line = fleet.watch.wait(
            fault.mark,
            lambda line: (
                line.kind == "verdict" and line.subject == fault.node and line.text.startswith(start)
            ),
        )
        return line.at_s - fault.wall

    return {"suspect": first(""), "verdict": first(DEAD)}
