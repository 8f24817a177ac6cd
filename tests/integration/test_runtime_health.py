"""Probes of real programs: when a replica is ready, when it is better killed; and who answers for a node."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import replicas
from holdfast.model.event import Ended
from holdfast.model.program import Probe
from holdfast.ports.runtime import Exit
from tests.runtime_rig import NAME, Node, Rig, alive, boot_ms, program, rig_in, until


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as rig:
        yield rig


def quick(**what: Any) -> Probe:
    return Probe(**what, every_ms=30, timeout_ms=5_000, failures=2)


def file_in(rig: Rig, name: str) -> Path:
    return rig.folder() / "work" / name


async def serve(node: Node, *arguments: str, **more: Any) -> None:
    await node.start(program("answering.py", *arguments), port=node.runtime.allot_port(), **more)


@pytest.mark.parametrize(
    "probe",
    [quick(http="/healthz"), quick(tcp=True), quick(exec=("test", "-e", "open"))],
    ids=["http", "tcp", "exec"],
)
async def test_a_replica_is_ready_when_its_probe_says_so(rig: Rig, probe: Probe) -> None:
    async with rig.node() as node:
        await serve(node, ready=probe)
        await asyncio.sleep(0.1)
        assert node.readies == []
        file_in(rig, "open").touch()
        await node.ready()
        assert node.readies == [NAME]
        assert (rig.folder() / "ready").exists()


async def test_a_replica_is_ready_though_there_was_no_room_to_write_down_that_it_runs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "running", lambda folder: (0, 0))
    async with rig.node() as node:
        await node.start(("sleep", "1000"), ready=quick(exec=("true",)))
        await node.ready()


async def test_an_http_probe_wants_a_status_below_400(rig: Rig) -> None:
    async with rig.node() as node:
        await serve(node, ready=quick(http="/"))
        file_in(rig, "status").write_text("503")
        file_in(rig, "open").touch()
        await node.said("listening")
        await asyncio.sleep(0.1)
        assert NAME not in node.readies
        file_in(rig, "status").write_text("302")
        await node.ready()


async def test_a_replica_that_ends_before_it_is_ready_is_never_ready(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sh", "-c", "sleep 0.1; exit 1"), ready=quick(tcp=True), port=1)
        assert (await node.exit()).how is Ended.FAILED
        assert node.readies == []


@pytest.mark.parametrize(
    ("probe", "file", "text", "why"),
    [
        (quick(http="/x"), "status", "500", "HTTP status 500"),
        (quick(http="/x"), "status", "nonsense", "the answer is not HTTP"),
        (Probe(http="/", every_ms=30, timeout_ms=200, failures=2), "hang", "", "no answer within 200 ms"),
        (quick(exec=("test", "!", "-e", "sick")), "sick", "", "test: exit code 1"),
        (quick(exec=("no-such-probe",)), "sick", "", "no such command: no-such-probe"),
    ],
)
async def test_a_replica_that_fails_its_liveness_probe_is_killed_and_failed(
    rig: Rig, probe: Probe, file: str, text: str, why: str
) -> None:
    async with rig.node() as node:
        await serve(node, "open", ready=quick(tcp=True), alive=probe)
        await node.ready()
        file_in(rig, file).write_text(text)
        assert await node.exit() == Exit(NAME, Ended.FAILED, f"liveness probe failed: {why}")


async def test_failures_must_be_in_a_row_to_count(rig: Rig) -> None:
    every_other_time = "if [ -e flip ]; then rm flip; echo x >> passed; else touch flip; exit 1; fi"
    probe = quick(exec=("sh", "-c", every_other_time))
    async with rig.node() as node:
        await serve(node, "open", alive=probe)
        passed = file_in(rig, "passed")
        await until(lambda: passed.exists() and passed.read_text().count("x") >= 4)
        assert node.exits == {}


async def test_a_probe_that_takes_too_long_is_killed_with_all_that_it_started(rig: Rig) -> None:
    slow = "setsid sh -c 'echo $$ > strays.new; mv strays.new strays; sleep 1000' & echo $$ > own; sleep 1000"
    probe = Probe(exec=("sh", "-c", slow), every_ms=30, timeout_ms=1_000, failures=1)
    async with rig.node() as node:
        await serve(node, "open", alive=probe)
        exit = await node.exit()
        assert exit == Exit(NAME, Ended.FAILED, "liveness probe failed: no answer within 1000 ms")
        pids = [int(file_in(rig, name).read_text()) for name in ("own", "strays")]
        await until(lambda: not any(map(alive, pids)))


async def test_a_program_on_its_way_out_is_not_blamed_for_failing_its_probe(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(
            ("sh", "-c", "trap 'sleep 0.5; exit 0' TERM; echo here; while :; do sleep 0.01; done"),
            alive=Probe(exec=("test", "!", "-e", "gone"), every_ms=20, failures=1),
        )
        await node.said("here")
        node.runtime.stop(NAME, boot_ms() + 60_000)
        file_in(rig, "gone").touch()
        assert await node.exit() == Exit(NAME, Ended.STOPPED, "asked to stop: exit code 0")


async def test_probes_go_on_after_another_agent_took_over(rig: Rig) -> None:
    probes = {"ready": quick(http="/"), "alive": quick(http="/")}
    async with rig.node() as node:
        await serve(node, **probes)
    async with rig.node() as node:
        assert [found.ready for found in node.adopted] == [False]
        file_in(rig, "open").touch()
        await node.ready()
    async with rig.node() as node:
        assert [found.ready for found in node.adopted] == [True]
        file_in(rig, "status").write_text("500")
        assert await node.exit() == Exit(NAME, Ended.FAILED, "liveness probe failed: HTTP status 500")
        assert node.readies == []


async def test_a_verdict_of_liveness_outlives_the_agent_that_came_to_it(rig: Rig) -> None:
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        await node.ready()
    (rig.folder() / "stop").write_text("deadline 1\nhow failed\nwhy liveness probe failed: HTTP status 500\n")
    async with rig.node() as node:
        assert await node.exit() == Exit(NAME, Ended.FAILED, "liveness probe failed: HTTP status 500")


# answers for the node


@pytest.fixture
def probe_port(rig: Rig) -> int:
    rig.listener = socket.create_server(("127.0.0.1", 0))
    return int(rig.listener.getsockname()[1])


async def ask(port: int, line: bytes) -> bytes:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(line)
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def test_a_shim_answers_for_a_node_whose_agent_is_gone(rig: Rig, probe_port: int) -> None:
    async with rig.node() as node:
        await node.start(("sleep", "1000"))
        await node.ready()
    assert await ask(probe_port, b"n1 42\n") == b"holdfast n1 42\n"
    assert await ask(probe_port, b"n1 43\nand more") == b"holdfast n1 43\n"
    assert await ask(probe_port, b"x" * 200) == b"", "no line"
    assert await ask(probe_port, b"n1 44\n") == b"holdfast n1 44\n"


async def test_silent_peers_hold_up_neither_the_answers_nor_the_replica(rig: Rig, probe_port: int) -> None:
    async with rig.node() as node:
        await node.start(
            ("sh", "-c", "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.01; done")
        )
        await node.said("here")
        silent = [socket.create_connection(("127.0.0.1", probe_port)) for _ in range(40)]
        try:
            answers = await asyncio.gather(*(ask(probe_port, b"%d\n" % number) for number in range(10)))
            assert answers == [b"holdfast %d\n" % number for number in range(10)]
            await until(lambda: _connections(rig.shim()) == 0)  # they were dropped after a while
            node.runtime.stop(NAME, boot_ms() + 60_000)
            assert (await node.exit()).how is Ended.STOPPED
        finally:
            for peer in silent:
                peer.close()


def _connections(pid: int) -> int:
    """Sockets that it has open, but for the one on which it listens."""
    found = -1
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found += os.readlink(link).startswith("socket:")
    return found


async def test_many_shims_share_one_socket_and_one_of_them_answers(rig: Rig, probe_port: int) -> None:
    async with rig.node() as node:
        for number in range(8):
            await node.start(("sleep", "1000"), f"web/{number}.1")
        for number in range(8):
            await node.ready(f"web/{number}.1")
        for number in range(40):
            assert await ask(probe_port, b"%d\n" % number) == b"holdfast %d\n" % number
