"""Nodes that are Slurm jobs, on a real Slurm: what waits, what ends, what is taken away, and what never
starts."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.adapters.providers.local import tree
from holdfast.adapters.providers.slurm import SlurmProvider, provider, read_settings
from holdfast.adapters.providers.slurm import queue as slurm_queue
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, NotFound, OutcomeUnknown, PortError, Unreachable
from tests.slurm import GRACE_S, Slurm, shared
from tests.stand_in import StandIn, join, until

# An agent that starts something which leaves its session and its parent, as a shim does, and then lives on.
WITH_SHIM = """\
#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --root ] && root=$2; shift; done
echo $$ >> "$root/starts"
setsid sh -c 'sleep 1000 & echo $! >> "$0/shims"' "$root"
while :; do sleep 1000; done
"""


def wish(node: str = "n1", offer: str = "main", **more: int | str) -> LaunchNode:
    capacity = replace(Resources(2_000, 1_024), **more)
    place = Place("slurm", zone=offer)
    return LaunchNode(
        node=node,
        pool="pool",
        offer=offer,
        place=place,
        capacity=capacity,
        price_micro_usd=0,
        spot=False,
        why="w",
    )


class Bench:
    def __init__(self, folder: Path, cluster: Slurm) -> None:
        self.folder, self.cluster = folder, cluster
        self.agent = StandIn(folder)
        self.agent.gate.touch()

    def provider(self, settle_s: float = provider.SETTLE_S, /, **more: str) -> SlurmProvider:
        settings = {"root": str(self.folder / "root"), "conf": str(self.cluster.conf)}
        settings |= {"python": sys.executable, "agent": str(self.agent.path), **more}
        return SlurmProvider(read_settings(settings), join, look_s=0.2, settle_s=settle_s)

    def with_shim(self) -> str:
        path = self.folder / "with-shim"
        path.write_text(WITH_SHIM)
        path.chmod(0o755)
        return str(path)

    def home(self, node: str = "n1") -> Path:
        return (self.folder / "root" / "nodes" / node).resolve()

    def pids(self, node: str = "n1") -> list[int]:
        return [process.pid for process in tree.members(str(self.home(node)))]

    def job(self, node: str = "n1") -> int:
        return int((self.home(node) / "job").read_text())

    def pilot(self, node: str = "n1") -> int:
        command = os.fsencode(self.home(node) / "pilot.py")
        found = [p for p in os.listdir("/proc") if p.isdigit() and command in _command(p)]
        return min(int(pid) for pid in found if _parent(pid) != 1)  # the keeper has none

    def notice(self, node: str = "n1") -> float:
        try:
            return float((self.home(node) / "agent" / "notice").read_text())
        except (FileNotFoundError, ValueError):
            return 0.0

    def show(self, job: int) -> str:
        return self.cluster.ask("scontrol", "show", "job", str(job))


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: str) -> int:
    found = tree.look(int(pid))
    return found.parent if found else 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with shared() as running:
        yield running


@pytest.fixture
def bench(tmp_path: Path, cluster: Slurm) -> Iterator[Bench]:
    made = Bench(tmp_path, cluster)
    yield made
    cluster.end_all()
    until("no process of a node is left", lambda: not made.agent.roots())


async def soon(what: str, holds: object, seconds: float = 60.0) -> None:
    assert callable(holds)
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.02)


# the job


async def test_a_job_asks_for_what_the_node_has_and_says_nothing_secret(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may keep a job's environment in its accounts, and what runs there reads it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-cloud")
    monkeypatch.setenv("PGPASSWORD", "secret-of-the-database")
    monkeypatch.setenv("MODULEPATH", "/opt/modules")
    nodes = bench.provider(time="90s", inherit_env="MODULEPATH")
    await nodes.launch(wish(gpu_milli=1_000, gpu_kind="a100"))
    said = bench.show(bench.job())
    for words in ("JobName=n1", "Requeue=0", "TimeLimit=00:02:00", "gpu:a100:1", "NumCPUs=2", "mem=1G"):
        assert words in said
    await soon("its agent runs", bench.pids)  # a launch is over when the pilot has begun
    agent = bench.pids()
    heard = said + "".join(_command(str(pid)).decode() for pid in agent)
    heard += bench.cluster.ask("squeue", "--format=%all")
    heard += bench.cluster.ask("scontrol", "write", "batch_script", str(bench.job()), "-")
    heard += Path(f"/proc/{bench.pilot()}/environ").read_text(errors="replace")
    assert not [secret for secret in ("token-of-n1", "secret-of-the") if secret in heard]
    assert "MODULEPATH=/opt/modules" in heard, "it was named"
    assert (bench.home() / "token").stat().st_mode & 0o777 == 0o600
    assert (bench.home() / "token").read_text() == "token-of-n1"


async def test_two_fleets_of_one_user_do_not_see_each_others_nodes(bench: Bench) -> None:
    ours, theirs = bench.provider(), bench.provider(root=str(bench.folder / "other"))
    await ours.launch(wish())
    assert (await ours.list("pool"), await theirs.list("pool")) == (("n1",), ())
    with pytest.raises(NotFound):
        await theirs.terminate("n1")
    assert await ours.state("n1") is Word.RUNNING


async def test_a_job_that_slipped_in_twice_is_ended_and_the_oldest_stays(bench: Bench) -> None:
    nodes = bench.provider()
    await nodes.launch(wish())
    first = bench.job()
    fleet = (bench.folder / "root" / "fleet").read_text()
    words = ["--job-name=n1", f"--comment={slurm_queue.comment(fleet, 'pool')}", "--output=/dev/null"]
    script = f"#!/bin/sh\nexec {sys.executable} -I -S {bench.home()}/pilot.py {bench.home()}\n"
    again = int(bench.cluster.ask("sbatch", "--parsable", "--hold", *words, stdin=script))
    await nodes.launch(wish())
    assert [job for job, _, _ in bench.cluster.jobs("--states=R,PD")] == [first]
    assert again > first
    assert bench.agent.made() == ["n1"]


# ending


@pytest.mark.parametrize("how", ["terminate", "scancel", "pilot killed"])
async def test_nothing_of_a_node_outlives_its_job(bench: Bench, how: str) -> None:
    nodes = bench.provider(agent=bench.with_shim())
    await nodes.launch(wish())
    await soon("its shim runs", (bench.home() / "agent" / "shims").exists)
    everyone = bench.pids()
    assert len(everyone) >= 2
    if how == "terminate":
        await nodes.terminate("n1")
        assert not bench.pids()
    else:
        if how == "scancel":
            bench.cluster.ask("scancel", str(bench.job()))
        else:
            os.kill(bench.pilot(), signal.SIGKILL)
        await soon("it says so", (bench.home() / "ended").exists)
        assert await nodes.state("n1") is Word.STOPPED
    assert all(tree.look(pid) is None for pid in everyone)


async def test_an_agent_that_crashed_is_started_again_beside_what_it_left(bench: Bench) -> None:
    nodes = bench.provider(agent=bench.with_shim())
    await nodes.launch(wish())
    starts = bench.home() / "agent" / "starts"
    await soon("the agent runs", starts.exists)
    os.kill(int(starts.read_text()), signal.SIGKILL)
    await soon("it is started again", lambda: len(starts.read_text().split()) == 2)
    assert await nodes.state("n1") is Word.RUNNING


async def test_a_requeued_job_does_not_bring_its_node_back(bench: Bench) -> None:
    nodes = bench.provider()
    await nodes.launch(wish())
    bench.agent.wait()
    job = str(bench.job())
    assert bench.cluster.run("scontrol", "requeue", job).returncode, "it was submitted so"
    bench.cluster.ask("scontrol", "update", f"JobId={job}", "Requeue=1")
    bench.cluster.ask("scontrol", "requeue", job)
    await soon("its first life ends", (bench.home() / "ended").exists)
    assert await nodes.state("n1") is Word.STOPPED
    for _ in range(10):  # while the first run is being cleared away, Slurm puts it off again
        bench.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        await asyncio.sleep(1.5)
        if "had its life" in (said := (bench.home() / "job.log").read_text()):
            break
    assert "had its life" in said
    assert bench.agent.made() == ["n1"]
    assert not bench.pids()
    assert await nodes.state("n1") is Word.STOPPED


async def test_a_job_that_ended_where_nobody_hears_its_machine_is_not_called_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that Slurm gave up may still run everything that was on it."""
    monkeypatch.setattr(provider, "ENDED_S", 0.1)
    nodes = bench.provider()
    await nodes.launch(wish())
    os.kill(bench.pilot(), signal.SIGSTOP)
    bench.cluster.ask("scancel", str(bench.job()))
    await soon("Slurm has ended it", lambda: not bench.cluster.jobs())
    await soon("its keeper too", (bench.home() / "ended").exists)
    (bench.home() / "ended").unlink()
    assert await nodes.state("n1") is Word.STOPPED, "Slurm knows it, and hears its machine"
    (bench.home() / "began").write_text(json.dumps({"job": "99999", "host": "n1", "at": time.time()}))
    assert await nodes.state("n1") is Word.UNKNOWN, "Slurm has forgotten it"
    with pytest.raises(OutcomeUnknown, match="n1 may run it still"):
        await nodes.terminate("n1")
    (bench.home() / "ended").touch()
    assert await nodes.state("n1") is Word.STOPPED
    with pytest.raises(NotFound):
        await nodes.terminate("n1")


