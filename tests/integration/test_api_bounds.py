"""What one client may cost: answers that nobody reads, and thoughts that nobody waits for any more."""

import asyncio
import socket
import threading
from contextlib import closing
from typing import Any

import pytest

from holdfast.api import access, gate, writes
from holdfast.control import front
from holdfast.ports.errors import Unreachable
from holdfast.ports.registry import Role
from tests.planes import World, until, within
from tests.served import WEB, YAML, answered, served

ASK = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def deaf_client(port: int, requests: int) -> socket.socket:
    """Asks and asks, and never reads an answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, ASK * requests)
    return client


async def test_a_client_that_does_not_read_its_answers_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "STUCK_S", 0.3)
    opened: list[Any] = []
    made = front.Front.connection_made

    def noted(one: front.Front, transport: Any) -> None:
        opened.append(one)
        made(one, transport)

    monkeypatch.setattr(front.Front, "connection_made", noted)
    async with served() as house:
        with closing(await deaf_client(house.world.ports["cp-1"], 200)):
            await until(lambda: len(opened) == 1)
            await until(lambda: opened[0].transport.is_closing(), 10)


async def test_a_client_that_reads_slowly_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "STUCK_S", 2.0)
    async with served() as house:
        length = len((await house.client.get("/openapi.json")).content)
        with closing(await deaf_client(house.world.ports["cp-1"], 1)) as client:
            loop = asyncio.get_running_loop()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            await loop.sock_sendall(client, ASK * 99)
            wanted, began, read = 100 * length, loop.time(), 0
            while read < wanted:
                await asyncio.sleep(0.02)
                part = await within(loop.sock_recv(client, 1 << 16))
                assert part, f"cut off after {read} of {wanted} bytes"
                read += len(part)
            assert loop.time() - began > 2.0, "it was no slow reader"


async def test_a_dry_run_that_took_too_long_is_not_joined_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, thinking, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    def slow(*_: Any) -> Any:
        with lock:
            thinking[0] += 1
            most[0] = max(most[0], thinking[0])
        go_on.wait(20)
        with lock:
            thinking[0] -= 1
        raise LookupError("enough")

    monkeypatch.setattr(writes, "preview", slow)
    monkeypatch.setattr(gate, "ANSWER_WITHIN_S", 0.5)
    async with served("n1") as house:
        for _ in range(3):
            answered(await house.client.post("/v1/plan", content=WEB, headers=YAML), 503)
        assert most[0] == 1
        go_on.set()


async def test_an_order_that_waited_while_the_leadership_was_lost_is_not_told_that_its_subject_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served("n1") as house:
        await house.apply(WEB)
        broken = asyncio.Event()

        async def hangs(*_: Any) -> int:
            await broken.wait()
            raise Unreachable("the store does not answer")

        monkeypatch.setattr(house.world.store, "append", hangs)
        first = asyncio.ensure_future(house.client.post("/v1/nodes/n1/cordon"))
        await until(house.edge.writing.lock.locked)
        others = [asyncio.ensure_future(house.client.delete("/v1/workloads/web")) for _ in range(30)]
        await until(lambda: len(house.edge.writing.lock._waiters or ()) == 30)
        broken.set()
        for asked in (first, *others):
            answered(await asked, 503)


async def test_a_stream_does_not_outlive_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "LOOK_AGAIN_S", 0.05)
    async with served(access=access.Access()) as house:
        reader = {**await house.token(Role.READ), "accept": "text/event-stream"}
        admin = await house.token(Role.ADMIN)
        async with house.client.stream("GET", "/v1/events", headers=reader) as response:
            assert response.status_code == 200
            pieces = response.aiter_bytes()
            await within(anext(pieces))
            house.world.registry.down = True  # type: ignore[attr-defined]
            await asyncio.sleep(0.3)
            assert house.edge.streams.open == 1, "a registry that is down takes nobody's token away"
            house.world.registry.down = False  # type: ignore[attr-defined]
            answered(await house.client.delete("/v1/tokens/id-read-0", headers=admin), 200)
            await within(anext(pieces, None), 5)
        await until(lambda: house.edge.streams.open == 0)


@pytest.mark.parametrize("path", ["/v1/apply", "/v1/plan"])
async def test_a_number_of_thousands_of_digits_is_a_mistake_of_the_sender(path: str) -> None:
    async with served() as house:
        body = b'{"kind": "service", "name": "web", "replicas": ' + b"1" * 5_000 + b"}"
        sent = await house.client.post(path, content=body, headers={"content-type": "application/json"})
        answered(sent, 422)


async def test_what_is_explained_while_the_leadership_is_lost_is_not_called_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served("n1", world=World(leader_ttl_ms=3_000)) as house:
        plane, history = house.plane, house.world.store.history

        async def late(**words: Any) -> Any:
            told = await history(**words)
            house.world.store.down = True  # type: ignore[attr-defined]
            await until(lambda: not plane.world.nodes)
            return told

        monkeypatch.setattr(house.world.store, "history", late)
        found = await house.get("/v1/explain/node?name=n1")
        assert "gone" not in found["summary"]
