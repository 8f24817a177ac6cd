"""The agent as a program, with real replicas: how it starts, ends, dies, and what it leaves to the next."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.model.event import Ended
from holdfast.model.resources import Resources
from holdfast.wire.messages import Beat, Confirmed, Goodbye, LogPart, Noticed, ReadLog, Refused, Used
from tests.hub_twin import HubTwin, Line, desired, lived, until, wanted

MEMORY_KIB_MAX = 40 << 10
TWIN = Path(__file__).parents[1] / "nvml_twin"
MARK = "HOLDFAST_NODE_ROOT"
TELLS_ITS_PID = ("sh", "-c", "echo I am $$; exec sleep 300")


class Started:
    """Agents that a test starts; whatever is left of them afterwards is killed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def agent(self, join: str, *words: str, **environment: str) -> asyncio.subprocess.Process:
        told = ("--join", join, "--name", "n1", "--root", str(self.root), "--address", "127.0.0.1", *words)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.agent", *told),
            env={**os.environ, "HOLDFAST_JOIN_TOKEN": "t0", MARK: str(self.root), **environment},
            stderr=asyncio.subprocess.PIPE,
        )

    def living(self, *marks: str) -> dict[int, str]:
        """Everything that was started for this node, agents, shims and replicas; or what has more marks."""
        wanted, found = {mark.encode() for mark in (f"{MARK}={self.root}", *marks)}, {}
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdecimal() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
        return found

    def kill(self) -> None:
        for _ in range(100):
            left = self.living()
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        raise AssertionError(f"these do not die: {self.living()}")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    those = Started(tmp_path / "node")
    yield those
    those.kill()


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.communicate()


async def end(process: asyncio.subprocess.Process) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    return await outcome(process)


async def outcome(process: asyncio.subprocess.Process) -> tuple[int, str]:
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    assert b"Traceback" not in errors, errors.decode()
    return process.returncode, errors.decode()


async def log_of(line: Line, replica: str, request: int) -> str:
    def parts() -> list[LogPart]:
        return [part for part in line.all(LogPart) if part.request == request]

    line.say(ReadLog(request, replica, 0))
    await until(lambda: any(part.end for part in parts()))
    return b"".join(part.data for part in parts()).decode()


# starting


@lived
async def test_an_agent_is_ready_soon_small_and_runs_what_it_is_told(started: Started) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.welcomed(beat_ms=50)
        assert line.hello is not None
        assert line.hello.token == "t0"
        assert line.hello.capacity is not None
        assert line.hello.capacity.cpu_milli > 0
        line.say(desired(1, wanted("web/0.1"), command=("sh", "-c", "env; sleep 300")))
        await line.report("web/0.1", "ready")
        await line.next(Confirmed)
        await until(lambda: any(beat.used for beat in line.all(Beat)))
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < MEMORY_KIB_MAX
        environment = await log_of(line, "web/0.1", 1)
        assert "HOLDFAST_NODE=n1" in environment
        assert "HOLDFAST_JOIN_TOKEN" not in environment
        line.say(desired(2))
        assert (await line.report("web/0.1", "ended")).how is Ended.STOPPED
        assert (await end(process))[0] == 0
    assert started.living() == {}


