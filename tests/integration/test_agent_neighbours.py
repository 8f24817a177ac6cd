"""Nodes that ask after one another, over real sockets."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from holdfast.agent import neighbours
from holdfast.agent.home import Home
from holdfast.model.node import Answer
from holdfast.wire.messages import Ask, Probed
from tests.agent_rig import agent
from tests.hub_twin import HubTwin, lived, until

GENEROUS_MS = 10_000


async def say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b"cut"
    finally:
        writer.close()


@lived
async def test_a_node_that_lives_is_reached(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        line.say(Ask(7, "127.0.0.1", rig.neighbours.port, GENEROUS_MS))
        assert await line.next(Probed) == Probed(7, Answer.REACHED)


@lived
async def test_a_port_where_nobody_listens_refuses(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        line = await hub.welcomed()
        line.say(Ask(1, "127.0.0.1", port, GENEROUS_MS))
        assert (await line.next(Probed)).answer is Answer.REFUSED


@lived
async def test_a_process_that_stands_still_times_out(tmp_path: Path) -> None:
    """Its kernel accepts the connection; nobody answers."""
    program = "import socket; s = socket.create_server(('127.0.0.1', 0))\n"
    program += "print(s.getsockname()[1], flush=True)\nwhile True: s.accept()[0].sendall(b'never')"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        async with HubTwin() as hub, agent(tmp_path, hub.url):
            line = await hub.welcomed()
            line.say(Ask(1, "127.0.0.1", port, 200))
            assert (await line.next(Probed)).answer is Answer.TIMEOUT
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"holdfast \n", b"x" * 10_000])
@lived
async def test_somebody_else_on_the_port_is_not_mistaken_for_a_node(tmp_path: Path, answer: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    async with server, HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed()
        line.say(Ask(1, "127.0.0.1", server.sockets[0].getsockname()[1], GENEROUS_MS))
        assert (await line.next(Probed)).answer is Answer.REFUSED


@pytest.mark.parametrize(
    ("address", "port"), [("", 80), ("127.0.0.1", 0), ("127.0.0.1", 1 << 16), ("a..b", 80)]
)
@lived
async def test_a_question_that_cannot_be_asked_is_no_evidence(
    tmp_path: Path, address: str, port: int
) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed()
        line.say(Ask(1, address, port, GENEROUS_MS))
        assert (await line.next(Probed)).answer is Answer.FAILED


@lived
async def test_more_questions_than_can_be_asked_at_once_are_answered_so(tmp_path: Path) -> None:
    hole = socket.create_server(("127.0.0.1", 0))  # accepts and never answers
    try:
        async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
            line = await hub.welcomed()
            for number in range(neighbours.QUESTIONS_MAX + 5):
                line.say(Ask(number, "127.0.0.1", hole.getsockname()[1], 500))
            await until(lambda: len(line.all(Probed)) == neighbours.QUESTIONS_MAX + 5)
            answers = [each.answer for each in line.all(Probed)]
            assert answers.count(Answer.FAILED) == 5
            assert answers.count(Answer.TIMEOUT) == neighbours.QUESTIONS_MAX
            line.say(Ask(99, "127.0.0.1", rig.neighbours.port, GENEROUS_MS))
            await until(lambda: Probed(99, Answer.REACHED) in line.heard)
    finally:
        hole.close()


@lived
async def test_a_peer_gets_its_own_line_back_and_nothing_else(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        await hub.welcomed()
        assert await say(rig.neighbours.port, b"abc\n") == b"holdfast abc\n"
        assert await say(rig.neighbours.port, b"abc\nrest") == b"holdfast abc\n"
        assert await say(rig.neighbours.port, b"x" * 1_000) in (b"", b"cut")


@lived
async def test_guests_that_say_nothing_do_not_keep_others_out(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        await hub.welcomed()
        silent = [
            await asyncio.open_connection("127.0.0.1", rig.neighbours.port)
            for _ in range(neighbours.GUESTS_MAX + 10)
        ]
        assert await say(rig.neighbours.port, b"abc\n") == b"holdfast abc\n"
        for _, writer in silent:
            writer.close()


def test_the_port_stays_the_same_from_agent_to_agent(tmp_path: Path) -> None:
    """Also while the shims of the one before hold its socket."""
    home = Home(tmp_path)
    first = neighbours.listen(home, loopback=True)
    second = neighbours.listen(home, loopback=True)
    assert first.getsockname() == second.getsockname()
    first.close()
    second.close()


@pytest.mark.parametrize("kept", ["", "0", "70000", "nonsense", "taken"])
def test_a_port_that_cannot_be_had_again_is_replaced(tmp_path: Path, kept: str) -> None:
    home = Home(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        home.keep("probe_port", str(other.getsockname()[1]) if kept == "taken" else kept)
        listener = neighbours.listen(home, loopback=True)
        assert listener.getsockname()[1] not in (0, other.getsockname()[1])
        assert home.read("probe_port") == str(listener.getsockname()[1])
        listener.close()
