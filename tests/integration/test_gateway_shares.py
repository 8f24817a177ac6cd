"""What several workers share of one limit: none keeps from the others what it does not use."""

import asyncio
import json
from pathlib import Path

import httpx

from holdfast.model.gateway import Limits
from tests.gateways import CHAT, SECRET, chat, engine, key, served, service


async def asked(url: str, count: int, pause_s: float = 0.0) -> list[int]:
    """One after the other, each by a connection of its own, so that any worker may have it."""
    found = []
    for _ in range(count):
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            sent = await client.post(
                CHAT, json=chat(max_tokens=8), headers={"authorization": f"Bearer {SECRET}"}
            )
            found.append(sent.status_code)
        await asyncio.sleep(pause_s)
    return found


async def test_one_after_the_other_all_are_answered_though_one_at_a_time_is_the_limit(tmp_path: Path) -> None:
    """Whichever worker had served the last kept the only place for ten seconds: two of three were refused."""
    one = (key(limits=Limits(concurrent=1)),)
    async with engine() as toy, served(tmp_path, service(toy.url), keys=one, workers=3) as (serving, _):
        assert await asked(serving.url, 20, pause_s=0.1) == [200] * 20


async def test_a_small_budget_is_there_for_all_workers(tmp_path: Path) -> None:
    """The first had all of it, and gave it back without a word: the others refused while it idled."""
    little = (key(limits=Limits(tokens_total=2_000)),)
    async with engine() as toy, served(tmp_path, service(toy.url), keys=little, workers=3) as (serving, _):
        assert await asked(serving.url, 1) == [200]
        await asyncio.sleep(1.0)
        assert await asked(serving.url, 12, pause_s=0.05) == [200] * 12


async def test_what_a_gateway_that_ends_has_not_used_of_a_budget_is_there_for_the_next(
    tmp_path: Path,
) -> None:
    """What its workers held ready was written down as used, at every start anew."""
    keys = (key(limits=Limits(tokens_total=1_000_000)),)
    used = 0
    for _ in range(2):
        async with engine() as toy, served(tmp_path, service(toy.url), keys=keys) as (_, client):
            answered = await client.post(CHAT, json=chat(max_tokens=5_000))
            used += answered.json()["usage"]["total_tokens"]
            await asyncio.sleep(0.5)
        (drawn,) = json.loads((tmp_path / "budgets.json").read_bytes())["drawn"].values()
        assert drawn == used
