"""A gateway behind a control plane, piece by piece: what it follows, what it keeps, and what it tells."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast.api.access import Access
from holdfast.core.gateway.key_audit.audit import Seen
from holdfast.core.gateway.quota.broker import Ask, Grants
from holdfast.core.gateway.quota.lent import Part
from holdfast.gateway import messages, settings
from holdfast.gateway import watch as watch_module
from holdfast.gateway.behind import Behind
from holdfast.gateway.borrow import Borrow
from holdfast.gateway.counts import Counted, ModelCounted, ServiceCounted
from holdfast.gateway.keeper import CannotListen, Keeper
from holdfast.gateway.load import Load
from holdfast.gateway.plane import Away, ControlPlane, Denied, Untrusted
from holdfast.gateway.serve import gateway
from holdfast.gateway.view import Change, View, together
from holdfast.gateway.watch import Stopped, Watch
from holdfast.model.gateway import Grade, Key, Limits
from holdfast.ports.registry import Role
from tests.planes import PATIENCE_S, World, until
from tests.served import ADMIN, served

NOWHERE = "http://127.0.0.1:9"
KEY = Key("k1", b"hash")
LLM = settings.Service("llm", ("llama",), (settings.Upstream("http://10.0.0.1:8000", "llm/0.1"),))


class Wire:
    """A worker's link that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def keeper_in(folder: Path, **more: Any) -> tuple[Keeper, Wire]:
    keeper, wire = (
        Keeper(settings.Gateway(state=folder, port=0, admin_port=0, **more), "http://plane"),
        Wire(),
    )
    keeper.seats[0].link = wire  # type: ignore[assignment]
    return keeper, wire


# whom it asks


async def test_it_is_sent_on_to_the_leader_and_stays_there_and_tries_others_when_one_is_gone() -> None:
    world = World()
    async with served(world=world) as leads, served(world=world, name="cp-2", leads=False) as follows:
        await until(lambda: follows.plane.ready)
        plane = ControlPlane((NOWHERE, follows.plane.url), ADMIN)
        assert await plane.view(10) == View()
        assert plane.base == leads.plane.url
        await plane.close()


async def test_one_that_hangs_or_says_that_it_cannot_is_left_for_another() -> None:
    asked = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        with contextlib.closing(writer):
            await reader.read()

    async def apologise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Nobody leads\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    for strange in (hang, apologise):
        async with served() as api, await asyncio.start_server(strange, "127.0.0.1", 0) as server:
            plane = ControlPlane((_url(server), api.plane.url), ADMIN)
            first = await asyncio.gather(*(plane.view(0.2) for _ in range(4)), return_exceptions=True)
            assert all(isinstance(each, Away) for each in first)  # that these were four changes nothing
            assert await plane.view(PATIENCE_S) == View()
            assert plane.base == api.plane.url
            await plane.close()
    assert asked == 4


async def test_whoever_was_sent_on_to_one_that_hangs_asks_again_whom_it_knows() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read()

    async with served() as api, await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        plane = ControlPlane((api.plane.url,), ADMIN)
        plane.base = _url(server)  # it led when we were sent there
        with pytest.raises(Away):
            await plane.view(0.2)
        assert await plane.view(PATIENCE_S) == View()
        await plane.close()


