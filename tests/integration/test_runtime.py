"""Replicas as real processes: how they start, what they find, how they end, and that nothing is left."""

import asyncio
import errno
import json
import os
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import procfs
from holdfast.agent.spawn import spawn_shim
from holdfast.core.agent.machine import Peer, Report, Wanted
from holdfast.model.event import Ended
from holdfast.model.program import Probe
from holdfast.model.replica import Role
from holdfast.model.resources import Resources
from holdfast.ports.errors import Denied
from holdfast.ports.runtime import Exit, Usage
from holdfast.wire.frame import pack
from holdfast.wire.messages import Reports
from tests.runtime_rig import NAME, Rig, alive, boot_ms, program, rig_in, until, writable_group

GROUPS = {"without groups": None, "with groups": writable_group()}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as rig:
        yield rig


@pytest.fixture(params=[name for name, group in GROUPS.items() if group or name == "without groups"])
def any_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path, GROUPS[request.param]) as rig:
        yield rig


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


# how they end


@pytest.mark.parametrize(
    ("script", "how", "why"),
    [
        ("exit 0", Ended.DONE, "exit code 0"),
        ("exit 7", Ended.FAILED, "exit code 7"),
        ("kill -9 $$", Ended.FAILED, "killed by signal 9"),
        ("kill -TERM $$", Ended.FAILED, "killed by signal 15"),
    ],
)
async def test_how_a_program_ends_is_told_once_and_kept(rig: Rig, script: str, how: Ended, why: str) -> None:
    async with rig.node() as node:
        await node.start(sh(script))
        assert await node.exit() == Exit(NAME, how, why)
        assert node.readies == [NAME], "without a probe it is ready as soon as it runs"
    async with rig.node() as node:
        assert [found.exit for found in node.adopted] == [Exit(NAME, how, why)]


@pytest.mark.parametrize(
    ("command", "more", "why"),
    [
        (("holdfast-has-no-such-command",), {}, "no such command: holdfast-has-no-such-command"),
        (("/no/such/command", "x"), {}, "no such command: /no/such/command"),
        ((), {}, "there is no command"),
        (("",), {}, "there is no command"),
        (("/etc/passwd",), {}, "not executable: /etc/passwd"),
        (("/",), {}, "not executable: /"),
        (("true",), {"workdir": "/no/such/folder"}, "no such folder: /no/such/folder"),
        (("true",), {"workdir": "/etc/passwd"}, "cannot enter the folder /etc/passwd: Not a directory"),
        (("true",), {"env": {"PATH": "/no/such"}}, "no such command: true"),
        (("true", "a\0b"), {}, "cannot run true: embedded null byte"),
        (("true",), {"env": {"A": "x" * 300_000}}, "cannot run true: Argument list too long"),
        (("true",), {"tell": "SIGNOTHING"}, "it could not be started: no such signal: SIGNOTHING"),
    ],
)
async def test_what_cannot_be_run_fails_with_a_reason(
    rig: Rig, command: tuple[str, ...], more: dict[str, Any], why: str
) -> None:
    async with rig.node() as node:
        await node.start(command, **more)
        assert await node.exit() == Exit(NAME, Ended.FAILED, why)
        assert node.readies == []


@pytest.mark.parametrize(
    "name", ["x" * 3_000, "\u4e16" * 3_000, "\\" * 3_000], ids=["long", "wide", "escaped"]
)
async def test_a_reason_that_is_too_long_is_cut_and_still_the_reason(rig: Rig, name: str) -> None:
    async with rig.node() as node:
        await node.start((name,))
        exit = await node.exit()
        assert exit.how is Ended.FAILED
        assert exit.why.startswith(f"cannot run {name[:200]}")
        assert exit.why.encode(), "it can be told"


