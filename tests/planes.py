"""Control planes and emulated agents in one process, over real sockets: for tests of the hub and the term."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from unittest import mock

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.adapters.clock import HostClock
from holdfast.adapters.providers.join import JoinProvider
from holdfast.control import plane as plane_module
from holdfast.control.enrol import Enrolment
from holdfast.control.front import front
from holdfast.control.plane import Plane
from holdfast.model.event import Event, PoolApplied, WorkloadApplied
from holdfast.model.pool import Pool
from holdfast.model.resources import Resources
from holdfast.model.workload import Workload
from holdfast.ports.provider import Provider
from holdfast.ports.registry import Identity, Registry
from holdfast.ports.store import Store
from holdfast.sim.live.emulated_agents import EmulatedAgent, EmulatedFleet
from holdfast.sim.twins.registry import SimRegistry
from holdfast.sim.twins.store import SimStore
from holdfast.wire.identity import Key

FLEET = Pool("fleet", "join", (), max=1_000, can_launch=False, can_terminate=False, can_reset=False)
SECRET = b"not a secret"
PATIENCE_S = (
    60  # for a machine that does much else; what is waited for takes milliseconds on one that does not
)
# A leader that a busy machine did not let run for three seconds has lost its leadership, rightly, and that is
# no news to tests of something else. Those of losing it say how soon.
LEADER_TTL_MS = 45_000


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An app for tests that do not ask it anything."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class World:
    """A store, a registry, and the control planes and agents around them."""

    def __init__(
        self,
        store: Store | None = None,
        provider: Provider | None = None,
        leader_ttl_ms: int = LEADER_TTL_MS,
    ) -> None:
        self.clock, self.leader_ttl_ms = HostClock(), leader_ttl_ms
        self.store = store or SimStore(self.clock.monotonic)
        self.registry: Registry = SimRegistry()
        self.provider = provider or JoinProvider()
        self.fleet = EmulatedFleet(self.clock, "fleet", Resources(4_000, 8_192), ("a", "b", "c"))
        self.ports: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def plane(
        self, name: str = "cp-1", opening: Callable[..., Iterable[Event]] | None = None, app: Any = nothing
    ) -> AsyncIterator[Plane]:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        self.ports[name] = listener.getsockname()[1]
        url = f"http://127.0.0.1:{self.ports[name]}"
        enrolment = Enrolment(self.registry, self.clock, SECRET)
        plane = Plane(
            name,
            url,
            self.store,
            self.registry,
            enrolment,
            self.clock,
            lambda pool: self.provider,
            opening=opening or (lambda world, now: ()),
            leader_ttl_ms=self.leader_ttl_ms,
        )
        served = app(plane) if app is not nothing else nothing
        config = uvicorn.Config(
            served,
            http=front(plane.hub.accept),
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        server = Server(config)
        # Whoever begins to lead lets the collector look through all there is in the process. Here that is
        # every test that was found: half a second in which nothing else runs, for each of hundreds of terms.
        with mock.patch.object(plane_module, "settle"):
            async with self._running(plane, server, listener):
                yield plane
        listener.close()

    @contextlib.asynccontextmanager
    async def _running(self, plane: Plane, server: Server, listener: socket.socket) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listener]))
            running = group.create_task(plane.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                server.should_exit = True
                await asyncio.gather(serving, return_exceptions=True)

    async def known(self, node: str) -> EmulatedAgent:
        """An agent whose key was enrolled before."""
        key = Key(Ed25519PrivateKey.generate())
        assert not await self.registry.enrol(Identity(node, key.public, "fleet", 0), None)
        return self.fleet.add(node, key)

    async def joined(self, plane: Plane, *nodes: str) -> list[EmulatedAgent]:
        await until(lambda: plane.leading)
        if "fleet" not in plane.world.pools:
            await plane.tell(PoolApplied(at=plane.now(), pool=FLEET))
        agents = [await self.known(node) for node in nodes]
        for agent in agents:
            await within(self.linked(agent, plane), PATIENCE_S)
        return agents

    async def linked(self, agent: EmulatedAgent, plane: Plane) -> None:
        """As a real agent: one whose link ends before it is welcome, as on a slow machine, links again."""
        await self.connect(agent, plane)
        while not agent.welcomed.is_set():
            either = [asyncio.ensure_future(event.wait()) for event in (agent.welcomed, agent.ended)]
            _, others = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                other.cancel()
            assert agent.refused is None, agent.refused
            if not agent.welcomed.is_set():
                await self.connect(agent, plane)

    async def connect(self, agent: EmulatedAgent, plane: Plane) -> None:
        await agent.connect("127.0.0.1", self.ports[plane.name])


async def apply(plane: Plane, workload: Workload) -> None:
    await plane.tell(WorkloadApplied(at=plane.now(), workload=workload))


async def within(work: Any, seconds: float = PATIENCE_S) -> Any:
    async with asyncio.timeout(seconds):
        return await work


async def until(true: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)
