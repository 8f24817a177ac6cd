"""The parts of the runtime by themselves: records, control groups, and how little a shim loads."""

import contextlib
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.agent import cgroup, procfs, records, users
from holdfast.agent.allot import Ports
from holdfast.agent.environment import environ_of, signal_number
from holdfast.agent.health import while_alive
from holdfast.agent.replicas import Tree, quoted
from holdfast.agent.shim import Shim
from holdfast.model.program import Probe
from tests.runtime_rig import task_for, writable_group

SOURCE = str(Path(holdfast.__file__).parents[1])
HEAVY = {"enum", "json", "pathlib", "re", "signal", "socket", "subprocess", "typing", "asyncio", "msgspec"}
HEAVY_FOR_AN_AGENT = {"numpy", "pydantic", "psutil", "fastapi", "sqlalchemy", "httpx", "structlog"}

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), TEXT)))
def test_a_record_says_what_was_written(fields: records.Fields) -> None:
    assert records.decode(records.encode(fields)) == fields


def test_a_record_is_a_line_that_a_person_can_read() -> None:
    assert records.encode([("why", "exit code 1"), ("env", "A=b\nc")]) == b"why exit code 1\nenv A=b\\nc\n"


def test_bytes_that_are_no_text_survive_a_record() -> None:
    odd = os.fsdecode(b"/tmp/\xff\xfe")
    assert records.decode(records.encode([("workdir", odd)])) == [("workdir", odd)]


def test_a_record_may_be_written_by_several_at_once(tmp_path: Path) -> None:
    """Agents of one machine share checkpoints, and note whose they are when replicas start together."""
    path, writers = str(tmp_path / ".workload"), 8
    with ThreadPoolExecutor(writers) as pool:
        done = [pool.submit(records.write, path, b"12\n") for _ in range(400)]
    assert [each.result() for each in done] == [None] * 400
    assert records.read_number(path) == 12
    assert os.listdir(tmp_path) == [".workload"], "nothing is left beside it"


def test_a_reserved_record_needs_no_more_room_than_it_took(tmp_path: Path) -> None:
    path = str(tmp_path / "exit")
    records.reserve(path)
    taken = os.stat(f"{path}.new").st_blocks
    records.write_reserved(path, records.encode([("how", "failed"), ("why", "x" * 1000)]))
    assert os.stat(path).st_blocks == taken
    assert dict(records.read(path)) == {"how": "failed", "why": "x" * 1000}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12\n", 12),
        ("-3", 0),
        ("", 0),
        ("much", 0),
        (str(2**40), 2**40),
        (str(2**40 + 1), 0),
        ("9" * 40, 0),
    ],
)
def test_a_number_that_is_none_counts_as_nothing(tmp_path: Path, text: str, number: int) -> None:
    (tmp_path / "progress").write_text(text)
    assert records.read_number(str(tmp_path / "progress")) == number
    assert records.read_number(str(tmp_path / "nothing")) == 0


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_a_name_becomes_one_folder_and_no_two_the_same(one: str, other: str) -> None:
    assert "/" not in quoted(one)
    assert "\0" not in quoted(one)
    assert quoted(one) not in (".", "..")
    assert (quoted(one) == quoted(other)) is (one == other)


@pytest.mark.parametrize(("name", "number"), [("", 0), ("HUP", 1), ("sigusr1", 10), ("SIGTERM", 15)])
def test_a_signal_may_be_named_with_or_without_sig(name: str, number: int) -> None:
    assert signal_number(name) == number


def test_nothing_but_its_own_needs_can_be_set_by_a_program(tmp_path: Path) -> None:
    task = task_for(("true",), "web/s2.7", port=20001, env={"HOLDFAST_EPOCH": "99", "PORT": "1"})
    folders = Tree(str(tmp_path), str(tmp_path / "saved")).folders(task)
    env = environ_of(task, {"HOLDFAST_TOKEN": "x", "HOME": "/"}, folders, "mark")
    assert (env["HOLDFAST_EPOCH"], env["PORT"], env["HOLDFAST_INDEX"]) == ("7", "20001", "2")
    assert env["HOLDFAST_CHECKPOINT_DIR"] == str(tmp_path / "saved" / "web" / "s2")
    assert "HOLDFAST_TOKEN" not in env
    assert "HOLDFAST_RANK" not in env
    assert "CUDA_VISIBLE_DEVICES" not in env


async def test_a_late_agent_does_not_blame_the_program() -> None:
    """Five answers come after twice the time that they may take; only those that come in time count."""
    asked = 0

    async def question() -> str:
        nonlocal asked
        asked += 1
        if asked <= 5:
            with subprocess.Popen(["sleep", "0.12"]) as sleep:  # our own loop is held up
                sleep.wait()
        return "wrong"

    probe = Probe(tcp=True, every_ms=1, timeout_ms=50, failures=2)
    assert await while_alive(probe, question) == "wrong"
    assert asked >= 7


