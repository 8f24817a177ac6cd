"""Replicas that are not their agent: as root each workload is a user of its own, and what it then cannot do.

Programs here are shell scripts: the Python that runs the tests may be where only root can look."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import records, users
from holdfast.agent.users import Users
from holdfast.agent.watch import disk
from holdfast.core.agent.machine import Brief, Wanted
from holdfast.model.event import Ended
from holdfast.model.node import Isolation
from holdfast.model.program import Probe, Program
from holdfast.ports import private_folder
from holdfast.ports.runtime import Task
from tests.runtime_rig import PROGRAMS, Node, Rig, boot_ms, rig_in, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its rights away")

LONG_MS = 600_000
PEOPLE = Users(users.FIRST, users.COUNT, own_tmp=True)


@pytest.fixture
def public() -> Iterator[Path]:
    """Where others can get, and not below /tmp, which each replica has of its own."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/var/lib"))
    folder.chmod(private_folder.PASSAGE)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def rig(public: Path) -> Iterator[Rig]:
    with rig_in(public) as rig:
        yield rig


@contextlib.asynccontextmanager
async def node_of(rig: Rig) -> AsyncIterator[Node]:
    async with rig.node(users=PEOPLE) as node:
        (rig.root / "key").write_text("secret of the node")
        (rig.root / "key").chmod(0o600)
        node.runtime.renew(boot_ms() + LONG_MS)
        yield node


def task(workload: str, script: str, *, number: int = 0, epoch: int = 1, **more: Any) -> Task:
    told = {"exclusive": False, **more.pop("wanted", {})}
    wanted = Wanted(f"{workload}/0.{epoch}", f"{workload}/0", epoch, **told)
    program = Program(("sh", "-c", script), **more)
    return Task(wanted, workload, Brief(program, 10_000, number), 0)


async def run(node: Node, workload: str, script: str, **more: Any) -> str:
    """To its end, and what it said."""
    given = task(workload, script, **more)
    name = given.wanted.replica
    await node.runtime.start(given)
    assert (await node.exit(name)).how is Ended.DONE, (node.exits[name], node.log(name))
    return node.log(name).strip()


async def begin(node: Node, workload: str, script: str, **more: Any) -> None:
    given = task(workload, f"{script}; echo here; exec sleep 1000", **more)
    await node.runtime.start(given)
    await node.said("here", given.wanted.replica)


# as whom


async def test_each_workload_is_a_user_of_its_own_without_any_right(rig: Rig) -> None:
    async with node_of(rig) as node:
        say = "echo $(id -u) $(id -g) $(id -G) $(grep -E 'CapEff|CapPrm|CapBnd|NoNewPrivs' /proc/self/status)"
        first, again, other = [
            (await run(node, workload, say, epoch=epoch)).split()
            for workload, epoch in (("a", 1), ("a", 2), ("b", 1))
        ]
        assert first == again
        assert len({int(each[0]) for each in (first, other)} - {0}) == 2
        for uid, gid, groups, *rest in (first, other):
            assert PEOPLE.may_be(int(uid))
            assert uid == gid == groups
            assert rest == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
        assert node.runtime.isolation() is Isolation.USER


DROP = """
import ctypes
from holdfast.agent import become, users
KEEP_CAPS, NO_SETUID_FIXUP = 1 << 4, 1 << 2
assert ctypes.CDLL(None).prctl(28, KEEP_CAPS | NO_SETUID_FIXUP, 0, 0, 0) == 0
become._drop(become.Rights(users.FIRST))
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")))
"""


def test_capabilities_go_though_the_kernel_was_told_to_leave_them() -> None:
    """By securebits, which an agent inherits from whoever started it."""
    assert set(asked(DROP).split()) == {"0" * 16}


async def test_the_same_workload_is_the_same_user_on_every_node(rig: Rig) -> None:
    async with node_of(rig) as node:
        uid = await run(node, "a", "id -u", number=12_345)
        assert int(uid) == users.FIRST + 12_345


