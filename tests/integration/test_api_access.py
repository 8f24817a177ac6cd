"""Who may do what: tokens, roles, failed attempts, and web pages from elsewhere."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.access import CLIENTS_KEPT, FAILURES_MAX, TOKENS_KEPT, Access, Failures
from holdfast.api.problems import Refused
from holdfast.ports.registry import Role
from holdfast.sim.twins.registry import SimRegistry
from holdfast.sim.twins.store import SimStore
from tests.planes import World
from tests.served import WEB, YAML, Served, answered, bearer, served

POLICY = "kind: policy\nleases:\n  lease: 45s\n"


class Watch:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def statuses(api: Served, headers: dict[str, str]) -> dict[str, int]:
    """What becomes of a read, an order, a change of policy and a look at the tokens."""
    client = api.client
    return {
        "read": (await client.get("/v1/status", headers=headers)).status_code,
        "metrics": (await client.get("/metrics", headers=headers)).status_code,
        "apply": (await client.post("/v1/apply", content=WEB, headers={**YAML, **headers})).status_code,
        "plan": (await client.post("/v1/plan", content=WEB, headers={**YAML, **headers})).status_code,
        "brake": (await client.post("/v1/brake/release", headers=headers)).status_code,
        "policy": (await client.post("/v1/apply", content=POLICY, headers={**YAML, **headers})).status_code,
        "tokens": (await client.get("/v1/tokens", headers=headers)).status_code,
        "chaos": (await client.post("/v1/chaos/kill", json={"node": "nobody"}, headers=headers)).status_code,
    }


async def test_each_role_may_do_what_the_lower_ones_may_and_more() -> None:
    async with served(access=Access()) as api:
        yes, no = 200, 403
        reads = {"read": yes, "metrics": yes}
        assert await statuses(api, await api.token(Role.READ)) == {
            **reads,
            **dict.fromkeys(("apply", "plan", "brake", "policy", "tokens", "chaos"), no),
        }
        assert await statuses(api, await api.token(Role.OPERATOR)) == {
            **reads,
            "apply": yes,
            "plan": yes,
            "brake": yes,
            **dict.fromkeys(("policy", "tokens", "chaos"), no),
        }
        assert await statuses(api, await api.token(Role.ADMIN)) == {
            **reads,
            "apply": yes,
            "plan": yes,
            "brake": yes,
            "policy": yes,
            "tokens": yes,
            "chaos": 404,
        }
        assert set((await statuses(api, await api.token(Role.JOIN))).values()) == {no}


async def test_a_policy_among_other_documents_is_refused_with_all_of_them() -> None:
    async with served(access=Access()) as api:
        operator = await api.token(Role.OPERATOR)
        both = await api.client.post("/v1/apply", content=f"{WEB}---\n{POLICY}", headers={**YAML, **operator})
        assert "admin" in answered(both, 403)["detail"]
        assert await api.get("/v1/workloads", headers=operator) == []


async def test_what_is_open_needs_no_token_and_the_rest_says_how_to_bring_one() -> None:
    async with served(access=Access()) as api:
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await api.client.get(path)).status_code == 200
        refused = await api.client.get("/v1/status")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer" in answered(refused, 401)["hint"]
        for wrong in ("", "Bearer", "Basic abc", "Bearer unknown", "Bearer " + "x" * 10_000):
            answered(await api.client.get("/v1/status", headers={"authorization": wrong}), 401)
        answered(await api.client.post("/v1/apply", content=b"\xff" * 1_000), 401)


async def test_an_expired_token_is_told_that_it_has_expired() -> None:
    async with served(access=Access()) as api:
        now = time.time_ns() // 1_000_000
        late = await api.get("/v1/status", 401, headers=await api.token(Role.READ, expires_at=now - 1))
        assert "has expired" in late["detail"]
        await api.get("/v1/status", headers=await api.token(Role.READ, expires_at=now + 600_000))


async def test_a_token_is_made_shown_without_its_secret_and_revoked() -> None:
    async with served(access=Access()) as api:
        admin = await api.token(Role.ADMIN)
        made = await api.post(
            "/v1/tokens", {"role": "read", "note": "for Ann", "ttl_ms": 60_000}, headers=admin
        )
        mine = bearer(made["token"])
        await api.get("/v1/status", headers=mine)
        (shown,) = [each for each in await api.get("/v1/tokens", headers=admin) if each["id"] == made["id"]]
        assert (shown["role"], shown["note"], shown["used_by"]) == ("read", "for Ann", "")
        assert shown["expires_ms"] - shown["created_ms"] == 60_000
        assert made["token"] not in str(shown)
        gone = await api.client.delete(f"/v1/tokens/{made['id']}", headers=admin)
        assert answered(gone, 200)["done"] == f"revoked {made['id']}"
        assert "revoked" in (await api.get("/v1/status", 401, headers=mine))["detail"]
        answered(await api.client.delete(f"/v1/tokens/{made['id']}", headers=admin), 404)
        answered(await api.client.delete("/v1/tokens/%00", headers=admin), 404)


async def test_a_join_token_is_for_a_pool_that_there_is() -> None:
    async with served("n1") as api:
        made = await api.post("/v1/tokens", {"role": "join", "pool": "fleet", "node": "n2"})
        assert made["token"].startswith("hfj_")
        unknown = await api.post("/v1/tokens", {"role": "join", "pool": "flet"}, 404)
        assert unknown["hint"] == "Did you mean: fleet"
        await api.post("/v1/tokens", {"role": "read", "pool": "fleet"}, 422)
        await api.post("/v1/tokens", {"role": "king"}, 422)
        await api.post("/v1/tokens", {"role": "join", "node": "no spaces"}, 422)
        await api.post("/v1/tokens", {"role": "read", "ttl_ms": 0}, 422)


async def test_a_control_plane_that_knows_nothing_yet_does_not_say_that_there_is_no_such_pool() -> None:
    world = World()
    assert isinstance(world.store, SimStore)
    world.store.down = True
    async with served(world=world, access=Access(), leads=False) as api:
        admin = await api.token(Role.ADMIN)
        asked = {"role": "join", "pool": "fleet"}
        problem = await api.post("/v1/tokens", asked, 503, headers=admin)
        assert "nothing is known here yet" in problem["detail"]
        await api.post("/v1/tokens", {"role": "read"}, headers=admin)


async def test_a_token_that_another_control_plane_revoked_is_believed_for_seconds_only() -> None:
    watch = Watch()
    async with served(access=Access(clock=watch)) as api:
        reader = await api.token(Role.READ)
        await api.get("/v1/status", headers=reader)
        assert await api.world.registry.revoke("id-read-0")
        watch.now += 4.9
        await api.get("/v1/status", headers=reader)
        watch.now += 0.2
        await api.get("/v1/status", 401, headers=reader)


async def test_a_registry_that_does_not_answer_lets_nobody_new_in() -> None:
    watch = Watch()
    world = World()
    assert isinstance(world.registry, SimRegistry)
    async with served(world=world, access=Access(clock=watch)) as api:
        reader = await api.token(Role.READ)
        await api.get("/v1/status", headers=reader)
        world.registry.down = True
        await api.get("/v1/status", headers=reader)
        await api.get("/v1/status", 503, headers=bearer("another"))
        watch.now += 6
        await api.get("/v1/status", 503, headers=reader)
        world.registry.down = False
        await api.get("/v1/status", headers=reader)


async def test_failed_attempts_are_limited_and_a_good_token_is_not_held_up_by_them() -> None:
    watch = Watch()
    async with served(access=Access(clock=watch)) as api:
        reader = await api.token(Role.READ)
        await api.get("/v1/status", headers=reader)
        found = [
            (await api.client.get("/v1/status", headers=bearer(f"guess-{number}"))).status_code
            for number in range(int(FAILURES_MAX) + 3)
        ]
        assert found == [401] * int(FAILURES_MAX) + [429] * 3
        refused = await api.client.get("/v1/status", headers=bearer("one more"))
        assert answered(refused, 429)["detail"] == "too many failed attempts from your address"
        assert refused.headers["retry-after"]
        await api.get("/v1/status", headers=reader)
        watch.now += 6  # it must be looked up again, and still is no stranger
        await api.get("/v1/status", headers=reader)
        await api.get("/v1/status", 401, headers=bearer("after a while"))


async def test_a_good_token_that_was_never_seen_gets_in_beside_a_flood_of_wrong_ones() -> None:
    watch = Watch()
    async with served(access=Access(clock=watch)) as api:
        good = await api.token(Role.OPERATOR)
        for number in range(int(FAILURES_MAX) + 3):
            await api.client.get("/v1/status", headers=bearer(f"guess-{number}"))
        await api.get("/v1/status", headers=good)
        await api.get("/v1/status", 429, headers=bearer("a guess"))
        looks = 0
        tokens = api.world.registry.tokens

        async def counted() -> Any:
            nonlocal looks
            looks += 1
            return await tokens()

        api.world.registry.tokens = counted  # type: ignore[method-assign]
        for number in range(50):
            await api.get("/v1/status", 429, headers=bearer(f"another-{number}"))
        assert looks == 0
        watch.now += 1.1
        for number in range(50):
            await api.client.get("/v1/status", headers=bearer(f"more-{number}"))
        assert looks == 1, "once a second"


async def test_failed_attempts_count_for_a_network_that_one_machine_is_given() -> None:
    access, registry = Access(), SimRegistry()
    request = SimpleNamespace(headers=bearer("guess"), client=SimpleNamespace(host=""))
    codes = list[int]()
    for number in range(int(FAILURES_MAX) + 1):
        request.client.host = f"2001:db8::{number:x}"
        with pytest.raises(Refused) as refused:
            await access.admit(request, registry, Role.READ)  # type: ignore[arg-type]
        codes.append(refused.value.status_code)
    assert codes == [401] * int(FAILURES_MAX) + [429]


def test_failed_attempts_are_remembered_within_bounds() -> None:
    failures = Failures()
    for number in range(CLIENTS_KEPT + 100):
        failures.add(f"client-{number}", 0.0)
    assert len(failures._used) == CLIENTS_KEPT
    for _ in range(int(FAILURES_MAX)):
        failures.add("loud", 1.0)
    assert failures.spent("loud", 1.0)
    assert not failures.spent("loud", 10.0)
    assert not failures.spent("quiet", 1.0)


async def test_no_more_than_so_many_tokens_are_remembered() -> None:
    access, registry = Access(), SimRegistry()

    async def found(digest: bytes) -> Any:
        return type("Found", (), {"hash": digest, "id": digest.hex()})()

    registry.find = found  # type: ignore[method-assign,assignment]
    for number in range(TOKENS_KEPT + 10):
        await access._find(number.to_bytes(32), registry, "client")
    assert len(access._believed) == TOKENS_KEPT


async def test_a_web_page_from_elsewhere_brings_no_token_and_orders_nothing() -> None:
    async with served(access=Access()) as api:
        for more in ({}, {"origin": "https://evil.example"}, {"host": "rebound.example"}):
            headers = {"content-type": "text/plain", **more}
            answered(await api.client.post("/v1/apply", content=WEB, headers=headers), 401)
            answered(await api.client.get("/v1/status", headers=more), 401)
        assert not api.plane.world.workloads


async def test_history_names_whoever_did_it_and_what_changed() -> None:
    async with served("n1", access=Access()) as api:
        admin = await api.token(Role.ADMIN)
        made = {"role": "operator", "note": "alice"}
        token = await api.post("/v1/tokens", made, headers=admin)
        alice = bearer(token["token"])
        await api.client.post("/v1/apply", content=WEB, headers={**YAML, **alice})
        await api.post("/v1/workloads/web/scale", {"count": 3}, headers=alice)
        secret = WEB.replace("replicas: 2", "replicas: 3\nenv: {TOKEN: swordfish}")
        await api.client.post("/v1/apply", content=secret, headers={**YAML, **admin})
        await api.post("/v1/nodes/n1/cordon", headers=alice)
        await api.client.put("/v1/limits/team:a", json={"concurrent": 3}, headers=alice)
        await api.client.put("/v1/limits/team:a", json={"concurrent": 5}, headers=admin)
        await api.client.delete("/v1/workloads/web", headers=alice)
        lines = await api.get("/v1/events", headers=alice, params={"limit": 1_000})
        done = [(line["subject"], line["text"], line["actor"]) for line in lines if line["actor"]]
        assert done == [
            (f"token:{token['id']}", "made: role operator, for alice", "id-admin-0"),
            ("web", "applied, version 1", "alice"),
            ("web", "applied, version 1: replicas 2 -> 3", "alice"),
            ("web", "applied, version 2: environment variable TOKEN added", "id-admin-0"),
            ("n1", "cordon", "alice"),
            ("team:a", "at most 3 requests at a time: concurrent none -> 3", "alice"),
            ("team:a", "at most 5 requests at a time: concurrent 3 -> 5", "id-admin-0"),
            ("web", "deleted", "alice"),
        ]


async def test_history_names_whoever_made_and_revoked_a_token_and_has_no_secret() -> None:
    async with served("n1", access=Access()) as api:
        admin = await api.token(Role.ADMIN)
        wanted = {"role": "join", "note": "rack 7", "pool": "fleet", "uses": 20, "ttl_ms": 86_400_000}
        made = await api.post("/v1/tokens", wanted, headers=admin)
        (shown,) = [one for one in await api.get("/v1/tokens", headers=admin) if one["id"] == made["id"]]
        assert (shown["uses"], shown["used"]) == (20, 0)
        await api.client.delete(f"/v1/tokens/{made['id']}", headers=admin)
        lines = await api.get("/v1/events", headers=admin, params={"limit": 1_000})
        subject = f"token:{made['id']}"
        assert [(line["text"], line["actor"]) for line in lines if line["subject"] == subject] == [
            ("made: role join, for rack 7, pool fleet, 20 uses, for 24.0 h", "id-admin-0"),
            ("revoked", "id-admin-0"),
        ]
        assert made["token"] not in str(lines)
        await api.post("/v1/tokens", {"role": "read", "uses": 2}, 422, headers=admin)
        await api.post("/v1/tokens", {"role": "join", "node": "n9", "uses": 2}, 422, headers=admin)


async def test_every_order_names_whoever_gave_it() -> None:
    async with served("n1", "n2", access=Access()) as api:
        admin = await api.token(Role.ADMIN)
        await api.client.post("/v1/apply", content=WEB, headers={**YAML, **admin})
        await api.client.post("/v1/apply", content=POLICY, headers={**YAML, **admin})
        pool = "kind: pool\nname: more\nprovider: join\nmin: 0\nmax: 2\n"
        await api.client.post("/v1/apply", content=pool, headers={**YAML, **admin})
        for path in ("restart", "pause", "resume", "rollback"):
            await api.client.post(f"/v1/workloads/web/{path}", headers=admin)
        await api.post("/v1/workloads/web/scale", {"count": 3}, headers=admin)
        for order in ("cordon", "uncordon", "drain"):
            await api.post(f"/v1/nodes/n1/{order}", headers=admin)
        await api.post("/v1/keys", {"id": "k"}, headers=admin)
        await api.client.delete("/v1/keys/k", headers=admin)
        await api.client.put("/v1/limits/global", json={"concurrent": 5}, headers=admin)
        await api.client.delete("/v1/pools/more", headers=admin)
        await api.client.delete("/v1/workloads/web", headers=admin)
        lines = await api.get("/v1/events", headers=admin, params={"limit": 1_000})
        mine = {line["text"] for line in lines if line["kind"] == "user" and line["actor"] == "id-admin-0"}
        for word in (
            *(
                "applied, version 1",
                "applied: leases.lease",
                "pool applied",
                "restarted",
                "paused",
                "resumed",
            ),
            *("replicas 2 -> 3", "cordon", "uncordon", "drain", "good", "deleted", "pool deleted"),
            "at most 5 requests at a time",
        ):
            assert any(word in text for text in mine), f"{word} in {mine}"
