"""A control plane with its API, served by uvicorn on loopback, and a client that speaks to it.

The client brings an admin's token (`ADMIN`, of the name `TESTER` in history). A test of who may do what gives
an `access` of its own: then the client brings none, and each request says as whom it comes (`Served.token`).
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from holdfast.api.access import Access
from holdfast.api.app import close, create_app, finish
from holdfast.api.edge import Edge
from holdfast.api.token_limits import USUAL, TokenLimits
from holdfast.control.plane import Plane
from holdfast.ports.registry import Role, Token
from holdfast.wire.identity import hashed
from tests.planes import World, until

YAML = {"content-type": "application/yaml"}
TIMEOUT_S = 30.0
ADMIN, TESTER = "hf_test-admin", "tester"

WEB = """\
kind: service
name: web
replicas: 2
command: [python3, -m, http.server]
"""
ONCE = """\
kind: job
name: once
command: "true"
"""


@dataclass
class Served:
    world: World
    plane: Plane
    app: FastAPI
    client: httpx.AsyncClient

    @property
    def edge(self) -> Edge:
        edge: Edge = self.app.state.edge
        return edge

    async def get(self, path: str, status: int = 200, **more: Any) -> Any:
        """The JSON of the answer, which must have this status."""
        return answered(await self.client.get(path, **more), status)

    async def post(self, path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
        given = {"json": body} if body is not None else {}
        return answered(await self.client.post(path, **given, **more), status)

    async def apply(self, text: str, status: int = 200, **more: Any) -> Any:
        return answered(await self.client.post("/v1/apply", content=text, headers=YAML, **more), status)

    async def token(self, role: Role, *, expires_at: int = 0) -> dict[str, str]:
        """Headers with a token of this role."""
        secret = f"test-{role}-{expires_at}"
        token = Token(f"id-{role}-{expires_at}", hashed(secret), role, expires_at=expires_at)
        await self.world.registry.add(token)
        return bearer(secret)


async def _admit(world: World) -> None:
    if await world.registry.find(hashed(ADMIN)) is None:
        await world.registry.add(Token("id-tester", hashed(ADMIN), Role.ADMIN, note=TESTER))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def answered(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    kind = "application/problem+json" if status >= 300 else "application/json"
    assert response.headers["content-type"] == kind
    if status >= 300:
        problem = response.json()
        assert problem["status"] == status
        assert problem["title"]
        assert problem["detail"]
        return problem
    return response.json()


@contextlib.asynccontextmanager
async def served(
    *nodes: str,
    world: World | None = None,
    name: str = "cp-1",
    access: Access | None = None,
    leads: bool = True,
    limits: TokenLimits = USUAL,
) -> AsyncIterator[Served]:
    """With agents of these names, emulated over real connections."""
    world = world or World()
    if access is None:
        await _admit(world)
    apps: list[FastAPI] = []

    def make(plane: Plane) -> FastAPI:
        apps.append(create_app(plane, access=access or Access(), limits=limits))
        return apps[0]

    async with world.plane(name, app=make) as plane:
        if leads:
            await until(lambda: plane.leading)
        if nodes:
            await world.joined(plane, *nodes)
        try:
            headers = bearer(ADMIN) if access is None else {}
            async with httpx.AsyncClient(base_url=plane.url, headers=headers, timeout=TIMEOUT_S) as client:
                yield Served(world, plane, apps[0], client)
        finally:
            close(apps[0])
            await finish(apps[0])
