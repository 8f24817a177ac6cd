"""What goes wrong around a gateway, with real processes killed and real sockets that misbehave."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from holdfast.gateway.settings import Hold, Service, Upstream
from holdfast.model.gateway import Limits
from tests.gateways import CHAT, SECRET, chat, engine, events, key, served, service, text_of
from tests.planes import PATIENCE_S, until

Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]
ROOT = Path(__file__).resolve().parents[2]
AUTH = f"authorization: Bearer {SECRET}\r\n"


@contextlib.asynccontextmanager
async def upstream(answers: Answers) -> AsyncIterator[str]:
    """Whatever answers so."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(length)
            await answers(reader, writer)
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_thousand_who_race_for_one_bucket_get_no_token_too_many(tmp_path: Path) -> None:
    limits = Limits(tokens_per_min=6_000)
    async with (
        engine() as toy,
        served(tmp_path, service(toy.url), keys=(key(limits=limits),), workers=2) as (serving, _),
    ):
        began = time.monotonic()
        # from a process of their own: a thousand clients here would keep the keeper from its work
        clients = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench._gateway_client", serving.url + CHAT, SECRET, "toy-t5-i0-n64"),
            *("--clients", "1000", "--requests", "1000", "--seconds", "60"),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        out, _ = await clients.communicate()
        took = time.monotonic() - began
    said = msgspec.json.decode(out.splitlines()[-1])
    assert (said["failed"], said["done"] + said["refused"]) == (0, 1_000)
    assert said["tokens"] <= 6_000 + 100 * took
    # and the limit is used: on a slow machine slices lapse before they are, which costs some of it
    assert said["done"] >= 6_000 // (64 + 60) // 2


async def test_a_worker_that_is_killed_under_load_takes_nobody_along_and_admits_no_more(
    tmp_path: Path,
) -> None:
    limits = Limits(tokens_per_min=12_000)
    async with (
        engine() as toy,
        served(tmp_path, service(toy.url), keys=(key(limits=limits),), workers=2) as (serving, _),
    ):
        began, tokens = time.monotonic(), 0
        statuses: list[int] = []
        headers = {"authorization": f"Bearer {SECRET}", "connection": "close"}

        def goes_on() -> bool:
            """A slow machine needs longer than a few seconds for as many answers and restarts."""
            enough = statuses.count(200) > 50 and serving.keeper.seats[0].restarts == 3
            return time.monotonic() - began < (6 if enough else PATIENCE_S)

        async def ask_on() -> None:
            nonlocal tokens
            async with httpx.AsyncClient(base_url=serving.url, headers=headers, timeout=30) as client:
                while goes_on():
                    try:
                        found = await client.post(CHAT, json=chat(max_tokens=32))
                    except httpx.TransportError:
                        statuses.append(0)
                        continue
                    statuses.append(found.status_code)
                    if found.status_code == 200:
                        tokens += found.json()["usage"]["total_tokens"]
                    await asyncio.sleep(0.02)

        async def kill() -> None:
            for _ in range(3):
                await asyncio.sleep(1.2)
                os.kill(serving.keeper.seats[0].pid, signal.SIGKILL)

        await asyncio.gather(kill(), *(ask_on() for _ in range(12)))
        took = time.monotonic() - began
        await until(lambda: all(seat.ready for seat in serving.keeper.seats))
        assert serving.keeper.seats[0].restarts == 3
        assert statuses.count(200) > 50
        assert tokens <= 12_000 + 200 * took