@lived
async def test_an_agent_tells_how_busy_the_gpus_of_each_replica_are_if_the_driver_says(
    started: Started, tmp_path: Path
) -> None:
    driver = tmp_path / "busy"
    driver.write_text("30 80 50 -")
    twin = {
        "PYTHONPATH": os.pathsep.join([str(TWIN), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "NVML_TWIN": str(driver),
    }
    needs = Resources(100, 10, 2_000)
    async with HubTwin() as hub:
        process = await started.agent(hub.url, "--gpus", "4", **twin)
        line = await hub.welcomed(beat_ms=20)
        assert line.hello is not None
        assert line.hello.capacity is not None
        assert line.hello.capacity.gpu_milli == 4_000
        web = msgspec.structs.replace(wanted("web/0.1"), needs=needs, devices=(0, 1))
        silent = msgspec.structs.replace(wanted("web/1.1"), needs=needs, devices=(2, 3))
        line.say(desired(1, web, silent, wanted("db/0.1")))

        def told() -> list[Used]:
            return [beat.used for beat in line.all(Beat) if beat.used is not None and beat.used.gpu_milli]

        await until(lambda: any(used.gpu_milli == {"web/0.1": 1_100} for used in told()))
        assert told()[-1].replicas.keys() == {"web/0.1", "web/1.1", "db/0.1"}
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < MEMORY_KIB_MAX
        assert (await end(process))[0] == 0


@lived
async def test_a_notice_in_its_folder_is_told_on_every_link(started: Started) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.welcomed(beat_ms=50)
        (started.root / "notice").write_text(str(time.time() + 60))
        noticed = await line.next(Noticed)
        assert 50_000 < noticed.left_ms <= 60_000
        assert not noticed.own
        (started.root / "notice").write_text(str(time.time() + 30))
        await until(lambda: line.all(Noticed)[-1].left_ms <= 30_000)
        line.cut()
        again = await (await hub.welcomed(beat_ms=50)).next(Noticed)
        assert again.left_ms < noticed.left_ms
        assert (await end(process))[0] == 0


def test_an_agent_loads_nothing_heavy() -> None:
    heavy = {"numpy", "pydantic", "psutil", "typer", "rich", "structlog", "fastapi", "sqlalchemy", "uvloop"}
    program = "import sys, holdfast.agent.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "holdfast.core.agent.machine" in loaded.stdout.split()
    assert heavy & set(loaded.stdout.split()) == set()


@lived
async def test_the_command_becomes_the_agent_and_keeps_the_token_out_of_its_words(started: Started) -> None:
    program = "from holdfast.cli.commands.agent import agent; import sys\n"
    program += "agent(join=[sys.argv[1]], name='n1', root=sys.argv[2], token='t7', cpus='1', memory='64')"
    async with HubTwin() as hub:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, hub.url, str(started.root)),
            env={**os.environ, MARK: str(started.root)},
            stderr=asyncio.subprocess.PIPE,
        )
        line = await hub.welcomed()
        assert line.hello is not None
        assert (line.hello.token, line.hello.node) == ("t7", "n1")
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert words[1:3] == [b"-m", b"holdfast.agent"]
        assert not any(b"t7" in word for word in words)
        assert (await end(process))[0] == 0


# ending


@lived
async def test_an_agent_that_is_ended_leaves_its_replicas_to_the_next(started: Started) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1"), command=TELLS_ITS_PID))
        await line.report("web/0.1", "ready")
        before = await log_of(line, "web/0.1", 1)
        for request in range(2, 200):
            if not before:
                await asyncio.sleep(0.05)
                before = await log_of(line, "web/0.1", request)
        assert before.startswith("I am ")
        assert (await end(process))[0] == 0
        assert not line.all(Goodbye)

        process = await started.agent(hub.url)
        line = await hub.line()
        assert (await line.welcome()).running == ("web/0.1",)
        await line.report("web/0.1", "ready")
        line.say(desired(1, wanted("web/0.1"), command=TELLS_ITS_PID))
        await line.next(Confirmed)
        assert await log_of(line, "web/0.1", 1) == before
        await end(process)


@lived
async def test_an_agent_that_is_to_stop_all_does_so_and_says_goodbye(started: Started) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url, "--stop-all-on-exit")
        line = await hub.welcomed()
        politely = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.02; done")
        line.say(desired(1, wanted("web/0.1"), wanted("web/1.1"), command=politely, grace_ms=20_000))
        for replica in ("web/0.1", "web/1.1"):
            await line.report(replica, "ready")
        assert (await end(process))[0] == 0
        await until(line.over.is_set)
        assert {what for _, what in line.reports()} == {"started", "ready", "ended"}
        assert isinstance(line.heard[-1], Goodbye)
    assert started.living() == {}


@lived
async def test_who_is_told_twice_to_end_does_not_wait_for_what_does_not_stop(started: Started) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url, "--stop-all-on-exit")
        line = await hub.welcomed()
        stubborn = ("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.02; done")
        line.say(desired(1, wanted("web/0.1"), command=stubborn, grace_ms=600_000))
        await line.report("web/0.1", "ready")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while b"replica stop" not in await asyncio.wait_for(process.stderr.readline(), 30):
            pass
        assert (await end(process))[0] == 0
        assert not line.all(Goodbye)
    assert started.living()


# dying