async def test_two_workloads_of_one_node_that_meet_by_chance_are_kept_apart(rig: Rig) -> None:
    async with node_of(rig) as node:
        await begin(node, "a", "id -u", number=7)
        await begin(node, "b", "id -u", number=7)
        assert node.log("a/0.1").split()[0] == str(users.FIRST + 7)
        assert node.log("b/0.1").split()[0] == str(users.FIRST + 8)


async def test_a_program_finds_a_home_and_a_name_of_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_of(rig) as node:
        say = "cd $HOME && touch kept && pwd && echo $USER $LOGNAME ${TMPDIR-none} ${XDG_RUNTIME_DIR-none}"
        said = (await run(node, "a", say)).split()
        assert said[0].endswith("/replicas/a%2F0.1/work")
        assert said[1:] == ["a", "a", "none", "none"]


# what it cannot do

SECRETS = (
    "for each in {root}/key {root}/lease {root}/agent.lock {other}/spec {other}/task; do cat $each; done"
)


async def test_it_reads_neither_the_key_nor_the_lease_nor_what_others_run(rig: Rig) -> None:
    async with node_of(rig) as node:
        await begin(node, "other", ":", env={"DB_PASSWORD": "swordfish"})
        other = rig.folder("other/0.1")
        script = SECRETS.format(root=rig.root, other=other)
        pid = rig.shim("other/0.1")
        scripts = {
            "files": f"({script}) 2>&1",
            "folders": f"ls {rig.root} {rig.root}/replicas {other}/work {rig.root}/logs 2>&1",
            "environment": f"cat /proc/{pid}/environ /proc/[0-9]*/environ 2>/dev/null",
            "checkpoints": f"ls {rig.checkpoints} {rig.checkpoints}/other/0 2>&1",
            "write": f"for it in {rig.root}/lease {rig.root}/key {other}/stop; do echo x >> $it; done 2>&1",
        }
        for name, each in scripts.items():
            said = await run(node, name, f"{each}; true")
            assert "swordfish" not in said, name
            assert "secret of the node" not in said, name
            lines = said.splitlines() if name != "environment" else []
            assert all("ermission denied" in line for line in lines), (name, said)
            assert lines or name == "environment"
        assert (rig.root / "key").read_text() == "secret of the node"


async def test_it_can_neither_stop_its_agent_nor_its_shim_nor_a_neighbour(rig: Rig) -> None:
    async with node_of(rig) as node:
        await begin(node, "other", ":")
        victims = {"agent": os.getpid(), "shim": rig.shim("other/0.1"), "own shim": "$PPID"}
        script = "; ".join(f"kill -STOP {pid} 2>/dev/null && echo {name}" for name, pid in victims.items())
        assert await run(node, "evil", f"{script}; kill -9 -1 2>/dev/null; true") == ""
        assert "other/0.1" not in node.exits


async def test_a_job_cannot_prolong_its_own_lease(rig: Rig) -> None:
    """It was once enough to write the file and to stop the agent."""
    async with node_of(rig) as node:
        lease = (rig.root / "lease").read_bytes()
        script = (
            f"echo $(($(date +%s) * 9)) > {rig.root}/lease; kill -STOP {os.getpid()}; echo here; sleep 1000"
        )
        exclusive = {"exclusive": True}
        await node.runtime.start(task("cheat", script, wanted=exclusive))
        await node.said("here", "cheat/0.1")
        assert (rig.root / "lease").read_bytes() == lease


def owner(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return -1


async def test_what_left_its_session_and_forgot_its_environment_ends_with_its_replica(rig: Rig) -> None:
    async with node_of(rig) as node:
        await begin(node, "a", "env -i setsid sh -c 'sleep 1000 & sleep 1000' & id -u")
        uid = int(node.log("a/0.1").split()[0])
        node.runtime.stop("a/0.1", boot_ms())
        await node.exit("a/0.1")
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and owner(pid) == uid]
        assert left == []


