"""Requests that must not be carried out twice, at replicas that are killed while they carry them out."""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from holdfast.gateway import settings
from tests.gateways import SECRET, served
from tests.ports import free_port

ROUNDS = 4
CLIENTS = 8
# carries an order out, which takes it a moment, and then answers: its line in the book is the order
REPLICA = """
import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

book = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        os.write(book, f"{self.command} {self.path.rpartition('/')[2]}\\n".encode())
        time.sleep(0.02)
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *words):
        pass

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders)
print("ready", flush=True)
server.serve_forever()
"""


class Replica:
    def __init__(self, book: Path) -> None:
        self.book, self.port = book, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        words = (sys.executable, "-c", REPLICA, str(self.port), str(self.book))
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*words, stdout=pipe)
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            assert await self.process.stdout.readline() == b"ready\n"

    async def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


@contextlib.asynccontextmanager
async def replicas(book: Path, count: int) -> AsyncIterator[list[Replica]]:
    found = [Replica(book) for _ in range(count)]
    try:
        for each in found:
            await each.start()
        yield found
    finally:
        for each in found:
            await each.kill()


def orders(*replicas: Replica) -> settings.Service:
    """As its file would say it without `models`."""
    upstreams = tuple(settings.Upstream(each.url) for each in replicas)
    return settings.Service("orders", models=("orders",), prefixes=("/orders",), upstreams=upstreams)


def carried_out(book: Path) -> Counter[str]:
    return Counter(book.read_text().splitlines())


async def test_no_order_is_carried_out_twice_when_replicas_are_killed_and_reads_are_repeated(
    tmp_path: Path,
) -> None:
    """A POST that was asked again of another replica had been carried out by the one that was killed."""
    book = tmp_path / "book"
    statuses: dict[str, list[tuple[str, httpx.Response]]] = {"POST": [], "GET": [], "keyed": []}
    ended = asyncio.Event()
    async with (
        replicas(book, 3) as found,
        served(tmp_path / "gateway", orders(*found)) as (serving, _),
        httpx.AsyncClient(
            base_url=serving.url, headers={"authorization": f"Bearer {SECRET}"}, timeout=60
        ) as client,
    ):

        async def ask_on(kind: str, who: int) -> None:
            number = 0
            while not ended.is_set():
                number += 1
                name = f"{kind}-{who}-{number}"
                method = "GET" if kind == "GET" else "POST"
                headers = {"idempotency-key": name} if kind == "keyed" else {}
                answer = await client.request(method, f"/orders/{name}", headers=headers)
                statuses[kind].append((name, answer))

        async def harm() -> None:
            for turn in range(ROUNDS):
                victim = found[turn % len(found)]
                before = len(statuses["POST"])
                while len(statuses["POST"]) < before + 2 * CLIENTS:
                    await asyncio.sleep(0.01)
                await victim.kill()
                await victim.start()
            ended.set()

        await asyncio.gather(harm(), *(ask_on(kind, who) for kind in statuses for who in range(CLIENTS)))
    done = carried_out(book)
    posted = dict(statuses["POST"])
    assert [name for name in posted if done[f"POST {name}"] > 1] == []
    assert {answer.status_code for answer in posted.values()} <= {200, 502, 503}
    for name, answer in posted.items():
        code = "" if answer.status_code == 200 else answer.json()["error"]["code"]
        if not code:
            assert done[f"POST {name}"] == 1
        elif code != "outcome_unknown":
            assert (done[f"POST {name}"], "not carried out" in answer.text) == (0, True)
    for kind in ("GET", "keyed"):
        assert {answer.status_code for _, answer in statuses[kind]} == {200}
    unknown = [name for name, answer in posted.items() if answer.status_code == 502]
    assert len(unknown) <= ROUNDS * CLIENTS
