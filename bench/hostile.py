"""What do those who hold a little cost all others?

A fleet under load (`_hostile_fleet`): `holdfast serve`, three agents, a gateway before twins of an engine,
tenants who ask it steadily, an operator who looks at the API, and a job that must never run twice. Against
it, at full speed for --seconds: one enrolled node that lies, one replica that does what it can, one read
token, and one client without a key (`_hostile_attackers`, `_hostile_replica`).

`kept_leadership`, `doubles` and `refused` (requests of the tenants that were not answered with 200) are about
safety, and hold on any machine. `api_ms_p99` is what the operator waits while all of that goes on; `quiet` is
the same without attackers, on the same machine just before: where processors are shared with others, compare
with it. Attackers run at the lowest priority, for in life they are on other machines.

Memory is resident, of a process with all below it (of an agent: itself), in MB; growth is the most that was
seen less what there was before. `journal_mb` is what the database's files have grown by. `replica_may` is
what the rogue replica found that it could do to others, `processes_left` what outlived the fleet.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from bench._hostile_fleet import Fleet, NotInTime, Steady, asking, fleet, living, rogue, tenants, until

KINDS = ("node", "replica", "reader", "keyless")
LOOK_S = 0.25
END_S = 60.0
TOLD_MAX = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=60, help="that they attack; before: a third of it, quiet"
    )
    parser.add_argument("--leader-timeout", type=float, default=3, help="of the control plane, in seconds")
    parser.add_argument(
        "--only", nargs="*", choices=KINDS, default=KINDS, metavar="KIND", help=" ".join(KINDS)
    )


def run(args: argparse.Namespace) -> dict[str, object]:
    with fleet(args.leader_timeout) as made:
        with tenants(made), asking(made) as operator:
            time.sleep(max(1.0, args.seconds / 3))
        quiet = latency(operator)
        before = made.status()
        memory, journal, log = made.memory_mb(), made.journal_bytes(), made.log_bytes()
        with tenants(made) as steady, asking(made) as operator, attackers(made, args) as deeds:
            most, not_ready = watched(made, args.seconds)
            found = {name: json.loads(out) for name, out in deeds().items()}
        after = made.status()
        refused = [why for tenant in steady for why in tenant.refused]
        measured: dict[str, object] = {
            "seconds": args.seconds,
            "kept_leadership": after["generation"] == before["generation"],
            "looks_not_ready": not_ready,
            "doubles": made.beacons.doubles(),
            "copies_of_the_job": len(made.beacons.seen),
            "requests": sum(len(tenant.took_ms) for tenant in steady),
            "refused": len(refused),
            "refused_why": sorted(set(refused))[:TOLD_MAX],
            **latency(operator),
            "api_failed": len(operator.refused),
            "api_failed_why": sorted(set(operator.refused))[:TOLD_MAX],
            "quiet": quiet,
            "rss_mb": {name: round(mb, 1) for name, mb in memory.items()},
            "rss_growth_mb": {name: round(most[name] - mb, 1) for name, mb in memory.items()},
            "journal_entries": after["journal"] - before["journal"],
            "journal_mb": round((made.journal_bytes() - journal) / 1e6, 2),
            "log_mb": round((made.log_bytes() - log) / 1e6, 2),
            "attackers": found,
        }
        if "replica" in args.only:
            measured["replica_may"] = made.beacons.powers
    return measured | {"processes_left": settled(made)}


def settled(made: Fleet) -> int:
    """What is still there when all of the fleet was ended; what is being ended has a moment."""
    with contextlib.suppress(NotInTime):
        until(lambda: not living(made.plane.state), "all has ended", 10)
    return living(made.plane.state)


def latency(steady: Steady) -> dict[str, float]:
    took = sorted(steady.took_ms) or [0.0]
    return {
        "api_ms_p50": round(statistics.median(took), 1),
        "api_ms_p99": round(took[min(len(took) - 1, int(len(took) * 0.99))], 1),
        "api_asked": len(took),
    }


def watched(made: Fleet, seconds: float) -> tuple[dict[str, float], int]:
    """The most memory that each had, and how often the control plane did not lead when it was looked at."""
    most, not_ready, end = made.memory_mb(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        now = made.memory_mb()
        most = {name: max(mb, now[name]) for name, mb in most.items()}
        not_ready += made.plane.client.get("/readyz").status_code != 200
    return most, not_ready


@contextlib.contextmanager
def attackers(made: Fleet, args: argparse.Namespace) -> Iterator[Any]:
    """Gives a function that waits for them and returns what each printed last."""
    token = {"node": lambda: made.token("join", pool="fleet"), "reader": lambda: made.token("read")}
    children: dict[str, subprocess.Popen[str]] = {}
    if "replica" in args.only:
        made.plane.apply(rogue(made, args.seconds))
    for kind in args.only:
        if kind != "replica":
            wanted = made.wanted(args.seconds, token.get(kind, str)())
            words = [kind, msgspec.json.encode(wanted).decode()]
            command = [sys.executable, "-m", "bench._hostile_attackers", *words]
            children[kind] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield lambda: {kind: child.communicate(timeout=END_S)[0] for kind, child in children.items()}
    finally:
        for child in children.values():
            child.kill()
            child.communicate()
