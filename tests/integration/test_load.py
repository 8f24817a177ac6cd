"""How the load of services is heard: by queries, by what nodes tell with beats, and by what is posted."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.adapters.telemetry.prometheus import Prometheus
from holdfast.control import load
from holdfast.control.hub import Hub
from holdfast.control.plane import Plane
from holdfast.control.session import Session
from holdfast.core.scaling import demand
from holdfast.core.scaling.demand import Ear
from holdfast.core.scaling.load_signals import SOURCES_MAX, Heard
from holdfast.model.scale import Scale, Signal
from holdfast.model.workload import Service, Workload
from holdfast.wire.messages import Used
from tests.build import needs, resources
from tests.planes import World, apply, until
from tests.prometheus_twin import PrometheusTwin, vector
from tests.served import WEB, Served, answered, served

SCALES = f"{WEB}scale:\n  min: 1\n  max: 5\n  per_replica: {{ in_flight: 4 }}\n"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "EVERY_S", 0.02)


def scaling(**rules: Any) -> Workload:
    return Workload("web", Service(1, scale=Scale(**rules)), needs(cpu=1))


def ear(plane: Plane) -> Ear | None:
    return plane.ears.of("web") if plane.ears is not None else None


def heard(plane: Plane, signal: Signal) -> Heard | None:
    found = ear(plane)
    return found.signals.last(signal, 0) if found is not None else None


async def test_a_query_that_fails_leaves_the_signal_missing_and_is_said_once_until_it_works() -> None:
    world, telemetry = World(), Prometheus()
    async with PrometheusTwin().serving() as twin, world.plane() as plane:
        plane.telemetry = telemetry
        await world.joined(plane, "n1")
        with capture_logs() as logs:
            rules: dict[str, Any] = {"query": {Signal.QUEUE: "waiting"}, "prometheus": twin.url}
            await apply(plane, scaling(per_replica={Signal.QUEUE: 4.0}, **rules))
            await until(lambda: len(twin.asked) >= 5)
            assert heard(plane, Signal.QUEUE) is None
            assert [each["event"] for each in logs].count("a query failed") == 1
            twin.answers["waiting"] = vector("3")
            await until(lambda: heard(plane, Signal.QUEUE))
            assert (
                plane.world.workloads["web"].shape == scaling(per_replica={Signal.QUEUE: 4.0}, **rules).shape
            )
            del twin.answers["waiting"]
            await until(lambda: [each["event"] for each in logs].count("a query failed") == 2)
        found = heard(plane, Signal.QUEUE)
        assert found is not None
        assert (found.sources, found.value) == (1, 3.0)
    await telemetry.close()


async def test_an_agent_that_is_cut_off_before_it_is_welcome_links_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine so slow that its hello comes too late; on the twin of an agent all tests here rest."""
    accept, sessions = Hub.accept, list[Session]()

    def impatient(hub: Hub) -> Session:
        sessions.append(accept(hub))
        if len(sessions) == 1:
            asyncio.get_running_loop().call_soon(sessions[0].close)
        return sessions[-1]

    monkeypatch.setattr(Hub, "accept", impatient)
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        assert agent.welcomed.is_set()
        assert len(sessions) == 2


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-1", "1e300"])
async def test_a_query_that_gives_what_cannot_be_true_is_said_as_one_that_fails(number: str) -> None:
    """0/0 is NaN: without a word nobody would find out why the signal is missing."""
    world, telemetry = World(), Prometheus()
    async with PrometheusTwin().serving() as twin, world.plane() as plane:
        plane.telemetry = telemetry
        await world.joined(plane, "n1")
        twin.answers["waiting"] = vector(number)
        with capture_logs() as logs:
            rules: dict[str, Any] = {"query": {Signal.QUEUE: "waiting"}, "prometheus": twin.url}
            await apply(plane, scaling(per_replica={Signal.QUEUE: 4.0}, **rules))
            await until(lambda: len(twin.asked) >= 3)
        (said,) = (each for each in logs if each["event"] == "a query failed")
        assert "cannot be true" in said["why"]
        assert heard(plane, Signal.QUEUE) is None
    await telemetry.close()


async def test_what_replicas_use_of_a_cpu_reaches_the_ears_as_shares_of_what_they_asked_for() -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        await apply(plane, scaling(per_replica={Signal.CPU: 0.5}))
        await until(lambda: "web/0.1" in plane.world.replicas)
        await until(lambda: plane.world.replicas["web/0.1"].state == "ready")
        assert heard(plane, Signal.CPU) is None
        plane.hub.used["n1"] = Used(900, 100, {"web/0.1": (800, 90), "strange/0.1": (100, 1)})
        await until(lambda: heard(plane, Signal.CPU))
        found = heard(plane, Signal.CPU)
        assert found is not None
        assert (found.sources, found.value) == (1, 0.8)


