"""How long until it runs again elsewhere, and does anything ever fail over that was well?

A real fleet (`holdfast up`) is harmed from outside: nodes are killed (SIGKILL to all their processes) and
hung (SIGSTOP to all of them), one at a time. A service's time counts from just before the first signal until
a client that follows the events has an answer from the replacement; `verdict`, `placed`, `started` and
`ready` are the control plane's own instants on the way. An exclusive job tells from outside, by a trace that
all its copies write, whether two of them ever ran at once.

Ray goes through the same in the same run, with its defaults and tuned; Slurm, Kubernetes and Nomad are
quoted. Then what quickness costs: what each fails over that is well, under load and after short stalls.

With --parts only some of it is done: service, quick, standby, job, ray, stall, load.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from bench import _failover_load, _failover_stalls, _ray_rounds
from bench._failover_fleet import Fleet, NotInTime, fleet
from bench._failover_jobs import JOB, JobRounds
from bench._failover_rounds import collected, promoted, repeat, replaced, summary, tell
from bench._ray_cluster import NoRay, cluster, python

HERE = Path(__file__).parent
PARTS = ("service", "quick", "standby", "job", "ray", "stall", "load")
QUICK = "kind: policy\ndetection: {beat: 250ms}\n"
OURS = {"ours_1s": "", "ours_250ms": QUICK}
RAYS = ("tuned", "edge")
LEASE_S = 5.0
LEASE = "kind: policy\nleases: {lease: 5s}\n"
LEASE_DEFAULT_S = 30.0
OLD_LEASES_S = LEASE_DEFAULT_S + 2  # after a policy has shortened them, those given before still run

QUOTED: dict[str, object] = {
    "slurm": {"hang_s": 650, "from": "measured on one machine with its defaults, 22.05; not in this run"},
    "kubernetes": {"hang_s": 350, "from": "its defaults: 50 s of grace, then 300 s of toleration"},
    "nomad": {
        "hang_s": [20, 30],
        "from": "its defaults, up to 500 clients: TTL of 10 to 20 s, 10 s of grace",
    },
}

Found = dict[str, object]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=50, help="kills, and as many hangs")
    parser.add_argument("--no-peers", action="store_true", help="without Ray")
    parser.add_argument("--load-minutes", type=float, default=10.0, help="0: without the load")
    parser.add_argument("--parts", default=",".join(PARTS), help="only these, with commas")


def run(args: argparse.Namespace) -> dict[str, object]:
    parts = [part for part in args.parts.split(",") if part]
    unknown = sorted(set(parts) - set(PARTS))
    if unknown or args.rounds < 1:
        raise SystemExit(f"--parts takes some of {', '.join(PARTS)}, and --rounds at least 1")
    found: Found = {"kill": None, "hang": None, "exclusive_doubles": None, "false_failovers": 0}
    work: dict[str, Callable[[], Found]] = {
        "service": lambda: service(args.rounds),
        "quick": lambda: quick(args.rounds),
        "standby": lambda: standby(max(1, args.rounds // 2)),
        "job": lambda: job(args.rounds),
        "ray": lambda: ray(args),
        "stall": lambda: stall(args),
        "load": lambda: load(args),
    }
    for part in PARTS:
        if part in parts:
            tell(part)
            _merge(found, part, work[part])
    return found


def _merge(found: Found, part: str, work: Callable[[], Found]) -> None:
    """What one part cannot tell must not take with it what the others have found."""
    try:
        new = work()
    except (NotInTime, TimeoutError, RuntimeError, OSError, httpx.HTTPError) as error:
        found[f"{part}_error"] = f"{type(error).__name__}: {error}"
        tell(f"{part} failed: {error}")
        return
    false = new.pop("false_failovers", 0)
    known = found["false_failovers"]
    assert isinstance(false, int)
    assert isinstance(known, int)
    found.update(new)
    found["false_failovers"] = known + false


# the parts


def program(name: str, *words: str) -> str:
    """Without site packages: what is measured is not the start of an interpreter."""
    command = [sys.executable, "-I", "-S", str(HERE / name), *words]
    return "[" + ", ".join(f'"{word}"' for word in command) + "]"


def web(replicas: int = 1, standby: int = 0) -> str:
    return (
        f"kind: service\nname: web\nreplicas: {replicas}\nstandby: {standby}\n"
        f"command: {program('_failover_service.py')}\nready: {{http: /}}\n"
        "cpus: 0.1\nmemory: 32MiB\nstop_grace: 1s\n"
    )


def ledger(folder: str) -> str:
    return (
        f"kind: job\nname: {JOB}\ncommand: {program('_failover_job.py', folder)}\n"
        "cpus: 0.1\nmemory: 32MiB\nstop_grace: 1s\n"
    )


def _both(made: Fleet, rounds: int, beat_s: float, suffix: str = "") -> Found:
    one = replaced(made, "web")
    kill = collected(repeat(made, "kill", rounds, beat_s, one))
    hang = collected(repeat(made, "hang", rounds, beat_s, one))
    return {f"kill{suffix}": kill, f"hang{suffix}": hang, **_false(made)}


def _false(made: Fleet) -> Found:
    wrong = made.innocent().failovers
    for line in wrong:
        tell(f"false failover: {line}")
    return {"false_failovers": len(wrong)}


def service(rounds: int) -> Found:
    with fleet(web()) as made:
        return _both(made, rounds, 1.0)


def quick(rounds: int) -> Found:
    """At a beat of a quarter of a second."""
    with fleet(web(), QUICK) as made:
        return _both(made, rounds, 0.25, "_250ms")


def standby(rounds: int) -> Found:
    found: Found = {}
    with fleet(web(standby=1)) as made:
        for deed in ("kill", "hang"):
            done = repeat(made, deed, rounds, 1.0, promoted(made, "web"))
            after = summary(each["after_verdict"] for each in done)
            found[f"standby_{deed}"] = {**collected(done), "after_verdict": after}
        return {**found, **_false(made)}


def job(rounds: int) -> Found:
    """With a lease of 5 s, and a few times with the default one."""
    few = max(1, rounds // 5)
    short, doubles, false = _jobs(LEASE_S, LEASE, {"kill": few, "hang": few, "partition": few})
    usual, more, falser = _jobs(LEASE_DEFAULT_S, "", {"hang": max(1, rounds // 25)})
    both = [doubles, more]
    running, strict = (sum(int(str(each[key])) for each in both) for key in ("running", "strict"))
    return {
        "job_lease_5s": {**short, "doubles": doubles},
        "job_lease_30s": {**usual, "doubles": more},
        "exclusive_doubles": running,
        "exclusive_doubles_with_frozen_ones": strict,
        "false_failovers": false + falser,
    }


def _jobs(lease_s: float, policy: str, rounds: dict[str, int]) -> tuple[Found, Found, int]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-job-") as folder,
        fleet(ledger(folder), policy) as made,
    ):
        if policy:
            time.sleep(OLD_LEASES_S)
        work = JobRounds(made, Path(folder), lease_s)
        found: Found = {deed: work.run(deed, count) for deed, count in rounds.items()}
        return found, work.doubles(), len(made.innocent().failovers)


def ray(args: argparse.Namespace) -> Found:
    if args.no_peers:
        return {}
    try:
        python()
        return {"ray": _ray_rounds.measure(args.rounds), **QUOTED}
    except NoRay as error:
        return {"ray": {"error": str(error)}, **QUOTED}


def stall(args: argparse.Namespace) -> Found:
    """False failovers here are provoked, and not counted among those of the rounds."""
    rounds = max(1, args.rounds // 25)
    found: Found = {"rounds_each": rounds}
    for name, policy in OURS.items():
        with fleet(web(), policy) as made:
            found[name] = _failover_stalls.ours(made, rounds)
    for name in () if args.no_peers else RAYS:
        try:
            with cluster(name) as peer:
                found[f"ray_{name}"] = _failover_stalls.theirs(peer, rounds)
        except NoRay as error:
            found[f"ray_{name}"] = {"error": str(error)}
    return {"stall": found}


def load(args: argparse.Namespace) -> Found:
    """False failovers under load are counted there, and not among those of the rounds."""
    if not args.load_minutes:
        return {}
    with tempfile.TemporaryDirectory(prefix="holdfast-job-") as folder:
        documents = f"{web(replicas=3)}---\n{ledger(folder)}"
        rays = () if args.no_peers else RAYS
        return {"load": _failover_load.measure(documents, OURS, args.load_minutes, rays)}
