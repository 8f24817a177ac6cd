"""What one client may cost: answers that nobody reads, and thoughts that nobody waits for any more."""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Awaitable
from contextlib import closing
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api import access, gate, history, reads, streams, token_limits, writes
from holdfast.api import edge as edge_module
from holdfast.api.problems import Refused
from holdfast.api.token_limits import LoopTime, TokenLimits
from holdfast.control import front, strangers
from holdfast.ports.errors import Unreachable
from holdfast.ports.registry import Role, Token
from holdfast.sim.twins.registry import SimRegistry
from holdfast.wire.identity import hashed
from tests.planes import PATIENCE_S, World, until, within
from tests.served import WEB, YAML, Served, answered, bearer, served

ASK = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def deaf_client(port: int, requests: int, ask: bytes = ASK) -> socket.socket:
    """Asks and asks, and never reads an answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, ask * requests)
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
        with closing(await deaf_client(house.world.ports["cp-1"], 100)):
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


@pytest.mark.parametrize(("role", "path"), [(Role.READ, "/v1/events"), (Role.GATEWAY, "/v1/gateway/watch")])
async def test_wrong_tokens_from_its_address_do_not_keep_the_stream_of_a_revoked_token_alive(
    role: Role, path: str
) -> None:
    async with served(access=access.Access()) as house, asyncio.TaskGroup() as group:
        reader = {**await house.token(role), "accept": "text/event-stream"}
        flood = group.create_task(wrong_tokens(house))
        async with house.client.stream("GET", path, headers=reader) as response:
            assert response.status_code == 200
            await until(lambda: house.edge.access._failures._used)
            assert await house.world.registry.revoke(f"id-{role}-0")  # by another control plane
            async with asyncio.timeout(PATIENCE_S):
                async for _ in response.aiter_bytes():
                    pass
        assert (await house.client.get("/v1/status", headers=reader)).status_code in (401, 403, 429)
        flood.cancel()


async def wrong_tokens(house: Served) -> None:
    """A hundred a second: the budget of failed attempts of this address stays empty."""
    for number in range(100_000):
        await house.client.get("/v1/status", headers=bearer(f"wrong-{number}"))
        await asyncio.sleep(0.01)


async def test_however_many_streams_a_token_has_it_is_looked_up_once_a_second() -> None:
    now, asked = [1_000.0], 0
    registry = SimRegistry()
    await registry.add(Token("t", hashed("secret"), Role.READ))
    known = access.Access(clock=lambda: now[0])
    find = registry.find

    async def counting(digest: bytes) -> Token | None:
        nonlocal asked
        asked += 1
        return await find(digest)

    registry.find = counting  # type: ignore[method-assign,assignment]
    for _ in range(4):
        now[0] += 0.5
        assert all(await asyncio.gather(*(known._stands(hashed("secret"), registry) for _ in range(200))))
    assert asked <= 200 + 1, "the first time nobody has looked yet; then once a second"
    assert await registry.revoke("t")
    now[0] += 1.0
    await known._stands(hashed("secret"), registry)
    assert not await known._stands(hashed("secret"), registry)


async def test_a_token_has_its_share_of_the_streams_and_the_last_places_are_for_gateways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "OPEN_MAX", 12)
    monkeypatch.setattr(streams, "KEPT_FOR_GATEWAYS", 4)
    limits = TokenLimits(streams=3)
    async with served(access=access.Access(), limits=limits) as house, contextlib.AsyncExitStack() as open:
        reader = {**await house.token(Role.READ), "accept": "text/event-stream"}
        other = {**await house.token(Role.OPERATOR), "accept": "text/event-stream"}
        gateway = {**await house.token(Role.GATEWAY), "accept": "text/event-stream"}
        for _ in range(3):
            await begun(house, open, "/v1/events", reader)
        refused = await house.client.get("/v1/events", headers=reader)
        assert "3 streams are open with this token" in answered(refused, 429)["detail"]
        assert refused.headers["retry-after"]
        await begun(house, open, "/v1/events", other)
        house.edge.streams.per_token = streams.OPEN_MAX
        for _ in range(streams.OPEN_MAX - streams.KEPT_FOR_GATEWAYS - house.edge.streams.open):
            await begun(house, open, "/v1/events", reader)
        answered(await house.client.get("/v1/events", headers=other), 503)
        await begun(house, open, "/v1/gateway/watch", gateway)


async def begun(house: Served, open: contextlib.AsyncExitStack, path: str, headers: dict[str, str]) -> None:
    before = house.edge.streams.open
    response = await open.enter_async_context(house.client.stream("GET", path, headers=headers))
    assert response.status_code == 200
    await until(lambda: house.edge.streams.open > before)


async def test_a_token_that_asks_too_often_waits_and_another_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_limits, "LOOP_SHARE", 1e9)
    async with served(access=access.Access(), limits=TokenLimits(requests_per_s=2.0)) as house:
        house.edge.rates._clock = lambda: 0.0
        reader, other = await house.token(Role.READ), await house.token(Role.OPERATOR)
        found = [(await house.client.get("/v1/nodes", headers=reader)).status_code for _ in range(12)]
        assert found == [200] * 10 + [429] * 2
        refused = await house.client.get("/v1/nodes", headers=reader)
        assert "2 requests a second with the token id-read-0" in answered(refused, 429)["detail"]
        assert refused.headers["retry-after"] == "1"
        await house.get("/v1/nodes", headers=other)
        house.edge.rates._clock = lambda: 1.0
        await house.get("/v1/nodes", headers=reader)


async def test_a_long_list_counts_for_more_than_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_limits, "ENTRIES", 1)
    monkeypatch.setattr(token_limits, "LOOP_SHARE", 1e9)
    async with served("n1", "n2", "n3", access=access.Access()) as house:
        house.edge.rates._clock = lambda: 0.0
        reader = await house.token(Role.READ)
        for path, cost in (("/v1/nodes", 4), ("/v1/status", 4), ("/v1/nodes/n1", 1), ("/v1/replicas", 1)):
            before = house.edge.rates._used.get("id-read-0", (0.0, 0.0))[0]
            await house.get(path, headers=reader)
            assert house.edge.rates._used["id-read-0"][0] - before == cost, path


async def test_only_so_many_answers_of_one_token_are_in_memory_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that does not read its answers holds them."""
    monkeypatch.setattr(token_limits, "AT_ONCE", 2)
    async with served(access=access.Access()) as house:
        reader, other = await house.token(Role.READ), await house.token(Role.OPERATOR)
        who = access.Admitted(Role.READ, "", "id-read-0")
        with house.edge.rates.place(who), house.edge.rates.place(who):
            refused = answered(await house.client.get("/v1/nodes", headers=reader), 429)
            assert "2 requests with the token id-read-0 are being answered" in refused["detail"]
            await house.get("/v1/nodes", headers=other)
        for path, status in (("/v1/nodes", 200), ("/v1/nodes/none", 404), ("/v1/tokens", 403)):
            await house.get(path, status, headers=reader)
        assert not house.edge.rates._open, "given back, also after an error"


