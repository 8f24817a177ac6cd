"""Events as they happen and logs as they are written: nothing lost, nothing twice, nothing left behind."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from holdfast.api import history, streams
from holdfast.api.app import close
from holdfast.control import log_reader, plane
from holdfast.core.agent.machine import Report
from holdfast.model import event as ev
from holdfast.model.action import ReleaseBrake
from holdfast.model.event import Ended
from holdfast.model.plan import Plan
from holdfast.ports.store import Tail
from holdfast.sim.live.emulated_agents import EmulatedAgent
from holdfast.sim.twins.store import SimStore
from holdfast.wire.messages import LogPart, LogTaken, ReadLog, Reports, StopLog, Wrote
from tests.planes import World, until
from tests.served import ONCE, WEB, Served, answered, served

SSE = {"accept": "text/event-stream"}


class Event(dict[str, str]):
    @property
    def line(self) -> Any:
        return json.loads(self["data"])


@contextlib.asynccontextmanager
async def following(api: Served, last: str = "", **params: Any) -> AsyncIterator[AsyncIterator[Event]]:
    headers = {**SSE, **({"last-event-id": last} if last else {})}
    async with api.client.stream("GET", "/v1/events", params=params, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield parsed(response)


async def parsed(response: httpx.Response) -> AsyncIterator[Event]:
    event = Event()
    async for line in response.aiter_lines():
        if not line and event:
            yield event
            event = Event()
        elif line and not line.startswith(":"):
            key, _, value = line.partition(": ")
            event[key] = value


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    async with asyncio.timeout(20):
        return [await anext(events) for _ in range(count)]


async def test_a_list_gives_the_newest_lines_or_the_oldest_after_one() -> None:
    async with served("n1", "n2") as api:
        everything = await api.get("/v1/events")
        assert [line["seq"] for line in everything] == sorted(line["seq"] for line in everything)
        assert (await api.get("/v1/events?limit=1"))[-1] == everything[-1]
        after = await api.get(f"/v1/events?since={everything[0]['seq']}&limit=1")
        assert after[0] == everything[1]
        before = await api.get(f"/v1/events?before={everything[2]['seq']}")
        assert before == everything[:2]
        about = await api.get("/v1/events?node=n2")
        assert about == [line for line in everything if line["node"] == "n2"] != []


async def test_a_stream_begins_where_it_is_told_and_goes_on_with_what_happens() -> None:
    async with served("n1") as api:
        so_far = await api.get("/v1/events?limit=1000")
        async with following(api, since=0) as events:
            old = await take(events, len(so_far))
            assert [event.line for event in old] == so_far
            assert [event["event"] for event in old] == [line["kind"] for line in so_far]
            await api.apply(ONCE)
            (new,) = await take(events, 1)
            assert (new["event"], new.line["text"]) == ("user", "applied, version 1")
            assert new["id"] == str(new.line["seq"])


async def test_a_stream_without_a_beginning_tells_only_what_is_new() -> None:
    async with (
        served("n1") as api,
        following(api, workload="once") as events,
        following(api) as everything,
    ):
        await api.apply(WEB)
        await api.apply(ONCE)
        (first,) = await take(everything, 1)
        assert first.line["subject"] == "web"
        about = await take(events, 2)
        assert {event.line["workload"] for event in about} == {"once"}


MANY = 7


def crowded_journal(entries: int) -> SimStore:
    """Plans with several lines each: in a stream these share a number."""
    store = World().store
    assert isinstance(store, SimStore)
    store.entries = [
        ev.LeaderChanged(at=1, leader="cp-0", generation=1),
        *(
            Plan(
                number, 2, tuple(ReleaseBrake(scope="fleet", why=f"{number}.{part}") for part in range(MANY))
            )
            for number in range(1, entries + 1)
        ),
    ]
    store.held = replace(store.held, generation=1)  # else its leader would have to wait for itself to end
    return store


async def test_a_stream_that_is_cut_off_anywhere_goes_on_without_a_gap_or_a_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "LINES_AT_ONCE", 5)
    async with served(world=World(crowded_journal(30))) as api:
        expected = [(line["seq"], line["text"]) for line in await api.get("/v1/events?limit=1000")]
        assert len(expected) > 30 * MANY
        seen: list[Event] = []
        for pieces in (1, 2, 3, 5, 8, 13, 4, 1, 1, 40, 6):
            async with following(api, last=seen[-1]["id"] if seen else "", since=0) as events:
                seen += await take(events, pieces)
        async with following(api, last=seen[-1]["id"], since=0) as events:
            seen += await take(events, len(expected) - len(seen))
        assert [(event.line["seq"], event.line["text"]) for event in seen] == expected
        assert len({event["id"] for event in seen}) == len(seen)


async def test_an_id_that_is_not_ours_is_refused() -> None:
    async with served() as api:
        for wrong in ("x", "1.", "-1", "1.2.3", "9" * 30):
            answered(await api.client.get("/v1/events", headers={**SSE, "last-event-id": wrong}), 422)


async def test_a_quiet_stream_says_that_it_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEEP_ALIVE_S", 0.05)
    async with served() as api, api.client.stream("GET", "/v1/events", headers=SSE) as response:
        async with asyncio.timeout(20):
            comments = [line async for line, _ in numbered(response.aiter_lines(), 8) if line]
        assert comments[1:] == [": still here"] * (len(comments) - 1)
        assert len(comments) > 2


async def numbered(lines: AsyncIterator[str], most: int) -> AsyncIterator[tuple[str, int]]:
    for number in range(most):
        yield await anext(lines), number


async def test_a_store_that_fails_meanwhile_costs_a_stream_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "AGAIN_S", 0.02)
    async with served() as api:
        store = api.world.store
        assert isinstance(store, SimStore)
        async with following(api) as events:
            read, failures = store.history, 3

            async def failing(**about: Any) -> Any:
                nonlocal failures
                failures -= 1
                store.down = failures >= 0
                try:
                    return await read(**about)
                finally:
                    store.down = False

            store.history = failing  # type: ignore[method-assign]
            await api.apply(ONCE)
            (event,) = await take(events, 1)
            assert event.line["text"] == "applied, version 1"
            assert failures < 0


async def test_a_reader_that_leaves_is_forgotten() -> None:
    async with served() as api:
        async with following(api, since=0) as events:
            await take(events, 1)
            assert api.edge.streams.open == 1
        await until(lambda: api.edge.streams.open == 0)


async def test_a_reader_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STUCK_S", 0.2)
    known, ended = streams.Streams(), asyncio.Event()

    async def endless() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"x" * 65_536
        finally:
            ended.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await streams.Stream(known, endless(), "text/plain")(scope, receive, send)

    world = World()
    async with world.plane(app=lambda plane: app):
        _, writer = await asyncio.open_connection("127.0.0.1", world.ports["cp-1"], limit=1_024)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: known.open == 1)
        await until(ended.is_set)
        assert known.open == 0
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_streams_end_when_the_control_plane_closes_and_none_begins_then() -> None:
    async with served() as api:
        async with following(api, since=0) as events:
            await take(events, 1)
            close(api.app)
            async with asyncio.timeout(20):
                assert [event async for event in events if event.line["seq"] > 1_000_000] == []
        answered(await api.client.get("/v1/events", headers=SSE), 503)
        await api.get("/v1/events")


async def test_there_are_only_so_many_streams_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "OPEN_MAX", 2)
    monkeypatch.setattr(streams, "KEPT_FOR_GATEWAYS", 0)
    async with served() as api:
        async with following(api, since=0) as one, following(api, since=0) as two:
            await take(one, 1)
            await take(two, 1)
            refused = await api.client.get("/v1/events", headers=SSE)
            assert "2 streams are open" in answered(refused, 503)["detail"]
            assert refused.headers["retry-after"]
        await until(lambda: api.edge.streams.open == 0)
        async with following(api, since=0) as again:
            await take(again, 1)


# logs


class Talkative(EmulatedAgent):
    """An agent with a log to read."""

    log = b"".join(b"line %d\n" % number for number in range(1_000))
    forgets = ""  # why nothing can be read; it may say anything
    counts = False  # it says where each part is, as one does that knows windows
    most = 1 << 30  # bytes that it sends before something goes wrong
    rotated = 0  # bytes that are gone
    piece = 1_000
    asked: list[ReadLog]
    stopped: list[int]

    def _receive(self, message: object) -> None:
        match message:
            case ReadLog(request=request, offset=offset, follow=follow):
                self.asked.append(message)
                if self.forgets:
                    self.send(LogPart(request, b"", end=True, why=self.forgets))
                    return
                offset = max(offset if offset >= 0 else len(self.log) + offset, self.rotated)
                data = self.log[offset : offset + self.most]
                for start in range(0, len(data), self.piece):
                    part = data[start : start + self.piece]
                    self.send(LogPart(request, part, offset=offset + start if self.counts else -1))
                if not follow:
                    why = "its disk is gone" if offset + self.most < len(self.log) else ""
                    self.send(LogPart(request, b"", end=True, why=why))
            case LogTaken():
                assert self.counts, "an older agent would take it for garbage"
            case StopLog(request=request):
                self.stopped.append(request)
            case _:
                super()._receive(message)


async def talkative(api: Served) -> Talkative:
    """The node n1, which runs web/0.1."""
    agent = api.world.fleet.agents["n1"]
    agent.__class__ = Talkative
    assert isinstance(agent, Talkative)
    agent.asked, agent.stopped = [], []
    await api.apply(WEB.replace("2", "1"))
    await until(lambda: "web/0.1" in api.plane.world.replicas)
    return agent


async def test_a_log_is_read_from_its_node_whole_or_its_tail() -> None:
    async with served("n1") as api:
        agent = await talkative(api)
        whole = await api.client.get("/v1/log", params={"replica": "web/0.1"})
        assert whole.headers["content-type"].startswith("text/plain")
        assert whole.content == agent.log
        tail = await api.client.get("/v1/log", params={"replica": "web/0.1", "tail_bytes": 18})
        assert tail.content == b"line 998\nline 999\n"
        await until(lambda: len(agent.stopped) == 2 and api.edge.streams.open == 0)


async def test_a_log_is_followed_until_the_reader_leaves() -> None:
    async with served("n1") as api:
        agent = await talkative(api)
        params: dict[str, str | int] = {"replica": "web/0.1", "tail_bytes": 9, "follow": True}
        async with asyncio.timeout(20), api.client.stream("GET", "/v1/log", params=params) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "line 999"
            agent.send(LogPart(agent.asked[0].request, b"one more\n"))
            assert await anext(lines) == "one more"
        await until(lambda: agent.stopped == [agent.asked[0].request])
        await until(lambda: api.edge.streams.open == 0)


async def test_a_silent_log_is_followed_all_the_same_and_is_cut_when_the_control_plane_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plane, "BEGIN_S", 0.05)
    async with served("n1") as api:
        agent = await talkative(api)
        agent.log = b""
        params: dict[str, str | int] = {"replica": "web/0.1", "follow": True}
        async with asyncio.timeout(20), api.client.stream("GET", "/v1/log", params=params) as response:
            assert response.status_code == 200
            close(api.app)
            with pytest.raises(httpx.RemoteProtocolError):
                assert [part async for part in response.aiter_bytes()] == []
        await until(lambda: len(agent.stopped) == 1)


async def read_on(response: httpx.Response) -> tuple[bytes, bool]:
    """What came, and whether the body had an end."""
    got = b""
    try:
        async for part in response.aiter_bytes():
            got += part
    except httpx.RemoteProtocolError:
        return got, False
    return got, True


async def test_a_log_that_is_cut_short_ends_without_the_end_of_its_body_and_goes_on_from_there() -> None:
    async with served("n1") as api:
        agent = await talkative(api)
        agent.counts = True
        agent.most = 3_000
        async with api.client.stream("GET", "/v1/log", params={"replica": "web/0.1"}) as response:
            assert response.headers["holdfast-log-offset"] == "0"
            got, whole = await read_on(response)
            assert not whole
        assert got == agent.log[:3_000]
        agent.most = 1 << 20
        rest = await api.client.get("/v1/log", params={"replica": "web/0.1", "offset": 3_000})
        assert (rest.headers["holdfast-log-offset"], got + rest.content) == ("3000", agent.log)
        agent.rotated = 5_000
        gone = await api.client.get("/v1/log", params={"replica": "web/0.1", "offset": 3_000})
        assert "bytes 3,000 to 5,000 of the log of web/0.1 are gone" in answered(gone, 410)["detail"]
        kept = await api.client.get("/v1/log", params={"replica": "web/0.1"})
        assert kept.content == agent.log[5_000:]
        assert "bytes 0 to 5,000 of the log of web/0.1 are gone" in kept.headers["holdfast-note"]
        answered(await api.client.get("/v1/log?replica=web/0.1&offset=1&tail_bytes=1"), 422)
        await until(lambda: api.edge.streams.open == 0)
        assert not api.plane.hub.readers


async def test_an_older_agent_that_does_not_wait_for_a_slow_reader_costs_it_the_rest_and_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_reader, "UNREAD_MAX", 100_000)
    async with served("n1") as api:
        agent = await talkative(api)
        agent.log = b"x" * 64_000_000
        agent.piece = 1 << 19
        async with api.client.stream("GET", "/v1/log", params={"replica": "web/0.1"}) as response:
            got, whole = await read_on(response)
            assert not whole or response.status_code == 503
            assert len(got) < len(agent.log)


async def test_a_log_that_cannot_be_had_says_why() -> None:
    async with served("n1") as api:
        agent = await talkative(api)
        missing = await api.client.get("/v1/log?replica=web/0.2")
        assert answered(missing, 404)["hint"] == "Did you mean: web/0.1"
        agent.hang_up()
        await until(lambda: api.plane.hub.connected("n1") is None)
        gone = await api.client.get("/v1/log?replica=web/0.1")
        assert answered(gone, 503)["detail"] == "n1 is not connected"
        assert api.edge.streams.open == 0


async def test_the_end_of_a_log_is_kept_when_its_replica_has_ended_and_its_node_is_gone() -> None:
    async with served("n1") as api:
        agent = await talkative(api)
        lie = Wrote(b"I was not here\n", 15)
        end = Wrote(agent.log[-5_000:], len(agent.log))
        report = Report("web/0.1", "ended", Ended.FAILED, why="exit code 1")
        first = agent.machine.first_report + len(agent.machine.reports)
        agent.send(Reports(first, (report,), {"web/0.1": end, "web/0.9": lie}))
        await until(lambda: "web/0.1" not in api.plane.world.replicas)
        whole = await api.client.get("/v1/log?replica=web/0.1")
        assert whole.content == agent.log, "the node has all of it"
        assert "holdfast-note" not in whole.headers
        agent.hang_up()
        await until(lambda: api.plane.hub.connected("n1") is None)
        kept = await api.client.get("/v1/log?replica=web/0.1")
        assert kept.content == agent.log[-5_000:]
        note = "web/0.1 has ended and n1 is not connected; this is the last 5,000 of 8,890 bytes"
        assert kept.headers["holdfast-note"] == note
        tail = await api.client.get("/v1/log?replica=web/0.1&tail_bytes=9&follow=true")
        assert tail.content == b"line 999\n"
        await api.get("/v1/log?replica=web/0.9", 404)
        assert await api.plane.store.tail("web/0.9") is None, "nobody speaks for another's replica"


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("nothing of web/0.9 is here", "nothing of web/0.9 is here"),
        ("Gerät voll\r\nSet-Cookie: a=b", "Ger?t voll??Set-Cookie: a=b"),
        ("\u2717" * 100_000, "?" * 200),
    ],
)
async def test_a_node_that_has_forgotten_a_log_is_not_the_last_word(why: str, told: str) -> None:
    async with served("n1") as api:
        agent = await talkative(api)
        agent.forgets = why
        tail = Tail("web/0.9", "n1", b"bye\n", written=4, at=1)
        await api.plane.store.keep_tails((tail,))
        kept = await api.client.get("/v1/log?replica=web/0.9")
        assert kept.status_code == 200, kept.text
        assert kept.content == b"bye\n"
        assert kept.headers["holdfast-note"] == f"web/0.9 has ended and {told}; this is all that it wrote"
        assert "set-cookie" not in kept.headers


async def test_a_log_is_not_longer_than_a_store_can_count() -> None:
    async with served("n1") as api:
        agent = await talkative(api)
        report = Report("web/0.1", "ended", Ended.FAILED, why="exit code 1")
        first = agent.machine.first_report + len(agent.machine.reports)
        agent.send(Reports(first, (report,), {"web/0.1": Wrote(b"bye\n", 2**64 - 1)}))
        await until(lambda: "web/0.1" not in api.plane.world.replicas)
        agent.hang_up()
        await until(lambda: api.plane.hub.connected("n1") is None)
        kept = await api.client.get("/v1/log?replica=web/0.1")
        assert kept.content == b"bye\n"
        tail = await api.plane.store.tail("web/0.1")
        assert tail is not None
        assert tail.written < 2**63