async def test_when_a_replica_is_killed_under_streams_those_without_content_are_answered_by_another(
    tmp_path: Path,
) -> None:
    async with (
        engine() as one,
        engine() as other,
        served(tmp_path, service(one.url, other.url, prefix_aware=False)) as (serving, _),
        httpx.AsyncClient(
            base_url=serving.url,
            headers={"authorization": f"Bearer {SECRET}"},
            limits=httpx.Limits(max_connections=400),
            timeout=120,
        ) as client,
    ):

        async def ask(model: str) -> str:
            return (await client.post(CHAT, json=chat(model, stream=True, max_tokens=400))).text

        begun = [asyncio.ensure_future(ask("toy-t0-i100-n150")) for _ in range(100)]
        await until_streams(one.stats, other.stats, 100)
        waiting = [asyncio.ensure_future(ask("toy-t8000-i0-n5")) for _ in range(100)]
        await until_streams(one.stats, other.stats, 200)
        assert (await one.stats())["in_flight"] > 20
        one.kill()
        late = [events(text) for text in await asyncio.gather(*waiting)]
        early = [events(text) for text in await asyncio.gather(*begun)]
    for found in late:
        assert text_of(found) == " tok0 tok1 tok2 tok3 tok4"
        assert found[-1] == "[DONE]"
    cut = [found for found in early if found[-1] != "[DONE]"]
    assert cut
    for found in cut:
        assert found[-1]["error"]["code"] == "upstream_lost"
    for found in early:
        if found not in cut:
            assert text_of(found).endswith(" tok149")


async def test_when_every_replica_is_killed_those_without_content_wait_for_the_next(tmp_path: Path) -> None:
    async with engine() as one, engine() as other, engine() as fresh:
        wanted = service(one.url, other.url, prefix_aware=False)
        async with served(tmp_path, wanted) as (serving, client):
            body = chat("toy-t8000-i0-n5", stream=True)
            waiting = [asyncio.ensure_future(client.post(CHAT, json=body)) for _ in range(60)]
            await until_streams(one.stats, other.stats, 60)
            one.kill()
            other.kill()
            await asyncio.sleep(1)
            assert [each.result().text for each in waiting if each.done()] == []
            serving.keeper.put_services((service(fresh.url),))
            found = [events((await each).text) for each in waiting]
    for each in found:
        assert text_of(each) == " tok0 tok1 tok2 tok3 tok4"
        assert each[-1] == "[DONE]"


async def until_streams(one: Any, other: Any, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await one())["in_flight"] + (await other())["in_flight"] < count:
            await asyncio.sleep(0.02)


async def half_a_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
    await writer.drain()


async def a_head_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"x-filler: yes\r\n" * 10_000)
    await writer.drain()
    await reader.read()


async def too_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"choices"')
    await writer.drain()


async def no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await writer.drain()


@pytest.mark.parametrize("strange", [half_a_head, a_head_without_end, too_short, no_http])
async def test_a_replica_that_answers_strangely_is_passed_over(strange: Answers, tmp_path: Path) -> None:
    async with upstream(strange) as odd, engine() as toy:
        upstreams = (Upstream(odd), Upstream(toy.url, priority=1))
        async with served(tmp_path, Service("toy", ("toy",), upstreams)) as (_, client):
            for _ in range(8):
                found = await client.post(CHAT, json=chat())
                assert found.status_code == 200
                assert found.json()["usage"]["completion_tokens"] == 8


async def test_more_than_was_promised_is_not_taken_for_the_next_answer(tmp_path: Path) -> None:
    async def too_long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = b'{"ok": true}'
        evil = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said + evil)
        await writer.drain()
        await reader.read()

    async with upstream(too_long) as odd, served(tmp_path, service(odd)) as (_, client):
        for _ in range(3):
            found = await client.post(CHAT, json=chat())
            assert found.json() == {"ok": True}


async def test_a_stream_that_stands_still_is_given_up(tmp_path: Path) -> None:
    async def stands_still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await reader.read()

    async with upstream(stands_still) as odd, served(tmp_path, service(odd, stall_s=0.5)) as (_, client):
        found = events((await client.post(CHAT, json=chat(stream=True))).text)
        assert text_of(found) == "a"
        assert found[-1]["error"]["code"] == "upstream_lost"


