"""Those who wait at a gateway while nobody can answer."""

import asyncio
from pathlib import Path

import pytest

from holdfast.gateway.serve import Serving
from holdfast.gateway.settings import Hold
from tests.gateways import CHAT, chat, engine, served, service
from tests.planes import until
from tests.ports import free_port


@pytest.mark.parametrize("probe", ["/health", ""])
async def test_who_comes_while_every_replica_restarts_waits_for_it(probe: str, tmp_path: Path) -> None:
    """They were asked of the same dead replica again and again, and refused after three milliseconds."""
    port = free_port()
    wanted = service(f"http://127.0.0.1:{port}", probe=probe, probe_every_s=0.2, hold=Hold(patience_s=30.0))
    async with served(tmp_path, wanted) as (_, client):
        asked = [asyncio.create_task(client.post(CHAT, json=chat())) for _ in range(20)]
        await asyncio.sleep(0.7)
        assert not any(task.done() for task in asked)
        async with engine(port=port):
            found = await asyncio.gather(*asked)
            assert [answer.status_code for answer in found] == [200] * 20


async def test_patience_ends_when_nobody_comes_back(tmp_path: Path) -> None:
    wanted = service(f"http://127.0.0.1:{free_port()}", hold=Hold(patience_s=0.5))
    async with served(tmp_path, wanted) as (_, client):
        found = await client.post(CHAT, json=chat())
        assert (found.status_code, found.json()["error"]["code"]) == (503, "no_capacity")
        assert found.elapsed.total_seconds() >= 0.5


@pytest.mark.parametrize("left", ["nothing", "no patience"])
async def test_who_waits_is_answered_when_there_is_nothing_to_wait_for_any_more(
    left: str, tmp_path: Path
) -> None:
    """Nobody looked after them any more: they had no answer, however long they waited."""
    async with served(tmp_path, service(hold=Hold(patience_s=30.0))) as (serving, client):
        asked = [asyncio.create_task(client.post(CHAT, json=chat())) for _ in range(3)]
        await until(lambda: "toy" in serving.keeper.wanting)
        serving.keeper.put_services((service(hold=None),) if left == "no patience" else ())
        async with asyncio.timeout(10):
            found = await asyncio.gather(*asked)
    assert {(each.status_code, each.json()["error"]["code"]) for each in found} == {(503, "model_warming")}


async def test_a_service_that_comes_again_is_probed_again(tmp_path: Path) -> None:
    """The one who asked for the first was still asleep, and nobody came in its place."""
    async with engine() as toy:
        wanted = service(toy.url, probe="/health", probe_every_s=0.3)
        async with served(tmp_path, wanted) as (serving, _):
            serving.keeper.put_services(())
            serving.keeper.put_services((wanted,))
            await asyncio.sleep(1.0)
            toy.kill()
            await until(lambda: _states(serving) == {"ejected"})


async def test_connections_to_a_service_that_is_gone_are_closed(tmp_path: Path) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, client):
        assert (await client.post(CHAT, json=chat())).status_code == 200
        assert _connections(toy.port) == 1
        serving.keeper.put_services(())
        await until(lambda: _connections(toy.port) == 0)


def _states(serving: Serving) -> set[str]:
    counted = serving.keeper.seats[0].counted
    return {each.state for service in counted.services for each in service.replicas} if counted else set()


def _connections(port: int) -> int:
    """How many are open to this port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[3] == "01" and int(line[2].split(":")[1], 16) == port for line in lines)