async def test_an_answer_that_nobody_takes_is_held_until_its_client_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when uvicorn has given all of it away: then it lies in the buffer of the connection."""
    monkeypatch.setattr(token_limits, "AT_ONCE", 2)
    monkeypatch.setattr(token_limits, "LOOP_SHARE", 1e9)
    made = front.Front.connection_made

    def narrow(one: front.Front, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        made(one, transport)

    monkeypatch.setattr(front.Front, "connection_made", narrow)
    async with served(access=access.Access()) as house:
        reader, operator = await house.token(Role.READ), await house.token(Role.OPERATOR)
        sweep = "kind: sweep\nname: sw\ntasks: 2000\ncommand: [x]\n"
        answered(await house.client.post("/v1/apply", content=sweep, headers={**YAML, **operator}), 200)
        await until(lambda: len(house.plane.world.slots) == 2_000)
        ask = f"GET /v1/workloads/sw HTTP/1.1\r\nHost: x\r\nAuthorization: {reader['authorization']}\r\n\r\n"
        port = house.world.ports["cp-1"]
        clients = [await deaf_client(port, 1, ask.encode()) for _ in range(2)]
        await until(lambda: house.edge.rates._open["id-read-0"] == 2)
        await asyncio.sleep(0.5)  # long after the last of them was given away
        answered(await house.client.get("/v1/nodes", headers=reader), 429)
        await house.get("/v1/nodes", headers=operator)
        for client in clients:
            client.close()
        await until(lambda: not house.edge.rates._open)
        await house.get("/v1/nodes", headers=reader)


async def test_an_answer_that_fails_on_its_way_gives_its_place_back() -> None:
    given_back = list[str]()

    class Stuck(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            assert not given_back
            raise TimeoutError

    nothing: Any = None
    with pytest.raises(TimeoutError):
        await gate.Held(Stuck(), lambda: given_back.append("it"))({}, nothing, nothing)
    assert given_back == ["it"]


async def test_a_token_pays_for_the_time_in_which_its_requests_held_the_loop() -> None:
    async def busy(waits: asyncio.Future[int]) -> int:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        with pytest.raises(ValueError, match="told"):
            await waits
        return 7

    waits: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    held = LoopTime(busy(waits))
    running = asyncio.ensure_future(awaited(held))
    await asyncio.sleep(0.3)
    waits.set_exception(ValueError("told"))
    assert await running == 7
    assert 0.05 <= held.seconds < 0.25, "what it waited for is not counted"
    cancelled = LoopTime(asyncio.sleep(60))
    running = asyncio.ensure_future(awaited(cancelled))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    rates, who = token_limits.Rates(100.0, clock=lambda: 0.0), access.Admitted(Role.READ, "", "t")
    rates.take(who)
    rates.held(who, 0.001)
    assert rates._used["t"][0] == 1.0, "most requests count for one"
    rates.held(who, 6.0 * token_limits.LOOP_SHARE)
    with pytest.raises(Refused):
        rates.take(who)
    rates.take(access.Admitted(Role.READ, "", "another"))


async def test_a_token_has_a_budget_of_what_is_journalled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_limits, "JOURNAL_BYTES", 100_000)
    monkeypatch.setattr(token_limits, "JOURNAL_BYTES_PER_S", 1_000)
    async with served(access=access.Access()) as house:
        house.edge.rates._clock = lambda: 0.0
        mine, other = await house.token(Role.OPERATOR), await house.token(Role.ADMIN)

        async def change(number: int, headers: dict[str, str]) -> httpx.Response:
            text = f"{WEB}env: {{LONG: {number}{'x' * 20_000}}}\n"
            return await house.client.post("/v1/apply", content=text, headers={**YAML, **headers})

        found = [(await change(number, mine)).status_code for number in range(6)]
        assert found == [200] * 4 + [429] * 2
        length, refused = house.plane.length, await change(7, mine)
        assert "is journalled for the token id-operator-0" in answered(refused, 429)["detail"]
        assert int(refused.headers["retry-after"]) > 0
        assert house.plane.length == length
        answered(await house.client.delete("/v1/workloads/web", headers=mine), 200)
        answered(await change(8, other), 200)
        house.edge.rates._clock = lambda: 30.0
        answered(await change(9, mine), 200)


def test_what_is_larger_than_the_budget_of_the_journal_waits_for_all_of_it() -> None:
    at = [0.0]
    rates, who = token_limits.Rates(clock=lambda: at[0]), access.Admitted(Role.OPERATOR, "", "t")
    rates.journals(who, 2 * token_limits.JOURNAL_BYTES)
    for now, refused in ((0.0, True), (20.0, True), (33.0, False)):
        at[0] = now
        with pytest.raises(Refused) if refused else contextlib.nullcontext():
            rates.journals(who, token_limits.JOURNAL_BYTES)


async def awaited(of: Awaitable[Any]) -> Any:
    return await of


async def test_a_large_workload_is_explained_beside_other_work_and_not_anew_for_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "AT_ONCE", 1)
    go_on, made = threading.Event(), [0]
    explain = history._explanation

    def slow(*given: Any) -> Any:
        made[0] += 1
        assert go_on.wait(PATIENCE_S)
        return explain(*given)

    monkeypatch.setattr(history, "_explanation", slow)
    async with served("n1") as house:
        await house.apply(WEB)
        await until(lambda: len(house.plane.world.replicas) == 2)
        length = house.plane.length
        asked = [asyncio.ensure_future(house.get("/v1/explain/workload?name=web")) for _ in range(5)]
        await until(lambda: made[0] == 1)
        await house.get("/v1/status")
        monkeypatch.setattr(edge_module.Lately, "KEPT_S", PATIENCE_S)
        go_on.set()
        found = await asyncio.gather(*asked)
        assert all("web: " in one["summary"] for one in found)
        assert made[0] == 1 or house.plane.length != length, "nothing has changed"


async def test_reading_a_file_does_not_wait_for_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def slow(*_: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        raise LookupError("enough")

    monkeypatch.setattr(writes, "preview", slow)
    async with served("n1") as house:
        dry = asyncio.ensure_future(house.client.post("/v1/plan", content=WEB, headers=YAML))
        await until(begun.is_set)
        await house.apply(WEB)
        go_on.set()
        answered(await dry, 500)


async def test_a_dry_run_ends_when_its_time_is_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "DRY_RUN_S", 0.0)
    async with served("n1") as house:
        found = answered(await house.client.post("/v1/plan", content=WEB, headers=YAML), 200)
        assert any("it is too much for a dry run, which ended early" in text for text in found["pending"])
        assert found["changes"] == ["service web: would be created"]


async def test_the_seats_of_a_large_workload_are_shown_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SEATS_MAX", 4)
    async with served() as house:
        await house.apply("kind: sweep\nname: sw\ntasks: 10\ncommand: [x]\n")
        await until(lambda: len(house.plane.world.slots) == 10)
        assert len((await house.get("/v1/workloads/sw"))["seats"]) == 4
        shown, after = list[str](), ""
        while seats := (await house.get("/v1/workloads/sw", params={"after": after}))["seats"]:
            assert len(seats) <= 4
            shown += [seat["slot"] for seat in seats]
            after = shown[-1]
        assert shown == [f"sw/{number}" for number in range(10)]
        monkeypatch.setattr(reads, "SEATS_MAX", 100)
        assert len((await house.get("/v1/workloads/sw"))["seats"]) == 10


def test_what_tokens_have_asked_is_remembered_within_bounds() -> None:
    rates = token_limits.Rates(1.0, clock=lambda: 0.0)
    for number in range(token_limits.TOKENS_KEPT + 10):
        rates.take(access.Admitted(Role.READ, "", f"token-{number}"))
    assert len(rates._used) == token_limits.TOKENS_KEPT


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


# strangers: connections that have brought no good token


async def said(port: int, *parts: bytes) -> bytes:
    """All that is answered until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer), contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
        found: bytes = await within(reader.read())
        return found
    return b""


