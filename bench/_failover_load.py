"""What does quick detection cost? All machines well, all processors busy, and nobody harmed.

Three busy loops for each processor, as everybody has met a machine. Our fleets and Ray's clusters are up
before it begins, stand in the same load at the same time and are left alone: every failover is a false one.
Together, and not one after the other, because then all of them had the same minutes; each is a part of the
others' load, and a cluster that recovers from a mistake of its own is a heavier one.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

from bench._failover_fleet import Fleet, fleet
from bench._failover_rounds import tell
from bench._ray_cluster import Cluster, NoRay, cluster
from bench._ray_rounds import Untouched

LOOPS_A_CORE = 3
BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
LOOK_S = 1.0


def measure(
    documents: str, policies: dict[str, str], minutes: float, rays: Iterable[str]
) -> dict[str, object]:
    with contextlib.ExitStack() as stack:
        fleets: dict[str, Fleet] = {
            name: stack.enter_context(fleet(documents, policy)) for name, policy in policies.items()
        }
        clusters: dict[str, Cluster] = {}
        failed: dict[str, object] = {}
        for name in rays:
            try:
                clusters[name] = stack.enter_context(cluster(name))
            except (NoRay, OSError) as error:
                failed[f"ray_{name}"] = {"error": str(error)}
        left_alone = {name: Untouched(made) for name, made in clusters.items()}
        marks = {name: len(made.watch.lines) for name, made in fleets.items()}
        with busy(minutes * 60):
            _wait(minutes * 60, list(left_alone.values()))
            load = os.getloadavg()[0]
            ours = {name: _of_ours(made, marks[name]) for name, made in fleets.items()}
            theirs = {f"ray_{name}": left.result() for name, left in left_alone.items()}
    return {
        "minutes": minutes,
        "busy_loops": LOOPS_A_CORE * cores(),
        "load_average": round(load, 1),
        **ours,
        **theirs,
        **failed,
    }


def _of_ours(made: Fleet, mark: int) -> dict[str, object]:
    innocent = made.innocent(mark)
    return {"false_failovers": len(innocent.failovers), "false_suspicions": innocent.suspicions}


def _wait(seconds: float, clusters: list[Untouched]) -> None:
    until, told = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        time.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        for left in clusters:
            left.look()
        if time.monotonic() - told > 60:
            told = time.monotonic()
            tell(f"under load, {max(0.0, until - told):.0f} s to go")


@contextlib.contextmanager
def busy(seconds: float) -> Iterator[None]:
    """They end by themselves a while later if we cannot end them."""
    words = [sys.executable, "-S", "-E", "-c", BUSY, str(seconds + 60)]
    loops = [subprocess.Popen(words) for _ in range(LOOPS_A_CORE * cores())]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def cores() -> int:
    return len(os.sched_getaffinity(0))