# what waits


async def test_a_job_that_waits_its_turn_is_a_node_that_boots_and_one_that_is_held_is_none(
    bench: Bench,
) -> None:
    nodes = bench.provider()
    await asyncio.gather(*(nodes.launch(wish(node, cpu_milli=8_000)) for node in ("n1", "n2", "n3")))
    await nodes.launch(wish("n4", cpu_milli=8_000))
    await nodes.launch(wish("n5", cpu_milli=8_000))
    assert {name for _, name, state in bench.cluster.jobs() if state == "PENDING"} == {"n4", "n5"}
    assert await nodes.state("n4") is await nodes.state("n5") is Word.RUNNING
    assert set(await nodes.list("pool")) == {"n1", "n2", "n3", "n4", "n5"}
    bench.cluster.ask("scontrol", "hold", str(bench.job("n5")))
    assert await nodes.state("n5") is Word.STOPPED
    with pytest.raises(Denied, match="JobHeld"):
        await nodes.launch(wish("n5", cpu_milli=8_000))
    assert "n5" not in await nodes.list("pool")
    await nodes.terminate("n1")
    await soon("the other has its turn", lambda: (bench.home("n4") / "began").exists())


@pytest.mark.parametrize(
    ("request_", "settings", "kind", "why"),
    [
        (wish(cpu_milli=99_000), {}, CapacityShort, "PartitionConfig"),
        (wish(memory_mib=999_999), {}, CapacityShort, "not available"),
        (wish(gpu_milli=1_000, gpu_kind="h100"), {}, CapacityShort, "not available"),
        (wish(offer="shut@a"), {}, CapacityShort, "inactive or drain"),
        (wish(offer="down"), {}, CapacityShort, "PartitionDown"),
        (wish(offer="nope"), {}, Denied, "nvalid partition"),
        (wish(offer="small"), {"time": "10m"}, PortError, "Partition(Config|TimeLimit)"),
        (wish(), {"python": "/no/such/python"}, Denied, "ended at once.*/no/such/python"),
        (wish(), {"agent": "/no/such/agent"}, Denied, "ended at once.*/no/such/agent"),
        (wish(), {"bin": "/no/such"}, Denied, "say in `bin`"),
    ],
)
async def test_what_can_never_start_is_refused_at_once_and_leaves_nothing(
    bench: Bench, request_: LaunchNode, settings: dict[str, str], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why):
        await bench.provider(**settings).launch(request_)
    assert not bench.cluster.jobs("--states=R,PD")
    assert not bench.home().exists()
    assert not (bench.home().parent / ".gone").exists(), "its name is not spent"


