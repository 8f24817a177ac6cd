"""A real gateway with real workers, and engines that answer it, for tests."""

import asyncio
import contextlib
import hashlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from holdfast.gateway import settings
from holdfast.gateway.serve import Serving, gateway
from holdfast.model.gateway import Key, Limits
from tests.ports import free_port

SECRET = "sk-test"
CHAT = "/v1/chat/completions"


def key(secret: str = SECRET, id: str = "test", limits: Limits | None = None, **more: Any) -> Key:
    digest = hashlib.sha256(secret.encode()).digest()
    return Key(id, digest, limits=limits or Limits(), **more)


def chat(model: str = "toy", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **more}


class Engine:
    """A process with the twin of an engine."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"

    def kill(self) -> None:
        self.process.kill()

    async def stats(self) -> dict[str, int]:
        async with httpx.AsyncClient() as client:
            found: dict[str, int] = (await client.get(f"{self.url}/stats")).json()
            return found


@contextlib.asynccontextmanager
async def engine(*options: str, port: int = 0) -> AsyncIterator[Engine]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast.sim.live.llm_engine",
        "--port",
        str(port or free_port()),  # one that it can have again when it comes back
        *options,
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        found = re.search(r":(\d+)$", line.strip())
        assert found is not None, line
        yield Engine(process, int(found[1]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def service(*urls: str, **more: Any) -> settings.Service:
    return settings.Service(
        name="toy", models=("toy", "toy-*"), upstreams=tuple(map(settings.Upstream, urls)), **more
    )


@contextlib.asynccontextmanager
async def served(
    state: Path, *services: settings.Service, keys: tuple[Key, ...] = (), **more: Any
) -> AsyncIterator[tuple[Serving, httpx.AsyncClient]]:
    wanted = settings.Gateway(
        state=state, port=0, admin_port=0, services=services, keys=keys or (key(),), **more
    )
    async with gateway(wanted) as serving:
        headers = {"authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(base_url=serving.url, headers=headers, timeout=60) as client:
            yield serving, client


def to_admin(serving: Serving) -> httpx.AsyncClient:
    """Of the second listener."""
    sent = {"authorization": f"Bearer {serving.admin_token}"}
    return httpx.AsyncClient(base_url=serving.admin_url, headers=sent)


def events(text: str) -> list[Any]:
    """The data of all events; [DONE] as it is."""
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [data if data == "[DONE]" else msgspec.json.decode(data) for data in found]


def text_of(found: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in found
        if isinstance(event, dict)
        for choice in event.get("choices", ())
    )
