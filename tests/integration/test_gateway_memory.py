"""What clients send must not stay in the memory of a worker when they are gone."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.gateways import CHAT, SECRET, chat, engine, key, served, service
from tests.planes import until

MIB = 1 << 20
BODY = 8 * MIB
CLIENTS = 40
GROWTH_MAX = 80 * MIB  # of the 320 that were sent
GROWTH_KEYLESS_MAX = 24 * MIB


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def unread(port: int) -> int:
    """Bytes on their way to that port that nobody has read yet."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = [row[4].split(":") for row in rows if f"{port:04X}" in (row[1][-4:], row[2][-4:])]
    return sum(int(sent, 16) + int(come, 16) for sent, come in here)


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


async def begin(
    port: int, secret: str, sent: int, length: int = BODY
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """So much of a body, and the connection stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {secret}\r\n"
    writer.write(f"{head}content-length: {length}\r\n\r\n".encode())
    for at in range(0, sent, MIB):
        writer.write(bytes(min(MIB, sent - at)))
        try:
            await writer.drain()
        except ConnectionError:
            break
    return reader, writer


async def test_slow_bodies_without_a_key_take_no_memory(tmp_path: Path) -> None:
    """Forty at a time held 1.3 GB, each with a byte now and then."""
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, client):
        pid, port = serving.keeper.seats[0].pid, int(serving.url.rpartition(":")[2])
        assert (await client.post(CHAT, json=chat())).status_code == 200
        before = resident(pid)
        open_now = await asyncio.gather(*(begin(port, "nobody", BODY - 100) for _ in range(CLIENTS)))
        peak = resident(pid)
        answers = await asyncio.gather(*(first_of(reader) for reader, _ in open_now))
        assert set(answers) <= {b"HTTP/1.1 401", b"HTTP/1.1 429", b"reset"}
        assert peak - before < GROWTH_KEYLESS_MAX
        assert (await client.post(CHAT, json=chat())).status_code == 200
        for _, writer in open_now:
            writer.transport.abort()


async def test_slow_bodies_with_a_key_take_what_the_file_gives_them_and_others_are_served(
    tmp_path: Path,
) -> None:
    budget = {"buffers": 64 * MIB, "buffers_per_key": 32 * MIB, "buffers_per_address": 64 * MIB}
    keys = (key(), key("sk-other", "other"))
    async with engine() as toy, served(tmp_path, service(toy.url), keys=keys, **budget) as (serving, client):
        pid, port = serving.keeper.seats[0].pid, int(serving.url.rpartition(":")[2])
        assert (await client.post(CHAT, json=chat())).status_code == 200
        before = resident(pid)
        open_now = await asyncio.gather(*(begin(port, "sk-other", BODY - 100) for _ in range(CLIENTS)))
        assert resident(pid) - before < 2 * 32 * MIB
        long = chat("toy")
        long["messages"][0]["content"] = "x" * (4 * MIB)
        assert (await client.post(CHAT, json=long)).status_code == 200, "it has a budget of its own"
        said = [asyncio.ensure_future(first_of(reader)) for reader, _ in open_now]
        await until(lambda: sum(each.done() for each in said) == CLIENTS - 4)  # so many have room
        assert {each.result() for each in said if each.done()} - {b"reset"} == {b"HTTP/1.1 503"}
        for _, writer in open_now:
            writer.transport.abort()
        await asyncio.gather(*said)


async def first_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(12)
    except ConnectionError:
        return b"reset"


async def test_connections_cut_at_any_point_leave_nothing(tmp_path: Path) -> None:
    """`python -m bench gateway_memory` does it 10,000 times with 30 MiB."""
    chance = random.Random(7)
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, client):
        pid, port = serving.keeper.seats[0].pid, int(serving.url.rpartition(":")[2])
        assert (await client.post(CHAT, json=chat())).status_code == 200
        before = 0
        for number in range(300):
            secret = chance.choice(("nobody", SECRET))
            _, writer = await begin(port, secret, int(chance.random() * 2 * MIB))
            writer.transport.abort()
            if number == 50:
                before = resident(pid)
        await until(lambda: resident(pid) - before < GROWTH_KEYLESS_MAX)
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_a_body_in_tiny_chunks_takes_what_is_counted(tmp_path: Path) -> None:
    """Chunks of two bytes took 28 times as much."""
    size, connections = 256 << 10, 40
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, client):
        pid, port = serving.keeper.seats[0].pid, int(serving.url.rpartition(":")[2])
        assert (await client.post(CHAT, json=chat())).status_code == 200
        head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {SECRET}\r\n"
        before, open_now = resident(pid), []
        for _ in range(connections):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            open_now.append(writer)
            writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
            for _ in range(size // 16_384):
                writer.write(b"2\r\nab\r\n" * 8_192)
                await writer.drain()
        await until(lambda: not unread(port))
        assert resident(pid) - before < 4 * connections * size
        for writer in open_now:
            writer.transport.abort()


async def test_half_heads_of_strangers_take_little(tmp_path: Path) -> None:
    """Of one header after the other, each as short as can be: half a megabyte a connection."""
    connections = 300
    async with engine() as toy, served(tmp_path, service(toy.url)) as (serving, client):
        pid, port = serving.keeper.seats[0].pid, int(serving.url.rpartition(":")[2])
        assert (await client.post(CHAT, json=chat())).status_code == 200
        before, open_now = resident(pid), []
        head = b"GET / HTTP/1.1\r\nhost: h\r\n" + b"a:\r\n" * 7_000
        for _ in range(connections):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            open_now.append((reader, writer))
            writer.write(head)
        said = await asyncio.gather(*(first_of(reader) for reader, _ in open_now))
        assert set(said) <= {b"HTTP/1.1 431", b"reset"}
        assert resident(pid) - before < connections * 128 * 1_024
        for _, writer in open_now:
            writer.transport.abort()
