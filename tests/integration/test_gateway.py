"""The gateway with real sockets, workers and clients: what it passes on, refuses, and books."""

import asyncio
from pathlib import Path

import httpx
import openai
import pytest

from holdfast.gateway.settings import Service, Upstream
from holdfast.model.gateway import Limits
from tests.certificates import self_signed, write
from tests.gateways import CHAT, SECRET, Engine, chat, engine, events, key, served, service, text_of, to_admin


async def test_an_answer_comes_through_with_what_is_left(tmp_path: Path) -> None:
    limits = Limits(tokens_per_min=6_000, requests_per_min=60)
    async with engine() as toy, served(tmp_path, service(toy.url), keys=(key(limits=limits),)) as (_, client):
        found = await client.post(CHAT, json=chat())
        assert found.status_code == 200
        assert found.json()["choices"][0]["message"]["content"].startswith(" tok0 tok1")
        assert found.headers["x-ratelimit-limit-tokens"] == "6000"
        assert 5_000 < int(found.headers["x-ratelimit-remaining-tokens"]) < 6_000
        assert found.headers["x-ratelimit-limit-requests"] == "60"
        assert found.headers["x-request-id"]


async def test_a_stream_comes_through_and_its_usage_only_to_those_who_asked(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (_, client):
        plain = events((await client.post(CHAT, json=chat(stream=True))).text)
        asked = events(
            (await client.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))).text
        )
        said_no = events(
            (await client.post(CHAT, json=chat(stream=True, stream_options={"include_usage": False}))).text
        )
        assert (await toy.stats())["usage_asked"] == 3
    for found in (plain, asked, said_no):
        assert text_of(found) == "".join(f" tok{number}" for number in range(8))
        assert found[-1] == "[DONE]"
    assert [event for event in asked if event != "[DONE]" and event.get("usage")]
    for found in (plain, said_no):
        assert not [event for event in found if event != "[DONE]" and event.get("usage")]


async def test_the_client_of_openai_is_served(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, _):
        async with openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key=SECRET) as client:
            whole = await client.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "hi"}], max_tokens=4
            )
            assert whole.choices[0].message.content == " tok0 tok1 tok2 tok3"
            stream = await client.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "hi"}], max_tokens=4, stream=True
            )
            pieces = [part.choices[0].delta.content or "" async for part in stream]
            assert "".join(pieces) == " tok0 tok1 tok2 tok3"
            assert [model.id async for model in client.models.list()] == ["toy"]
            assert (await client.models.retrieve("toy-t0-i0-n4")).owned_by == "toy"
            made = await client.embeddings.create(model="toy", input="hello", encoding_format="float")
            assert made.data[0].embedding == [0.25, -0.5, 0.125]
            said = await client.responses.create(model="toy", input="hi", max_output_tokens=16)
            assert said.output_text.endswith(" tok14 tok15")
            assert said.usage is not None
            assert said.usage.output_tokens == 16
            words, ends = "", ""
            async for event in await client.responses.create(model="toy", input="hi", stream=True):
                words += event.delta if event.type == "response.output_text.delta" else ""
                ends = event.type
            assert words == said.output_text
            assert ends == "response.completed"
            assert (await toy.stats())["usage_asked"] == 1, "of the chat: a response knows no such option"
        async with openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.models.list()
            assert refused.value.code == "invalid_api_key"


