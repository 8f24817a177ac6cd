"""Limits at real gateways while control planes change: nobody loses their minute, and nobody gets more."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

from tests.e2e.live import Ground, Started, until
from tests.e2e.test_gateway import Gateway, key
from tests.ports import free_port
from tests.postgres import Postgres

REQUESTS_PER_MIN, TOKENS_PER_MIN, TOKENS = 600, 120_000, 200
BEFORE_S = 6.0
AFTER_S = float(os.environ.get("HOLDFAST_TEST_AFTER_S", "12"))


class Asked:
    """Each gateway is asked twice a second and more by a key that may ask twice as often as all of it."""

    def __init__(self, gateways: list[Gateway], secret: str, per_s: float) -> None:
        self.gateways, self.secret, self.gap_s = gateways, secret, 1 / per_s
        self.found: list[tuple[float, int, str]] = []  # when it was asked, status, code

    async def ask_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        headers = {"authorization": f"Bearer {self.secret}"}
        body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS - 20}
        async with httpx.AsyncClient(timeout=60, headers=headers) as client, asyncio.TaskGroup() as group:

            async def ask(url: str) -> None:
                began = time.monotonic()
                answer = await client.post(f"{url}/v1/chat/completions", json=body)
                code = "" if answer.status_code == 200 else answer.json()["error"]["code"]
                self.found.append((began, answer.status_code, code))

            turn = 0
            while time.monotonic() < ends:
                group.create_task(ask(self.gateways[turn % len(self.gateways)].url))
                turn += 1
                await asyncio.sleep(self.gap_s)


@contextlib.contextmanager
def fronted(ground: Ground, planes: list[Started]) -> Iterator[list[Gateway]]:
    """Two gateways of these control planes, in front of an engine of their own."""
    port = free_port()
    file = ground.folder / "gateway.yaml"
    file.write_text(f"services: [{{name: llama, upstreams: ['http://127.0.0.1:{port}']}}]\n")
    words = (sys.executable, "-m", "holdfast.sim.live.llm_engine", "--port", str(port), "--tokens", "60")
    engine = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        urls = ",".join(plane.url for plane in planes)
        yield [Gateway(ground, urls, "-c", str(file), name=f"g{number}") for number in range(2)]
    finally:
        engine.kill()
        engine.wait()


def within_the_limit(found: list[tuple[float, int, str]]) -> None:
    """No interval admits more than the limit and what it brings; a request may have come earlier."""
    admitted = sorted(at for at, status, _ in found if status == 200)
    for first, start in enumerate(admitted):
        for last in range(first, len(admitted), 25):
            brings = (admitted[last] - start + 10) * REQUESTS_PER_MIN / 60
            assert last - first + 1 <= REQUESTS_PER_MIN + brings


def test_a_key_at_half_of_its_limit_is_not_refused_when_the_leader_is_killed(
    ground: Ground, postgres: Postgres
) -> None:
    """Limits began empty: with a minute's worth unused, one of 41 requests was admitted."""
    database = postgres.fresh()
    names = ("cp-1", "cp-2")
    planes = [
        ground.begin("serve", "--port", "0", "--database", database, "--name", n, name=n) for n in names
    ]
    for plane in planes:
        plane.wait()
    leader = until(lambda: [p for p in planes if p.get("/v1/status")["leading"]], "one leads")[0]
    limits = {"requests_per_min": REQUESTS_PER_MIN, "tokens_per_min": TOKENS_PER_MIN}
    secret = key(leader, limits=limits)
    with fronted(ground, planes) as gateways:
        for gateway in gateways:
            gateway.answers(secret, within_s=60)
        asked = Asked(gateways, secret, REQUESTS_PER_MIN / 60 / 2)
        asyncio.run(asked.ask_for(BEFORE_S))
        assert {status for _, status, _ in asked.found} == {200}
        before, killed = len(asked.found), time.monotonic()
        leader.kill()
        asyncio.run(asked.ask_for(AFTER_S))
    after = asked.found[before:]
    refused = [each for each in after if each[1] != 200]
    took = time.monotonic() - killed
    print(f"{len(refused)} of {len(after)} were refused in {took:.0f} s after the leader was killed")
    assert len(refused) <= len(after) / 100, refused[:5]
    within_the_limit(asked.found)
