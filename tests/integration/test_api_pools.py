"""Who may change pools and the policy, who may rehearse it, and that a plan contacts nobody."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.adapters.providers.join import JoinProvider
from holdfast.api.access import Access
from holdfast.control.plane import Plane
from holdfast.model.pool import Offer, Pool
from holdfast.ports.provider import Provider
from holdfast.ports.registry import Role
from tests.planes import until
from tests.served import ONCE, WEB, YAML, Served, answered, served

POOL = "kind: pool\nname: std\nprovider: join\nmin: 0\nmax: 3\n"
LISTING = f"{POOL}lists_offers: true\n"
POLICY = "kind: policy\nleases:\n  lease: 45s\n"
SECRET = WEB + "env: { DB_PASSWORD: correct-horse }\n"


async def apply(api: Served, text: str, headers: dict[str, str], status: int = 200) -> Any:
    found = await api.client.post("/v1/apply", content=text, headers={**YAML, **headers})
    return answered(found, status)


async def plan(api: Served, text: str, status: int, headers: dict[str, str]) -> Any:
    found = await api.client.post("/v1/plan", content=text, headers={**YAML, **headers})
    return answered(found, status)


async def test_an_operator_changes_workloads_and_neither_pools_nor_the_policy() -> None:
    async with served(access=Access()) as api:
        operator = await api.token(Role.OPERATOR)
        refused = await apply(api, f"{WEB}---\n{POOL}---\n{POLICY}", operator, 403)
        assert refused["problems"] == [
            "pool std: pools are an admin's to create and to change",
            "policy: it is an admin's to change",
        ]
        assert "nothing was changed" in refused["hint"]
        assert await api.get("/v1/workloads", headers=operator) == []
        assert not api.plane.world.pools
        await apply(api, WEB, operator)


async def test_an_operator_keeps_pools_and_the_policy_in_a_file_while_they_stay_as_they_are() -> None:
    async with served(access=Access()) as api:
        operator, admin = await api.token(Role.OPERATOR), await api.token(Role.ADMIN)
        await apply(api, f"{POOL}---\n{POLICY}", admin)
        outcomes = await apply(api, f"{WEB}---\n{POOL}---\n{POLICY}", operator)
        assert [each["outcome"] for each in outcomes] == ["created", "unchanged", "unchanged"]
        larger = POOL.replace("max: 3", "max: 300")
        await apply(api, larger, operator, 403)
        assert api.plane.world.pools["std"].max == 3
        answered(await api.client.delete("/v1/pools/std", headers=admin), 200)
        await until(lambda: "std" not in api.plane.world.pools)
        await apply(api, POOL, operator, 403)


async def test_an_operator_deletes_no_pool() -> None:
    async with served(access=Access()) as api:
        operator, admin = await api.token(Role.OPERATOR), await api.token(Role.ADMIN)
        await apply(api, POOL, admin)
        refused = answered(await api.client.delete("/v1/pools/std", headers=operator), 403)
        assert "role admin" in refused["detail"]
        assert not api.plane.world.pool_states["std"].deleted_at


@pytest.mark.parametrize("role", [Role.READ, Role.GATEWAY, Role.SIGNALS, Role.JOIN])
async def test_a_read_token_rehearses_nothing(role: Role) -> None:
    async with served(access=Access()) as api:
        refused = await plan(api, ONCE, 403, await api.token(role))
        assert "operator" in str(refused) or role is Role.JOIN


async def test_a_read_token_guesses_no_secret_by_a_plan() -> None:
    """What is applied already "would stay as it is": each guess was answered."""
    async with served(access=Access()) as api:
        await apply(api, SECRET, await api.token(Role.ADMIN))
        read = await api.token(Role.READ)
        right = await plan(api, SECRET, 403, read)
        wrong = await plan(api, SECRET.replace("horse", "pony"), 403, read)
        assert right == wrong


async def test_a_plan_takes_the_role_of_its_apply() -> None:
    async with served(access=Access()) as api:
        operator, admin = await api.token(Role.OPERATOR), await api.token(Role.ADMIN)
        await plan(api, WEB, 200, operator)
        for text in (POOL, POLICY):
            refused = await plan(api, text, 403, operator)
            assert refused["detail"] == "only an admin may change this"
            await plan(api, text, 200, admin)
            await apply(api, text, admin)
            assert (await plan(api, text, 200, operator))["steps"] == []


class Watched(JoinProvider):
    """It notes whoever contacts it."""

    def __init__(self) -> None:
        self.contacts: list[str] = []

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        self.contacts.append(pool.name)
        return ()


@asynccontextmanager
async def looking(provider: Watched) -> AsyncIterator[Served]:
    @asynccontextmanager
    async def look(pool: Pool) -> AsyncIterator[Provider]:
        yield provider

    async with served() as api:
        plane: Plane = api.plane
        plane.look = look
        yield api


async def test_a_plan_contacts_no_provider_with_settings_that_are_not_applied() -> None:
    provider = Watched()
    async with looking(provider) as api:
        planned = await plan(api, f"{LISTING}---\n{WEB}cpus: 900\n", 200, {})
        assert provider.contacts == []
        assert planned["changes"] == [
            "pool std: would be created; its provider was not contacted: its settings are not applied yet; "
            "only the offers that are known count",
            "service web: would be created",
        ]
        assert "its settings are not applied yet" in str(planned["pending"])
