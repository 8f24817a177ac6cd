"""What a control plane does for gateways: keys and limits, the view, quota, and hearing of load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.adapters.clock import HostClock
from holdfast.api import bodies
from holdfast.api import gateways as watched
from holdfast.api.access import Access
from holdfast.control import gateways
from holdfast.core.gateway.key_audit.audit import Row
from holdfast.core.gateway.quota.broker import HOLDERS_MAX, Ask, Grants
from holdfast.core.gateway.quota.lent import Part
from holdfast.core.scaling import demand as demand_module
from holdfast.gateway.view import Change, View, changed
from holdfast.model.event import BudgetDrawn
from holdfast.model.gateway import Grade, Limits
from holdfast.model.scale import Signal
from holdfast.model.units import DAY, HOUR, MINUTE
from holdfast.ports.registry import Role
from holdfast.wire import keys as wire
from holdfast.wire.gateway import LoadTold, ServiceLoad, as_meant, to_send
from holdfast.wire.identity import hashed
from tests.planes import PATIENCE_S, World, until
from tests.served import WEB, Served, answered, served

SSE = {"accept": "text/event-stream"}
LLM = WEB.replace("web", "llm") + "serves: { models: [llama] }\n"
FROM_ZERO = LLM + "scale: { min: 0, max: 2, per_replica: { in_flight: 8 }, idle: 1s }\n"
JSON = {"content-type": "application/json"}


# keys and limits


async def test_a_key_is_made_shown_rotated_suspended_restored_and_deleted() -> None:
    async with served() as api:
        made = await api.post(
            "/v1/keys", {"owner": "ann", "team": "t", "new_team": True, "limits": {"concurrent": 2}}
        )
        key, secret = made["key"], made["secret"]
        assert secret.startswith("sk-hf-")
        assert (key["owner"], key["limits"], key["grade"]) == ("ann", {"concurrent": 2}, "fine")
        assert api.plane.world.keys[key["id"]].hash == hashed(secret)
        assert await api.get("/v1/keys") == [key]
        path = f"/v1/keys/{key['id']}"
        of_a_model = f"key:{key['id']}/model:m"
        answered(await api.client.put(f"/v1/limits/{of_a_model}", json={"concurrent": 1}), 200)
        fresh = await api.post(f"{path}/rotate", {"grace_ms": 1_000})
        assert fresh["key"]["id"] != key["id"]
        assert set(api.plane.world.limits) == {of_a_model, f"key:{fresh['key']['id']}/model:m"}
        old = api.plane.world.keys[key["id"]]
        assert old.expires_at == old.replaced_at + 1_000
        again = await api.post(f"{path}/rotate", {}, 409)
        assert again["hint"] == f"rotate {fresh['key']['id']} instead"
        assert (await api.post(f"{path}/suspend", {"why": "it leaked"}))["suspended"] == "it leaked"
        assert (await api.post(f"{path}/suspend"))["suspended"] == "by an operator"
        assert (await api.post(f"{path}/restore"))["suspended"] == ""
        assert answered(await api.client.delete(path), 200) == {"done": f"deleted {key['id']}"}
        assert [each["id"] for each in await api.get("/v1/keys")] == [fresh["key"]["id"]]
        assert "no key called" in answered(await api.client.delete(path), 404)["detail"]
        told = [line["text"] for line in await api.get("/v1/events") if line["subject"].startswith("key:")]
        assert "suspended: it leaked" in told
        journal = msgspec.json.encode(api.world.store.entries)  # type: ignore[attr-defined]
        assert secret.encode() not in journal
        assert fresh["secret"].encode() not in journal


class SetClock(HostClock):
    """Somebody sets the wall clock of the machine."""

    ahead_ms = 0

    def wall(self) -> int:
        return super().wall() + self.ahead_ms


async def test_a_key_ends_by_the_wall_clock_though_the_fleets_time_is_that_of_a_clock_that_was_wrong() -> (
    None
):
    """The control plane was started once 400 days ahead: its time stays there, and keys with it."""
    world = World()
    world.clock = clock = SetClock()
    clock.ahead_ms = 400 * DAY
    async with served(world=world):
        pass
    clock.ahead_ms = 0
    async with served(world=world) as api:
        assert api.plane.now() > clock.wall() + 399 * DAY
        made = await api.post("/v1/keys", {"id": "short", "ttl_ms": HOUR})
        assert abs(made["key"]["expires_ms"] - clock.wall() - HOUR) < MINUTE
        fresh = await api.post("/v1/keys/short/rotate", {"grace_ms": 60_000})
        assert abs(fresh["key"]["created_ms"] - clock.wall()) < MINUTE
        assert abs(api.plane.world.keys["short"].expires_at - clock.wall()) < 2 * MINUTE
        status = await api.get("/v1/status")
        assert abs(status["clock_off_ms"] + 400 * DAY) < HOUR
        await until(
            lambda: (api.plane.metrics.get_sample_value("holdfast_clock_off_seconds") or 0) < -30_000_000
        )


async def test_keys_end_by_the_time_that_passes_while_the_clock_of_the_leader_jumps() -> None:
    world = World()
    world.clock = clock = SetClock()
    async with served(world=world) as api:
        assert (await api.get("/v1/status"))["clock_off_ms"] == 0
        clock.ahead_ms = 400 * DAY
        made = await api.post("/v1/keys", {"id": "short", "ttl_ms": HOUR})
        assert abs(made["key"]["expires_ms"] - HostClock().wall() - HOUR) < MINUTE
        assert abs((await api.get("/v1/status"))["clock_off_ms"] - 400 * DAY) < HOUR


async def test_a_key_for_a_team_or_model_that_is_not_known_is_refused_unless_it_is_said_to_be_new() -> None:
    async with served() as api:
        answered(await api.client.put("/v1/limits/team:red", json={"requests_per_min": 60}), 200)
        refused = await api.post("/v1/keys", {"id": "a", "team": "rde"}, 422)
        assert (refused["detail"][:31], refused["hint"][:18]) == (
            "there is no team called rde: no",
            "Did you mean: red;",
        )
        await api.post("/v1/keys", {"id": "a", "models": ["llama"]}, 422)
        await api.apply(LLM)
        await api.post("/v1/keys", {"id": "a", "models": ["lla*"], "team": "rde", "new_team": True})
        await api.post("/v1/keys", {"id": "b", "models": ["x"], "team": "red", "new_model": True})
        of = {key["id"]: key["in_force"] for key in await api.get("/v1/keys")}
        assert of == {"a": {}, "b": {"team:red": {"requests_per_min": 60}}}


async def test_an_id_is_given_once_and_limits_of_a_key_are_its_own() -> None:
    async with served() as api:
        await api.post("/v1/keys", {"id": "ci"})
        assert "already" in (await api.post("/v1/keys", {"id": "ci"}, 409))["detail"]
        for scope, body in (("key:ci", {"tokens_per_min": 5}), ("team:a/model:m", {"concurrent": 1})):
            answered(await api.client.put(f"/v1/limits/{scope}", json=body), 200)
        assert api.plane.world.keys["ci"].limits == Limits(tokens_per_min=5)
        assert await api.get("/v1/limits") == {"team:a/model:m": {"concurrent": 1}}
        answered(await api.client.put("/v1/limits/team:a/model:m", json={}), 200)
        assert await api.get("/v1/limits") == {}
        answered(await api.client.put("/v1/limits/key:nobody", json={}), 404)
        answered(await api.client.put("/v1/limits/everything", json={}), 422)


async def test_who_may_read_may_not_make_keys_nor_see_hashes() -> None:
    async with served(access=Access()) as api:
        reader, operator = await api.token(Role.READ), await api.token(Role.OPERATOR)
        assert await api.get("/v1/keys", headers=reader) == []
        await api.post("/v1/keys", {}, 403, headers=reader)
        await api.get("/v1/gateway/watch", 403, headers=reader)
        await api.post("/v1/gateway/lease", [], 403, headers=reader)
        await api.post("/v1/gateway/load", {"gateway": "g"}, 403, headers=reader)
        made = await api.post("/v1/keys", {}, headers=operator)
        assert "hash" not in str(await api.get("/v1/keys", headers=reader))
        await api.get("/v1/gateway/watch", 403, headers=operator)
        gateway = await api.token(Role.GATEWAY)
        await api.get("/v1/keys", 403, headers=gateway)
        view = await api.get("/v1/gateway/watch", headers=gateway)
        (key,) = msgspec.convert(view, View).keys.values()
        assert key.hash == hashed(made["secret"])


def test_a_control_plane_takes_the_same_fields_as_a_gateway_that_runs_alone() -> None:
    pairs = ((bodies.KeyWanted, wire.KeyWanted), (bodies.Rotation, wire.Rotation))
    for body, struct in (*pairs, (bodies.Suspension, wire.Suspension), (bodies.LimitsWanted, Limits)):
        assert tuple(body.model_fields) == struct.__struct_fields__


# the view


@contextlib.asynccontextmanager
async def watching(api: Served) -> AsyncIterator[AsyncIterator[View]]:
    async with api.client.stream("GET", "/v1/gateway/watch", headers=SSE) as response:
        assert response.status_code == 200

        async def views() -> AsyncIterator[View]:
            view, kind = View(), ""
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    if kind == "view":
                        view = msgspec.json.decode(data, type=View)
                    else:
                        assert kind == "change"
                        view = changed(view, msgspec.json.decode(data, type=Change))
                    yield view

        yield views()


async def test_a_gateway_is_told_all_at_once_and_again_soon_after_any_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watched, "KEEP_ALIVE_S", 1_000.0)  # nothing is told but for a change
    async with served("n1", "n2") as api, asyncio.timeout(PATIENCE_S), watching(api) as views:
        assert await anext(views) == View()
        await api.apply(LLM)
        found = await anext(views)
        assert [service.models for service in found.services] == [("llama",)]
        made = await api.post("/v1/keys", {"id": "ci"})
        while "ci" not in found.keys:
            found = await anext(views)
        assert found.keys["ci"].hash == hashed(made["secret"])
        await api.post("/v1/keys/ci/suspend")
        while not found.keys["ci"].suspended:
            found = await anext(views)


async def test_the_stream_ends_when_the_leadership_is_lost() -> None:
    world = World()
    async with served(world=world) as api, asyncio.timeout(PATIENCE_S), watching(api) as views:
        await anext(views)
        held = await world.store.leader()
        await world.store.resign("cp-1", held.generation)
        assert [view async for view in views] == []


# quota


def ask(number: int, wants: dict[str, float], holder: str = "g/w0", **more: Any) -> list[Ask]:
    return [
        Ask(holder, number, "", False, {name: Part(0.0, amount, **more) for name, amount in wants.items()})
    ]


async def borrow(api: Served, asks: list[Ask]) -> Grants:
    body = msgspec.json.encode(asks)
    response = await api.client.post("/v1/gateway/lease", content=body, headers=JSON)
    assert response.status_code == 200, response.text
    (found,) = as_meant(msgspec.json.decode(response.content, type=list[Grants]))
    return found


async def borrow_when_it_lends(api: Served, wants: dict[str, float], start: int = 1) -> Grants:
    """A new leader lends nothing at first."""
    async with asyncio.timeout(PATIENCE_S):
        for number in range(start, start + 10_000):
            found = await borrow(api, ask(number, wants))
            if all(grant.amount for grant in found.grants.values()):
                return found
            await asyncio.sleep(0.05)
    raise AssertionError


async def test_a_new_leader_goes_on_at_once_with_what_the_last_one_surely_left_but_for_places() -> None:
    world = World()
    tokens, places = "tokens|global", "concurrent|global"
    async with served(world=world) as api:
        limits = {"tokens_per_min": 6_000, "concurrent": 8}
        answered(await api.client.put("/v1/limits/global", json=limits), 200)
        first = (await borrow(api, ask(1, {tokens: 3_000.0}))).grants[tokens]
        assert first.amount == 3_000, "nobody has led before, so nothing is lent"
    async with served(world=world, name="cp-2") as api:
        found = (await borrow(api, ask(1, {tokens: 4_000.0, places: 1.0}, "g2/w0"))).grants
        assert (found[tokens].amount, found[tokens].wait_s > 0) == (0, True)
        assert (found[places].amount, 0 < found[places].wait_s <= 2.6) == (0, True)
        found = (await borrow(api, ask(2, {tokens: 1_500.0}, "g2/w0"))).grants
        assert found[tokens].amount >= 1_500
        lent = await borrow_when_it_lends(api, {places: 1.0}, 3)
        assert lent.term == str(api.plane.world.leader.generation)


async def test_a_budget_is_journalled_before_it_is_lent_and_the_next_leader_knows_of_it() -> None:
    world = World()
    async with served(world=world) as api:
        await api.post("/v1/keys", {"id": "ci", "limits": {"tokens_total": 5_000}})
        lent = await borrow_when_it_lends(api, {"total|key:ci": 3_000.0})
        assert lent.grants["total|key:ci"].amount == 3_000
        entries = world.store.entries  # type: ignore[attr-defined]
        drawn = [entry.drawn for entry in entries if isinstance(entry, BudgetDrawn) and entry.drawn]
        assert drawn == [{"key:ci": 3_000}]
    async with served(world=world, name="cp-2") as api:
        assert api.plane.world.drawn == {"key:ci": 3_000}
        refused = await borrow(api, ask(1, {"total|key:ci": 3_000.0}, "g2/w0"))
        assert refused.grants["total|key:ci"].amount == 0
        lent = await borrow_when_it_lends(api, {"total|key:ci": 2_000.0})
        assert lent.grants["total|key:ci"].amount == 2_000
        spent = (await borrow(api, ask(50_000, {"total|key:ci": 1.0}, spent=2_000.0))).grants["total|key:ci"]
        assert (spent.amount, spent.wait_s) == (0, float("inf"))


async def test_what_comes_back_of_a_budget_is_written_down_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateways, "RETURNS_S", 0.0)
    async with served() as api:
        await api.post("/v1/keys", {"id": "ci", "limits": {"tokens_total": 5_000}})
        await borrow_when_it_lends(api, {"total|key:ci": 3_000.0})
        await borrow(api, [Ask("g/w0", 50_000, "", True, {})])
        await until(lambda: api.plane.world.drawn == {"key:ci": 0})


async def test_a_key_made_anew_under_an_old_name_has_its_whole_budget() -> None:
    async with served() as api:
        for start in (1, 20_000):
            await api.post("/v1/keys", {"id": "ci", "limits": {"tokens_total": 2_000}})
            await borrow_when_it_lends(api, {"total|key:ci": 2_000.0}, start)
            assert api.plane.world.drawn == {"key:ci": 2_000}
            answered(await api.client.delete("/v1/keys/ci"), 200)
            assert api.plane.world.drawn == {}


async def test_a_key_that_takes_the_place_of_another_has_no_budget_of_its_own() -> None:
    """To rotate a key renewed its budget."""
    async with served() as api:
        await api.post("/v1/keys", {"id": "ci", "limits": {"tokens_total": 2_000}})
        await borrow_when_it_lends(api, {"total|key:ci": 1_500.0}, 1)
        fresh = (await api.post("/v1/keys/ci/rotate", {}))["key"]["id"]
        assert api.plane.world.drawn == {"key:ci": 1_500, f"key:{fresh}": 1_500}
        name = f"total|key:{fresh}"
        grant = (await borrow(api, ask(1, {name: 600.0}, "g/w1"))).grants[name]
        assert grant.amount == 0.0


async def test_an_ask_that_cannot_be_true_is_refused() -> None:
    async with served() as api:
        wrong = msgspec.json.encode(ask(1, {"tokens|global": 1.0}, debt=-5.0))
        answered(await api.client.post("/v1/gateway/lease", content=wrong, headers=JSON), 422)


@pytest.mark.parametrize(("holder", "number"), [("", 1), ("x" * 600, 1), ("g/w0", 1 << 60)])
async def test_an_ask_of_nobody_is_refused(holder: str, number: int) -> None:
    """The holder without a name was taken for all holders of the last leader."""
    async with served() as api:
        wrong = msgspec.json.encode(ask(number, {"tokens|global": 1.0}, holder))
        answered(await api.client.post("/v1/gateway/lease", content=wrong, headers=JSON), 422)


async def test_one_message_does_not_use_up_a_limit_for_ever_and_the_next_leader_does_not_believe_it() -> None:
    world = World()
    tokens, total = "tokens|global", "total|global"
    async with served(world=world) as api:
        limits = {"tokens_per_min": 60_000, "tokens_total": 1_000_000}
        answered(await api.client.put("/v1/limits/global", json=limits), 200)
        await borrow_when_it_lends(api, {tokens: 10.0, total: 10.0})
        await borrow(api, ask(1, {tokens: 0.0, total: 0.0}, "evil/w0", debt=1e15))
        found = (await borrow(api, ask(50_000, {tokens: 1_000.0}))).grants[tokens]
        assert 0 < found.wait_s < 65
        assert api.plane.world.drawn == {"global": 1_125_000}
        assert (
            api.plane.metrics.get_sample_value("holdfast_dropped_reports_total", {"reason": "gateway_debt"})
            == 1
        )
        limits["tokens_per_min"] = 120_000
        answered(await api.client.put("/v1/limits/global", json=limits), 200)
        found = (await borrow(api, ask(50_001, {tokens: 1_000.0}))).grants[tokens]
        assert found.wait_s < 5, "it is low until the leases of a leader before this one would be over"
        await borrow(api, ask(2, {tokens: 0.0}, "evil/w0", debt=1e15))
    async with served(world=world, name="cp-2") as api:
        both = (await borrow(api, ask(1, {tokens: 1_000.0, total: 1.0}, "g2/w0"))).grants
        assert 0 < both[tokens].wait_s < 70
        assert both[total].wait_s == float("inf")
        answered(await api.client.post("/v1/reset-limits/global"), 200)
        both = (await borrow(api, ask(2, {tokens: 1_000.0, total: 1.0}, "g2/w0"))).grants
        assert both[tokens].wait_s < 5, "it is low until the leases of the last leader are over"
        assert both[total].amount > 0
        assert api.plane.world.drawn["global"] <= 20_000
        assert any("forgotten" in str(entry) for entry in world.store.entries)  # type: ignore[attr-defined]


async def test_what_was_used_of_a_keys_budget_is_forgotten_when_somebody_says_so() -> None:
    async with served() as api:
        await api.post("/v1/keys", {"id": "ci", "limits": {"tokens_total": 5_000}})
        await borrow_when_it_lends(api, {"total|key:ci": 3_000.0})
        await borrow(api, ask(50_000, {"total|key:ci": 0.0}, spent=3_000.0))
        answered(await api.client.post("/v1/reset-limits/key:ci"), 200)
        assert api.plane.world.drawn == {"key:ci": 0}
        answered(await api.client.post("/v1/reset-limits/key:nobody"), 404)
        answered(await api.client.post("/v1/reset-limits/team:red"), 404)


async def test_a_token_has_so_many_holders_and_gateways_and_no_lines_about_keys_there_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateways, "NAMES_MAX", 3)
    async with served() as api:
        await api.post("/v1/keys", {"id": "ci"})
        answered(await api.client.put("/v1/limits/global", json={"tokens_per_min": 60_000}), 200)
        ours = api.plane.gateways
        for post in range(3):
            asks = [each for n in range(900) for each in ask(1, {"tokens|global": 0.0}, f"{post}/{n}")]
            body = msgspec.json.encode(asks)
            assert (await api.client.post("/v1/gateway/lease", content=body, headers=JSON)).status_code == 200
        assert len(ours.lender.broker._holders) <= HOLDERS_MAX
        rows = tuple(replace(row(key), why="why " * 1_000) for key in ("ci", *map(str, range(500)), "ci"))
        for name in ("a", "b", "c"):
            await tell(api, LoadTold(name, (), rows))
        body = msgspec.json.encode(LoadTold("d", (), rows))
        answered(await api.client.post("/v1/gateway/load", content=body, headers=JSON), 429)
        await tell(api, LoadTold("a"))
        kept = [row for _, found in ours._reports.values() for row in found]
        assert [row.key for row in kept] == ["ci"] * 3
        assert all(len(row.why) <= 500 for row in kept)


def test_what_will_never_be_there_survives_the_wire() -> None:
    grants = [Grants(1, "t", {"a": gateways_grant(float("inf")), "b": gateways_grant(2.0)})]
    sent = msgspec.json.encode(to_send(grants))
    assert as_meant(msgspec.json.decode(sent, type=list[Grants])) == grants


def gateways_grant(wait_s: float) -> Any:
    from holdfast.core.gateway.quota.broker import Grant

    return Grant(0.0, 0.0, True, 0.0, wait_s)


# load


async def tell(api: Served, told: LoadTold) -> str:
    response = await api.client.post("/v1/gateway/load", content=msgspec.json.encode(told), headers=JSON)
    said: str = answered(response, 200)["done"]
    return said


async def test_what_a_gateway_tells_is_heard_under_its_name_and_wakes_a_service_at_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demand_module, "EVERY_MS", 200)
    async with served("n1", "n2") as api:
        await api.apply(FROM_ZERO)
        quiet = LoadTold("g1", (ServiceLoad("llm"), ServiceLoad("elsewhere", in_flight=3.0)))
        async with asyncio.timeout(PATIENCE_S):
            while (demand := api.plane.world.demands.get("llm")) is None or demand.wanted:
                assert await tell(api, quiet) == "heard of 1 service"
                await asyncio.sleep(0.1)
        ears = api.plane.ears
        assert ears is not None
        monkeypatch.setattr(demand_module, "EVERY_MS", HOUR)  # from here on nothing but news wakes it
        await until(lambda: ears.next_look() > api.plane.now() + HOUR // 2)
        await tell(api, LoadTold("g1", (ServiceLoad("llm", queue=1.0, oldest_wait_ms=5.0),)))
        await until(lambda: api.plane.world.demands["llm"].wanted == 1)
        ear = ears.of("llm")
        assert ear is not None
        heard = ear.signals.last(Signal.QUEUE, 0)
        assert heard is not None
        assert (heard.sources, heard.value) == (1, 1.0)


def row(
    key: str,
    grade: Grade = Grade.FINE,
    score: float = 0.0,
    tokens: int = 0,
    idle_ms: int = -1,
    since: int = 0,
) -> Row:
    text = f"{grade} {score}"
    return Row(key, "", "", grade, score, tokens, tokens // 2, idle_ms, False, text, "", since)


def found(api: Served, key: str) -> tuple[Row, ...]:
    """What a gateway says that thinks so of the key as it is now."""
    return (row(key, Grade.CLAMP, 0.9, since=api.plane.world.keys[key].judged_since),)


async def test_the_reports_of_all_gateways_are_one() -> None:
    async with served() as api:
        for id in ("a", "b", "never"):
            await api.post("/v1/keys", {"id": id, "owner": f"o-{id}"})
        await tell(api, LoadTold("g1", keys=(row("a", Grade.TAG, 0.7, 100, 5_000), row("gone", score=1.0))))
        await tell(
            api, LoadTold("g2", keys=(row("a", Grade.OBSERVE, 0.4, 10, 50), row("b", tokens=4, idle_ms=7)))
        )
        found = {each["key"]: each for each in await api.get("/v1/keys/report")}
        assert list(found) == ["a", "b", "never"]
        assert (found["a"]["grade"], found["a"]["score"], found["a"]["why"]) == ("tag", 0.7, "tag 0.7")
        assert (found["a"]["tokens_24h"], found["a"]["idle_ms"], found["a"]["owner"]) == (110, 50, "o-a")
        assert (found["never"]["idle_ms"], found["b"]["tokens_24h"]) == (-1, 4)


async def test_a_key_is_held_back_only_by_a_gateway_that_may_and_until_it_is_restored() -> None:
    async with served() as api:
        await api.post("/v1/keys", {"id": "a"})
        rows = found(api, "a")
        await tell(api, LoadTold("shadow", keys=rows))
        assert (await api.get("/v1/gateway/watch"))["clamps"] == {}
        await tell(api, LoadTold("g1", keys=rows, acts=True))
        await until(lambda: api.plane.world.keys["a"].grade is Grade.CLAMP)
        assert (await api.get("/v1/gateway/watch"))["clamps"] == {"a": 0.1}
        await api.post("/v1/keys/a/restore")
        assert (await api.get("/v1/gateway/watch"))["clamps"] == {}
        await tell(api, LoadTold("g2", keys=rows, acts=True))
        await api.post("/v1/keys", {"id": "later"})  # what was said before it is written by now
        assert api.plane.world.keys["a"].grade is Grade.FINE, "that was found out before somebody looked"
        await tell(api, LoadTold("g2", keys=found(api, "a"), acts=True))
        await until(lambda: api.plane.world.keys["a"].grade is Grade.CLAMP)


async def test_holding_a_key_back_undoes_nothing_that_is_written_in_the_same_moment() -> None:
    """What is put is a whole key, as it was when it was found out."""
    async with served() as api:
        for id in ("looked", "limited", "gone"):
            await api.post("/v1/keys", {"id": id})
        rows = (*found(api, "looked"), *found(api, "limited"), *found(api, "gone"))
        changes = (
            api.post("/v1/keys/looked/restore"),
            api.client.put("/v1/limits/key:limited", json={"concurrent": 3}),
            api.client.delete("/v1/keys/gone"),
        )
        telling = (tell(api, LoadTold(f"g{n}", keys=rows, acts=True)) for n in range(10))
        await asyncio.gather(*changes, *telling)
        await api.post("/v1/keys", {"id": "later"})
        keys = api.plane.world.keys
        assert (keys["looked"].grade, keys["limited"].limits) == (Grade.FINE, Limits(concurrent=3))
        assert "gone" not in keys
        assert keys["limited"].grade is Grade.CLAMP
