"""Leases that are over end exclusive replicas, whoever else is dead; and what lives on is found again."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.agent import procfs
from holdfast.agent.lease import Lease, boot_id
from holdfast.agent.lease import read as read_lease
from holdfast.agent.replicas import locked
from holdfast.model.event import Ended
from holdfast.ports.runtime import Exit
from tests.runtime_rig import NAME, PROGRAMS, Rig, alive, boot_ms, program, rig_in, task_for, until

EXCLUSIVE = {"exclusive": True}
SHORT_MS = 2_500  # and yet longer than a slow machine takes to start a process
FENCED = Exit(NAME, Ended.FENCED, "the lease ran out")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as rig:
        yield rig


@contextlib.contextmanager
def agent_process(rig: Rig, lease_ms: int, command: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """Another process with a runtime of its own, which has one replica."""
    task = task_for(command, wanted=EXCLUSIVE)
    agent = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "node.py"), str(rig.root), str(lease_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOLDFAST_TEST": rig.mark},
    )
    assert agent.stdin
    assert agent.stdout
    try:
        agent.stdin.write(msgspec.json.encode(task).decode() + "\n")
        agent.stdin.close()
        yield agent
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()


async def test_an_exclusive_replica_runs_as_long_as_the_lease_is_renewed_and_others_need_none(
    rig: Rig,
) -> None:
    async with rig.node() as node:
        first_end = boot_ms() + SHORT_MS
        node.runtime.renew(first_end)
        await node.start(("sleep", "1000"), wanted=EXCLUSIVE)
        await node.start(("sleep", "1000"), "web/1.1")
        await node.ready()
        lapsed = False
        while boot_ms() < first_end + 500:
            lapsed = lapsed or boot_ms() >= node.runtime.lease_until()
            node.runtime.renew(boot_ms() + SHORT_MS)
            await asyncio.sleep(0.1)
        assert node.exits == {} or lapsed, "the first lease is over, but it was renewed"
        assert await node.exit() == FENCED
        assert boot_ms() >= node.runtime.lease_until()
        assert "web/1.1" not in node.exits


async def test_without_a_lease_an_exclusive_replica_is_not_even_started(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sh", "-c", "echo ran"), wanted=EXCLUSIVE)
        assert await node.exit() == FENCED
        assert node.log() == ""
        assert node.readies == []


async def test_the_lease_outlives_the_agent_and_its_end_is_kept_though_the_agent_was_killed(rig: Rig) -> None:
    with agent_process(rig, 4_000, program("stubborn.py")) as agent:
        assert agent.stdout
        assert agent.stdout.readline() == f"ready {NAME}\n"
        log = rig.root / "logs" / "web%2F0.1" / "log.0"
        await until(lambda: log.exists() and "here" in log.read_text())
        pids = procfs.descendants(rig.shim(), (seen := procfs.scan()), procfs.families(seen))
        assert len(pids) == 5, "the first process of its namespace, the program, its child, two orphans"
        agent.kill()
        agent.wait()
        end, _ = _lease_in(rig)
        living = all(map(alive, pids))
        assert living or boot_ms() >= end, "an agent's crash is no crash of the work"
        await until(lambda: not any(map(alive, pids)))
        assert boot_ms() >= end
    await until(lambda: not locked(str(rig.folder())))
    async with rig.node() as node:
        assert [found.exit for found in node.adopted] == [FENCED]
        assert node.runtime.lease_until() == end


def _lease_in(rig: Rig) -> tuple[int, int]:
    handle = os.open(rig.root / "lease", os.O_RDONLY)
    try:
        return read_lease(handle, boot_id())
    finally:
        os.close(handle)


async def test_a_shim_that_slept_past_the_end_wakes_to_fence(rig: Rig) -> None:
    async with rig.node() as node:
        node.runtime.renew(boot_ms() + SHORT_MS)
        await node.start(("sleep", "1000"), wanted=EXCLUSIVE)
        await node.ready()
        os.kill(rig.shim(), signal.SIGSTOP)
        await until(lambda: boot_ms() > node.runtime.lease_until())
        assert node.exits == {}
        os.kill(rig.shim(), signal.SIGCONT)
        assert await node.exit() == FENCED


async def test_a_lease_that_is_given_anew_does_not_cover_what_ran_under_the_old_one(rig: Rig) -> None:
    async with rig.node() as node:
        node.runtime.renew(boot_ms() + SHORT_MS)
        await node.start(("sleep", "1000"), wanted=EXCLUSIVE)
        await node.ready()
        os.kill(rig.shim(), signal.SIGSTOP)
        await until(lambda: boot_ms() > node.runtime.lease_until())
        node.runtime.renew(boot_ms() + 60_000)  # the agent woke up first
        os.kill(rig.shim(), signal.SIGCONT)
        assert await node.exit() == FENCED
        await node.start(("true",), "web/0.2", wanted=EXCLUSIVE)
        assert (await node.exit("web/0.2")).how is Ended.DONE


async def test_a_lease_that_lapses_while_a_start_waits_for_its_turn_is_not_replaced_by_the_next(
    rig: Rig,
) -> None:
    async with rig.node() as node:
        end = boot_ms() + SHORT_MS
        node.runtime.renew(end)
        async with node.runtime._starting:
            starting = asyncio.create_task(node.start(("sh", "-c", "echo ran"), wanted=EXCLUSIVE))
            while boot_ms() < end:
                await asyncio.sleep(0.01)
            node.runtime.renew(boot_ms() + 60_000)
        await starting
        assert await node.exit() == FENCED
        assert node.log() == ""


def test_a_lease_is_only_prolonged_and_counts_its_terms(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    now = boot_ms()
    lease = Lease(path)
    assert (lease.until, lease.term) == (0, 0)
    lease.renew(now + 60_000)
    lease.renew(now + 50_000)
    lease.renew(now + 70_000)
    assert (lease.until, lease.term) == (now + 70_000, 1)
    lease.close()
    again = Lease(path)
    assert (again.until, again.term) == (now + 70_000, 1)
    again.close()


@pytest.mark.parametrize(
    "text",
    ["", "x", "another-boot 00000000000000000001 00000000000000000001 x y", "BOOT 1 1 2 1", "BOOT 1 1 x"],
)
def test_a_lease_file_that_makes_no_sense_or_is_of_another_boot_is_no_lease(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "lease"
    path.write_text(text.replace("BOOT", boot_id()))
    handle = os.open(path, os.O_RDONLY)
    assert read_lease(handle, boot_id()) == (0, 0)
    os.close(handle)
    lease = Lease(str(path))
    assert lease.until == 0
    lease.close()


# finding again


async def test_another_agent_finds_what_runs_and_stops_it(rig: Rig) -> None:
    task = task_for(("sleep", "1000"))
    async with rig.node() as node:
        await node.runtime.start(task)
        await node.ready()
    async with rig.node() as node:
        (found,) = node.adopted
        assert (found.task, found.ready, found.exit) == (task, True, None)
        assert node.runtime.usage().keys() == {NAME}
        node.runtime.stop(NAME, boot_ms() + 60_000)
        assert await node.exit() == Exit(NAME, Ended.STOPPED, "asked to stop: killed by signal 15")
        assert node.readies == [], "it was ready before"


async def test_an_end_while_nobody_looked_is_told_until_it_is_forgotten(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sh", "-c", "read x < go; exit 4"), workdir=str(rig.root))
        os.mkfifo(rig.root / "go")
        await node.ready()
    (rig.root / "go").write_text("go\n")
    await until(lambda: not locked(str(rig.folder())))
    expected = Exit(NAME, Ended.FAILED, "exit code 4")
    for _ in range(2):
        async with rig.node() as node:
            assert [found.exit for found in node.adopted] == [expected]
    async with rig.node() as node:
        node.runtime.forget(NAME)
    async with rig.node() as node:
        assert node.adopted == []


async def test_a_shim_that_was_killed_while_nobody_looked_is_cleared_away(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(program("stubborn.py"))
        *pids, forgetful = await node.pids()
        assert all(map(alive, pids))
    os.kill(rig.shim(), signal.SIGKILL)
    await until(lambda: not locked(str(rig.folder())))
    os.kill(forgetful, signal.SIGKILL)  # nobody can find it: see the test of killed shims
    async with rig.node() as node:
        assert [found.exit for found in node.adopted] == [Exit(NAME, Ended.FAILED, "its shim was killed")]
        await until(lambda: not any(map(alive, pids)))  # a process that is dying has no environment


async def test_what_ran_before_the_machine_was_restarted_is_told_as_stopped(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        await node.ready()
    os.kill(rig.shim(), signal.SIGKILL)
    await until(lambda: not locked(str(rig.folder())))
    spec = rig.folder() / "spec"
    spec.write_text(spec.read_text().replace(boot_id(), "an-earlier-boot"))
    async with rig.node() as node:
        assert [found.exit for found in node.adopted] == [
            Exit(NAME, Ended.STOPPED, "the machine was restarted")
        ]


async def test_a_shim_that_is_still_starting_is_found_too(rig: Rig) -> None:
    for number in range(5):
        name = f"web/{number}.1"
        async with rig.node() as node:
            await node.start(("sleep", "1000"), name)
        async with rig.node() as node:
            assert [found.task.wanted.replica for found in node.adopted if found.exit is None] == [name]
            if not node.adopted[-1].ready:
                await node.ready(name)
            node.runtime.kill(name)
            await node.exit(name)
            node.runtime.forget(name)


async def test_a_stop_that_an_agent_did_not_live_to_see_is_seen_through(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(program("stubborn.py"))
        pids = await node.pids()
    (rig.folder() / "stop").write_text(f"deadline {boot_ms() + 200}\n")  # and then it died
    async with rig.node() as node:
        assert (await node.exit()).how is Ended.STOPPED
        assert not any(map(alive, pids))