async def test_a_flood_waits_for_its_reader(tmp_path: Path) -> None:
    sent = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        piece = b"data: " + b"x" * 65_536 + b"\n\n"
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        while sent < 400_000_000:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            sent += len(piece)

    async with upstream(floods) as odd, served(tmp_path, service(odd)) as (serving, client):
        async with client.stream("POST", CHAT, json=chat(stream=True)) as found:
            assert found.status_code == 200
            await asyncio.sleep(1.5)  # and nobody reads
            stood_at = sent
            await asyncio.sleep(0.5)
            assert sent == stood_at < 100_000_000
        pid = serving.keeper.seats[0].pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGESIZE") < 200_000_000


async def test_busy_and_failing_replicas_are_passed_over_and_the_budget_is_kept(tmp_path: Path) -> None:
    async with engine("--at-a-time", "1") as busy, engine() as free:
        upstreams = (Upstream(busy.url), Upstream(free.url, priority=1))
        async with served(tmp_path, Service("toy", ("toy", "toy-*"), upstreams)) as (_, client):
            found = await asyncio.gather(*(client.post(CHAT, json=chat("toy-t100-i0-n4")) for _ in range(20)))
            assert [each.status_code for each in found] == [200] * 20
    async with engine("--fail-share", "1") as bad, served(tmp_path / "2", service(bad.url)) as (_, client):
        found = [await client.post(CHAT, json=chat()) for _ in range(100)]
        assert {each.status_code for each in found} == {503}
        assert (await bad.stats())["requests"] < 200


async def test_who_comes_while_nobody_is_there_waits_for_the_first_replica(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service()) as (serving, client):
        wanted: list[str] = []
        serving.keeper.on_wanting = wanted.append
        waiting = [asyncio.ensure_future(client.post(CHAT, json=chat())) for _ in range(20)]
        await until(lambda: bool(wanted))
        await asyncio.sleep(0.3)
        assert not any(each.done() for each in waiting)
        serving.keeper.put_services((service(toy.url),))
        assert [(await each).status_code for each in waiting] == [200] * 20


async def test_nobody_waits_longer_than_their_patience(tmp_path: Path) -> None:
    async with served(tmp_path, service(hold=Hold(requests=5, patience_s=0.5))) as (_, client):
        found = await asyncio.gather(*(client.post(CHAT, json=chat()) for _ in range(10)))
        assert {each.status_code for each in found} == {503}
        assert {each.json()["error"]["code"] for each in found} == {"model_warming"}


async def test_a_replica_that_leaves_ends_its_streams_first(tmp_path: Path) -> None:
    async with engine() as old, engine() as fresh, served(tmp_path, service(old.url)) as (serving, client):
        running = asyncio.ensure_future(
            client.post(CHAT, json=chat("toy-t0-i20-n50", stream=True, max_tokens=50))
        )
        await asyncio.sleep(0.3)
        serving.keeper.put_services((service(fresh.url),))
        await asyncio.sleep(0.1)
        assert (await client.post(CHAT, json=chat())).status_code == 200
        assert (await fresh.stats())["requests"] == 1
        assert text_of(events((await running).text)).endswith(" tok49")


async def test_a_cut_chat_goes_on_elsewhere_if_that_is_asked_for(tmp_path: Path) -> None:
    async with engine() as one, engine() as other:
        wanted = service(one.url, other.url, continues=True, prefix_aware=False)
        async with served(tmp_path, wanted) as (_, client):
            body = chat("toy-t0-i30-n40", stream=True, max_tokens=100)
            running = [asyncio.ensure_future(client.post(CHAT, json=body)) for _ in range(6)]
            await asyncio.sleep(0.6)
            one.kill()
            found = [events((await each).text) for each in running]
            stats = await other.stats()
            assert stats["continued"] >= 1
            assert stats["usage_asked"] == stats["streams"] >= 6, "or it would be booked by a guess"
    for each in found:
        assert text_of(each) == "".join(f" tok{number}" for number in range(40))
        assert each[-1] == "[DONE]"


