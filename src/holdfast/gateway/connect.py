"""Connections to replicas: made when none is idle, and asked now and then whether all is well."""

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.gateway.service import Service
from holdfast.gateway.target import Target
from holdfast.gateway.up import Up, idle_connection

if TYPE_CHECKING:
    from holdfast.gateway.attempt import Try
    from holdfast.gateway.worker import Worker

PROBE_WITHIN_S = 5.0


def trust(ca: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca:
        context.load_verify_locations(ca)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connector:
    def __init__(self, worker: "Worker", ca: str) -> None:
        self.worker, self.ca = worker, ca
        self._trust: ssl.SSLContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def start(self, attempt: "Try") -> None:
        task = self.worker.loop.create_task(self._for(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _for(self, attempt: "Try") -> None:
        service = attempt.exchange.service
        assert service is not None
        try:
            up = await self.to(attempt.replica, service)
        except ssl.SSLError as error:  # to wait would not help
            attempt.failed(None, f"no connection: {error}", "error")
            return
        except OSError as error:  # TimeoutError is among them
            attempt.failed(None, f"no connection: {error.strerror or str(error) or 'no answer in time'}")
            return
        attempt.exchange.connected(attempt, up)

    async def to(self, replica: Replica, service: Service) -> Up:
        target = service.targets[replica.id]
        try:
            async with asyncio.timeout(service.settings.connect_s):
                return await self._open(replica, target)
        except UnicodeError as error:  # a name that no resolver takes
            raise OSError(str(error)) from None

    async def _open(self, replica: Replica, target: Target) -> Up:
        loop = self.worker.loop
        up = Up(replica)

        def made() -> Any:
            return up

        if isinstance(target.address, str):
            await loop.create_unix_connection(made, target.address)
            return up
        host, port = target.address
        if not target.tls:
            await loop.create_connection(made, host, port)
            return up
        self._trust = self._trust or trust(self.ca)
        await loop.create_connection(made, host, port, ssl=self._trust, server_hostname=target.tls)
        return up

    async def probe(self, service: Service) -> None:
        """Asks every replica, for as long as the service has a probe."""
        while service.settings.probe and self.worker.book.services.get(service.name) is service:
            replicas = list(service.pool.replicas.values())
            results = await asyncio.gather(*(self._well(replica, service) for replica in replicas))
            for replica, well in zip(replicas, results, strict=True):
                service.pool.probed(replica, well, self.worker.now())
            if service.waiting:
                service.pump(self.worker.now())
            await asyncio.sleep(service.settings.probe_every_s)

    async def _well(self, replica: Replica, service: Service) -> bool:
        target = service.targets[replica.id]
        request = b"GET %s%s HTTP/1.1\r\nhost: %s\r\n%s\r\n" % (
            target.path,
            service.settings.probe.encode(),
            target.host,
            target.authorization,
        )
        try:
            async with asyncio.timeout(PROBE_WITHIN_S):
                up = idle_connection(replica) or await self.to(replica, service)
                probe = Probe(self.worker.loop.create_future())
                up.ask(probe, request)
                try:
                    return await probe.status < 400
                finally:
                    up.let_go()
        except OSError:
            return False


class Probe:
    """A question whose answer is only its status."""

    def __init__(self, status: "asyncio.Future[int]") -> None:
        self.status = status

    def replied(self, up: Up, data: bytes, chunk: bytes = b"") -> None:
        if up.complete and not self.status.done():
            self.status.set_result(up.status)

    def failed(self, up: Up, why: str) -> None:
        if not self.status.done():
            self.status.set_result(599)