@pytest.mark.parametrize(
    "head",
    [
        b"a:b\r\n" * 101,
        b"a:" + b"b" * front.HEADERS_MAX + b"\r\n",
        b"".join(b"h%d: %s\r\n" % (number, b"x" * 500) for number in range(40)),
    ],
    ids=["many", "long", "together"],
)
async def test_a_head_is_small_and_has_few_headers(head: bytes) -> None:
    async with served() as house:
        port, began = house.world.ports["cp-1"], b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
        assert b" 200 " not in await said(port, began + head + b"\r\n"), "complete"
        assert b" 200 " not in await said(port, began + head), "or not: it is ended before it is whole"
        assert (await house.client.get("/healthz")).status_code == 200


async def test_what_waits_behind_a_request_is_bounded() -> None:
    async with served() as house:
        answers = await said(house.world.ports["cp-1"], b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3_000)
        assert answers.count(b"HTTP/1.1 200") < 1_000
        assert (await house.client.get("/healthz")).status_code == 200


async def test_connections_of_one_address_without_a_good_token_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers, "CALLERS_PER_ADDRESS", 4)
    async with served() as house, contextlib.AsyncExitStack() as open:
        await house.get("/v1/nodes")  # it has brought a good token, and stays
        sockets = []
        for _ in range(7):
            reader, writer = await asyncio.open_connection("127.0.0.1", house.world.ports["cp-1"])
            open.callback(writer.close)
            sockets.append(reader)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
            await writer.drain()
        for reader in sockets[:3]:
            with contextlib.suppress(ConnectionError):
                assert await within(reader.read()) == b"", "the oldest are closed"
        assert not any(reader.at_eof() for reader in sockets[3:])
        length = len(house.edge.rates._used)
        await house.get("/v1/nodes")
        assert len(house.edge.rates._used) == length


async def test_who_is_refused_again_and_again_has_to_connect_anew() -> None:
    async with served(access=access.Access()) as house:
        wrong = b"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hf_no\r\n\r\n"
        answers = await said(house.world.ports["cp-1"], wrong * 50)
        assert 1 <= answers.count(b"HTTP/1.1 4") <= front.REFUSED_MAX


async def test_what_strangers_do_wrong_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    monkeypatch.setattr(front.seldom, "_since", -front.SAID_EVERY_S)
    log, handler = logging.getLogger("uvicorn.error"), Lines()
    log.addHandler(handler)
    try:
        async with served() as house:
            for _ in range(20):
                await said(house.world.ports["cp-1"], b"\x00\x01 nonsense\r\n\r\n")
    finally:
        log.removeHandler(handler)
    assert sum("Invalid HTTP" in line for line in lines) == 1
