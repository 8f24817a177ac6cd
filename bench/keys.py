"""What does one change cost when there are thousands of keys, and how soon is it in force everywhere?

A real control plane (`holdfast serve`, SQLite) with `--keys` keys, and `--gateways` real gateways of two
workers behind it. One key is suspended and restored in turns. A change is in force at a gateway when its
workers answer accordingly, ten new connections in a row; the time is from the request that changes it until
the last gateway. CPU is that of the process of the control plane and of the keepers, less what they take
while nothing happens.
"""

import argparse
import asyncio
import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import httpx
import numpy as np

from bench._plane import Process, started

AT_ONCE = 8
IN_A_ROW = 10
WITHIN_S = 30.0
KEY = "under-test"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--changes", type=int, default=20)


def run(args: argparse.Namespace) -> dict[str, object]:
    with contextlib.ExitStack() as running:
        plane = running.enter_context(started("serve"))
        secret = make_keys(plane, args.keys)
        behind = ("gateway", "--control", plane.url, "--workers", "2", "--admin-port", "0")
        gateways = [
            running.enter_context(started(*behind, ready="", token=plane.token)) for _ in range(args.gateways)
        ]
        return asyncio.run(measured(plane, gateways, secret, args))


def make_keys(plane: Process, count: int) -> str:
    """The secret of the one under test. By plain connections: ten thousand requests should not take long."""
    names = [f"key-{n:05d}" for n in range(count - 1)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda n: make(plane, names[n::AT_ONCE]), range(AT_ONCE)))
    return make(plane, [KEY])


def make(plane: Process, names: list[str]) -> str:
    limits = {"tokens_per_min": 10_000, "requests_per_min": 60}
    url = httpx.URL(plane.url)
    connection, secret = HTTPConnection(url.host, url.port or 80), ""
    for id in names:
        whose = {"id": id, "owner": f"owner of {id}", "team": "bench", "new_team": True}
        body = json.dumps({**whose, "limits": limits})
        connection.request("POST", "/v1/keys", body, {"content-type": "application/json", **plane.headers})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(str(said))
        secret = said["secret"]
    connection.close()
    return secret


async def measured(
    plane: Process, gateways: list[Process], secret: str, args: argparse.Namespace
) -> dict[str, object]:
    speaks = httpx.AsyncClient(base_url=plane.url, headers=plane.headers, timeout=30)
    async with speaks as client, asyncio.TaskGroup() as group:
        told = Told()
        watching = group.create_task(told.watch(client))
        await until_all(gateways, secret, 200)
        while not told.whole:
            await asyncio.sleep(0.01)
        took = []
        before, begun = cpu_s(plane, gateways), time.monotonic()
        for n in range(args.changes):
            start = time.monotonic()
            verb, status = ("restore", 200) if n % 2 else ("suspend", 403)
            (await client.post(f"/v1/keys/{KEY}/{verb}")).raise_for_status()
            await until_all(gateways, secret, status)
            took.append(time.monotonic() - start)
        busy, lasted = cpu_s(plane, gateways), time.monotonic() - begun
        await asyncio.sleep(lasted)
        quiet = cpu_s(plane, gateways)
        watching.cancel()
    each = [1_000 * (2 * b - a - c) / args.changes for a, b, c in zip(before, busy, quiet, strict=True)]
    return {
        "keys": args.keys,
        "gateways": len(gateways),
        "bytes_whole": told.whole,
        "bytes_a_change": round(told.changes / max(1, args.changes)),
        "in_force_ms_p50": round(1_000 * float(np.median(took))),
        "in_force_ms_max": round(1_000 * max(took)),
        "control_plane_cpu_ms_a_change": round(each[0], 1),
        "keeper_cpu_ms_a_change": round(float(np.mean(each[1:])), 1),
        "control_plane_rss_mb": round(plane.rss_mb()),
        "keeper_rss_mb": round(float(np.mean([gateway.rss_mb() for gateway in gateways]))),
    }


class Told:
    """What one more gateway would be told, in bytes."""

    def __init__(self) -> None:
        self.whole = self.changes = 0

    async def watch(self, client: httpx.AsyncClient) -> None:
        headers = {"accept": "text/event-stream"}
        async with client.stream("GET", "/v1/gateway/watch", headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    if self.whole:
                        self.changes += len(line)
                    else:
                        self.whole = len(line)


def cpu_s(plane: Process, gateways: list[Process]) -> list[float]:
    return [each.cpu_s() for each in (plane, *gateways)]


async def until_all(gateways: list[Process], secret: str, status: int) -> None:
    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        for gateway in gateways:
            group.create_task(until_one(gateway, secret, status))


async def until_one(gateway: Process, secret: str, status: int) -> None:
    """A new connection each time: any of its workers may take it."""
    head = (
        f"GET /v1/models HTTP/1.1\r\nhost: h\r\nconnection: close\r\nauthorization: Bearer {secret}\r\n\r\n"
    )
    url = httpx.URL(gateway.url)
    right = 0
    while right < IN_A_ROW:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head.encode())
        line = await reader.readline()
        writer.close()
        right = right + 1 if line.split()[1:2] == [str(status).encode()] else 0
