"""Does what clients leave behind stay in the memory of a gateway?

A real gateway with one worker. `--connections` clients, `--at-once` at a time, each announce a body of
`--mib` MiB, send as much of it as chance says, and are cut off: in the head, in the body, or a hundred bytes
before its end. Half of them have no key that is known. After that `--slow` clients without a key send a byte
now and then, as long as they are let. Memory is the resident set of the worker: before, the highest, and
after; `grown_mb` is what is left over the first hundred clients, when buffers of the process are made.
`answered_ms_max` is the slowest of the good requests that were asked all the while.
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from bench._say import say
from holdfast.gateway import settings
from holdfast.gateway.serve import gateway
from holdfast.model.gateway import Key
from holdfast.wire.identity import hashed

MIB = 1 << 20
CHAT = "/v1/chat/completions"
SECRET = "sk-bench"
WARM = 100
EVERY_S = 0.05
SETTLE_S = 2.0
PIECES = bytes(256 * 1024)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--mib", type=int, default=30, help="that each announces")
    parser.add_argument("--slow", type=int, default=40, help="clients without a key that send very slowly")
    parser.add_argument("--slow-s", type=float, default=20.0, help="for so long")
    parser.add_argument("--seed", type=int, default=1)


def run(args: argparse.Namespace) -> dict[str, object]:
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        async with _engine() as url:
            service = settings.Service(name="toy", models=("toy",), upstreams=(settings.Upstream(url),))
            key = Key("bench", hashed(SECRET))
            state = Path(folder)
            wanted = settings.Gateway(state=state, port=0, admin_port=0, services=(service,), keys=(key,))
            async with gateway(wanted) as serving:
                port = int(serving.url.rpartition(":")[2])
                return await _measured(args, port, serving.keeper.seats[0].pid)


class Memory:
    """Of a process, looked at all the time."""

    def __init__(self, pid: int) -> None:
        self.pid, self.highest = pid, 0

    def now(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        found = pages * os.sysconf("SC_PAGESIZE")
        self.highest = max(self.highest, found)
        return found

    async def settled(self) -> int:
        """When what was cut off a moment ago is known to have gone: the least of a few seconds."""
        found = self.now()
        for _ in range(round(SETTLE_S / EVERY_S)):
            await asyncio.sleep(EVERY_S)
            found = min(found, self.now())
        return found

    async def watch(self) -> None:
        while True:
            self.now()
            await asyncio.sleep(EVERY_S)


async def _measured(args: argparse.Namespace, port: int, pid: int) -> dict[str, object]:
    chance, memory = random.Random(args.seed), Memory(pid)
    took: list[float] = []
    others = [asyncio.create_task(memory.watch()), asyncio.create_task(_good(port, took))]
    try:
        await _cut(args, port, chance, WARM)
        before = await memory.settled()
        began = time.monotonic()
        say(f"{args.connections:,} clients with bodies of {args.mib} MiB that are cut off")
        sent = await _cut(args, port, chance, args.connections)
        cut_s = time.monotonic() - began
        after = await memory.settled()
        highest, memory.highest = memory.highest, 0
        say(f"{args.slow} slow clients without a key")
        refused = await _slow(args, port)
        slow_highest = memory.highest
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return {
        "connections": args.connections,
        "sent_gb": round(sent / 1e9, 1),
        "seconds": round(cut_s, 1),
        "before_mb": round(before / 1e6, 1),
        "highest_mb": round(highest / 1e6, 1),
        "after_mb": round(after / 1e6, 1),
        "grown_mb": round((after - before) / 1e6, 1),
        "slow_refused": refused,
        "slow_grown_mb": round((slow_highest - after) / 1e6, 1),
        "answered": len(took),
        "answered_ms_max": round(1e3 * max(took, default=0.0), 1),
    }


async def _cut(args: argparse.Namespace, port: int, chance: random.Random, count: int) -> int:
    """What was sent by so many clients."""
    todo = [(chance.random() < 0.5, _amount(chance, args.mib * MIB)) for _ in range(count)]
    sent = 0

    async def client() -> None:
        nonlocal sent
        while todo:
            known, size = todo.pop()
            sent += await _one(port, SECRET if known else "nobody", size, args.mib * MIB)

    await asyncio.gather(*(client() for _ in range(args.at_once)))
    return sent


def _amount(chance: random.Random, most: int) -> int:
    """Less than zero: not even the head is whole."""
    return chance.choice((-1, chance.randrange(most), most - 100))


def _head(secret: str, length: int) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {secret}\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


async def _one(port: int, secret: str, size: int, length: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head, sent = _head(secret, length), 0
    try:
        writer.write(head[:40] if size < 0 else head)
        while sent < size and not reader.at_eof():
            writer.write(PIECES[: size - sent])
            sent += len(PIECES[: size - sent])
            await writer.drain()
    except ConnectionError:
        pass  # refused before all of it was sent
    finally:
        writer.transport.abort()
    return sent


async def _slow(args: argparse.Namespace, port: int) -> int:
    """How many were refused at once."""

    slow_s: float = args.slow_s

    async def client() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head("nobody", args.mib * MIB) + bytes(MIB))
        ends = time.monotonic() + slow_s
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < ends and not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(EVERY_S)
        writer.transport.abort()
        return time.monotonic() < ends

    return sum(await asyncio.gather(*(client() for _ in range(args.slow))))


async def _good(port: int, took: list[float]) -> None:
    body = {"model": "toy", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {SECRET}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
        while True:
            began = time.monotonic()
            answer = await client.post(CHAT, json=body, timeout=60)
            answer.raise_for_status()
            took.append(time.monotonic() - began)
            await asyncio.sleep(EVERY_S)


@contextlib.asynccontextmanager
async def _engine() -> AsyncIterator[str]:
    """A twin of one, in a process of its own."""
    command = [sys.executable, "-m", "holdfast.sim.live.llm_engine", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)$", (await process.stdout.readline()).decode().strip())
        assert found is not None
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.kill()
        await process.wait()