@pytest.mark.parametrize("all_the_time", [True, False])
async def test_a_chat_that_went_on_elsewhere_is_one_answer_to_the_client_of_openai(
    all_the_time: bool, tmp_path: Path
) -> None:
    async with engine() as one, engine() as other:
        wanted = service(one.url, other.url, continues=True, usage_all_the_time=all_the_time)
        async with (
            served(tmp_path, wanted) as (serving, _),
            openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key=SECRET) as client,
        ):

            async def said(cut: bool) -> list[ChatCompletionChunk]:
                stream = await client.chat.completions.create(
                    model="toy-t0-i30-n40",
                    messages=[{"role": "user", "content": "hi"}],
                    max_tokens=30,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                found = []
                async for chunk in stream:
                    found.append(chunk)
                    if cut and len(found) == 10:
                        stats = await one.stats()
                        (one if stats["in_flight"] else other).kill()
                return found

            whole, cut = await said(False), await said(True)
    for chunks in (whole, cut):
        state = ChatCompletionStreamState()
        for chunk in chunks:
            state.handle_chunk(chunk)
        answer = state.current_completion_snapshot
        assert answer.choices[0].message.content == "".join(f" tok{number}" for number in range(30))
        assert answer.choices[0].finish_reason == "length"
        assert [bool(c.choices and c.choices[0].delta.role) for c in chunks].count(True) == 1
        assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 30
    told, known = cut[-1].usage, whole[-1].usage
    assert told is not None
    assert known is not None
    assert told.total_tokens == told.prompt_tokens + 30
    if all_the_time:
        assert told == known


@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_asked_of_a_replica_that_is_lost_is_asked_of_another(
    stream: bool, tmp_path: Path
) -> None:
    """It was waited for, two minutes for a stream and an hour for the rest. One that merely leaves still has
    its time, and one that is lost to others only may still be the first to answer."""
    asked = 0

    async def is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read()

    async with upstream(is_silent) as dark, engine() as other:
        wanted = service(dark)
        async with served(tmp_path, wanted) as (serving, client):
            running = asyncio.ensure_future(client.post(CHAT, json=chat(stream=stream)))
            await until(lambda: asked)
            serving.keeper.put_services((service(other.url, leaving=(dark,)),))
            await asyncio.sleep(0.5)
            assert not running.done()
            serving.keeper.put_services((service(leaving=()),))
            await asyncio.sleep(0.3)
            assert not running.done(), "nobody else is there"
            serving.keeper.put_services((service(other.url, leaving=()),))
            async with asyncio.timeout(10):
                found = await running
            assert found.status_code == 200
            await until(lambda: counted(serving, "retries") == 1)
            assert (await other.stats())["requests"] == 1


async def begins_and_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    said = b'data: {"choices":[{"index":0,"delta":{"content":"once"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"%x\r\n%s\r\n" % (len(said), said))
    await writer.drain()


async def knows_no_such_field(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 13\r\n\r\n" + b'{"error":"no"}'[:13])
    await writer.drain()


async def is_broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}")
    await writer.drain()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    pass


@pytest.mark.parametrize("other", [knows_no_such_field, is_broken, says_nothing])
async def test_a_cut_chat_that_nobody_goes_on_with_ends_with_what_happened(
    other: Answers, tmp_path: Path
) -> None:
    """What the other one said instead, or a whole answer of ours, stood in the middle of the stream."""
    async with upstream(begins_and_ends) as one, upstream(other) as two:
        upstreams = (Upstream(one), Upstream(two, priority=1))
        wanted = Service("toy", ("toy",), upstreams, continues=True, tries=2)
        async with served(tmp_path, wanted) as (_, client):
            found = await client.post(CHAT, json=chat(stream=True))
    said = events(found.text)
    assert found.status_code == 200
    assert text_of(said[:-1]) == "once"
    assert said[-1]["error"]["code"] == "upstream_lost"
    assert all(line.startswith("data: ") for line in found.text.splitlines() if line)


async def test_a_late_request_is_asked_of_a_second_replica(tmp_path: Path) -> None:
    async with engine() as quick, engine("--first-ms", "60000") as slow:
        wanted = service(quick.url, slow.url, hedge=True, prefix_aware=False)
        async with served(tmp_path, wanted) as (serving, client):
            for _ in range(20):  # what is usual must be known first; with many at once much would be
                await asyncio.gather(
                    *(client.post(CHAT, json=chat("toy-t1-i0-n2", stream=True)) for _ in range(10))
                )
            await asyncio.sleep(2)  # on a busy machine some of these were late, and took what may be hedged
            async with asyncio.timeout(50):  # the slow one would take longer
                while counted(serving, "hedged") < 1:  # both may have gone to the quick one
                    asked = (client.post(CHAT, json=chat(stream=True)) for _ in range(2))
                    found = await asyncio.gather(*asked)
                    assert all(events(each.text)[-1] == "[DONE]" for each in found)
                    await asyncio.sleep(2)  # it is told once a second, and only a few may be hedged


def counted(serving: Any, field: str) -> int:
    return sum(
        getattr(each, field)
        for seat in serving.keeper.seats
        if seat.counted
        for each in seat.counted.services
    )


# --- what clients send


async def raw(url: str, data: bytes, within_s: float = 10.0) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        async with asyncio.timeout(within_s):
            return await reader.read()
    finally:
        writer.close()


SMUGGLED = {
    "length and chunks": f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}content-length: 4\r\n"
    "transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}"
    "content-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
    "a signed length": f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}content-length: +4\r\n\r\nabcd",
    "bare line feeds": f"POST {CHAT} HTTP/1.1\nhost: a\ncontent-length: 0\n\n",
    "a folded header": f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n",
    "a space before the colon": f"POST {CHAT} HTTP/1.1\r\nhost : a\r\n\r\n",
    "another coding": f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": f"POST {CHAT} HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bad chunk size": f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}transfer-encoding: chunked\r\n\r\n"
    "0x1\r\na\r\n0\r\n\r\n",
    "no host": f"POST {CHAT} HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    "two hosts": f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 0\r\n\r\n",
    "an absolute target": f"POST http://b{CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
    "HTTP/0.9": "GET /\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": "CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
    "an upgrade": "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "a zero byte": f"POST {CHAT} HTTP/1.1\r\nhost: a\0b\r\n\r\n",
}