@lived
async def test_an_agent_that_was_killed_is_succeeded_and_what_ended_meanwhile_is_told(
    started: Started, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    waits = (
        "sh",
        "-c",
        f'while [ ! -e {flag} ] || [ "$HOLDFAST_WORKLOAD" = web ]; do sleep 0.02; done; exit 3',
    )
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1"), wanted("job/0.1", exclusive=True), command=waits))
        await line.report("web/0.1", "ready")
        await line.report("job/0.1", "ready")
        await kill(process)
        flag.touch()
        await until(lambda: not started.living("HOLDFAST_WORKLOAD=job"))

        process = await started.agent(hub.url)
        line = await hub.line()
        assert set((await line.welcome()).running) == {"web/0.1", "job/0.1"}
        ended = await line.report("job/0.1", "ended")
        assert (ended.how, ended.why) == (Ended.FAILED, "exit code 3")
        line.say(desired(1, wanted("web/0.1"), wanted("job/0.1", exclusive=True), command=waits))
        await line.next(Confirmed)
        assert ("web/0.1", "ended") not in line.reports()
        await end(process)


@lived
async def test_nobody_renews_the_lease_of_a_dead_agent_so_its_exclusive_replicas_end(
    started: Started,
) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.welcomed(lease_ms=3_000, beat_ms=50)
        line.say(desired(1, wanted("job/0.1", exclusive=True), wanted("web/0.1")))
        await line.report("job/0.1", "ready")
        await line.report("web/0.1", "ready")
        await kill(process)
        await until(lambda: not started.living("HOLDFAST_WORKLOAD=job"))
        process = await started.agent(hub.url)
        line = await hub.welcomed()
        assert (await line.report("job/0.1", "ended")).how is Ended.FENCED
        assert ("web/0.1", "ended") not in line.reports()
        await end(process)


@lived
async def test_a_node_that_slept_past_its_lease_wakes_up_without_its_exclusive_replicas(
    started: Started,
) -> None:
    """Whoever of them wakes first, agent, shim or an answer in a buffer: nobody may prolong what is over."""
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.welcomed(lease_ms=3_000, beat_ms=50)
        line.say(desired(1, wanted("job/0.1", exclusive=True), wanted("web/0.1")))
        await line.report("job/0.1", "ready")
        await line.report("web/0.1", "ready")
        asleep = started.living()
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(3.5)
        hub.welcome_everybody()  # it may find that its link is too old
        for pid in asleep:
            with contextlib.suppress(ProcessLookupError):  # a shim that woke up before it has killed it
                os.kill(pid, signal.SIGCONT)
        await until(lambda: ("job/0.1", "ended") in hub.reports())
        assert hub.reports()["job/0.1", "ended"].how is Ended.FENCED
        assert not started.living("HOLDFAST_WORKLOAD=job")
        assert started.living("HOLDFAST_WORKLOAD=web")
        await end(process)


@lived
async def test_a_node_whose_agent_is_dead_is_still_reached_by_its_peers(started: Started) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.welcomed()
        assert line.hello is not None
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "ready")
        await kill(process)
        reader, writer = await asyncio.open_connection("127.0.0.1", line.hello.probe_port)
        writer.write(b"nonce\n")
        assert await asyncio.wait_for(reader.readline(), 30) == b"holdfast nonce\n"
        writer.close()
        process = await started.agent(hub.url)
        again = await hub.line()
        assert (await again.challenge()).probe_port == line.hello.probe_port
        await end(process)


# refusing to start


@lived
async def test_a_refusal_for_good_is_two_lines_and_exit_2(started: Started) -> None:
    async with HubTwin() as hub:
        process = await started.agent(hub.url)
        line = await hub.line()
        await line.challenge()
        line.say(Refused("token", "this join token has expired", "ask for a new one"))
        code, errors = await outcome(process)
    assert code == 2
    assert errors.splitlines()[-2:] == [
        f"error: {hub.url} refuses this node: this join token has expired",
        "hint: ask for a new one",
    ]


@lived
async def test_a_second_agent_in_the_same_folder_is_refused(started: Started) -> None:
    async with HubTwin() as hub:
        first = await started.agent(hub.url)
        line = await hub.welcomed()
        code, errors = await outcome(await started.agent(hub.url))
        assert code == 2
        assert f"error: another agent (process {first.pid}) works in {started.root}" in errors
        assert "hint: " in errors
        await line.next(Beat)
        await end(first)


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("--cpus", "many"), "many"),
        (("--token-file", "/nowhere/token"), "/nowhere/token"),
        (("--ca", "/nowhere/ca", "--join", "https://127.0.0.1:1"), "/nowhere/ca"),
        (("--root", "/proc/nowhere"), "/proc/nowhere"),
        (("--address",), "--address"),
    ],
)
@lived
async def test_what_cannot_be_used_is_two_lines_and_exit_2(
    started: Started, words: tuple[str, ...], about: str
) -> None:
    code, errors = await outcome(await started.agent("http://127.0.0.1:1", *words))
    assert code == 2
    error, hint = errors.splitlines()
    assert error.startswith("error: ")
    assert about in error
    assert hint.startswith("hint: ")


@lived
async def test_an_agent_that_finds_nobody_goes_on_looking_and_ends_when_told(started: Started) -> None:
    process = await started.agent("http://127.0.0.1:1", "--log-json")
    assert process.stderr is not None
    lines = [await asyncio.wait_for(process.stderr.readline(), 30) for _ in range(2)]
    if b'"event": "isolation none"' in lines[0]:  # as root, where other users do not reach its folder
        lines = [lines[1], await asyncio.wait_for(process.stderr.readline(), 30)]
    assert b'"event": "agent started"' in lines[0]
    assert b"Connection refused" in lines[1]
    assert (await end(process))[0] == 0
