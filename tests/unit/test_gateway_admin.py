"""The second listener of a gateway, asked as its clients do: keys, limits, and all that is no request."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.gateway.quota.broker import Ask
from holdfast.core.gateway.quota.lent import Part
from holdfast.gateway import keyring, settings
from holdfast.gateway.admin import Admin
from holdfast.gateway.book import hashed
from holdfast.gateway.budgets import Budgets
from holdfast.gateway.exposed import exposed
from holdfast.gateway.keeper import CannotListen, Keeper
from holdfast.gateway.serve import admin_token, gateway
from holdfast.model.gateway import Limits
from tests.gateways import key, service

TOKEN = "hfg_x"


@asynccontextmanager
async def admin(state: Path, **more: Any) -> AsyncIterator[tuple[Keeper, httpx.AsyncClient]]:
    keeper = Keeper(settings.Gateway(state=state, keys=(key(),), **more))
    transport = httpx.ASGITransport(app=Admin(keeper, TOKEN).app())
    sent = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=sent) as client:
        yield keeper, client


async def test_a_key_is_made_shown_without_its_hash_and_deleted(tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        made = await client.post(
            "/v1/keys",
            json={"id": "ci", "owner": "ann", "models": ["toy"], "ttl_ms": 5000, "new_model": True},
        )
        assert made.status_code == 201
        assert hashed(made.json()["secret"].encode()) == keeper.ring.get("ci").hash
        shown = {one["id"]: one for one in (await client.get("/v1/keys")).json()}
        assert shown["ci"] == made.json()["key"]
        assert "hash" not in shown["ci"]
        assert shown["ci"]["expires_ms"] - shown["ci"]["created_ms"] == 5000
        assert (shown["test"]["fixed"], shown["ci"]["fixed"]) == (True, False)
        assert (await client.delete("/v1/keys/ci")).status_code == 200
        assert (await client.delete("/v1/keys/ci")).status_code == 404


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"id": "a/b"}, "expected an id"),
        ({"id": "a\n"}, "expected an id"),
        ({"id": "a" * 64}, "expected an id"),
        ({"team": "red/model:toy"}, "expected a team without /"),
        ({"ttl_ms": 0}, "expected a ttl_ms"),
        ({"ttl_ms": 10**20}, "ttl_ms"),
        ({"limits": {"tokens_per_min": -1}}, "expected tokens_per_min to be at least 0"),
        ({"limits": {"concurrent": 10**16}}, "expected concurrent to be at least 0"),
        ({"limits": 5}, "limits"),
        ({"colour": "red"}, "colour"),
        ([], "object"),
    ],
)
async def test_a_key_that_makes_no_sense_is_not_made(wanted: Any, error: str, tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        found = await client.post("/v1/keys", json=wanted)
        assert found.status_code == 422
        assert error in found.json()["detail"]
        assert [one.id for one in keeper.ring.all()] == ["test"]


async def test_what_is_no_request_is_told_apart(tmp_path: Path) -> None:
    async with admin(tmp_path) as (_, client):
        assert (await client.post("/v1/keys", content=b"{")).status_code == 400
        assert (await client.post("/v1/keys", content=b"\xff")).status_code == 400
        assert (await client.post("/v1/keys", content=b" " * 70_000)).status_code == 413
        assert (await client.post("/v1/keys", json={"id": "test"})).status_code == 409
        assert (await client.post("/v1/keys/test/rotate", json={"grace_ms": -1})).status_code == 422
        assert (await client.post("/v1/keys/test/suspend", json={})).status_code == 409
        assert (await client.post("/v1/keys/no/restore", json={})).status_code == 404
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.put("/v1/keys", json={})).status_code == 405


async def test_its_root_says_what_there_is_and_other_paths_point_there(tmp_path: Path) -> None:
    async with admin(tmp_path) as (_, client):
        found = (await client.get("/")).json()
        assert {"GET /metrics", "POST /v1/keys", "PUT /v1/limits/{scope}"} <= set(found)
        for path in (name.split()[1] for name in found if name.startswith("GET ")):
            assert (await client.get(path)).status_code in (200, 503)
        for wrong in (await client.get("/v1/nothing"), await client.put("/v1/keys", json={})):
            assert wrong.json()["hint"] == "see / for what there is"


async def test_a_token_is_asked_for_except_for_health(tmp_path: Path) -> None:
    async with admin(tmp_path) as (_, client):
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        for sent in (b"", b"Bearer", b"Bearer hfg_y", b"Bearer h\xe9"):
            found = await client.get("/v1/keys", headers=[(b"authorization", sent)])
            assert found.status_code == 401, sent
        assert (await client.get("/metrics", headers={"authorization": "Bearer hfg_x"})).status_code == 200


async def test_a_rotated_key_is_good_beside_its_successor_until_the_grace_is_over(tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        limits = {"tokens_per_min": 100}
        await client.post("/v1/keys", json={"id": "ci", "team": "red", "new_team": True, "limits": limits})
        fresh = (await client.post("/v1/keys/ci/rotate", json={"grace_ms": 1000})).json()["key"]
        old = keeper.ring.get("ci")
        assert (old.replaced_at, old.expires_at) == (fresh["created_ms"], fresh["created_ms"] + 1000)
        assert (fresh["team"], fresh["limits"], fresh["replaced_ms"], fresh["expires_ms"]) == (
            "red",
            limits,
            None,
            None,
        )


async def test_the_successor_of_a_rotated_key_has_its_limits_for_models_too(tmp_path: Path) -> None:
    """To rotate a key was to be rid of them."""
    async with admin(tmp_path) as (keeper, client):
        for id in ("ci", "ci2"):
            await client.post("/v1/keys", json={"id": id})
            await client.put(f"/v1/limits/key:{id}/model:toy", json={"concurrent": 3})
        fresh = (await client.post("/v1/keys/ci/rotate", json={})).json()["key"]["id"]
        assert set(keeper.limits) == {f"key:{id}/model:toy" for id in ("ci", "ci2", fresh)}
        assert keeper.limits[f"key:{fresh}/model:toy"] == Limits(concurrent=3)


async def test_the_successor_of_a_rotated_key_has_no_budget_of_its_own(tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        await client.post("/v1/keys", json={"id": "ci", "limits": {"tokens_total": 1_000}})
        keeper.broker.ask(Ask("w", 1, "", False, {"total|key:ci": Part(0.0, 900.0)}), keeper.now())
        fresh = (await client.post("/v1/keys/ci/rotate", json={})).json()["key"]["id"]
        assert keeper.broker.drawn() == {"key:ci": 900, f"key:{fresh}": 900}
        await client.delete("/v1/keys/ci")
        assert Keeper(keeper.wanted).broker.drawn() == {f"key:{fresh}": 900}


async def test_a_key_that_was_replaced_is_not_rotated_again(tmp_path: Path) -> None:
    async with admin(tmp_path) as (_, client):
        await client.post("/v1/keys", json={"id": "ci"})
        fresh = (await client.post("/v1/keys/ci/rotate", json={})).json()["key"]
        again = await client.post("/v1/keys/ci/rotate", json={})
        assert again.status_code == 409
        assert again.json()["hint"] == f"rotate {fresh['id']} instead"
        assert {one["id"] for one in (await client.get("/v1/keys")).json()} == {"test", "ci", fresh["id"]}


async def test_limits_are_set_by_scope_and_those_of_a_key_with_the_key(tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        await client.post("/v1/keys", json={"id": "ci"})
        for scope in (
            "global",
            "team:red",
            "model:org/llama",
            "team:red/model:org/llama",
            "key:ci/model:toy",
        ):
            assert (await client.put(f"/v1/limits/{scope}", json={"concurrent": 3})).status_code == 200
            assert keeper.limits[scope] == Limits(concurrent=3)
        assert (await client.get("/v1/limits")).json()["model:org/llama"] == {"concurrent": 3}
        assert (await client.put("/v1/limits/key:ci", json={"tokens_per_min": 60})).status_code == 200
        assert keeper.ring.get("ci").limits == Limits(tokens_per_min=60)
        assert "key:ci" not in keeper.limits
        assert (await client.put("/v1/limits/key:test", json={})).status_code == 409
        assert (await client.put("/v1/limits/key:no", json={})).status_code == 404
        assert (await client.put("/v1/limits/global", json={"concurrent": -1})).status_code == 422
        assert (await client.put("/v1/limits/team:red", json={})).status_code == 200
        assert "team:red" not in keeper.limits, "what is not limited any more is no limit"


async def test_a_limit_that_is_misspelt_changes_nothing(tmp_path: Path) -> None:
    """It was not read, and so all that limited the scope was taken away."""
    async with admin(tmp_path) as (keeper, client):
        await client.put("/v1/limits/global", json={"concurrent": 3})
        found = await client.put("/v1/limits/global", json={"token_per_min": 3})
        assert (found.status_code, "token_per_min" in found.json()["detail"]) == (422, True)
        assert keeper.limits == {"global": Limits(concurrent=3)}
        found = await client.post("/v1/keys", json={"id": "ci", "limits": {"token_per_min": 3}})
        assert (found.status_code, "token_per_min" in found.json()["detail"]) == (422, True)


async def test_what_an_engine_knows_us_by_is_told_to_nobody(tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        ups = (settings.Upstream("http://a", credential="sk-up"), settings.Upstream("http://b"))
        keeper.put_services((settings.Service("toy", upstreams=ups),))
        [found] = (await client.get("/v1/services")).json()
        assert [each["credential"] for each in found["upstreams"]] == ["set", ""]
        assert keeper.services[0].upstreams == ups


@pytest.mark.parametrize(
    "scope", ["teams:red", "team:", "model:", "key:", "globally", "x", "team:red/model:", "owner:ann"]
)
async def test_what_is_no_scope_is_not_limited(scope: str, tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        found = await client.put(f"/v1/limits/{scope}", json={"concurrent": 3})
        assert found.status_code == 422
        assert found.json()["hint"].startswith("global, team:NAME")
        assert keeper.limits == {}


async def test_a_full_disk_is_told_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with admin(tmp_path) as (keeper, client):
        await client.post("/v1/keys", json={"id": "ci"})
        before = keeper.ring.all()

        def full(file: Path, content: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(keyring, "write_whole", full)
        for method, path in (
            ("POST", "/v1/keys"),
            ("POST", "/v1/keys/ci/rotate"),
            ("POST", "/v1/keys/ci/suspend"),
            ("PUT", "/v1/limits/key:ci"),
            ("DELETE", "/v1/keys/ci"),
        ):
            found = await client.request(method, path, content=b"" if method == "DELETE" else b"{}")
            assert found.status_code == 507, path
            assert "No space left" in found.json()["detail"]
            assert keeper.ring.all() == before, path


async def test_a_key_for_a_team_or_model_that_is_not_known_is_refused_unless_it_is_said_to_be_new(
    tmp_path: Path,
) -> None:
    """A misspelt team made a key without any limit."""
    services = (service("http://127.0.0.1:1"),)
    limits = {"team:red": Limits(requests_per_min=60), "global": Limits(concurrent=9)}
    async with admin(tmp_path, services=services, limits=limits) as (keeper, client):
        refused = await client.post("/v1/keys", json={"id": "a", "team": "rde"})
        assert (refused.status_code, refused.json()["detail"], refused.json()["hint"]) == (
            422,
            "there is no team called rde: nothing would be limited for it",
            "Did you mean: red; if the team is new: --new-team (new_team: true)",
        )
        refused = await client.post("/v1/keys", json={"id": "a", "models": ["tyo"]})
        assert (refused.status_code, "Did you mean: toy" in refused.json()["hint"]) == (422, True)
        assert [one.id for one in keeper.ring.all()] == ["test"]
        for wanted in (
            {"team": "red", "models": ["toy-7"]},
            {"team": "rde", "new_team": True},
            {"team": "rde"},
        ):
            assert (await client.post("/v1/keys", json=wanted)).status_code == 201
        made = await client.post("/v1/keys", json={"id": "b", "team": "red", "limits": {"tokens_total": 5}})
        shown = {one["id"]: one for one in (await client.get("/v1/keys")).json()}
        assert made.json()["key"] == shown["b"]
        assert shown["b"]["in_force"] == {
            "key:b": {"tokens_total": 5},
            "team:red": {"requests_per_min": 60},
            "global": {"concurrent": 9},
        }
        assert shown["test"]["in_force"] == {"global": {"concurrent": 9}}


async def test_nobody_without_the_token_makes_a_key_or_looks_also_on_loopback(tmp_path: Path) -> None:
    """Any account of the machine made itself a key without limits."""
    async with admin(tmp_path) as (keeper, client):
        del client.headers["authorization"]
        for method, path in (("POST", "/v1/keys"), ("GET", "/v1/keys"), ("GET", "/metrics"), ("GET", "/")):
            assert (await client.request(method, path, json={})).status_code == 401, path
        assert keeper.ring.own == {}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "10.0.0.1", "", "["]
)
async def test_a_page_that_leads_its_own_name_to_this_machine_is_refused(host: str, tmp_path: Path) -> None:
    async with admin(tmp_path) as (_, client):
        for path in ("/v1/keys", "/healthz", "/metrics"):
            refused = await client.get(path, headers={"host": host})
            assert refused.status_code == 403, path


@pytest.mark.parametrize("host", ["127.0.0.1:8081", "localhost", "[::1]:8081"])
async def test_a_name_of_this_machine_is_answered(host: str, tmp_path: Path) -> None:
    async with admin(tmp_path) as (_, client):
        assert (await client.get("/v1/keys", headers={"host": host})).status_code == 200


async def test_beyond_loopback_any_name_may_lead_there(tmp_path: Path) -> None:
    async with admin(tmp_path, admin_host="10.0.0.9", insecure=True) as (_, client):
        assert (await client.get("/v1/keys", headers={"host": "gw.example"})).status_code == 200


def test_a_token_that_others_can_read_is_replaced(tmp_path: Path) -> None:
    first = admin_token(tmp_path)
    assert (tmp_path / "admin-token").stat().st_mode & 0o777 == 0o600
    assert admin_token(tmp_path) == first
    (tmp_path / "admin-token").chmod(0o644)
    second = admin_token(tmp_path)
    assert second != first
    assert admin_token(tmp_path) == second
    assert (tmp_path / "admin-token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"host": "0.0.0.0"}, ["listen"]),
        ({"admin_host": "::"}, ["admin"]),
        ({"host": "10.0.0.9", "admin_host": "10.0.0.9"}, ["listen", "admin"]),
        ({"host": "10.0.0.9", "open": True}, []),
        ({"host": "0.0.0.0", "admin_host": "0.0.0.0", "insecure": True}, []),
        ({"host": "0.0.0.0", "admin_host": "0.0.0.0", "certificate": Path("c")}, []),
        ({"host": "127.0.0.1", "admin_host": "::1"}, []),
    ],
)
async def test_secrets_do_not_cross_a_network_in_plain_text(
    fields: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    wanted = settings.Gateway(state=tmp_path, port=0, admin_port=0, **fields)
    assert [field for field, _, _ in exposed(wanted)] == said
    if said:
        with pytest.raises(CannotListen, match="plain http"):
            async with gateway(wanted):
                raise AssertionError("it started")


async def test_a_limit_that_nobody_meets_is_set_and_said_to_be_one(tmp_path: Path) -> None:
    toy = service("http://127.0.0.1:1")
    async with admin(tmp_path, services=(toy,)) as (_, client):
        await client.put("/v1/limits/team:red", json={"concurrent": 3})
        for scope in ("team:redd", "model:tyo"):
            said = (await client.put(f"/v1/limits/{scope}", json={"concurrent": 3})).json()["done"]
            assert said.startswith(f"set {scope}, but ")
            assert "Did you mean" in said
        said = (await client.put("/v1/limits/team:red/model:toy", json={"concurrent": 3})).json()["done"]
        assert said == "set team:red/model:toy"
        assert (await client.put("/v1/limits/key:no/model:toy", json={"concurrent": 3})).status_code == 404


async def test_what_was_used_of_a_budget_is_forgotten_when_somebody_says_so(tmp_path: Path) -> None:
    async with admin(tmp_path) as (keeper, client):
        await client.post("/v1/keys", json={"id": "ci", "limits": {"tokens_total": 1_000}})
        name = "total|key:ci"
        keeper.broker.ask(Ask("w", 1, "", False, {name: Part(0.0, 900.0)}), keeper.now())
        keeper.broker.ask(Ask("w", 2, "", False, {name: Part(0.0, spent=900.0)}), keeper.now())
        keeper.budgets.draw(keeper.broker.drawn())
        assert (await client.post("/v1/reset-limits/key:ci")).status_code == 200
        assert keeper.broker.drawn() == {"key:ci": 0}
        assert Budgets(tmp_path / "budgets.json").drawn == {"key:ci": 0}
        assert (await client.post("/v1/reset-limits/key:no")).status_code == 404
        assert (await client.post("/v1/reset-limits/team:red")).status_code == 404