async def test_a_script_whose_interpreter_is_missing_says_so(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    async with rig.node() as node:
        await node.start((str(script),))
        assert (await node.exit()).why == f"the interpreter that {script} asks for does not exist"


async def test_a_replica_whose_folder_cannot_be_made_fails_and_leaves_nothing(rig: Rig) -> None:
    name = f"{'x' * 300}/0.1"
    async with rig.node() as node:
        await node.start(("true",), name)
        exit = await node.exit(name)
        assert exit.how is Ended.FAILED
        assert "File name too long" in exit.why
        assert list((rig.root / "replicas").iterdir()) == []


async def test_a_replica_that_could_not_be_started_leaves_no_control_group(any_rig: Rig) -> None:
    async with any_rig.node() as node:
        await node.start(("true",), tell="SIGNOTHING")
        assert (await node.exit()).how is Ended.FAILED
        groups = any_rig.group.glob("*/") if any_rig.cgroup_root else []
        assert [group for group in groups if group.is_dir()] == []


async def test_a_shim_that_cannot_be_watched_is_not_left_to_itself(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async with rig.node(ports=(23_121, 23_121)) as node:
        monkeypatch.setattr(os, "pidfd_open", none_left)
        await node.start(("sleep", "1000"), port=node.runtime.allot_port())
        exit = await node.exit()
        assert (exit.how, "Too many open files" in exit.why) == (Ended.FAILED, True)
        assert procfs.marked(f"HOLDFAST_TEST={rig.mark}") == []
        monkeypatch.undo()
        await node.start(("true",), "web/0.2", port=node.runtime.allot_port())
        assert (await node.exit("web/0.2")).how is Ended.DONE


async def test_the_same_name_is_never_run_twice(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(sh("echo once; read x < /dev/null; sleep 0.2"))
        await node.start(sh("echo twice"))
        await node.exit()
        node.exits.clear()
        await node.start(sh("echo twice"))
        assert (await node.exit()).how is Ended.DONE, "its end is told again"
        assert node.log() == "once\n"


# stopping


async def test_a_program_that_is_asked_to_stop_may_end_in_its_own_way(any_rig: Rig) -> None:
    async with any_rig.node() as node:
        await node.start(sh("trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.01; done"))
        await node.said("here")
        node.runtime.stop(NAME, boot_ms() + 60_000)
        exit = await node.exit()
        assert exit == Exit(NAME, Ended.STOPPED, "asked to stop: exit code 0"), "not done: it was interrupted"
        assert node.log().endswith("bye\n")


async def test_what_a_shell_started_has_its_time_to_end_though_the_shell_has_none_to_wait(
    any_rig: Rig,
) -> None:
    worker = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo here; while :; do sleep 0.01; done"
    async with any_rig.node() as node:
        await node.start(sh(f'sh -c "{worker}"; echo never'))
        await node.said("here")
        asked = boot_ms()
        node.runtime.stop(NAME, asked + 20_000)
        assert (await node.exit()).how is Ended.STOPPED
        assert "saved" in node.log()
        assert boot_ms() < asked + 15_000, "it is not waited for longer than it needs"


async def test_what_was_not_asked_to_end_does_not_hold_up_the_end(any_rig: Rig) -> None:
    async with any_rig.node() as node:
        await node.start(sh("setsid sleep 1000 & echo here; exec sleep 1000"))
        await node.said("here")
        asked = boot_ms()
        node.runtime.stop(NAME, asked + 20_000)
        assert (await node.exit()).why == "asked to stop: killed by signal 15"
        assert boot_ms() < asked + 15_000


async def test_a_tree_that_ignores_the_request_is_killed_at_the_deadline(any_rig: Rig) -> None:
    async with any_rig.node() as node:
        await node.start(program("stubborn.py"))
        pids = await node.pids()
        assert all(map(alive, pids))
        node.runtime.stop(NAME, boot_ms() + 300)
        exit = await node.exit()
        assert exit == Exit(NAME, Ended.STOPPED, "asked to stop: killed by signal 9")
        assert [pid for pid in pids if alive(pid)] == []


async def test_an_earlier_deadline_overrides_a_later_one(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(program("stubborn.py"))
        await node.pids()
        node.runtime.stop(NAME, boot_ms() + 600_000)
        node.runtime.kill(NAME)
        assert (await node.exit()).how is Ended.STOPPED


async def test_what_a_program_leaves_behind_is_gone_before_its_end_is_told(any_rig: Rig) -> None:
    async with any_rig.node() as node:
        await node.start(program("stubborn.py", "leave"))
        pids = await node.pids()
        assert (await node.exit()).how is Ended.DONE
        assert [pid for pid in pids if alive(pid)] == []


async def test_a_stop_in_the_middle_of_a_start_is_not_lost(rig: Rig) -> None:
    async with rig.node() as node:
        for number in range(5):
            name = f"web/{number}.1"
            await node.start(("sleep", "1000"), name)
            node.runtime.stop(name, boot_ms() + 60_000)
        for number in range(5):
            assert (await node.exit(f"web/{number}.1")).how is Ended.STOPPED


async def test_a_shim_that_is_asked_by_somebody_else_stops_its_program_gracefully(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(sh("trap 'echo bye; exit 3' TERM; echo here; while :; do sleep 0.01; done"))
        await node.said("here")
        os.kill(rig.shim(), signal.SIGTERM)
        assert await node.exit() == Exit(NAME, Ended.STOPPED, "asked to stop: exit code 3")
        assert node.log().endswith("bye\n")


async def test_a_program_that_somebody_stopped_still_hears_that_it_shall_end(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        await node.ready()
        (pid,) = (int(word) for word in _children(rig.shim()))
        os.kill(pid, signal.SIGSTOP)
        node.runtime.stop(NAME, boot_ms() + 60_000)
        assert (await node.exit()).why == "asked to stop: killed by signal 15"


async def test_a_stopped_shim_wakes_to_stop_its_program(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        await node.ready()
        os.kill(rig.shim(), signal.SIGSTOP)
        node.runtime.kill(NAME)
        assert (await node.exit()).how is Ended.STOPPED


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# shims that are killed


async def test_a_killed_shim_takes_its_whole_tree_with_it(any_rig: Rig) -> None:
    async with any_rig.node() as node:
        await node.start(program("stubborn.py"))
        program_pid, child, orphan, forgetful = await node.pids()
        os.kill(any_rig.shim(), signal.SIGKILL)
        assert await node.exit() == Exit(NAME, Ended.FAILED, "its shim was killed")
        await until(lambda: not any(map(alive, (program_pid, child, orphan))))
        # What began a session of its own and threw away its environment is found by its group alone.
        assert alive(forgetful) is (any_rig.cgroup_root is None)
        if alive(forgetful):
            os.kill(forgetful, signal.SIGKILL)
    async with any_rig.node() as node:
        assert [found.exit for found in node.adopted] == [Exit(NAME, Ended.FAILED, "its shim was killed")]


async def test_a_shim_that_cannot_do_its_work_says_why(rig: Rig) -> None:
    async with rig.node() as node:
        lease = rig.root / "lease"
        lease.rename(rig.root / "elsewhere")
        await node.start(("sleep", "1000"), wanted={"exclusive": True})
        exit = await node.exit()
        assert exit.how is Ended.FAILED
        assert exit.why.startswith("its shim failed: FileNotFoundError")


async def test_a_shim_that_cannot_be_told_of_a_deadline_is_held_to_it_all_the_same(any_rig: Rig) -> None:
    async with any_rig.node() as node:
        await node.start(program("stubborn.py"))
        *pids, forgetful = await node.pids()
        (any_rig.folder() / "stop").mkdir()  # so no file of that name can be written
        node.runtime.stop(NAME, boot_ms() + 200)
        assert await node.exit() == Exit(NAME, Ended.FAILED, "its shim was killed")
        await until(lambda: not any(map(alive, pids)))
        if alive(forgetful):
            os.kill(forgetful, signal.SIGKILL)


async def test_a_task_that_was_laid_out_and_never_started_is_told_as_stopped(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("true",))
        await node.exit()
    for name in ("exit", "running", "ready"):
        (rig.folder() / name).unlink()
    async with rig.node() as node:
        assert [found.exit for found in node.adopted] == [
            Exit(NAME, Ended.STOPPED, "its agent ended before it was started")
        ]


# what they find


async def test_a_program_finds_its_surroundings_in_its_environment(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", "a secret")
    monkeypatch.setenv("INHERITED", "yes")
    gang = {
        "exclusive": False,
        "gang": 2,
        "peers": (Peer("train/0.1", "10.0.0.1", 20001), Peer("train/1.4", "10.0.0.2", 20002)),
        "needs": Resources(gpu_milli=2000),
        "devices": (1, 3),
        "resume_ms": 4500,
    }
    async with rig.node() as node:
        port = node.runtime.allot_port()
        await node.start(("env", "-0"), "train/1.4", wanted=gang, env={"MINE": "a\nb\\n=c"}, port=port)
        await node.exit("train/1.4")
        found = dict(line.split("=", 1) for line in node.log("train/1.4").split("\0") if line)
    expected = {
        "MINE": "a\nb\\n=c",
        "INHERITED": "yes",
        "PORT": str(port),
        "HOLDFAST_PORT": str(port),
        "HOLDFAST_NODE": "n1",
        "HOLDFAST_WORKLOAD": "train",
        "HOLDFAST_REPLICA": "train/1.4",
        "HOLDFAST_SLOT": "train/1",
        "HOLDFAST_INDEX": "1",
        "HOLDFAST_EPOCH": "4",
        "HOLDFAST_ROLE": "active",
        "HOLDFAST_RANK": "1",
        "RANK": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20001",
        "HOLDFAST_WORLD_SIZE": "2",
        "HOLDFAST_PEERS": "10.0.0.1:20001,10.0.0.2:20002",
        "HOLDFAST_RESUME_MS": "4500",
        "HOLDFAST_CHECKPOINT_DIR": str(rig.checkpoints / "train" / "gang"),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1,3",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert [name for name in found if name.startswith("HOLDFAST_TOKEN")] == []
    assert (rig.checkpoints / "train" / "gang").is_dir()


async def test_a_replica_that_is_started_anew_goes_on_in_its_log_with_what_is_wanted_now(rig: Rig) -> None:
    say = sh("echo epoch $HOLDFAST_EPOCH rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT; sleep 600")
    peers = (Peer("train/0.1", "10.0.0.1", 20001), Peer("train/1.4", "10.0.0.2", 20002))
    async with rig.node() as node:
        await node.start(say, "train/1.4", wanted={"gang": 1, "peers": peers})
        await node.said("epoch 4 rank 1 of 2 at 10.0.0.1:20001", "train/1.4")
        node.runtime.stop("train/1.4", boot_ms())
        await node.exit("train/1.4")
        del node.exits["train/1.4"]
        alone = {"gang": 2, "incarnation": 1, "peers": (Peer("train/1.4", "10.0.0.2", 20003),)}
        await node.start(say, "train/1.4", wanted=alone)
        log = await node.said("epoch 4 rank 0 of 1 at 10.0.0.2:20003", "train/1.4")
        assert log.splitlines()[0] == "epoch 4 rank 1 of 2 at 10.0.0.1:20001"
        node.runtime.stop("train/1.4", boot_ms())
        await node.exit("train/1.4")


async def test_a_program_runs_in_a_folder_of_its_own_with_default_signals_and_no_stray_files(
    rig: Rig,
) -> None:
    async with rig.node() as node:
        await node.start(sh("pwd; nice; ls /proc/self/fd | wc -l; grep -E '^Sig(Blk|Ign)' /proc/self/status"))
        await node.exit()
        where, nice, handles, blocked, ignored = node.log().splitlines()
    assert where == f"{rig.folder()}/work"
    assert nice == str(os.nice(0)), "whatever its shim has"
    assert handles == "4"  # three, and the one with which `ls` looks
    assert int(blocked.split()[1], 16) == 0
    ours = (1 << 31) - 1  # the two above are the C library's own, and every program's it spawns
    assert int(ignored.split()[1], 16) & ours == 0


async def test_what_changes_is_told_in_a_file_and_by_a_signal(rig: Rig) -> None:
    script = "trap 'cat $HOLDFAST_STATE_FILE; echo' USR2; cat $HOLDFAST_STATE_FILE; echo; echo here; "
    script += "while :; do sleep 0.01; done"
    async with rig.node() as node:
        await node.start(sh(script), "job/s0.3", wanted={"role": Role.STANDBY}, tell="usr2")
        await node.said("here", "job/s0.3")
        wanted = Wanted("job/s0.3", "job/0", 3, False, Role.ACTIVE, peers=(Peer("x", "h", 1),))
        node.runtime.tell(wanted)
        lines = (await node.said('"active"', "job/s0.3")).splitlines()
        before, after = (json.loads(line) for line in lines if line.startswith("{"))
        own, seat = before.pop("checkpoint_dir"), after.pop("checkpoint_dir")
        expected = {"role": "standby", "epoch": 3, "slot": "job/s0", "gang": 0, "rank": 0, "peers": []}
        assert before == expected | {"world_size": 0, "master_addr": "", "master_port": 0}
        assert after | {"peers": ["h:1"], "slot": "job/0", "role": "active"} == after
        assert (Path(own).name, Path(seat).name, Path(seat).is_dir()) == ("s0", "0", True)
    async with rig.node() as node:
        assert [found.task.wanted for found in node.adopted] == [wanted], "and the next agent knows"


async def test_progress_that_a_program_wrote_down_comes_with_its_end(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(sh("echo 12345 > $HOLDFAST_PROGRESS_FILE; exit 1"))
        assert await node.exit() == Exit(NAME, Ended.FAILED, "exit code 1", progress_ms=12345)


async def test_progress_that_is_no_number_of_this_world_does_not_keep_its_end_from_being_told(
    rig: Rig,
) -> None:
    async with rig.node() as node:
        await node.start(sh("echo 99999999999999999999999999 > $HOLDFAST_PROGRESS_FILE"))
        exit = await node.exit()
        assert pack(Reports(0, (Report(NAME, "ended", exit.how, exit.progress_ms, exit.why),)))


# ports and folders


async def test_a_port_is_given_once_and_only_if_nobody_uses_it(rig: Rig) -> None:
    with rig_in(rig.root / "another") as neighbour:
        async with rig.node(ports=(23_100, 23_119)) as node, neighbour.node(ports=(23_100, 23_119)) as other:
            ports = [next_.runtime.allot_port() for next_ in (node, other) for _ in range(5)]
            assert len(set(ports)) == 10
            assert all(23_100 <= port <= 23_119 for port in ports)


async def test_a_port_comes_back_when_its_replica_has_ended(rig: Rig) -> None:
    async with rig.node(ports=(23_120, 23_120)) as node:
        for epoch in (1, 2):
            port = node.runtime.allot_port()
            await node.start(("true",), f"web/0.{epoch}", port=port)
            await node.exit(f"web/0.{epoch}")


async def test_a_port_for_a_name_that_has_run_already_comes_back(rig: Rig) -> None:
    async with rig.node(ports=(23_122, 23_123)) as node:
        first = node.runtime.allot_port()
        await node.start(("sleep", "1000"), port=first)
        for _ in range(3):
            await node.start(("sleep", "1000"), port=node.runtime.allot_port())
        await node.ready()
        assert node.runtime.allot_port() != first


async def test_two_agents_never_share_a_folder(rig: Rig) -> None:
    async with rig.node():
        with pytest.raises(Denied, match="another agent"):
            await rig.runtime().adopt()
    async with rig.node() as node:
        assert node.adopted == []


async def test_what_is_forgotten_leaves_only_its_log(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(sh("echo words; mkdir -p a/b; echo x > a/b/c"))
        node.runtime.forget(NAME)
        await node.exit()
        assert rig.folder().exists(), "it had not ended when it was forgotten"
        node.runtime.forget(NAME)
        assert not rig.folder().exists()
        assert node.log() == "words\n"
        await until(lambda: list((rig.root / "gone").iterdir()) == [])
    async with rig.node() as node:
        assert node.adopted == []


async def test_usage_is_that_of_the_whole_tree(any_rig: Rig) -> None:
    script = "for i in 1 2; do (while :; do :; done) & done; echo here; wait"
    async with any_rig.node() as node:
        await node.start(sh(script))
        await node.said("here")
        assert node.runtime.usage().keys() == {NAME}

        def used() -> Usage | None:
            usage = node.runtime.usage()[NAME]
            return usage if usage.cpu_milli > 50 else None

        async with asyncio.timeout(30):
            while (usage := used()) is None:
                await asyncio.sleep(0.2)
        assert 50 < usage.cpu_milli <= 1000 * (os.cpu_count() or 1) + 500
        assert 0 < usage.memory_mib < 100
        node.runtime.kill(NAME)
        await node.exit()
        assert node.runtime.usage() == {}


# many


async def test_fifty_replicas_run_at_once_and_all_end(rig: Rig) -> None:
    names = [f"web/{number}.1" for number in range(50)]
    async with rig.node() as node:
        for name in names:
            await node.start(("sleep", "1000"), name)
        for name in names:
            await node.ready(name)
        assert len(node.runtime.usage()) == 50
        for name in names:
            node.runtime.stop(name, boot_ms() + 60_000)
        exits = [await node.exit(name) for name in names]
        assert {exit.how for exit in exits} == {Ended.STOPPED}
        assert rig.left() == []
        for name in names:
            node.runtime.forget(name)
    assert len(list((rig.root / "logs").iterdir())) <= 20


async def test_a_shim_is_small(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        await node.ready()
        status = Path(f"/proc/{rig.shim()}/status").read_text()
        own = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert own
        assert int(own[1]) < 6_000


async def test_a_runtime_leaves_no_file_open(rig: Rig) -> None:
    await asyncio.to_thread(os.getpid)  # the thread pool opens nothing later
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(2):
        async with rig.node() as node:
            await node.start(("sleep", "1000"), "web/1.1", port=node.runtime.allot_port())
            await node.start(("true",), alive=Probe(exec=("true",)))
            await node.start(("no-such-command",), "web/2.1")
            await node.exit()
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_a_start_that_lacks_a_file_leaves_none_open_and_nothing_behind(rig: Rig) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with rig.node() as node:
        before = sorted(os.listdir("/proc/self/fd"))
        for spare in range(10):
            name = f"web/0.{spare}"
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) - 1 + spare, limits[1]))
            try:
                await node.start(("sleep", "1000"), name)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            while name not in (*node.readies, *node.exits):
                await asyncio.sleep(0.005)
            node.runtime.kill(name)
            await node.exit(name)
            for _ in range(500):  # what was open for the end of it closes a moment later
                if sorted(os.listdir("/proc/self/fd")) == before:
                    break
                await asyncio.sleep(0.01)
            assert sorted(os.listdir("/proc/self/fd")) == before, node.exits[name]
            assert procfs.marked(f"HOLDFAST_TEST={rig.mark}") == []
        assert "Too many open files" in node.exits["web/0.0"].why
        assert "web/0.9" in node.readies


@pytest.mark.parametrize("damage", [b"{", b'{"workload": "\xff"}'])
async def test_a_broken_folder_is_cleared_away(rig: Rig, damage: bytes) -> None:
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        await node.ready()
    (rig.folder() / "task").write_bytes(damage)
    (rig.root / "replicas" / "half").mkdir()
    async with rig.node() as node:
        assert node.adopted == []
        assert rig.left() == []
        assert list((rig.root / "replicas").iterdir()) == []
        await node.start(("true",))
        assert (await node.exit()).how is Ended.DONE


async def test_a_shim_that_dies_at_once_is_a_failure_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(folder: str, listener: int, env: dict[str, str]) -> tuple[int, int]:
        pid, report = spawn_shim(folder, listener, env)
        os.kill(pid, signal.SIGKILL)  # long before it has said who it is
        return pid, report

    monkeypatch.setattr("holdfast.agent.processes.spawn_shim", spawn)
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        assert await node.exit() == Exit(NAME, Ended.FAILED, "its shim was killed")


async def test_a_program_that_kills_its_shim_has_failed_so_that_it_is_not_tried_again_at_once(
    any_rig: Rig,
) -> None:
    async with any_rig.node() as node:
        await node.start(sh("kill -KILL $PPID; sleep 1000"))
        assert await node.exit() == Exit(NAME, Ended.FAILED, "its shim was killed")
        await until(lambda: any_rig.left() == [])