async def test_what_replicas_use_of_a_gpu_reaches_the_ears_and_what_no_node_says_is_missing() -> None:
    world = World()
    async with world.plane() as plane:
        world.fleet.capacity = resources(4, 8_192, 2, "h100")
        await world.joined(plane, "n1")
        gpu = Workload("web", Service(1, scale=Scale(per_replica={Signal.GPU: 0.5})), needs(cpu=1, gpu=2))
        await apply(plane, gpu)
        await until(lambda: "web/0.1" in plane.world.replicas)
        await until(lambda: plane.world.replicas["web/0.1"].state == "ready")
        plane.hub.used["n1"] = Used(900, 100, {"web/0.1": (800, 90)})
        await asyncio.sleep(0.2)
        assert heard(plane, Signal.GPU) is None
        plane.hub.used["n1"] = Used(900, 100, {"web/0.1": (800, 90)}, {"web/0.1": 1500})
        await until(lambda: heard(plane, Signal.GPU))
        found = heard(plane, Signal.GPU)
        assert found is not None
        assert (found.sources, found.value) == (1, 0.75)
        assert heard(plane, Signal.CPU) is None, "it does not scale by that"


# what is posted


async def post(api: Served, status: int = 200, **signals: Any) -> Any:
    return await api.post("/v1/workloads/web/signals", {"source": "gateway", "signals": signals}, status)


async def test_what_is_posted_is_heard_explained_and_makes_it_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "EVERY_MS", 100)
    async with served("n1", "n2") as api:
        await api.apply(SCALES)
        done = await post(api, in_flight=18, latency_ms=20)
        assert done["done"] == "heard in_flight, latency_ms of web; it does not scale by latency_ms"
        shown = await api.get("/v1/workloads/web")
        assert shown["scale"] == {"min": 1, "max": 5, "signals": ["in_flight"]}
        assert shown["wanted"] >= 2
        await post(api, in_flight=18.5)
        await until(lambda: api.plane.world.demands["web"].wanted == 5)
        await until(lambda: (found := ear(api.plane)) is not None and found.reading.demand == 4.625)
        told = await api.get("/v1/explain/workload", params={"name": "web"})
        assert any(text.startswith("5 replicas wanted for ") for text in told["because"])
        assert any("in_flight 18.5 at 4 a replica" in text for text in told["because"])
        metrics = (await api.client.get("/metrics")).text
        assert 'holdfast_replicas_wanted{workload="web"} 5.0' in metrics
        assert 'holdfast_demand_replicas{workload="web"} 4.6' in metrics


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "-1", "1e13", "1e999"])
async def test_what_cannot_be_true_is_refused_and_nothing_is_taken(value: str) -> None:
    async with served("n1") as api:
        await api.apply(SCALES)
        body = f'{{"signals": {{"queue": 2, "in_flight": {value}}}}}'
        sent = await api.client.post(
            "/v1/workloads/web/signals", content=body, headers={"content-type": "application/json"}
        )
        problem = answered(sent, 422)
        assert problem["problems"]
        assert heard(api.plane, Signal.QUEUE) is None
        assert heard(api.plane, Signal.IN_FLIGHT) is None


@pytest.mark.parametrize(
    "signals",
    [
        {"inflight": 3},
        {},
        {"in_flight": "3"},
        {"in_flight": True},
        {"in_flight": None},
        {"in_flight": [3]},
        3,
    ],
)
async def test_what_is_no_signal_is_refused(signals: Any) -> None:
    async with served("n1") as api:
        await api.apply(SCALES)
        problem = await api.post("/v1/workloads/web/signals", {"signals": signals}, 422)
        assert any(text.startswith("body.signals") for text in problem["problems"])


async def test_what_does_not_scale_or_is_gone_takes_no_signals() -> None:
    async with served("n1") as api:
        await api.apply(WEB)
        problem = await post(api, 409, in_flight=3)
        assert problem["detail"] == "web does not scale: its size is fixed"
        await api.apply(SCALES)
        await post(api, in_flight=3)
        answered(await api.client.delete("/v1/workloads/web"), 200)
        problem = await post(api, 404, in_flight=3)
        assert problem["detail"] == "there is no workload called web"


async def test_a_source_too_many_is_refused_and_those_that_are_known_go_on() -> None:
    async with served("n1") as api:
        await api.apply(SCALES)
        for number in range(SOURCES_MAX):
            assert not api.plane.hear("web", f"gateway {number}", {Signal.IN_FLIGHT: 1.0})
        problem = await post(api, 409, in_flight=3)
        assert "1,000 sources of in_flight" in problem["detail"]
        body = {"source": "gateway 7", "signals": {"in_flight": 3}}
        await api.post("/v1/workloads/web/signals", body)
        found = heard(api.plane, Signal.IN_FLIGHT)
        assert found is not None
        assert (found.sources, found.value) == (SOURCES_MAX, SOURCES_MAX + 2.0)


async def test_who_does_not_lead_sends_signals_on_and_explains_what_was_journalled() -> None:
    world = World()
    async with served("n1", world=world) as first:
        await first.apply(SCALES)
        await until(lambda: "web" in first.plane.world.demands)
        async with served(world=world, name="cp-2", leads=False) as second:
            await until(lambda: second.plane.ready and "web" in second.plane.world.demands)
            sent = await second.client.post(
                "/v1/workloads/web/signals", json={"signals": {"in_flight": 3}}, follow_redirects=False
            )
            assert sent.status_code == 307
            assert sent.headers["location"] == f"{first.plane.url}/v1/workloads/web/signals"
            told = await second.get("/v1/explain/workload", params={"name": "web"})
            assert any(text.startswith("signals when that was decided") for text in told["because"])
            assert "holdfast_demand_replicas{" not in (await second.client.get("/metrics")).text
