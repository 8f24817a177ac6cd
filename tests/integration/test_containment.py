"""What is exclusive dies with its shim, by the kernel: whatever is killed, however its program forked, as
root and as a plain user."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import procfs, replicas
from holdfast.model.event import Ended
from holdfast.model.node import Fencing
from holdfast.ports.runtime import Exit
from tests.runtime_rig import NAME, PROGRAMS, Node, Rig, alive, boot_ms, program, rig_in, until

ROUNDS = int(os.environ.get("HOLDFAST_KILLING_ROUNDS", "16"))  # each subset of what can be killed, once
EXCLUSIVE = {"exclusive": True}
LONG_MS = 600_000
NOBODY = 65534
# Its Python and our code may be where only root may look; the namespaces need another right, which it has
# not.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as rig:
        yield rig


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that belongs to a plain user, with nothing above it that keeps one out."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def job(node: Node, *command: str, **more: Any) -> None:
    node.runtime.renew(boot_ms() + LONG_MS)
    await node.start(command, wanted=EXCLUSIVE, **more)


def below(rig: Rig) -> list[int]:
    """All that descends from its shim: the first process of the namespace, and what the program started."""
    seen = procfs.scan()
    return procfs.descendants(rig.shim(), seen, procfs.families(seen))


def kill_by_subsets(root: Path, *before: str) -> None:
    command = [*before, sys.executable, str(PROGRAMS / "killing.py"), str(root), str(ROUNDS), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 10 * ROUNDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"ok: {ROUNDS} rounds")
    print(done.stdout)


def test_no_two_copies_ever_write_whatever_is_killed(tmp_path: Path) -> None:
    kill_by_subsets(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="the test before it is the same, as a plain user")
def test_no_two_copies_of_a_plain_user_ever_write_whatever_is_killed(public: Path) -> None:
    kill_by_subsets(public, *AS_NOBODY)


@pytest.mark.parametrize("victim", ["shim", "init"])
async def test_what_forked_twice_and_forgot_its_environment_dies_with_its_shim(rig: Rig, victim: str) -> None:
    async with rig.node() as node:
        await job(node, *program("stubborn.py"))
        await node.said("here")
        pids = below(rig)
        assert len(pids) == 5
        first, _ = replicas.first_process(str(rig.folder()))
        os.kill({"shim": rig.shim(), "init": first}[victim], signal.SIGKILL)
        why = {"shim": "its shim was killed", "init": "killed by signal 9"}[victim]
        assert await node.exit() == Exit(NAME, Ended.FAILED, why)
        assert not any(map(alive, pids)), "its end was told before it was the end"


@pytest.mark.parametrize(
    ("script", "how", "why"),
    [
        ("exit 0", Ended.DONE, "exit code 0"),
        ("exit 3", Ended.FAILED, "exit code 3"),
        ("kill -TERM $$", Ended.FAILED, "killed by signal 15"),
        ("kill -KILL $$", Ended.FAILED, "killed by signal 9"),
        ("kill -KILL $PPID; exit 4", Ended.FAILED, "exit code 4"),  # its shim it cannot even see
        ("sleep 1000 & setsid sleep 1000 & exit 5", Ended.FAILED, "exit code 5"),
    ],
)
async def test_a_job_ends_as_its_program_does(rig: Rig, script: str, how: Ended, why: str) -> None:
    async with rig.node() as node:
        await job(node, "sh", "-c", script)
        assert await node.exit() == Exit(NAME, how, why)
        assert rig.left() == []


async def test_a_job_that_cannot_be_run_says_why(rig: Rig) -> None:
    async with rig.node() as node:
        await job(node, "no-such-command")
        assert await node.exit() == Exit(NAME, Ended.FAILED, "no such command: no-such-command")
        assert node.readies == []


async def test_a_job_sees_its_own_processes_and_only_them(rig: Rig) -> None:
    if not refusal_in_a_process()[1]:
        pytest.skip("no /proc of its own can be mounted here")
    async with rig.node() as node:
        await job(node, "sh", "-c", "echo pids $(ls /proc | grep -c '^[0-9]'); readlink /proc/$$/exe; exit 0")
        assert (await node.exit()).how is Ended.DONE
        found = re.search(r"pids (\d+)\n(.*sh|.*dash|.*busybox)\n", node.log())
        assert found
        assert int(found[1]) <= 5


def refusal_in_a_process() -> tuple[str, bool]:
    """Not from here: there may be more than one thread."""
    code = "from holdfast.agent.init import refusal; print(*refusal(), sep=',')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    why, own = said.strip().rsplit(",", 1)
    return why, own == "True"


async def test_a_job_that_is_asked_to_stop_has_its_time(rig: Rig) -> None:
    async with rig.node() as node:
        await job(node, "sh", "-c", "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.05; done")
        await node.said("here")
        node.runtime.stop(NAME, boot_ms() + 60_000)
        assert await node.exit() == Exit(NAME, Ended.STOPPED, "asked to stop: exit code 0")
        assert "bye" in node.log()


async def test_a_job_that_ignores_the_request_is_killed_at_the_deadline(rig: Rig) -> None:
    async with rig.node() as node:
        await job(node, *program("stubborn.py"))
        await node.said("here")
        pids = below(rig)
        node.runtime.stop(NAME, boot_ms() + 100)
        assert (await node.exit()).how is Ended.STOPPED
        assert not any(map(alive, pids))


async def test_a_job_that_is_stopped_while_it_starts_is_stopped(rig: Rig) -> None:
    async with rig.node() as node:
        for number in range(10):
            name = f"web/{number}.1"
            node.runtime.renew(boot_ms() + LONG_MS)
            await node.start(("sleep", "1000"), name, wanted=EXCLUSIVE)
            node.runtime.stop(name, boot_ms() + 60_000)
            assert (await node.exit(name)).how is Ended.STOPPED
        assert rig.left() == []


async def test_a_job_is_told_of_a_change_by_the_signal_it_asked_for(rig: Rig) -> None:
    async with rig.node() as node:
        script = "trap 'echo told; exit 0' HUP; echo here; while :; do sleep 0.05; done"
        await job(node, "sh", "-c", script, tell="HUP")
        await node.said("here")
        node.runtime.tell(node.runtime._replicas[NAME].task.wanted)
        await node.said("told")
        assert (await node.exit()).how is Ended.DONE


async def test_a_shim_that_was_stopped_does_not_disable_the_lease(rig: Rig) -> None:
    async with rig.node() as node:
        node.runtime.renew(boot_ms() + 2_500)
        await node.start(program("stubborn.py"), wanted=EXCLUSIVE)
        await node.said("here")
        shim, pids = rig.shim(), below(rig)
        os.kill(shim, signal.SIGSTOP)
        await until(lambda: not any(map(alive, pids)))
        assert boot_ms() >= node.runtime.lease_until()
        os.kill(shim, signal.SIGCONT)
        assert await node.exit() == Exit(NAME, Ended.FENCED, "the lease ran out")


async def test_usage_counts_the_program_and_not_what_contains_it(rig: Rig) -> None:
    async with rig.node() as node:
        await job(node, "sleep", "1000")
        await node.ready()
        await until(lambda: NAME in node.runtime.usage())
        assert node.runtime.usage()[NAME].memory_mib <= 4


# where the kernel does not help


async def test_without_a_namespace_the_end_of_a_killed_shims_job_is_not_proven(rig: Rig) -> None:
    async with rig.node(contain=False) as node:
        assert node.runtime.fencing() is Fencing.NONE
        await job(node, *program("stubborn.py"))
        *_, forgetful = await node.pids()
        os.kill(rig.shim(), signal.SIGKILL)
        assert await node.exit() == Exit(NAME, Ended.FAILED, "its shim was killed", proven=False)
        assert alive(forgetful), "which is why"
        os.kill(forgetful, signal.SIGKILL)
    async with rig.node(contain=False) as node:
        assert [found.exit and found.exit.proven for found in node.adopted] == [False]


async def test_without_a_namespace_what_its_shim_saw_end_is_proven(rig: Rig) -> None:
    async with rig.node(contain=False) as node:
        await job(node, "sh", "-c", "exit 3")
        assert await node.exit() == Exit(NAME, Ended.FAILED, "exit code 3")


async def test_a_node_fences_only_when_all_that_is_exclusive_there_is_contained(rig: Rig) -> None:
    async with rig.node(contain=False) as node:
        await job(node, "sleep", "1000")
        await node.ready()
    async with rig.node() as node:
        assert node.runtime.fencing() is Fencing.NONE, "an agent before this one started it otherwise"
        node.runtime.kill(NAME)
        await node.exit()
        assert node.runtime.fencing() is Fencing.KERNEL