async def test_what_two_readers_could_read_differently_ends_the_connection(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, _):
        for name, text in SMUGGLED.items():
            answer = await raw(serving.url, text.encode())
            assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 501"), name
            assert answer.count(b"HTTP/1.1 ") == 1, name
        assert (await toy.stats())["requests"] == 0


async def test_requests_that_come_together_are_answered_in_their_order(tmp_path: Path) -> None:
    def request(tokens: int) -> bytes:
        body = msgspec.json.encode(chat(max_tokens=tokens))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}content-length: {len(body)}\r\n"
        return head.encode() + (b"connection: close\r\n" if tokens == 3 else b"") + b"\r\n" + body

    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, _):
        answer = await raw(serving.url, request(1) + request(2) + request(3))
    assert [answer.count(b" tok%d" % number) for number in range(4)] == [3, 2, 1, 0]
    assert answer.index(b'"completion_tokens":1') < answer.index(b'"completion_tokens":2')


async def test_a_request_that_is_still_coming_when_a_gateway_ends_is_answered(tmp_path: Path) -> None:
    """Its connection was taken for an idle one, and closed in the middle of its body."""
    body = msgspec.json.encode(chat())
    head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\n{AUTH}content-length: {len(body)}\r\n\r\n".encode()
    async with engine() as toy:
        async with served(tmp_path, service(toy.url)) as (serving, _):
            host, port = serving.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + body[:10])
            await asyncio.sleep(0.3)

            async def goes_on() -> bytes:
                await asyncio.sleep(0.7)
                writer.write(body[10:])
                return await reader.read()

            going_on = asyncio.create_task(goes_on())
        answer = await going_on
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer


async def test_an_answer_that_is_still_read_when_a_gateway_ends_is_read_to_its_end(tmp_path: Path) -> None:
    """The rest of it was in a buffer, and thrown away with the connection."""
    size = 3_000_000

    async def says_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
        await writer.drain()

    body = msgspec.json.encode(chat())
    head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\n{AUTH}content-length: {len(body)}\r\n\r\n".encode()
    async with upstream(says_much) as odd:
        async with served(tmp_path, service(odd)) as (serving, _):
            host, port = serving.url.removeprefix("http://").split(":")
            small = socket.socket()
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            small.setblocking(False)
            await asyncio.get_running_loop().sock_connect(small, (host, int(port)))
            reader, writer = await asyncio.open_connection(sock=small, limit=4_096)
            writer.write(head + body)
            await asyncio.sleep(0.5)

            async def reads_slowly() -> bytes:
                answer = b""
                with contextlib.suppress(ConnectionError):
                    while piece := await reader.read(16_384):
                        answer += piece
                        await asyncio.sleep(0.005)
                return answer

            reading = asyncio.create_task(reads_slowly())
        answer = await reading
        writer.close()
    assert len(answer.partition(b"\r\n\r\n")[2]) == size


async def test_a_cut_chat_whose_time_is_over_is_not_begun_again(tmp_path: Path) -> None:
    async with engine() as one, engine() as other:
        wanted = service(one.url, other.url, continues=True, total_s=1.0)
        async with served(tmp_path, wanted) as (_, client):
            found = await client.post(CHAT, json=chat("toy-t0-i100-n40", stream=True, max_tokens=100))
        assert events(found.text)[-1]["error"]["code"] == "upstream_lost"
        assert [(await each.stats())["continued"] for each in (one, other)] == [0, 0]


async def test_who_sends_a_byte_at_a_time_is_let_go(tmp_path: Path) -> None:
    async with (
        engine() as toy,
        served(tmp_path, service(toy.url), head_within_s=0.5, body_within_s=0.8, idle_s=0.5) as (serving, _),
    ):
        slow_head = raw(serving.url, b"POST / HT")
        slow_body = raw(
            serving.url,
            f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}content-length: 100\r\n\r\n{{".encode(),
        )
        idle = raw(serving.url, b"")
        first, second, third = await asyncio.gather(slow_head, slow_body, idle)
        assert first.startswith(b"HTTP/1.1 408")
        assert second.startswith(b"HTTP/1.1 408")
        assert third == b""


async def test_what_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url), body_max=1_000_000) as (serving, client):
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}content-length: 104857600\r\n\r\n"
        assert (await raw(serving.url, head.encode())).startswith(b"HTTP/1.1 413")

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1_048_576

        with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # it sends a hundred times that
            assert (await client.post(CHAT, content=endless())).status_code == 413
        too_much = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{AUTH}content-length: 4000000\r\n\r\n".encode()
        assert (await raw(serving.url, too_much + b"x" * 4_000_000)).startswith(b"HTTP/1.1 413")
        many = f"GET / HTTP/1.1\r\nhost: a\r\n{'x: y' * 20_000}\r\n\r\n"
        assert (await raw(serving.url, many.encode())).startswith(b"HTTP/1.1 431")
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_connections_beyond_the_limit_are_told_so_and_the_others_go_on(tmp_path: Path) -> None:
    ask = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    async with engine() as toy, served(tmp_path, service(toy.url), connections=3) as (serving, client):
        assert (await client.post(CHAT, json=chat())).status_code == 200  # it keeps its connection
        address = serving.url.removeprefix("http://").split(":")
        async with asyncio.timeout(10):
            others = [await asyncio.open_connection(address[0], int(address[1])) for _ in range(2)]
            refused = await raw(serving.url, ask)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"too_many_connections" in refused
            assert b"retry-after: 1" in refused
            assert (await client.post(CHAT, json=chat())).status_code == 200
            for _, writer in others:
                writer.close()
                await writer.wait_closed()
            ends = asyncio.get_running_loop().time() + 5
            while (await raw(serving.url, ask)).startswith(b"HTTP/1.1 503"):
                assert asyncio.get_running_loop().time() < ends, "room that came back is taken"
                await asyncio.sleep(0.05)