async def test_nobody_gains_rights_by_a_set_user_id_program(rig: Rig, public: Path) -> None:
    async with node_of(rig) as node:
        tool = public / "sh"
        shutil.copy(shutil.which("dash") or "/bin/sh", tool)
        tool.chmod(0o4755)
        assert (
            await run(node, "a", f"{tool} -p -c 'cat /etc/shadow' >/dev/null 2>&1 && echo got it; true") == ""
        )


async def test_a_program_that_forks_without_end_is_stopped_by_the_kernel(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_of(rig) as node:
        monkeypatch.setattr(users, "TASKS_MAX", 30)
        await node.runtime.start(task("bomb", "n=0; while sleep 1000 & do n=$((n + 1)); done; wait"))
        exit = await node.exit("bomb/0.1")
        assert exit.how is Ended.FAILED
        assert "fork" in node.log("bomb/0.1")


def test_no_two_copies_ever_write_whatever_is_killed(public: Path) -> None:
    killing = [sys.executable, str(PROGRAMS / "killing.py"), str(public / "node"), "16", "0", "users"]
    done = subprocess.run(killing, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok: 16 rounds")


# what it finds


async def test_its_tmp_is_its_own_and_a_probe_of_it_sees_the_same_as_the_same_user(rig: Rig) -> None:
    async with node_of(rig) as node:
        mark = f"/tmp/holdfast-{os.getpid()}"
        probe = Probe(
            exec=("sh", "-c", f"test $(id -u) -gt {users.FIRST} && cat {mark} && cat here"), every_ms=50
        )
        script = f"touch {mark} /var{mark}; touch here; exec sleep 1000"
        await node.runtime.start(task("a", script, ready=probe))
        await node.ready("a/0.1")
        assert not Path(mark).exists()
        assert await run(node, "b", f"ls {mark} 2>/dev/null; true") == ""


async def test_a_command_that_it_may_not_run_says_whose_right_is_missing(rig: Rig, public: Path) -> None:
    async with node_of(rig) as node:
        closed = public / "closed"
        closed.mkdir(0o700)
        shutil.copy("/bin/true", closed / "tool")
        given = task("a", "")
        program = Program((str(closed / "tool"),))
        await node.runtime.start(Task(given.wanted, "a", Brief(program, 0, 5), 0))
        exit = await node.exit("a/0.1")
        assert exit.why == f"not executable: {closed}/tool by the user of this workload, {users.FIRST + 5}"


async def test_progress_is_read_from_a_file_and_from_nothing_else(rig: Rig) -> None:
    async with node_of(rig) as node:
        await begin(
            node, "a", "echo 42000 > new; mv new $HOLDFAST_PROGRESS_FILE; cat $HOLDFAST_STATE_FILE >&2"
        )
        assert node.runtime.progress("a/0.1") == 42_000
        assert '"checkpoint_dir"' in node.log("a/0.1")
        for trick in ("ln -sf /proc/sys/kernel/pid_max", "rm -f $HOLDFAST_PROGRESS_FILE; mkfifo"):
            name = trick.split()[0]
            await begin(node, name, f"{trick} $HOLDFAST_PROGRESS_FILE")
            assert node.runtime.progress(f"{name}/0.1") == 0


# what stays


async def test_checkpoints_are_kept_for_the_workload_and_put_aside_from_another_of_its_name(rig: Rig) -> None:
    async with node_of(rig) as node:
        save, show = (
            "echo saved > $HOLDFAST_CHECKPOINT_DIR/it",
            "cat $HOLDFAST_CHECKPOINT_DIR/it 2>/dev/null; true",
        )
        await run(node, "a", save, number=100)
        assert await run(node, "a", show, number=100, epoch=2) == "saved"
        assert await run(node, "a", show, number=200, epoch=3) == ""
        assert (rig.checkpoints / "a.of-100" / "0" / "it").read_text() == "saved\n"


async def test_checkpoints_from_before_there_were_users_are_given_to_the_workload(rig: Rig) -> None:
    async with node_of(rig) as node:
        folder = rig.checkpoints / "a" / "0" / "deep"
        folder.mkdir(parents=True)
        (folder / "old").write_text("old")
        os.link(folder / "old", rig.root / "linked")  # what has another name is not given away
        (folder / "older").write_text("older")
        said = await run(
            node, "a", "cd $HOLDFAST_CHECKPOINT_DIR/deep && cat older && rm older && stat -c %u old"
        )
        assert said == "older0"


async def test_another_agent_goes_on_with_what_runs_as_its_user(rig: Rig) -> None:
    async with rig.node(users=PEOPLE) as node:
        await begin(node, "a", "id -u", number=7)
    async with rig.node(users=PEOPLE) as node:
        await begin(node, "b", "id -u", number=7)
        assert node.log("b/0.1").split()[0] == str(users.FIRST + 8), "the user of a is taken"
        assert node.runtime.isolation() is Isolation.USER
    async with rig.node() as node:
        assert node.runtime.isolation() is Isolation.NONE


# the disk


async def test_who_fills_the_disk_is_ended_and_its_neighbours_are_not(public: Path) -> None:
    mount = public / "small"
    mount.mkdir(0o711)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=711", "none", str(mount)])
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with rig_in(mount) as rig:
            async with rig.node(users=PEOPLE) as node:
                await begin(node, "quiet", "head -c 5000000 /dev/zero > data")
                fill = "while :; do head -c 1000000 /dev/zero >> big 2>/dev/null; done"
                await node.runtime.start(task("greedy", fill))
                exit = await node.exit("greedy/0.1")
                assert exit.how is Ended.FAILED
                assert exit.why.startswith("filled the disk: wrote ")
                assert list(node.exits) == ["greedy/0.1"]
                node.runtime.forget("greedy/0.1")  # its end is journalled
                await until(lambda: disk.room(str(mount))[0] > 32 << 20)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


# where it is possible


def asked(code: str, *arguments: str) -> str:
    """In a process of one thread."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


FOUND = """
import sys
from holdfast.agent import users
own, why = users.found(*sys.argv[1:])
print(why or ("own tmp" if own.own_tmp else "shared tmp"))
"""


@pytest.mark.parametrize("closed", ["", "above", "python", "checkpoints"])
def test_workloads_have_users_where_others_can_reach_what_they_need(public: Path, closed: str) -> None:
    root, checkpoints, python = (
        public / "above" / "node",
        public / "shared" / "checkpoints",
        public / "bin" / "sh",
    )
    for folder in (root, checkpoints, python.parent):
        folder.mkdir(parents=True)
    shutil.copy("/bin/sh", python)
    root.chmod(0o700)
    shut = {"above": root.parent, "python": python.parent, "checkpoints": checkpoints.parent}
    if closed:
        shut[closed].chmod(0o700)
    said = asked(FOUND, str(root), str(checkpoints), str(python))
    assert said == (f"{shut[closed]} is closed to other users" if closed else "own tmp")
    assert root.stat().st_mode & 0o777 == 0o700, "to ask changes nothing"


def test_below_tmp_nothing_is_mounted_over_it(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/tmp"))
    try:
        folder.chmod(0o711)
        assert asked(FOUND, str(folder / "node"), str(folder / "checkpoints"), "/bin/sh") == "shared tmp"
    finally:
        shutil.rmtree(folder)


def test_a_user_number_is_of_the_fleet_the_project_and_the_workload() -> None:
    from holdfast.wire.identity import user_number

    numbers = {
        user_number(secret, project, workload)
        for secret in (b"one", b"two")
        for project in ("a", "b")
        for workload in ("x", "y")
    }
    assert len(numbers) == 8
    assert all(0 < number <= records.NUMBER_MAX for number in numbers)
