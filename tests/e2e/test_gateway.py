"""A gateway behind a real control plane: services wake, keys come and go, and it serves on without it."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.live import Ground, Started, kill, replicas, until
from tests.ports import free_port

ENGINE = f"exec {sys.executable} -m holdfast.sim.live.llm_engine --port $PORT"
LLM = f"""
kind: service
name: llm
command: {ENGINE}
ready: {{ http: /health, every: 100ms }}
serves: {{ models: [llama], concurrent: 64 }}
cpus: 0.1
memory: 64MiB
stop_grace: 2s
"""
FROM_ZERO = LLM + "scale: {min: 0, max: 2, per_replica: {in_flight: 8}, idle: 1s, down_window: 1s}\n"


class Gateway:
    """A process, and somebody who asks it."""

    def __init__(
        self, ground: Ground, control: str, *words: str, name: str = "gateway", port: int = 0
    ) -> None:
        ports = ("--port", str(port), "--admin-port", "0")
        self.started = ground.begin("gateway", "--control", control, *ports, *words, name=name).wait()
        self.url = self.started.url

    def ask(self, secret: str, **more: Any) -> httpx.Response:
        body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **more}
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)

    def answers(self, secret: str, status: int = 200, within_s: float = 60.0) -> float:
        """How long it took until it answered so."""
        began = time.monotonic()
        until(lambda: self.ask(secret).status_code == status, f"it answers {status}", within_s)
        return time.monotonic() - began


def key(up: Started, **wanted: Any) -> str:
    made: dict[str, Any] = up.post("/v1/keys", wanted)
    secret: str = made["secret"]
    return secret


def test_who_comes_while_nothing_runs_waits_and_is_answered(ground: Ground) -> None:
    up = ground.up()
    up.apply(FROM_ZERO)
    gateway = Gateway(ground, up.url)
    secret = key(up)
    until(lambda: not up.replicas("llm"), "nothing runs without load", 120)
    began = time.monotonic()
    answer = gateway.ask(secret)
    took = time.monotonic() - began
    print(f"answered from zero after {took:.2f} s")
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (
        200,
        " tok0 tok1 tok2 tok3",
    )
    assert len(up.ready("llm")) == 1
    assert took < 30


def test_a_key_is_good_soon_after_it_is_made_and_refused_soon_after_it_is_suspended(ground: Ground) -> None:
    up = ground.up()
    up.apply(LLM)
    up.until_ready("llm")
    gateway = Gateway(ground, up.url)
    gateway.answers(key(up))  # it has its services
    secret = key(up, id="ci")
    good = gateway.answers(secret, within_s=5)
    up.post("/v1/keys/ci/suspend", {"why": "it leaked"})
    refused = gateway.answers(secret, 403, within_s=5)
    up.post("/v1/keys/ci/restore")
    again = gateway.answers(secret, within_s=5)
    up.delete("/v1/keys/ci")
    gone = gateway.answers(secret, 401, within_s=5)
    print(f"good after {good:.3f} s, refused {refused:.3f}, again {again:.3f}, gone {gone:.3f}")
    assert max(good, refused, again, gone) < 1
    admin = gateway.started.told["admin_url"]
    assert httpx.post(f"{admin}/v1/keys", json={}).status_code == 401
    sent = {"authorization": f"Bearer {(gateway.started.folder / 'admin-token').read_text().strip()}"}
    hint = httpx.post(f"{admin}/v1/keys", json={}, headers=sent).json()
    assert (hint["status"], up.url in hint["hint"]) == (409, True)


def test_a_limit_holds_for_all_gateways_together(ground: Ground) -> None:
    up = ground.up()
    up.apply(LLM)
    up.until_ready("llm")
    gateways = [Gateway(ground, up.url, name=f"g{number}") for number in range(2)]
    secret = key(up, limits={"requests_per_min": 10})
    for gateway in gateways:
        gateway.answers(key(up))
    until(lambda: gateways[0].ask(secret).status_code == 200, "the leader lends", 20)
    began, good = time.monotonic(), 1
    for turn in range(40):
        good += gateways[turn % 2].ask(secret).status_code == 200
    assert 7 <= good <= 10 + (time.monotonic() - began + 20) * 10 / 60, "a fresh leader has lent nothing yet"


def test_without_a_control_plane_the_gateway_serves_on_and_starts_again(
    ground: Ground, tmp_path: Path
) -> None:
    port = free_port()
    up = ground.up(port=port)
    up.apply(LLM)
    up.until_ready("llm")
    generous = tmp_path / "generous.yaml"
    generous.write_text("fail_open: true\n")
    closed = Gateway(ground, up.url, name="closed")
    opened = Gateway(ground, up.url, "-c", str(generous), name="open")
    free, limited = key(up), key(up, id="limited", limits={"tokens_per_min": 1_000_000})
    for gateway in (closed, opened):
        gateway.answers(free, within_s=10)
        gateway.answers(limited, within_s=20)
    time.sleep(1.2)  # what was last known is kept within a second
    up.kill()
    for gateway in (closed, opened):
        assert gateway.ask(free).status_code == 200
    refused = closed.answers(limited, 503, within_s=40)
    print(f"closed after {refused:.1f} s without a control plane")
    time.sleep(2.5)  # its lease is over
    assert closed.ask(limited).json()["error"]["code"] == "quota_unavailable"
    assert opened.ask(limited).status_code == 200
    closed.started.stop(signal.SIGTERM)
    again = Gateway(ground, up.url, name="closed")
    assert again.ask(free).status_code == 200, "it started from what it last knew"
    ground.up(port=port)
    back = again.answers(limited, within_s=30)
    print(f"limited keys are good again {back:.1f} s after the control plane is back")


def test_a_replica_that_dies_is_replaced_and_its_requests_are_answered_by_another(ground: Ground) -> None:
    up = ground.up()
    up.apply(LLM.replace(ENGINE, f"{ENGINE} --first-ms 300") + "replicas: 2\n")
    up.until_ready("llm", 2)
    gateway = Gateway(ground, up.url)
    secret = key(up)
    gateway.answers(secret)
    statuses = asyncio.run(_under_load(up, gateway, secret))
    assert statuses == {200}
    after = up.until_ready("llm", 2)
    assert sum(name.endswith(".1") for name in after) == 1


async def _under_load(up: Started, gateway: Gateway, secret: str) -> set[int]:
    """A replica is killed while none of its requests has any content yet."""
    statuses: set[int] = set()
    ends = time.monotonic() + 4

    async def ask() -> None:
        while time.monotonic() < ends:
            statuses.add((await asyncio.to_thread(gateway.ask, secret)).status_code)

    async def harm() -> None:
        await asyncio.sleep(1)
        kill(next(iter(replicas(up.folder).values())).program)

    await asyncio.gather(harm(), *(ask() for _ in range(8)))
    with contextlib.suppress(httpx.HTTPError):
        statuses.add(gateway.ask(secret).status_code)
    return statuses


def test_replicas_that_check_the_secret_answer_gateways_and_nobody_else(ground: Ground) -> None:
    program = Path(__file__).parent / "programs" / "guarded.py"
    up = ground.up()
    for name in ("llm", "other"):
        text = LLM.replace("name: llm", f"name: {name}").replace("[llama]", f"[{name}-model]")
        up.apply(text.replace(ENGINE, f"exec {sys.executable} {program}"))
        up.until_ready(name)
    gateway = Gateway(ground, up.url)
    secret = key(up)
    body = {"model": "llm-model", "messages": []}

    def asked(url: str, bearer: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {bearer}"}
        return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)

    until(lambda: asked(gateway.url, secret).status_code == 200, "the gateway is let in")
    assert asked(gateway.url, secret).json()["choices"][0]["message"]["content"] == "by the gateway"
    kept = gateway.started.folder / "view.json"
    until(kept.exists, "what it goes by is kept")
    view = json.loads(kept.read_text())
    by_name = {each["name"]: each["upstreams"][0] for each in view["services"]}
    direct = by_name["llm"]["url"]
    for guess in ("none", secret, by_name["other"]["credential"]):
        assert asked(direct, guess).status_code == 401, "it came past the gateway"
    assert kept.stat().st_mode & 0o777 == 0o600
