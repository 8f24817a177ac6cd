"""What clients send must not stay in the memory of a worker when they are gone."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.gateways import CHAT, SECRET, chat, engine, served, service
from tests.planes import until

MIB = 1 << 20
BODY = 8 * MIB
CLIENTS = 40
GROWTH_MAX = 80 * MIB  # of the 320 that were sent


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def send_and_leave(port: int, secret: str, length: int) -> None:
    """All of a body but its last bytes."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {secret}\r\n"
    head += f"content-length: {length}\r\n\r\n"
    try:
        writer.write(head.encode())
        for _ in range((length - 100) // MIB):
            writer.write(bytes(MIB))
            await writer.drain()
    except ConnectionError:
        pass  # refused before all of it was sent
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("secret", ["nobody", SECRET])
async def test_nothing_of_a_request_that_was_cut_off_stays(tmp_path: Path, secret: str) -> None:
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, client):
        assert (await client.post(CHAT, json=chat())).status_code == 200
        pid, port = serving.keeper.seats[0].pid, int(serving.url.rpartition(":")[2])
        await send_and_leave(port, secret, BODY)
        before = resident(pid)
        for _ in range(CLIENTS):
            await send_and_leave(port, secret, BODY)
        await until(lambda: resident(pid) - before < GROWTH_MAX)
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_nothing_of_a_request_that_was_answered_stays(tmp_path: Path) -> None:
    """Neither when its connection is closed nor while that waits for the next one."""
    long = chat("toy")
    long["messages"][0]["content"] = "x" * (4 * MIB)
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, client):
        assert (await client.post(CHAT, json=long)).status_code == 200
        pid = serving.keeper.seats[0].pid
        before = resident(pid)
        for closing in ({"connection": "close"}, {}):
            for _ in range(20):
                assert (await client.post(CHAT, json=long, headers=closing)).status_code == 200
        await until(lambda: resident(pid) - before < GROWTH_MAX)