async def test_offers_are_those_for_which_there_are_nodes(bench: Bench) -> None:
    def offer(name: str, cpus: int = 1, gpus: int = 0, kind: str = "") -> Offer:
        return Offer(name, Place("slurm"), Resources(cpus * 1_000, 1_024, gpus * 1_000, kind), 7)

    there = (offer("main@a"), offer("low", gpus=2, kind="a100"))
    missing = (
        *(offer("shut"), offer("down"), offer("nope")),
        *(offer("main", cpus=9), offer("main", gpus=1, kind="h100")),
    )
    assert await bench.provider().offers(Pool("pool", "slurm", there + missing)) == there
    found = await bench.provider().offers(Pool("pool", "slurm", ()))
    assert [o.name for o in found] == ["main", "low", "high", "small"]
    assert {o.capacity for o in found} == {Resources(8_000, 64_000, 2_000, "a100")}


# notices


async def test_a_preempted_node_is_told_how_long_it_has(bench: Bench) -> None:
    """Slurm tells the job's steps and not its script; the end of the job says it."""
    nodes = bench.provider()
    for node in ("n1", "n2"):
        await nodes.launch(wish(node, "low", cpu_milli=8_000))
    watching = asyncio.create_task(nodes.supervise())
    words = ["--partition=high", "--cpus-per-task=8", "--output=/dev/null"]
    before = time.time()
    bench.cluster.ask("sbatch", *words, stdin="#!/bin/sh\nsleep 300\n")
    await soon("one of them has a notice", lambda: bench.notice("n1") or bench.notice("n2"))
    watching.cancel()
    taken = "n1" if bench.notice("n1") else "n2"
    assert before + GRACE_S - 1 <= bench.notice(taken) <= time.time() + GRACE_S + 1, "Slurm counts in seconds"
    assert await nodes.state(taken) is Word.RUNNING
    await nodes.terminate(taken)


