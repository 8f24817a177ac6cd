"""Those who wait at a gateway while nobody can answer."""

import asyncio
import socket
from pathlib import Path

import pytest

from holdfast.gateway.settings import Hold
from tests.gateways import CHAT, chat, engine, served, service


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


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