# control groups


def test_limits_are_written_in_the_kernels_words(tmp_path: Path) -> None:
    """Into plain files: few machines that run tests hand down their controllers."""
    group = tmp_path / "replica"
    group.mkdir()
    for name in ("cpu.max", "memory.max"):
        (group / name).write_text("max")
    assert cgroup.make(str(group), 1500, 512)
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "memory.max").read_text() == str(512 << 20)
    assert cgroup.make(str(group), 1, 0)
    assert (group / "cpu.max").read_text().startswith("1000 "), "the kernel takes no less"


def test_a_limit_that_the_kernel_does_not_offer_is_left_out(tmp_path: Path) -> None:
    assert cgroup.make(str(tmp_path / "replica"), 1500, 512)
    assert list((tmp_path / "replica").iterdir()) == []
    assert not cgroup.make(str(tmp_path / ("no" * 200)), 1500, 512)


def test_what_this_machine_offers_is_used() -> None:
    """Whatever that is: with the controllers the limits are in force, without them the group still ends."""
    root = writable_group()
    name = f"holdfast-test-{os.getpid()}"
    if root is None:
        assert not cgroup.prepare("/proc", name)
        return
    try:
        assert cgroup.prepare(str(root), name)
        group = str(root / name / "replica")
        assert cgroup.make(group, 1500, 512)
        for file, limit in (("cpu.max", "150000 100000"), ("memory.max", str(512 << 20))):
            path = Path(group, file)
            assert not path.exists() or path.read_text().strip() == limit
        enter = f"echo 0 > {group}/cgroup.procs; setsid sleep 1000 & exec sleep 1000"
        with subprocess.Popen(["sh", "-c", enter]) as program:
            while len(Path(group, "cgroup.procs").read_text().split()) < 2:
                assert program.poll() is None
            assert not cgroup.empty(group)
            assert cgroup.cpu_us(group) >= 0
            cgroup.kill(group)
            assert program.wait() == -9
        while not cgroup.empty(group):
            pass
    finally:
        cgroup.remove(str(root / name))
    assert not (root / name).exists()


def test_a_group_that_is_not_there_is_empty_and_says_nothing() -> None:
    assert cgroup.empty("/no/such/group")
    assert (cgroup.cpu_us("/no/such/group"), cgroup.memory_bytes("/no/such/group")) == (-1, -1)
    assert not cgroup.ran_out_of_memory("/no/such/group")
    cgroup.kill("/no/such/group")
    cgroup.remove("/no/such/group")


# how little they load


def test_a_program_that_took_other_rights_does_not_end_its_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be stopped by us then, but it must not be called ended while it lives."""

    def not_ours(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", not_ours)
    monkeypatch.setattr(os, "kill", not_ours)
    shim = Shim.__new__(Shim)
    shim.program = os.getpid()
    shim._signal(15)


def test_a_shim_loads_next_to_nothing() -> None:
    code = f"import sys; sys.path.append({SOURCE!r}); import holdfast.agent.shim; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "holdfast.agent.shim" in loaded
    assert loaded & HEAVY == set()


def test_a_runtime_loads_nothing_heavy() -> None:
    code = "import sys, holdfast.agent.processes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) & HEAVY_FOR_AN_AGENT == set()


def test_a_process_with_an_odd_name_is_understood() -> None:
    seen = procfs.Seen(b"7 (a) b (c)) S 3 7 9 0 -1 0 0 0 0 0 5 6 7 8 20 0 1 0 100 4096 12 0")
    assert (seen.parent, seen.session, seen.ticks, seen.pages, seen.dead) == (3, 9, 26, 12, False)


# ports


def test_names_that_another_user_has_taken_keep_no_port_from_replicas() -> None:
    first, last = 28_950, 28_969
    with contextlib.ExitStack() as squatter:
        for port in range(first, last + 1):
            name = squatter.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            with contextlib.suppress(OSError):  # somebody else has it: as good
                name.bind(f"\0holdfast port {port}")
        bound = squatter.enter_context(socket.socket())
        with contextlib.suppress(OSError):
            bound.bind(("", first))
        ports = Ports(first, last)
        allotted = {ports.allot() for _ in range(10)}
        assert len(allotted) == 10
        assert first not in allotted, "something is bound to it"
        ports.close()
    ports = Ports(first, last)
    one, other = ports.allot(), Ports(first, last)
    for _ in range(10):
        assert other.allot() != one, "two agents keep out of each other's way"
    for each in (ports, other):
        each.close()


# processes


@pytest.mark.parametrize(
    ("machine", "share"),
    [(4_194_304, 32_768), (65_536, 8_192), (32_768, 4_096), (16_384, 4_096), (4_096, 2_048), (400, 200)],
)
def test_no_workload_has_more_than_its_share_of_the_processes_of_a_machine(machine: int, share: int) -> None:
    assert users.share_of_tasks(machine) == share