async def test_a_node_is_told_by_a_signal_too_when_no_control_plane_watches(bench: Bench) -> None:
    await bench.provider(time="10m", notice="4m").launch(wish())
    bench.cluster.ask("scancel", "--batch", "--signal=USR1", str(bench.job()))
    await soon("it has a notice", bench.notice)
    assert 590 < bench.notice() - time.time() < 601, "the end of the job, which the script asks for"


async def test_a_partition_whose_limit_is_short_does_not_take_nodes_away_at_birth(bench: Bench) -> None:
    bench.cluster.ask("scontrol", "update", "PartitionName=small", "MaxTime=5")
    nodes = bench.provider()
    watching = asyncio.create_task(nodes.supervise())
    try:
        await nodes.launch(wish(offer="small"))  # five minutes, which is as long as a notice usually is
        bench.cluster.ask("scancel", "--batch", "--signal=USR1", str(bench.job()))
        await asyncio.sleep(1.0)
        assert not bench.notice()
        bench.cluster.ask("scontrol", "update", f"JobId={bench.job()}", "TimeLimit=1")
        await soon("its end is near", bench.notice)
    finally:
        watching.cancel()
        bench.cluster.ask("scontrol", "update", "PartitionName=small", "MaxTime=1")


# a controller that is away


async def test_a_controller_that_hangs_is_no_cluster_without_nodes(bench: Bench) -> None:
    nodes = bench.provider()
    await nodes.launch(wish())
    bench.cluster.pause_controller()
    try:
        word, listed, launched = await asyncio.gather(
            nodes.state("n1"), nodes.list("pool"), nodes.launch(wish("n2")), return_exceptions=True
        )
    finally:
        bench.cluster.resume_controller()
    assert word is Word.UNKNOWN
    assert (type(listed), type(launched)) == (Unreachable, Unreachable)
    await nodes.launch(wish("n2"))
    assert await nodes.list("pool") == ("n1", "n2")
    assert bench.agent.made().count("n1") == 1


async def test_a_controller_that_crashed_and_forgot_a_job_does_not_make_it_stopped(bench: Bench) -> None:
    nodes = bench.provider()
    await nodes.launch(wish())
    bench.cluster.stop_controller(signal.SIGKILL)
    bench.cluster.start_controller()
    end = time.monotonic() + 20.0
    while (word := await nodes.state("n1")) is Word.UNKNOWN:
        assert time.monotonic() < end, "the machine hears that its job is nobody's, and ends it"
    assert word is Word.RUNNING or not bench.pids()


async def test_nodes_outlive_a_controller_that_is_started_anew(bench: Bench) -> None:
    nodes = bench.provider()
    await nodes.launch(wish())
    bench.cluster.stop_controller()
    assert await nodes.state("n1") is Word.UNKNOWN
    bench.cluster.start_controller()
    assert await nodes.state("n1") is Word.RUNNING
    await nodes.terminate("n1")
    assert not bench.pids()