async def test_connections_to_a_replica_are_used_again(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (_, client):
        for _ in range(10):
            assert (await client.post(CHAT, json=chat())).status_code == 200
            assert events((await client.post(CHAT, json=chat(stream=True))).text)[-1] == "[DONE]"
        assert (await toy.stats())["connections"] == 2  # one for all of them, one for this question


async def test_curl_is_served(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, _):
        process = await asyncio.create_subprocess_exec(
            "curl",
            "-sSN",
            f"{serving.url}{CHAT}",
            "-H",
            f"authorization: Bearer {SECRET}",
            "-d",
            '{"model": "toy", "stream": true, "messages": [], "max_tokens": 3}',
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        assert events(out.decode())[-1] == "[DONE]"


async def test_what_cannot_be_read_is_told_apart(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (_, client):
        for body, code, param in (
            (b"{", "invalid_request", None),
            (b"[]", "invalid_request", None),
            (b"{}", "invalid_request", "model"),
            (b'{"model": ""}', "invalid_request", "model"),
            (b'{"model": "toy", "max_tokens": -1}', "invalid_request", "max_tokens"),
            (b'{"model": "toy", "max_tokens": "many"}', "invalid_request", "max_tokens"),
            (b'{"model": "toy", "n": 100000}', "invalid_request", "n"),
            (b'{"model": "no"}', "model_not_found", "model"),
            (b"\xff\xfe", "invalid_request", None),
            (b"[" * 100_000, "invalid_request", None),
        ):
            found = await client.post(CHAT, content=body)
            assert found.status_code in (400, 404), body[:40]
            assert found.json()["error"]["code"] == code, body[:40]
            assert found.json()["error"]["param"] == param, body[:40]
        assert (await client.get(CHAT)).status_code == 405
        assert (await client.get("/nothing")).status_code == 404
        assert (await toy.stats())["requests"] == 0


async def test_keys_are_known_allowed_expired_and_suspended(tmp_path: Path) -> None:
    keys = (
        key(),
        key("sk-small", "small", models=("other", "toy-s*")),
        key("sk-old", "old", expires_at=1),
        key("sk-bad", "bad", suspended="it was leaked"),
    )
    async with engine() as toy, served(tmp_path, service(toy.url), keys=keys) as (_, client):

        async def code(secret: str, model: str = "toy") -> tuple[int, str]:
            headers = {"authorization": f"Bearer {secret}"}
            found = await client.post(CHAT, json=chat(model), headers=headers)
            return found.status_code, "" if found.status_code == 200 else found.json()["error"]["code"]

        assert await code("sk-small") == (404, "model_not_found")
        assert await code("sk-small", "toy-small") == (200, "")
        assert await code("sk-old") == (401, "invalid_api_key")
        assert await code("sk-bad") == (403, "key_suspended")
        assert await code("sk-guess") == (401, "invalid_api_key")
        guesses = [await code(f"sk-{number}") for number in range(40)]
        assert (429, "too_many_attempts") in guesses
        assert await code(SECRET) == (200, "")  # whoever has a good key is not held up by a neighbour


async def test_a_limit_that_is_reached_says_when_to_come_back(tmp_path: Path) -> None:
    limits = Limits(tokens_per_min=600)
    async with engine() as toy, served(tmp_path, service(toy.url), keys=(key(limits=limits),)) as (_, client):
        never = await client.post(CHAT, json=chat(max_tokens=10_000))
        assert never.status_code == 400
        assert never.json()["error"]["code"] == "request_exceeds_limit"
        first = await client.post(CHAT, json=chat("toy-t0-i0-n400", max_tokens=400))
        assert first.status_code == 200
        second = await client.post(CHAT, json=chat(max_tokens=400))
        assert second.status_code == 429
        assert second.json()["error"]["code"] == "rate_limit_exceeded"
        wait_ms = int(second.headers["retry-after-ms"])
        assert 5_000 < wait_ms < 60_000
        assert int(second.headers["retry-after"]) == -(-wait_ms // 1_000)


async def test_other_paths_lead_to_a_service_by_host_or_prefix(tmp_path: Path) -> None:
    async with engine() as toy:
        tools = Service("tools", prefixes=("/tools",), upstreams=(Upstream(toy.url),))
        site = Service("site", hosts=("site.example",), upstreams=(Upstream(toy.url),), open=True)
        async with served(tmp_path, tools, site) as (serving, client):
            found = await client.post("/tools/x?y=1", content=b"abc")
            assert found.json() == {"path": "/tools/x?y=1", "bytes": 3}
            assert (await client.get("/toolsx")).status_code == 404
            async with httpx.AsyncClient(base_url=serving.url) as nobody:
                assert (await nobody.get("/tools/x")).status_code == 401
                open_to_all = await nobody.get("/anything", headers={"host": "site.example"})
                assert open_to_all.json()["path"] == "/anything"


async def test_the_twin_says_what_it_does_not_serve_as_an_engine_does() -> None:
    async with engine() as toy, httpx.AsyncClient(base_url=toy.url) as client:
        found = await client.post("/v1/audio/speech", json={"model": "toy"})
    assert found.status_code == 404
    assert "/v1/audio/speech" in found.json()["error"]["message"]
    assert found.json()["error"]["type"] == "invalid_request_error"


async def test_upstream_stops_when_the_client_leaves(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (_, client):
        async with client.stream(
            "POST", CHAT, json=chat("toy-t0-i20-n500", stream=True, max_tokens=500)
        ) as found:
            async for _ in found.aiter_bytes():
                break
        for _ in range(50):
            stats = await toy.stats()
            if stats["cut"]:
                break
            await asyncio.sleep(0.02)
        assert (stats["cut"], stats["in_flight"]) == (1, 0)
        assert stats["tokens"] < 100


async def test_tls_on_both_sides_and_sockets_of_this_machine(tmp_path: Path) -> None:
    certificate, secret_key, socket = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "engine.sock"
    write((certificate, secret_key), self_signed("toy"))
    async with engine("--unix", str(socket)) as _:
        inside = Service("toy", ("toy",), (Upstream(f"unix:{socket}"),))
        async with served(tmp_path / "in", inside, certificate=certificate, key=secret_key) as (first, _):
            port = first.url.rpartition(":")[2]
            outside = Service("toy", ("toy",), (Upstream(f"https://127.0.0.1:{port}", credential=SECRET),))
            async with served(tmp_path / "out", outside, upstream_ca=certificate) as (_, client):
                found = await client.post(CHAT, json=chat(max_tokens=2))
                assert found.json()["choices"][0]["message"]["content"] == " tok0 tok1"
                streamed = await client.post(CHAT, json=chat(stream=True, max_tokens=2))
                assert events(streamed.text)[-1] == "[DONE]"
            strangers = Service("toy", ("toy",), (Upstream(f"https://127.0.0.1:{port}"),))
            async with served(tmp_path / "not", strangers) as (_, client):
                assert (await client.post(CHAT, json=chat())).status_code in (502, 503)


async def test_workers_know_what_their_siblings_have_in_flight(tmp_path: Path) -> None:
    """Each counted the places of a replica for itself: there were as many times more as workers."""
    long = chat("toy-t5-i50-n100", stream=True, max_tokens=100)
    async with engine() as one, engine() as other:
        wanted = service(one.url, other.url, prefix_aware=False, concurrent=1)
        async with (
            served(tmp_path, wanted, workers=3) as (_, client),
            client.stream("POST", CHAT, json=long) as stream,
        ):
            pieces = stream.aiter_bytes()
            await anext(pieces)
            await asyncio.sleep(0.5)  # they tell one another ten times a second
            before = [(await each.stats())["requests"] for each in (one, other)]
            for _ in range(12):
                headers = {"connection": "close"}
                assert (await client.post(CHAT, json=chat(), headers=headers)).status_code == 200
            after = [(await each.stats())["requests"] for each in (one, other)]
            del pieces  # it would have ended the stream
    assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 12]


async def test_what_is_counted_is_counted_by_model(tmp_path: Path) -> None:
    """By the names that stand in the file: whoever asks cannot make up more of them."""
    async with engine() as toy, served(tmp_path, service(toy.url), workers=1) as (serving, client):
        for model in ("toy", "toy-t0-i0-n3", "toy-t0-i0-n4"):
            assert (await client.post(CHAT, json=chat(model=model, stream=True))).status_code == 200
        async with asyncio.timeout(30), to_admin(serving) as admin:
            while True:  # workers tell every second
                page = (await admin.get("/metrics")).text
                if 'requests_total{model="toy-*",service="toy",status="200"} 2.0' in page:
                    break
                await asyncio.sleep(0.1)
    assert 'holdfast_gateway_requests_total{model="toy",service="toy",status="200"} 1.0' in page
    assert 'holdfast_gateway_first_token_seconds_count{model="toy-*",service="toy"} 2.0' in page
    assert 'holdfast_gateway_token_gap_seconds_count{model="toy",service="toy"}' in page
    assert 'model="toy-t0' not in page


async def test_a_stream_ends_with_an_error_when_its_key_is_deleted(
    tmp_path: Path,
) -> None:
    async with (
        engine() as toy,
        served(tmp_path, service(toy.url)) as (serving, client),
        to_admin(serving) as admin,
    ):
        made = (await admin.post("/v1/keys", json={"id": "mine"})).json()
        ask = chat("toy-t0-i20-n3000", stream=True, max_tokens=3_000)  # a minute
        headers = {"authorization": f"Bearer {made['secret']}"}
        text, deleted_at = "", 0.0
        async with client.stream("POST", CHAT, json=ask, headers=headers) as found:
            async for piece in found.aiter_text():
                text += piece
                if not deleted_at:
                    deleted_at = asyncio.get_running_loop().time()
                    assert (await admin.delete("/v1/keys/mine")).status_code == 200
        took = asyncio.get_running_loop().time() - deleted_at
        print(f"ended {took:.3f} s after its key was deleted")
        assert took < 20
        assert events(text)[-1]["error"]["code"] == "key_revoked"
        async with httpx.AsyncClient(base_url=client.base_url) as another:  # that connection is closed
            assert (await another.post(CHAT, json=chat(), headers=headers)).status_code == 401
        await until_cut(toy)


async def until_cut(toy: Engine) -> None:
    async with asyncio.timeout(20):
        while not (await toy.stats())["cut"]:
            await asyncio.sleep(0.02)
