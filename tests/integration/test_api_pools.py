"""Who may change pools and the policy, who may rehearse it, and that a plan contacts nobody."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.adapters.providers.join import JoinProvider
from holdfast.adapters.telemetry.prometheus import Prometheus
from holdfast.api.access import Access
from holdfast.control.plane import Plane
from holdfast.files.workload.workload_file import documents
from holdfast.model import event as ev
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


# what is of the control plane's host

HOST = "/etc/holdfast/lab_key"
OF_HOST = {
    "slurm": {
        "root": "/x",
        "bin": "/x/evilbin",
        "conf": "/x/slurm.conf",
        "python": "/x/python",
        "agent": "/x/run -m holdfast",
        "sbatch": "--error=/home/me/.ssh/authorized_keys",
        "inherit_env": "AWS_SECRET_ACCESS_KEY",
    },
    "ec2": {"endpoint_url": "http://127.0.0.1:18790/internal", "profile": "production"},
    "ssh": {"key_file": HOST, "known_hosts": "/x/known_hosts"},
}
WHOLE = {"slurm": {"root": "/x"}, "ec2": {"regions": "a-1", "image": "ami-1", "install": "x"}, "ssh": {}}
HOSTS = "hosts: [{ name: lab-1, cpus: 2, memory: 2GiB }]\n"


def pool_of(provider: str, **settings: str) -> str:
    hosts = HOSTS if provider == "ssh" else ""
    text = json.dumps({**WHOLE[provider], **settings})
    return f"kind: pool\nname: theirs\nprovider: {provider}\nmax: 1\n{hosts}settings: {text}\n"


@pytest.mark.parametrize(
    ("provider", "setting"), [(of, name) for of, settings in OF_HOST.items() for name in settings]
)
async def test_what_names_a_program_a_file_or_a_url_of_the_host_does_not_come_over_the_api(
    provider: str, setting: str
) -> None:
    """A program would be run, a key read, and credentials sent to whoever asked for it."""
    async with served() as api:
        text = pool_of(provider, **{setting: OF_HOST[provider][setting]})
        refused = await apply(api, text, {}, 409)
        (problem,) = refused["problems"]
        assert f"settings.{setting} names something of the control plane's host" in problem
        assert "profile: theirs" in problem
        planned = await plan(api, text, 200, {})
        assert planned["changes"][0].startswith("pool theirs: would be refused: settings.")
        assert api.plane.world.pools == {}


async def test_a_key_of_the_host_is_not_named_with_a_machine_either() -> None:
    async with served() as api:
        text = pool_of("ssh").replace("name: lab-1", f"name: lab-1, key_file: {HOST}")
        refused = await apply(api, text, {}, 409)
        assert "hosts[0].key_file names something of the control plane's host" in refused["problems"][0]


def before(text: str) -> ev.PoolApplied:
    """As it was journalled when pools still said all of it."""
    (pool,) = documents(text, "old.yaml")
    assert isinstance(pool, Pool)
    return ev.PoolApplied(at=1, pool=pool)


async def test_a_pool_of_before_keeps_what_it_names_and_cannot_change_it() -> None:
    async with served() as api:
        old = pool_of("slurm", bin="/usr/local/slurm/bin")
        await api.plane.tell(before(old))
        assert (await apply(api, old, {}))[0]["outcome"] == "unchanged"
        await apply(api, old.replace("max: 1", "max: 2"), {})
        refused = await apply(api, old.replace("/usr/local", "/x"), {}, 409)
        assert "settings.bin" in refused["problems"][0]
        assert "settings.root" not in refused["problems"][0]
        assert "/x" not in api.plane.world.pools["theirs"].settings["bin"]


async def test_a_machine_of_before_does_not_get_its_key_sent_elsewhere() -> None:
    async with served() as api:
        old = pool_of("ssh").replace("name: lab-1", f"name: lab-1, address: lab, key_file: {HOST}")
        await api.plane.tell(before(old))
        await apply(api, old.replace("max: 1", "max: 1\nidle: 5m"), {})
        await apply(api, old.replace("address: lab", "address: evil.example"), {}, 409)


async def test_a_pool_that_is_deleted_keeps_nothing() -> None:
    async with served() as api:
        old = pool_of("slurm")
        await api.plane.tell(before(old.replace("max: 1", "min: 1\nmax: 1")))
        await api.plane.tell(ev.PoolDeleted(at=api.plane.now(), pool="theirs"))
        for text in (old, old.replace("max: 1", "max: 0")):
            assert "settings.root" in (await apply(api, text, {}, 409))["problems"][0]


# whom the control plane asks for signals

SCALED = WEB + (
    "scale: { max: 3, per_replica: { queue: 10 }, query: { queue: q }, prometheus: 'http://127.0.0.1:9090' }"
)


async def test_an_operator_has_no_address_asked_that_is_not_listed() -> None:
    async with served(access=Access()) as api:
        operator, admin = await api.token(Role.OPERATOR), await api.token(Role.ADMIN)
        listed: list[str] = []
        api.plane.telemetry = Prometheus(lambda: listed)
        for refused in (await apply(api, SCALED, operator, 403), await plan(api, SCALED, 403, operator)):
            (problem,) = refused["problems"]
            assert "web: scale.prometheus: http://127.0.0.1:9090 is not in the list" in problem
        listed.append("http://127.0.0.1:9090/")
        await apply(api, SCALED, operator)
        elsewhere = SCALED.replace("9090", "18081")
        await apply(api, elsewhere, operator, 403)
        await apply(api, elsewhere, admin)
        await apply(api, elsewhere.replace("replicas: 2", "replicas: 1"), operator)
