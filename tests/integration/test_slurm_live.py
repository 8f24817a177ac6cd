"""A control plane and its agents on a real Slurm: they join from pilot jobs, and what Slurm takes is replaced
before or after it is gone."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.live import Ground, Started, kill, processes, until
from tests.slurm import Slurm, shared

POOL = """\
kind: pool
name: {name}
provider: slurm
profile: cluster
min: 1
max: 4
offers: [{{ name: {partition}, zone: a, cpus: 2, memory: 1GiB }}]
settings: {settings}
"""
SERVICE = """\
kind: service
name: web
replicas: 1
command: exec {python} -m http.server $PORT
ready: {{ tcp: true, every: 100ms }}
cpus: 0.1
memory: 64MiB
stop_grace: 2s
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with shared() as running:
        yield running


@pytest.fixture
def ground(tmp_path: Path, cluster: Slurm) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    for plane in made.planes:
        plane.kill()  # first, or it would replace what we end
    cluster.end_all()
    until(lambda: not processes(tmp_path), "nothing is left")
    made.close()


def profile(ground: Ground, cluster: Slurm) -> str:
    settings = {"root": str(ground.folder / "shared"), "conf": str(cluster.conf)}
    file = ground.folder / "providers.yaml"
    file.write_text(json.dumps({"profiles": {"cluster": {"provider": "slurm", "settings": settings}}}))
    file.chmod(0o600)
    return str(file)


def begin(ground: Ground, cluster: Slurm, partition: str, **more: str) -> Started:
    """A service on a pool of pilot jobs, ready."""
    plane = ground.serve("--provider-profiles", profile(ground, cluster))
    pool = POOL.format(name="cluster", partition=partition, settings=json.dumps(more))
    until(lambda: plane.apply(pool, SERVICE.format(python=sys.executable)), "somebody leads")
    plane.until_ready("web")
    return plane


def job_of(cluster: Slurm, node: str) -> int:
    return next(job for job, name, _ in cluster.jobs() if name == node)


def still_runs(pid: int) -> str:
    """Its state and words. One that has ended and was not waited for yet does not run."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return "" if state in "ZX" else f"{pid} {state} {words}"
    return ""


def moved(plane: Started, node: str) -> str:
    """The node that serves instead of this one."""

    def look() -> str:
        return next((where for where in plane.ready("web").values() if where != node), "")

    return until(look, f"somebody serves instead of {node}")


def test_a_node_whose_job_was_cancelled_behind_our_back_is_replaced(ground: Ground, cluster: Slurm) -> None:
    plane = begin(ground, cluster, "main")
    (node,) = plane.ready("web").values()
    before = set(processes(ground.folder / "shared" / "nodes" / node))
    assert len(before) >= 3, "an agent, a shim and a program at least"
    cluster.ask("scancel", str(job_of(cluster, node)))
    assert moved(plane, node) in {name for _, name, _ in cluster.jobs("--states=R")}
    until(lambda: node not in plane.nodes(), "the old one is forgotten")
    assert [told for pid in before if (told := still_runs(pid))] == []


def test_a_node_near_its_time_limit_is_emptied_and_replaced_before_it_ends(
    ground: Ground, cluster: Slurm
) -> None:
    plane = begin(ground, cluster, "main", time="1m", notice="55s")
    (node,) = plane.ready("web").values()
    ends_at = time.monotonic() + 60
    moved(plane, node)
    assert time.monotonic() < ends_at
    assert any("it is leaving" in line for line in plane.history(node=node))
    until(lambda: node not in plane.nodes(), "it was ended by us, and not by its limit")
    assert time.monotonic() < ends_at


def test_a_node_that_is_preempted_is_replaced_in_its_grace(ground: Ground, cluster: Slurm) -> None:
    plane = begin(ground, cluster, "low")
    (node,) = plane.ready("web").values()
    job = job_of(cluster, node)
    host = cluster.ask("squeue", "--noheader", f"--jobs={job}", "--format=%N")
    words = ["--partition=high", "--cpus-per-task=8", f"--nodelist={host}", "--output=/dev/null"]
    cluster.ask("sbatch", *words, stdin="#!/bin/sh\nsleep 300\n")
    moved(plane, node)
    assert any("it is leaving" in line for line in plane.history(node=node))
    until(lambda: node not in plane.nodes(), "the old one is forgotten")


CLOUD = """\
kind: pool
name: cloud
provider: local
zones: [c]
max: 2
cpus: 2
memory: 1GiB
price: 1
settings: { boot: 300ms }
"""
QUICK = "{kind: policy, capacity: {queue_every: 500ms, queue_patience: 1s}}"


def test_a_job_that_would_wait_for_long_is_passed_by_and_cancelled_when_the_other_is_ready(
    ground: Ground, cluster: Slurm
) -> None:
    words = ["--partition=main", "--nodes=3", "--exclusive", "--time=40", "--output=/dev/null"]
    cluster.ask("sbatch", *words, stdin="#!/bin/sh\nsleep 2400\n")
    until(lambda: cluster.jobs("--states=R"), "the cluster is full")
    pool = POOL.format(name="cluster", partition="main", settings='{ "time": "30m" }')
    plane = ground.serve("--allow-local", "--provider-profiles", profile(ground, cluster))
    asked = (QUICK, pool.replace("min: 1", "min: 0"), CLOUD, SERVICE.format(python=sys.executable))
    until(lambda: plane.apply(*asked), "somebody leads")
    (node,) = plane.until_ready("web").values()
    assert node.startswith("cloud-")
    until(lambda: not [name for name in plane.nodes() if name.startswith("cluster-")], "it is forgotten")
    assert [name for _, name, _ in cluster.jobs() if name.startswith("cluster-")] == [], (
        "and out of the queue"
    )
    told = plane.history()
    assert any("in its queue; the first one ready stays" in line for line in told)
    assert any("because of a queue, and was ready first" in line for line in told)
    plane.kill()
    kill(*processes(plane.folder / "nodes" / node))  # it goes on without its control plane
