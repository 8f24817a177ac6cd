"""The REST API over real HTTP: what there is, what is wanted, orders, and everything that can be wrong."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from holdfast.adapters.clock import HostClock
from holdfast.adapters.providers.join import JoinProvider
from holdfast.api import shapes
from holdfast.api.gate import BODY_MAX
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Finding, Severity
from holdfast.model.plan import Plan
from holdfast.model.policy import Policy
from holdfast.ports.errors import Full, Unreachable
from holdfast.ports.store import NOTHING, Leadership
from holdfast.sim.twins.store import CrashPoint, SimStore
from tests.planes import World, until
from tests.served import ADMIN, ONCE, WEB, YAML, Served, answered, bearer, served

# what there is


async def ready(api: Served, name: str, count: int) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found: dict[str, Any] = await api.get(f"/v1/workloads/{name}")
            if found["ready"] == count:
                return found
            await asyncio.sleep(0.01)


async def test_the_status_shows_the_fleet_on_one_page() -> None:
    async with served("n1", "n2", "n3") as api:
        await api.apply(WEB)
        await ready(api, "web", 2)
        body = (await api.client.get("/v1/status")).content
        status = shapes.read(body, shapes.Status)
        assert (status.leader, status.leader_url, status.leading) == ("cp-1", api.plane.url, True)
        assert status.journal == api.plane.length > 0
        assert [node.name for node in status.nodes] == ["n1", "n2", "n3"]
        assert {node.verdict for node in status.nodes} == {"alive"}
        assert sum(node.capacity.cpu_milli - node.free.cpu_milli for node in status.nodes) == 2_000
        (web,) = status.workloads
        assert (web.kind, web.wanted, web.ready, web.why) == ("service", 2, 2, "")
        assert [seat.slot for seat in web.seats] == ["web/0", "web/1"]
        placed = {name for node in status.nodes for name in node.replicas}
        assert placed == {seat.replica for seat in web.seats} == {"web/0.1", "web/1.1"}


async def test_one_node_is_shown_with_its_silence_and_its_findings() -> None:
    async with served("n1") as api:
        found = Finding("gpu fell off the bus", "n1", Severity.NOTE, 0.9, "xid 79", at=1, remedy="reset it")
        await api.plane.tell(ev.FindingRaised(at=api.plane.now(), finding=found))
        node = await api.get("/v1/nodes/n1")
        assert node["findings"] == ["gpu fell off the bus"]
        assert 0 <= node["silent_ms"] < 20_000
        assert node["place"]["zone"] == "a"
        (shown,) = await api.get("/v1/findings")
        assert (shown["node"], shown["severity"], shown["remedy"]) == ("n1", 0, "reset it")


async def test_pools_are_shown_with_their_offers() -> None:
    async with served("n1") as api:
        await api.apply(
            "kind: pool\nname: std\nprovider: join\nmin: 0\nmax: 3\ncpus: 4\nmemory: 8GiB\nprice: 0.5\n"
        )
        pools = {pool["name"]: pool for pool in await api.get("/v1/pools")}
        assert pools["fleet"]["nodes"] == 1
        assert (pools["std"]["provider"], pools["std"]["max"]) == ("join", 3)
        (offer,) = await api.get("/v1/offers")
        assert [each["name"] for each in pools["std"]["offers"]] == [offer["name"]]
        assert 0 < offer["chance"] <= 1
        assert offer["refusal"] == "its pool launches no nodes: they join by themselves"
        assert (offer["pool"], offer["capacity"]["cpu_milli"]) == ("std", 4_000)
        assert offer["price_micro_usd"] == 500_000


async def test_money_and_offers_are_shown_and_explained() -> None:
    async with served("n1") as api:
        await api.apply(
            "kind: pool\nname: std\nprovider: join\nmin: 0\nmax: 3\ncpus: 4\nmemory: 8GiB\nprice: 0.5\n"
            "price_max: 2\nbudget: { hour: 3, month: 100 }\n"
        )
        found = await api.get("/v1/spend")
        assert (found["fleet"]["pool"], found["fleet"]["nodes"]) == ("", 1)
        assert {pool["pool"] for pool in found["pools"]} == {"fleet", "std"}
        assert found["told"][0] == "pool std may cost $3.00/h and costs $0.00/h"
        assert found["month_ends_ms"] > found["now_ms"]
        (std,) = [pool for pool in await api.get("/v1/pools") if pool["name"] == "std"]
        assert std["budget"] == {"hour_micro_usd": 3_000_000, "month_micro_usd": 100_000_000}
        assert (std["hour_micro_usd"], std["price_max_micro_usd"]) == (0, 2_000_000)
        (offer,) = await api.get("/v1/offers")
        told = await api.get("/v1/explain/offer", params={"name": offer["key"]})
        assert told["summary"].startswith(f"{offer['key']}: $0.50/h, on demand, in ")
        problem = await api.get("/v1/explain/offer", 404, params={"name": "std/nothing"})
        assert problem["detail"] == "there is no offer called std/nothing"
        told = await api.get("/v1/explain/pool", params={"name": "std"})
        assert "offers above $2.00/h are left alone" in told["because"]
        metrics = (await api.client.get("/metrics")).text
        assert 'holdfast_cost_dollars_per_hour{pool="std"} 0.0' in metrics
        assert 'holdfast_cost_dollars_this_month{pool="std"} 0.0' in metrics


async def test_the_capacity_says_what_is_free_and_what_fails_next() -> None:
    async with served("n1", "n2") as api:
        await api.apply(WEB)
        await ready(api, "web", 2)
        found = await api.get("/v1/capacity")
        assert sum(row["open"] for row in found["free"]) == 2
        assert [fit["workload"] for fit in found["fits"]] == ["web"]
        assert {loss["level"] for loss in found["losses"]} == {"zone"}
        assert sum(hit["lost"] for loss in found["losses"] for hit in loss["hits"]) == 2
        zone = found["losses"][0]["domain"]
        (loss,) = (await api.get("/v1/capacity", params={"domain": zone}))["losses"]
        assert loss["told"].startswith(f"without zone {zone} (")
        problem = await api.get("/v1/capacity", 404, params={"level": "rack", "domain": "nowhere"})
        assert problem["detail"] == "there is no rack called nowhere"
        assert (await api.get("/v1/capacity", 422, params={"level": "city"}))["problems"]


async def test_replicas_can_be_asked_for_by_workload_and_by_node() -> None:
    async with served("n1", "n2") as api:
        await api.apply(WEB + "---\n" + ONCE)
        await ready(api, "web", 2)
        await ready(api, "once", 1)
        everything = await api.get("/v1/replicas")
        assert {each["id"] for each in everything} == {"web/0.1", "web/1.1", "once/0.1"}
        of_web = await api.get("/v1/replicas?workload=web")
        assert {each["id"] for each in of_web} == {"web/0.1", "web/1.1"}
        assert all(each["address"].startswith("127.0.0.1:") for each in of_web)
        for node in ("n1", "n2"):
            there = await api.get(f"/v1/replicas?node={node}")
            assert {each["id"] for each in there} == {e["id"] for e in everything if e["node"] == node}
            both = await api.get(f"/v1/replicas?node={node}&workload=once")
            assert [each["id"] for each in both] == [e["id"] for e in there if e["workload"] == "once"]
        assert await api.get("/v1/replicas?workload=nobody") == []


async def test_a_workload_that_cannot_run_says_why() -> None:
    async with served("n1") as api:
        await api.apply(WEB.replace("replicas: 2", "replicas: 2\ncpus: 3"))
        shown = await ready(api, "web", 1)
        assert shown["why"].startswith("1 waiting for a node")
        assert [seat["state"] for seat in shown["seats"]] == ["ready", "pending"]
        why = await api.get("/v1/explain/workload?name=web")
        assert why["because"]
        assert why["would_help"]
        assert [line["text"] for line in why["history"] if line["kind"] == "user"] == ["applied, version 1"]


@pytest.mark.parametrize(
    ("kind", "name"), [("node", "n1"), ("replica", "web/0.1"), ("replica", "web/0"), ("pool", "fleet")]
)
async def test_everything_can_be_explained_with_its_history(kind: str, name: str) -> None:
    async with served("n1", "n2") as api:
        await api.apply(WEB)
        await ready(api, "web", 2)
        found = await api.get(f"/v1/explain/{kind}", params={"name": name})
        assert (found["kind"], found["name"]) == (kind, name)
        assert found["summary"]
        assert found["history"]
        assert {line["subject"] for line in found["history"]} >= {"web/0.1" if kind == "replica" else name}


async def test_a_node_that_is_not_there_is_answered_with_the_nearest_name() -> None:
    async with served("alpha", "beta") as api:
        problem = await api.get("/v1/nodes/alpah", 404)
        assert problem["detail"] == "there is no node called alpah"
        assert problem["hint"] == "Did you mean: alpha"
        assert (await api.get("/v1/explain/node?name=bta", 404))["hint"] == "Did you mean: beta"
        assert (await api.get("/v1/workloads/web", 404))["hint"] == ""
        assert len((await api.get(f"/v1/nodes/{'x' * 5_000}", 404))["detail"]) < 150


# what is wanted


async def test_applying_says_what_became_of_each_document() -> None:
    async with served("n1") as api:
        made = await api.apply(WEB + "---\n" + ONCE)
        assert [(each["name"], each["kind"], each["outcome"]) for each in made] == [
            ("web", "service", "created"),
            ("once", "job", "created"),
        ]
        length = api.plane.length
        again = await api.apply(WEB + "---\n" + ONCE)
        assert {each["outcome"] for each in again} == {"unchanged"}
        assert not [e for e in journal(api)[length:] if isinstance(e, ev.WorkloadApplied)]
        (more,) = await api.apply(WEB.replace("2", "3"))
        assert (more["outcome"], more["version"], more["changes"]) == ("changed", 1, ["replicas 2 -> 3"])
        (new,) = await api.apply(WEB.replace("2", "3").replace("http.server", "other"))
        assert (new["outcome"], new["version"]) == ("changed", 2)
        assert new["changes"]


def journal(api: Served) -> list[Any]:
    assert isinstance(api.world.store, SimStore)
    return api.world.store.entries


async def test_several_documents_are_one_append() -> None:
    async with served() as api:
        appends: list[int] = []
        store = api.world.store
        assert isinstance(store, SimStore)
        append = store.append

        async def noted(generation: int, expected: int, entries: tuple[Any, ...], *more: Any) -> int:
            appends.append(sum(isinstance(entry, ev.WorkloadApplied) for entry in entries))
            return await append(generation, expected, entries, *more)

        store.append = noted  # type: ignore[method-assign,assignment]
        await api.apply(WEB + "---\n" + ONCE)
        assert [count for count in appends if count] == [2]


async def test_one_wrong_document_means_that_nothing_is_changed() -> None:
    async with served() as api:
        problem = await api.apply(WEB + "---\nkind: job\nnam: once\nreplicas: -1\n", 422)
        assert "nothing was changed" in problem["detail"]
        assert any("nam" in line and "name" in line for line in problem["problems"])
        assert all(line.startswith("what was sent") for line in problem["problems"])
        assert await api.get("/v1/workloads") == []
        named = await api.apply("kind: job\n", 422, params={"file": "my.yaml"})
        assert all(line.startswith("my.yaml") for line in named["problems"])


@pytest.mark.parametrize(
    "body", [{"kind": "job", "name": "a", "command": ["true"], "env": {"SMILE": "\U0001f600", "TAB": "a\tb"}}]
)
async def test_json_is_taken_too_one_document_or_a_list(body: dict[str, Any]) -> None:
    async with served() as api:
        assert [each["name"] for each in await api.post("/v1/apply", body)] == ["a"]
        both = await api.post("/v1/apply", [body, {**body, "name": "b"}])
        assert [(each["name"], each["outcome"]) for each in both] == [("a", "unchanged"), ("b", "created")]
        tabs = "{\n\t" + json.dumps({**body, "name": "c"})[1:]
        sent = await api.client.post("/v1/apply", content=tabs, headers={"content-type": "application/json"})
        assert answered(sent, 200)[0]["name"] == "c"
        program = api.plane.world.workloads["c"].program
        assert program is not None
        assert program.env == body["env"]


async def test_applies_at_the_same_time_each_raise_the_version() -> None:
    async with served() as api:
        await api.apply(WEB)
        texts = [WEB.replace("http.server", f"other{number}") for number in range(8)]
        done = await asyncio.gather(*(api.apply(text) for text in texts))
        assert sorted(each[0]["version"] for each in done) == list(range(2, 10))
        last = next(index for index, each in enumerate(done) if each[0]["version"] == 9)
        assert (await api.get("/v1/workloads/web"))["command"][-1] == f"other{last}"


async def test_a_workload_that_waits_for_what_nobody_knows_is_refused_by_apply_and_plan() -> None:
    async with served() as api:
        wrong = WEB + "after: [nonesuch]\n"
        problem = await api.apply(wrong, 422)
        assert problem["problems"] == ["web.after: there is no workload nonesuch"]
        answered(await api.client.post("/v1/plan", content=wrong, headers=YAML), 422)
        assert await api.get("/v1/workloads") == []
        await api.apply(WEB + "after: [once]\n---\n" + ONCE)
        circle = await api.apply(ONCE + "after: [web]\n", 422)
        assert circle["problems"] == [
            "once.after: expected an order without circles, got once -> web -> once"
        ]


async def test_a_workload_cannot_become_one_of_another_kind() -> None:
    async with served() as api:
        await api.apply(WEB)
        problem = await api.apply(ONCE.replace("once", "web"), 409)
        assert "delete it first" in problem["detail"]
        assert problem["hint"] == "holdfast delete web"


async def test_a_plan_tells_what_would_happen_and_changes_nothing() -> None:
    async with served("n1", "n2") as api:
        await api.apply(ONCE)
        await ready(api, "once", 1)
        length = api.plane.length
        text = WEB + "---\n" + ONCE + "---\n" + ONCE.replace("once", "huge") + "cpus: 1000\n"
        plan = answered(await api.client.post("/v1/plan", content=text, headers=YAML), 200)
        assert plan["changes"] == [
            "service web: would be created",
            "job once: would stay as it is",
            "job huge: would be created",
        ]
        placed = [step["subject"] for step in plan["steps"] if step["action"] == "PlaceReplica"]
        assert sorted(placed) == ["web/0.1", "web/1.1"]
        assert any("huge" in line for line in plan["pending"])
        assert api.plane.length == length
        assert [each["name"] for each in await api.get("/v1/workloads")] == ["once"]


POOL = "kind: pool\nname: std\nprovider: local\nmin: 0\nmax: 3\n"


async def test_a_pool_is_deleted_when_its_nodes_can_be_let_go() -> None:
    async with served("n1") as api:
        await api.apply(POOL)
        gone = answered(await api.client.delete("/v1/pools/std"), 200)
        assert (gone["name"], gone["kind"], gone["outcome"]) == ("std", "pool", "deleted")
        await until(lambda: "std" not in api.plane.world.pools)
        assert [pool["name"] for pool in await api.get("/v1/pools")] == ["fleet"]
        unknown = answered(await api.client.delete("/v1/pools/flet"), 404)
        assert "fleet" in unknown["hint"]
        told = [line["text"] for line in await api.get("/v1/events?limit=100") if line["subject"] == "std"]
        assert "pool deleted: its nodes are emptied and let go" in told
        assert "ForgetPool: it was deleted, and none of its nodes is left" in told


async def test_a_pool_is_not_deleted_while_nobody_can_end_its_nodes_or_a_start_would_bring_it_again() -> None:
    async with served("n1") as api:
        refused = answered(await api.client.delete("/v1/pools/fleet"), 409)
        assert "(n1) join by themselves" in refused["detail"]
        assert "holdfast drain n1 --wait" in refused["hint"]
        await api.apply(POOL)
        api.plane.own_pools = ("std",)
        refused = answered(await api.client.delete("/v1/pools/std"), 409)
        assert "every start brings it again" in refused["detail"]
        assert "std" in api.plane.world.pools


async def test_a_pool_that_is_being_deleted_is_made_anew_by_whoever_applies_it_as_it_is() -> None:
    async with served("n1") as api:
        closed = "kind: pool\nname: fleet\nprovider: join\nmin: 0\nmax: 0\n"
        await api.apply(closed)
        await api.plane.tell(ev.PoolDeleted(at=api.plane.now(), pool="fleet"))
        assert (await api.get("/v1/pools"))[0]["deleted"]
        (again,) = await api.apply(closed)
        assert again["outcome"] == "created"
        assert not (await api.get("/v1/pools"))[0]["deleted"]


async def test_a_workload_is_scaled_paused_resumed_and_deleted() -> None:
    async with served("n1", "n2") as api:
        await api.apply(WEB)
        scaled = await api.post("/v1/workloads/web/scale", {"count": 3})
        assert (scaled["outcome"], scaled["changes"]) == ("changed", ["replicas 2 -> 3"])
        await ready(api, "web", 3)
        assert (await api.post("/v1/workloads/web/scale", {"count": 3}))["outcome"] == "unchanged"
        assert (await api.post("/v1/workloads/web/pause"))["outcome"] == "changed"
        assert (await ready(api, "web", 0))["why"] == "paused"
        assert (await api.post("/v1/workloads/web/resume"))["outcome"] == "changed"
        await ready(api, "web", 3)
        gone = answered(await api.client.delete("/v1/workloads/web"), 200)
        assert gone["outcome"] == "deleted"
        await api.get("/v1/workloads/web", 404)
        answered(await api.client.delete("/v1/workloads/web"), 404)
        await until(lambda: not api.plane.world.replicas)


async def test_what_cannot_be_scaled_says_so() -> None:
    async with served() as api:
        await api.apply(ONCE)
        assert (await api.post("/v1/workloads/once/scale", {"count": 3}, 409))["detail"]
        wrong = await api.post("/v1/workloads/once/scale", {"count": -3, "size": 1}, 422)
        assert {line.partition(":")[0] for line in wrong["problems"]} == {"body.count", "body.size"}
        assert (await api.post("/v1/workloads/onc/scale", {"count": 3}, 404))["hint"] == "Did you mean: once"


async def test_a_policy_is_applied_and_shown_as_changed_once() -> None:
    async with served() as api:
        text = "kind: policy\nleases:\n  lease: 45s\n"
        (first,) = await api.apply(text)
        assert (first["kind"], first["outcome"], first["version"]) == ("policy", "changed", 0)
        assert api.plane.world.policy.leases.lease_ms == 45_000
        (second,) = await api.apply(text)
        assert second["outcome"] == "unchanged"


# orders


async def test_a_node_is_cordoned_drained_and_used_again() -> None:
    async with served("n1", "n2") as api:
        await api.apply(WEB.replace("2", "1"))
        await ready(api, "web", 1)
        (replica,) = await api.get("/v1/replicas")
        node = replica["node"]
        assert (await api.post(f"/v1/nodes/{node}/cordon"))["state"] == "cordoned"
        now = api.plane.now()
        drained = await api.post(f"/v1/nodes/{node}/drain", {"deadline_ms": 60_000})
        assert drained["state"] == "draining"
        assert now + 60_000 <= drained["deadline_ms"] <= api.plane.now() + 60_000
        await until(lambda: not api.plane.world.on_node[node])
        assert (await ready(api, "web", 1))["seats"][0]["node"] != node
        back = await api.post(f"/v1/nodes/{node}/uncordon")
        assert (back["state"], back["deadline_ms"]) == ("ready", None)
        by_policy = await api.post(f"/v1/nodes/{node}/drain")
        assert by_policy["deadline_ms"] > now + Policy().repair.drain_ms - 1
        assert (await api.post("/v1/nodes/n9/cordon", status=404))["hint"] == "There is: n1, n2"


class NeverThere(JoinProvider):
    """A provider that takes its time."""

    async def launch(self, request: do.LaunchNode) -> None:
        await asyncio.sleep(3_600)


async def test_a_node_that_has_not_joined_takes_no_orders() -> None:
    async with served(world=World(provider=NeverThere())) as api:
        await api.apply("kind: pool\nname: std\nprovider: local\nmin: 1\nmax: 1\ncpus: 4\nmemory: 8GiB\n")
        await until(lambda: api.plane.world.nodes)
        (shown,) = await api.get("/v1/nodes")
        assert (shown["state"], shown["free"], shown["silent_ms"]) == ("launching", shown["capacity"], None)
        problem = await api.post(f"/v1/nodes/{shown['name']}/drain", status=409)
        assert "launching" in problem["detail"]


def store_with(*actions: do.Action) -> SimStore:
    """A journal in which this was decided a moment ago."""
    clock = HostClock()
    store = SimStore(clock.monotonic)
    store.entries = [
        ev.LeaderChanged(at=clock.wall() - 1, leader="cp-0", generation=1),
        Plan(1, clock.wall() - 1, actions),
    ]
    store.held = replace(store.held, generation=1)
    return store


async def test_brakes_are_shown_and_released_by_hand() -> None:
    world = World(store_with(do.EngageBrake(scope="fleet", why="too many at once")))
    async with served(world=world) as api:
        (brake,) = (await api.get("/v1/status"))["brakes"]
        assert (brake["scope"], brake["why"]) == ("fleet", "too many at once")
        assert await api.post("/v1/brake/release") == [brake]
        assert (await api.get("/v1/status"))["brakes"] == []
        assert await api.post("/v1/brake/release") == []


class Harmful(JoinProvider):
    """Nodes that can be harmed: what was done is noted."""

    def __init__(self) -> None:
        self.deeds: list[tuple[str, str]] = []

    async def kill(self, node: str) -> None:
        self.deeds.append(("kill", node))

    async def hang(self, node: str) -> None:
        self.deeds.append(("hang", node))

    async def resume(self, node: str) -> None:
        self.deeds.append(("resume", node))


async def test_nodes_are_harmed_on_purpose_where_that_is_possible() -> None:
    provider = Harmful()
    async with served("n1", world=World(provider=provider)) as api:
        for deed in ("hang", "resume", "kill"):
            assert (await api.post(f"/v1/chaos/{deed}", {"node": "n1"}))["done"] == f"{deed} n1"
        assert provider.deeds == [("hang", "n1"), ("resume", "n1"), ("kill", "n1")]
        lines = [line["text"] for line in await api.get("/v1/events?node=n1")]
        assert "chaos: kill, asked for by hand" in lines, "history tells that it was us"
        problem = await api.post("/v1/chaos/partition", {"node": "n1", "for_ms": 100}, 409)
        assert "--allow-chaos" in problem["detail"]
        await api.post("/v1/chaos/kill", {"node": "n2"}, 404)
        await api.post("/v1/chaos/burn", {"node": "n1"}, 422)
        assert [line for line in await chaos_told(api) if "kill" not in line] == [
            "chaos: hang, asked for by hand",
            "chaos: resume, asked for by hand",
        ], "what was refused did not happen"


class Marketplace(Harmful):
    """Nodes that can be taken away, and offers that can be sold out."""

    async def notice(self, node: str, left_ms: int) -> None:
        self.deeds.append((f"notice {left_ms}", node))

    async def sell_out(self, pool: str, offer: str, for_ms: int) -> None:
        self.deeds.append((f"sell out {offer} {for_ms}", pool))


async def test_markets_turn_against_us_on_purpose_where_that_is_possible() -> None:
    provider = Marketplace()
    async with served("n1", world=World(provider=provider)) as api:
        (pool,) = await api.get("/v1/pools")
        name = pool["name"]
        await api.post("/v1/chaos/notice", {"node": "n1", "for_ms": 9_000})
        await api.post("/v1/chaos/sell-out", {"pool": name})
        assert provider.deeds == [("notice 9000", "n1"), ("sell out  60000", name)]
        told = [(line["subject"], line["text"]) for line in await api.get("/v1/events")]
        assert ("n1", "chaos: notice, asked for by hand") in told
        assert (name, "chaos: everything sold out for 60 s, asked for by hand") in told
        await api.post("/v1/chaos/sell-out", {"pool": "nobody's"}, 404)
        await api.post("/v1/chaos/sell-out", {"pool": name, "offer": "nothing"}, 404)


async def test_markets_that_are_not_ours_say_so() -> None:
    async with served("n1", world=World(provider=Harmful())) as api:
        (pool,) = await api.get("/v1/pools")
        for deed, body in (("notice", {"node": "n1"}), ("sell-out", {"pool": pool["name"]})):
            assert "not ours to change" in (await api.post(f"/v1/chaos/{deed}", body, 409))["detail"]
        assert await chaos_told(api) == []


async def test_only_a_dead_node_is_forgotten() -> None:
    async with served("n1") as api:
        problem = await api.post("/v1/nodes/n1/forget", None, 409)
        assert problem["detail"] == "n1 is alive: only a dead node can be forgotten"
        await api.post("/v1/nodes/n9/forget", None, 404)


async def test_nodes_that_cannot_be_harmed_say_so() -> None:
    async with served("n1") as api:
        assert "cannot be harmed" in (await api.post("/v1/chaos/kill", {"node": "n1"}, 409))["detail"]
        assert await chaos_told(api) == [], "history does not tell of harm that was refused"


class Sturdy(Harmful):
    """Nodes that may be harmed, if only it worked."""

    async def kill(self, node: str) -> None:
        raise Unreachable("the machine does not answer")


async def test_harm_that_came_to_nothing_is_told_as_that() -> None:
    async with served("n1", world=World(provider=Sturdy())) as api:
        await api.post("/v1/chaos/kill", {"node": "n1"}, 503)
        assert await chaos_told(api) == [
            "chaos: kill, asked for by hand",
            "chaos: kill did not work: the machine does not answer",
        ]


async def chaos_told(api: Served) -> list[str]:
    return [line["text"] for line in await api.get("/v1/events") if line["text"].startswith("chaos")]


# probes


async def test_the_probes_and_the_counters_answer() -> None:
    async with served("n1") as api:
        assert await api.get("/healthz") == {"name": "cp-1", "leading": True, "ready": True}
        assert (await api.get("/readyz"))["ready"]
        metrics = await api.client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "\nholdfast_leading 1.0\n" in metrics.text


async def test_a_control_plane_without_its_store_is_up_but_not_ready() -> None:
    world = World()
    assert isinstance(world.store, SimStore)
    world.store.down = True
    async with served(world=world, leads=False) as api:
        assert (await api.get("/healthz"))["ready"] is False
        problem = await api.get("/readyz", 503)
        assert "not ready" in problem["detail"]
        assert "nothing is known here yet" in (await api.get("/v1/nodes", 503))["detail"]
        refused = await api.client.post("/v1/apply", content=WEB, headers=YAML)
        assert "no control plane leads" in answered(refused, 503)["detail"]
        assert "within seconds" not in answered(refused, 503)["hint"], "no leader is found without a store"
        assert refused.headers["retry-after"] == "2"
        world.store.down = False
        await until(lambda: api.plane.leading)
        await api.get("/readyz")


# several control planes


async def test_reads_are_answered_by_all_and_orders_are_sent_on_to_the_leader() -> None:
    world = World()
    async with served("n1", world=world) as first, served(world=world, name="cp-2", leads=False) as second:
        await until(lambda: second.plane.ready and "n1" in second.plane.world.nodes)
        status = await second.get("/v1/status")
        assert (status["leader"], status["leading"]) == ("cp-1", False)
        assert [(node["name"], node["silent_ms"]) for node in status["nodes"]] == [("n1", None)]
        sent = await second.client.post("/v1/apply?file=a%20b", content=WEB, headers=YAML)
        answered(sent, 307)
        assert sent.headers["location"] == f"{first.plane.url}/v1/apply?file=a%20b"
        followed = await first.client.post(sent.headers["location"], content=WEB, headers=YAML)
        assert followed.json()[0]["outcome"] == "created"
        await until(lambda: "web" in second.plane.world.workloads)
        log = await second.client.get("/v1/log?replica=web/0.1")
        assert log.headers["location"] == f"{first.plane.url}/v1/log?replica=web/0.1"
        lines = await second.get("/v1/events?workload=web&limit=1")
        assert lines
        plan = await second.client.post("/v1/plan", content=ONCE, headers=YAML)
        assert answered(plan, 200)["changes"] == ["job once: would be created"]


# what can be wrong


async def test_a_store_that_goes_away_while_writing_leaves_the_caller_to_look() -> None:
    async with served() as api:
        store = api.world.store
        assert isinstance(store, SimStore)
        store.crash = CrashPoint.AFTER
        problem = await api.apply(WEB, 503)
        assert "may have happened: look before you repeat it" in problem["hint"]
        await until(lambda: api.plane.leading and "web" in api.plane.world.workloads)


async def in_the_end(api: Served, text: str) -> None:
    """It is applied as soon as somebody leads again."""
    async with asyncio.timeout(20):
        while (await api.client.post("/v1/apply", content=text, headers=YAML)).status_code != 200:
            await asyncio.sleep(0.05)


class FullStore(SimStore):
    full = False
    at_all = False  # nothing can be written, not even who leads

    async def lead(self, *args: Any, **more: Any) -> Leadership:
        self._check_room()
        return await super().lead(*args, **more)

    async def announce(self, *args: Any) -> tuple[str, ...]:
        self._check_room()
        return await super().announce(*args)

    def _check_room(self) -> None:
        if self.at_all:
            raise Full("no space left on the device")

    async def append(
        self,
        generation: int,
        expected: int,
        entries: tuple[Any, ...],
        project_of: Mapping[str, str] = NOTHING,
    ) -> int:
        self._check_room()
        if self.full and any(isinstance(entry, ev.WorkloadApplied) for entry in entries):
            raise Full("no space left on the device")
        return await super().append(generation, expected, entries, project_of)


async def test_a_full_store_is_told_as_such_and_goes_on_when_there_is_room() -> None:
    store = FullStore(HostClock().monotonic)
    async with served(world=World(store)) as api:
        store.full = True
        problem = await api.apply(WEB, 507)
        assert problem["detail"] == "no space left on the device"
        assert "make room" in problem["hint"]
        store.full = False
        await in_the_end(api, WEB)


@pytest.mark.parametrize("restarted", [False, True])
async def test_with_a_full_disk_what_is_known_is_still_shown(*, restarted: bool) -> None:
    store = FullStore(HostClock().monotonic)
    world = World(store, leader_ttl_ms=2_000)
    async with served(world=world) as api:
        await api.apply(WEB)
        if not restarted:
            store.at_all = True
            await shown_without_a_leader(api)
            store.at_all = False
            await in_the_end(api, ONCE)
    if restarted:
        store.at_all = True
        async with served(world=world, leads=False) as api:
            await shown_without_a_leader(api)


async def shown_without_a_leader(api: Served) -> None:
    await until(lambda: not api.plane.leading and "no space left" in api.plane.trouble)
    await until(lambda: api.plane.world.workloads)
    assert [one["name"] for one in await api.get("/v1/workloads")] == ["web"]
    assert "no space left" in (await api.get("/readyz", 503))["detail"]
    await api.apply(ONCE, 503)


async def test_a_store_that_does_not_answer_is_no_reason_to_wait() -> None:
    async with served() as api:
        assert isinstance(api.world.store, SimStore)
        api.world.store.down = True
        answer = await api.client.get("/v1/events")
        assert answered(answer, 503)["detail"] == "the store does not answer"
        assert answer.headers["retry-after"] == "1"


WRONG_REQUESTS = [
    ("GET", "/", 404),
    ("GET", "/v1", 404),
    ("GET", "/v1/nodes/", 404),
    ("GET", "/v1/nodes/a/b/c", 404),
    ("POST", "/v2/apply", 404),
    ("PUT", "/v1/nodes", 405),
    ("GET", "/v1/apply", 405),
    ("DELETE", "/healthz", 405),
    ("GET", "/v1/explain/node", 422),
    ("GET", "/v1/explain/planet?name=earth", 422),
    ("GET", "/v1/events?limit=0", 422),
    ("GET", "/v1/events?since=-1", 422),
    ("GET", "/v1/events?since=99999999999999999999999", 422),
    ("GET", "/v1/events?node=%00", 422),
    ("GET", "/v1/log", 422),
    ("POST", "/v1/chaos/kill", 422),
    ("GET", "/v1/nodes/%00", 404),
    ("GET", "/v1/nodes/%ff%fe", 404),
]


async def test_every_wrong_request_is_answered_with_a_problem() -> None:
    async with served() as api:
        for method, path, status in WRONG_REQUESTS:
            answered(await api.client.request(method, path), status)


WRONG_FILES = [
    (b"kind: job", "image/png", 415),
    (b"\xff\xfe", "application/yaml", 422),
    (b"{", "application/json", 422),
    (b"[" * 100_000, "application/json", 422),
    (b"", "application/yaml", 422),
    (b"[]", "application/json", 422),
    (b"3", "application/json", 422),
    (b"a: [", "text/plain", 422),
    (b"kind: job\nkind: job\n", "text/plain", 422),
]


async def test_a_file_that_cannot_be_read_is_answered_with_a_problem() -> None:
    async with served() as api:
        for body, kind, status in WRONG_FILES:
            for path in ("/v1/apply", "/v1/plan"):
                answered(await api.client.post(path, content=body, headers={"content-type": kind}), status)
        assert await api.get("/v1/workloads") == []


WRONG_BODIES = [
    (b'{"count": 1}', "text/plain", 415),
    (b'{"count": 1}', "", 415),
    (b'{"count": ', "application/json", 422),
    (b"\xff", "application/json", 400),
    (b"[" * 100_000, "application/json", 400),
    (b'{"count": 1e400}', "application/json", 422),
    (b'{"count": "1"}', "application/json", 422),
    (b"", "application/json", 422),
]


async def test_a_body_that_is_not_as_it_should_be_is_answered_with_a_problem() -> None:
    async with served() as api:
        await api.apply(WEB)
        for body, kind, status in WRONG_BODIES:
            headers = {"content-type": kind} if kind else {}
            answered(await api.client.post("/v1/workloads/web/scale", content=body, headers=headers), status)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused_without_reading_it_all(chunked: bool) -> None:
    async def pieces() -> Any:
        for _ in range(BODY_MAX // 65_536 + 2):
            yield b"#" * 65_536

    async with served() as api:
        content = pieces() if chunked else b"#" * (BODY_MAX + 1)
        sent = await api.client.post("/v1/apply", content=content, headers=YAML)
        assert "4 MiB" in answered(sent, 413)["detail"]
        just_fits = WEB + "#" * (BODY_MAX - len(WEB))
        assert (await api.apply(just_fits))[0]["outcome"] == "created"


async def test_a_fault_of_our_own_is_a_500_without_its_details() -> None:
    async with served() as api:

        async def broken(**_: object) -> None:
            raise ZeroDivisionError("a secret detail")

        api.world.store.history = broken  # type: ignore[method-assign,assignment]
        answer = await api.client.get("/v1/events")
        problem = answered(answer, 500)
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        assert "log" in problem["hint"]
        await api.get("/v1/status")


async def test_a_client_that_leaves_in_the_middle_of_its_request_harms_nobody() -> None:
    async with served() as api:
        _, writer = await asyncio.open_connection("127.0.0.1", api.world.ports["cp-1"])
        writer.write(b"POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nkind: ")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await api.get("/v1/workloads") == []


async def test_answers_are_read_by_older_and_newer_clients() -> None:
    """A field that a client does not know is passed over; one that is missing is an error."""
    async with served("n1") as api:
        node = await api.get("/v1/nodes/n1")
        text = json.dumps({**node, "colour": "green"})
        assert shapes.read(text, shapes.Node).name == "n1"
        del node["verdict"]
        with pytest.raises(msgspec.DecodeError):
            shapes.read(json.dumps(node), shapes.Node)


async def test_many_clients_at_once_are_all_answered() -> None:
    async with served("n1", "n2") as api:
        limits = httpx.Limits(max_connections=20)
        async with httpx.AsyncClient(
            base_url=api.plane.url, headers=bearer(ADMIN), limits=limits, timeout=30
        ) as client:
            answers = await asyncio.gather(*(client.get("/v1/status") for _ in range(60)))
        assert {answer.status_code for answer in answers} == {200}


async def test_what_is_gone_is_explained_by_its_last_lines() -> None:
    async with served("n1") as api:
        await api.plane.tell(ev.NodeTerminated(at=api.plane.now(), node="n1"))
        told = await api.get("/v1/explain/node?name=n1")
        assert told["summary"] == "n1 is gone: its provider confirms that it is gone"
        assert [line["node"] for line in told["history"]][-1] == "n1"
        await api.get("/v1/explain/node?name=n2", status=404)