def _url(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_token_that_is_not_good_enough_is_told_apart_from_nobody_there(tmp_path: Path) -> None:
    async with served(access=Access()) as api:
        reader = (await api.token(Role.READ))["authorization"].removeprefix("Bearer ")
        for token in ("", "wrong", reader):
            behind = Behind((api.plane.url,), token)
            with pytest.raises(Denied) as denied:
                async with gateway(settings.Gateway(state=tmp_path, port=0, admin_port=0), behind):
                    pass
            assert "{" not in str(denied.value), "it was shown as JSON, and cut off"
            assert str(denied.value).endswith(")"), "with its hint"
            assert "token" in str(denied.value)
    plane = ControlPlane((NOWHERE,))
    with pytest.raises(Away):
        await plane.view(5)
    with pytest.raises(Away):
        await plane.post("/v1/gateway/load", b"{}", 5)
    await plane.close()


@pytest.mark.parametrize(("token", "wrong"), [("", Untrusted), ("a-token", Away)])
async def test_who_has_no_token_and_trusts_nobody_is_told_so_and_does_not_try_for_ever(
    tmp_path: Path, token: str, wrong: type[Exception]
) -> None:
    """It may be between two certificates for whoever has a token: that is tried again."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    plane = ControlPlane(("https://control.example:7700",), token)
    plane._made = httpx.AsyncClient(transport=httpx.MockTransport(refuse))
    with pytest.raises(wrong):
        await plane.view(5)
    if not token:
        with pytest.raises(Untrusted) as untrusted:
            await Watch(keeper_in(tmp_path)[0], plane).begin(asyncio.Event())
        assert "--token-file" in untrusted.value.hint
    await plane.close()


async def test_a_taken_port_is_told_as_plainly_as_without_a_control_plane(tmp_path: Path) -> None:
    listening = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with served() as api, listening:
        with pytest.raises(CannotListen):
            async with gateway(
                settings.Gateway(state=tmp_path, port=port, admin_port=0), Behind((api.plane.url,), ADMIN)
            ):
                pass


async def test_a_connection_that_was_closed_while_idle_costs_nobody_an_answer() -> None:
    calls = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await reader.readuntil(b"\r\n\r\n")
        if calls == 2:  # it took another question, and went away
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntwo!")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        plane = ControlPlane((f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",))
        assert await plane.post("/v1/gateway/lease", b"[]", 5) == b"two!"
        with pytest.raises(Away):
            await plane.post("/v1/gateway/lease", b"[]", 5)
        await plane.close()


async def test_being_sent_nowhere_is_being_away() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 307 Go\r\nlocation: http://[\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        plane = ControlPlane((f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",))
        with pytest.raises(Away):
            await plane.view(5)
        await plane.close()


async def test_ctrl_c_in_a_terminal_does_not_reach_the_workers(tmp_path: Path) -> None:
    async with gateway(settings.Gateway(state=tmp_path, port=0, admin_port=0)) as serving:
        for seat in serving.keeper.seats:
            assert os.getpgid(seat.pid) != os.getpgid(0)


# what it goes by


def test_a_file_adds_upstreams_and_patience_to_a_service_and_services_of_its_own() -> None:
    outside = settings.Upstream("https://elsewhere.example", priority=1, credential="s")
    mine = settings.Service("llm", ("other",), (outside,), tries=7, concurrent=3)
    own = settings.Service("own", ("own",))
    found, alone = together((LLM,), (mine, own))
    assert (found.models, found.tries, found.concurrent) == (("llama",), 7, 3)
    assert found.upstreams == (*LLM.upstreams, outside)
    assert alone == own
    assert together((LLM,), ()) == (LLM,)


async def test_only_what_changed_is_told_to_workers(tmp_path: Path) -> None:
    keeper, wire = keeper_in(tmp_path)
    watch = Watch(keeper, ControlPlane((NOWHERE,)))
    limits = Limits(concurrent=1)
    keys = {"k1": KEY, "k2": Key("k2", b"2", grade=Grade.CLAMP)}
    view = View((LLM,), keys, {"global": limits}, {"k2": 0.1})
    watch.apply(view)
    assert [type(each).__name__ for each in wire.sent] == [
        *("KeyPut", "KeyPut", "LimitsPut", "Clamped", "ServicesPut")
    ]
    wire.sent.clear()
    watch.apply(msgspec.json.decode(msgspec.json.encode(view), type=View))
    assert wire.sent == []
    suspended = msgspec.structs.replace(KEY, suspended="x")
    watch.apply(View((LLM,), {"k1": suspended}, {}, {}))
    assert wire.sent == [
        *(messages.KeyGone("k2"), messages.KeyPut(suspended)),
        *(messages.LimitsPut("global", Limits()), messages.Clamped("k2", 1.0)),
    ]
    assert [key.id for key in keeper.ring.all()] == ["k1"]
    wire.sent.clear()
    other = Key("k1", b"another")
    watch.follow(Change(1, keys={"k1": other}, gone=("k1",)))
    assert wire.sent == [messages.KeyGone("k1"), messages.KeyPut(other)]
    wire.sent.clear()
    watch.follow(Change(2, clamps={"k1": 0.1}, limits={"global": limits}))
    assert wire.sent == [messages.LimitsPut("global", limits), messages.Clamped("k1", 0.1)]
    assert watch.view == View((LLM,), {"k1": other}, {"global": limits}, {"k1": 0.1}, 2)
    with pytest.raises(Away):
        watch.follow(Change(4, gone=("k1",)))
    await watch.plane.close()


async def test_what_was_last_known_is_started_from_unless_it_cannot_be_read(tmp_path: Path) -> None:
    keeper, _ = keeper_in(tmp_path)
    watch = Watch(keeper, ControlPlane((NOWHERE,)))
    watch.apply(View((LLM,), {"k1": KEY}))
    watch.save()
    assert watch.file.stat().st_mode & 0o077 == 0
    again, _ = keeper_in(tmp_path)
    second = Watch(again, watch.plane)
    await second.begin(asyncio.Event())
    assert (again.services, again.ring.all()) == ((LLM,), [KEY])
    watch.file.write_bytes(watch.file.read_bytes()[:-9])
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, stop.set)
    with pytest.raises(Stopped):  # it waits for the control plane until somebody ends it
        async with asyncio.timeout(10):
            await Watch(keeper_in(tmp_path)[0], watch.plane).begin(stop)
    await watch.plane.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [(NOWHERE, "connect"), ("http://nobody.invalid", "name"), ("http://127.0.0.1:{silent}", "in time")],
)
async def test_one_that_finds_no_control_plane_says_so_and_why_and_how_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, why: str
) -> None:
    """It waited without end, and did not say for whom."""
    monkeypatch.setattr(watch_module, "FIRST_WITHIN_S", 1.0)
    monkeypatch.setattr(watch_module, "REMIND_S", 0.0)  # every time
    with socket.create_server(("127.0.0.1", 0)) as silent, capture_logs() as lines:
        url = url.format(silent=silent.getsockname()[1])
        plane, stop = ControlPlane((url,)), asyncio.Event()
        waiting = asyncio.create_task(Watch(keeper_in(tmp_path)[0], plane).begin(stop))
        await until(lambda: len(lines) > 2)
        stop.set()
        with pytest.raises(Stopped):
            await waiting
    assert {(line["control"], line["log_level"]) for line in lines} == {(url, "warning")}
    assert all("tried again" in line["event"] and "Ctrl-C" in line["event"] for line in lines)
    assert why in lines[0]["why"].lower()
    assert ("7700" in lines[0].get("hint", "")) is url.endswith("invalid"), "it named no port"
    await plane.close()


async def test_when_another_control_plane_leads_it_is_followed(tmp_path: Path) -> None:
    world = World()
    keeper, _ = keeper_in(tmp_path)
    async with contextlib.AsyncExitStack() as later, asyncio.timeout(PATIENCE_S):
        async with served(world=world) as first:
            second = await later.enter_async_context(served(world=world, name="cp-2", leads=False))
            watch = Watch(keeper, ControlPlane((first.plane.url, second.plane.url), ADMIN))
            running = asyncio.ensure_future(watch.run())
            await first.post("/v1/keys", {"id": "before"})
            await until(lambda: [key.id for key in keeper.ring.all()] == ["before"])
        await until(lambda: second.plane.leading)
        await second.post("/v1/keys", {"id": "after"})
        await until(lambda: [key.id for key in keeper.ring.all()] == ["before", "after"])
        assert watch.plane.base == second.plane.url
        running.cancel()
        await watch.plane.close()


# what it borrows


class Plane:
    """A control plane that answers what it is told to; None: it is away."""

    def __init__(self) -> None:
        self.asked: list[list[Ask]] = []
        self.away = False

    async def post(self, path: str, body: bytes, within_s: float) -> bytes:
        asks = msgspec.json.decode(body, type=list[Ask])
        self.asked.append(asks)
        if self.away:
            raise Away("gone")
        return msgspec.json.encode([Grants(ask.number, "1.0", {}) for ask in asks])


async def test_asks_go_together_under_names_of_their_own_and_each_worker_gets_its_answer() -> None:
    plane, wires = Plane(), [Wire(), Wire()]
    borrow = Borrow(plane, "here.1")  # type: ignore[arg-type]
    running = asyncio.ensure_future(borrow.run())
    for number, wire in enumerate(wires, 7):
        borrow.asked(wire, Ask(f"w{number}", number, "", True, {"a": Part(1.0)}))  # type: ignore[arg-type]
    await until(lambda: all(wire.sent for wire in wires))
    assert [[ask.holder for ask in asks] for asks in plane.asked] == [["here.1/w7", "here.1/w8"]]
    assert [wire.sent[0].grants.number for wire in wires] == [7, 8]
    plane.away = True
    borrow.asked(wires[0], Ask("w7", 9, "", True, {}))  # type: ignore[arg-type]
    await until(lambda: len(plane.asked) == 2)
    plane.away = False
    borrow.asked(wires[0], Ask("w7", 10, "", True, {}))  # type: ignore[arg-type]
    await until(lambda: len(wires[0].sent) == 2)
    assert wires[0].sent[1].grants.number == 10
    running.cancel()


# what it tells


def counted(requests: int, in_flight: int = 0, **more: Any) -> Counted:
    service = ServiceCounted(
        "llm", requests, in_flight=in_flight, models=(ModelCounted("a"), ModelCounted("b", **more))
    )
    return Counted(0, {}, (service,))


async def test_what_is_told_are_rates_of_the_last_second_and_who_waits_now(tmp_path: Path) -> None:
    keeper, _ = keeper_in(tmp_path, services=(LLM,))
    now = 100.0
    keeper.now = lambda: now
    load = Load(keeper, ControlPlane((NOWHERE,)), "g1")
    keeper.ring.fixed = {"k1": KEY, "k2": Key("k2", b"2")}
    keeper.watch.saw([("k1", 99.0, Seen(1, 200, 9, 5, 4, 0, False, False, 1, 1, 1))])
    first = load.told()
    assert (first.gateway, first.services[0].in_flight) == ("g1", 0)
    assert [(row.key, row.tokens_24h) for row in first.keys or ()] == [("k1", 9)]
    assert load.told().keys is None, "only now and then"
    keeper.seats[0].counted = counted(requests=10, prompt_tokens=100)
    load.told()
    now += 2.0
    keeper.seats[0].counted = counted(
        requests=14,
        prompt_tokens=140,
        completion_tokens=60,
        in_flight=3,
        first_tokens=[1, 3],
        first_tokens_s=2.0,
    )
    (told,) = load.told().services
    assert (told.requests_per_s, told.tokens_per_s, told.latency_ms, told.in_flight) == (
        2.0,
        50.0,
        500.0,
        3.0,
    )
    assert (told.queue, told.oldest_wait_ms) == (0.0, 0.0)
    load.wanting("llm")
    now += 0.25
    load.wanting("llm")
    (told,) = load.told().services
    assert (told.queue, told.oldest_wait_ms) == (1.0, 250.0)
    now += 1.0
    keeper.seats[0].counted = counted(requests=1)  # another worker sits there
    (told,) = load.told().services
    assert (told.queue, told.requests_per_s) == (0.0, 1 / 1.25)
    await load.plane.close()
