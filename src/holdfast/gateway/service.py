"""A service as a worker sees it: its replicas, who waits for them, and how it goes."""

import math
import zlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from holdfast.core.gateway.hold import Hold
from holdfast.core.gateway.picker import NOBODY, Pool
from holdfast.core.gateway.replicas import Replica, ReplicaSpec
from holdfast.core.gateway.tries import Spread, Tries
from holdfast.gateway import settings
from holdfast.gateway.sse import Usage
from holdfast.gateway.up import Up, close_idle

if TYPE_CHECKING:
    from holdfast.gateway.exchange import Exchange
    from holdfast.gateway.worker import Worker

NOTE_EVERY = 8  # gaps between events: some say what is usual


class Target(msgspec.Struct, frozen=True):
    """How a replica is reached."""

    host: bytes  # as the head says it
    path: bytes  # before the path that was asked for
    authorization: bytes
    address: tuple[str, int] | str  # host and port, or the path of a socket
    tls: str = ""  # the name its certificate must have; empty: no TLS


class Service:
    def __init__(self, wanted: settings.Service, worker: "Worker") -> None:
        self.worker = worker
        self.name = wanted.name
        self.hash = zlib.crc32(wanted.name.encode())
        self.pool = Pool(wanted.name)
        self.targets: dict[str, Target] = {}
        self.tries = Tries(worker.now())
        # for metrics, which only grow
        self.first_tokens, self.gaps, self.waits = (Spread(forgets=False) for _ in range(3))
        self.queue: Hold[Exchange] | None = None
        self.requests = self.retries = self.hedged = self.continued = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.by_status: dict[int, int] = {}
        self.change(wanted)

    def change(self, wanted: settings.Service) -> None:
        """New settings, or other replicas. What runs goes on."""
        self.settings = wanted
        now = self.worker.now()
        specs = []
        for upstream in wanted.upstreams:
            id = upstream.id or upstream.url
            self.targets[id] = target_of(upstream)
            specs.append(
                ReplicaSpec(
                    id,
                    upstream.url,
                    weight=upstream.weight,
                    priority=upstream.priority,
                    streams_max=wanted.concurrent,
                )
            )
        before = list(self.pool.replicas.values())
        self.pool.set_replicas(specs, now)
        for replica in before:
            if replica.draining:
                close_idle(replica)
        for replica in self.pool.replicas.values():
            replica.lost = False
            if replica.connection_pool is None:
                replica.connection_pool = []
        for replica in self.pool.leaving:
            replica.lost = wanted.leaving is not None and replica.id not in wanted.leaving
        staying = {spec.id for spec in specs} | {each.id for each in (*before, *self.pool.leaving)}
        self.targets = {id: target for id, target in self.targets.items() if id in staying}
        self._wait_by(wanted.hold)

    def _wait_by(self, hold: settings.Hold | None) -> None:
        queue = self.queue
        if queue is None:
            self.queue = None if hold is None else Hold(hold.requests, hold.tokens, hold.patience_s)
        elif hold is not None:
            queue.requests_max, queue.tokens_max = hold.requests, hold.tokens
            queue.patience_s = hold.patience_s
            if queue.length:
                self.worker.pump_soon(self)
        else:
            self.pump()
            self.queue = None
            for waiting in queue.expired(math.inf):  # nobody would look after them any more
                waiting.gave_up_waiting()

    def gone(self) -> None:
        """It is not served any more. What runs goes on."""
        self.change(msgspec.structs.replace(self.settings, upstreams=(), leaving=None, hold=None, probe=""))

    @property
    def empty(self) -> bool:
        return not self.settings.upstreams

    @property
    def waiting(self) -> int:
        return self.queue.length if self.queue is not None else 0

    @property
    def stall_s(self) -> float:
        return min(self.settings.stall_s, self.tries.stall_after_s())

    # whom to ask

    def pick(self, exchange: "Exchange", now: float, *, patient: bool = False) -> Replica | None:
        return self.pool.pick(
            exchange.cost,
            exchange.prefix,
            exchange.down.session.decode("latin1"),
            now,
            self.worker.draw,
            exchange.excluded or NOBODY,
            patient=patient,
        )

    def may_retry(self, now: float) -> bool:
        if self.tries.may_retry(now):
            self.retries += 1
            return True
        return False

    def may_hedge(self, waited_s: float, now: float) -> bool:
        saturation = self.pool.saturation()
        return waited_s > self.tries.hedge_after_s(saturation) and self.tries.may_hedge(saturation, now)

    # how it went

    def began(self, after_s: float) -> None:
        self.tries.first_token.note(after_s)
        self.first_tokens.note(after_s)

    def went_on(self, after_s: float) -> None:
        self.gaps.note(after_s)
        if self.gaps.noted % NOTE_EVERY == 0:
            self.tries.gaps.note(after_s)

    def answered(self, replica: Replica, status: int, now: float) -> None:
        if status < 500 and status != 429:
            self.pool.succeeded(replica, now)

    def turned_down(self, replica: Replica, up: Up, now: float) -> None:
        if up.status != 429:
            self.pool.failed(replica, now)
            return
        try:
            wait_s = max(0.0, float(up.retry_after))
        except ValueError:  # it does not say, or says a date
            wait_s = 0.0
        self.pool.pushed_back(replica, wait_s, now)

    def failed(self, replica: Replica, kind: str, now: float) -> None:
        if kind == "connect":
            self.pool.unreachable(replica, now)
        else:
            self.pool.failed(replica, now)

    def count(self, exchange: "Exchange", usage: Usage | None) -> None:
        self.requests += 1
        self.tries.request(self.worker.now())
        status = 499 if exchange.left_early else exchange.status
        self.by_status[status] = self.by_status.get(status, 0) + 1
        if usage is not None:
            self.prompt_tokens += usage.prompt
            self.completion_tokens += usage.completion

    # who waits

    def held(self, exchange: "Exchange", now: float) -> bool:
        if self.queue is None or not self.queue.add(exchange, exchange.key.id, exchange.cost, now):
            return False
        self.worker.wants(self)
        return True

    def unheld(self, exchange: "Exchange") -> None:
        if self.queue is not None:
            self.queue.drop(exchange)

    def pump(self) -> None:
        """Those who wait, in their turn, as long as there is room."""
        queue = self.queue
        if queue is None:
            return
        now = self.worker.now()
        for late in queue.expired(now):
            late.gave_up_waiting()
        while True:
            exchange = queue.next(now)
            if exchange is None:
                return
            if not exchange.wake():
                queue.add(exchange, exchange.key.id, exchange.cost, exchange.held_since)
                return

    def busy(self) -> int:
        """Requests that replicas work on."""
        return sum(replica.streams for replica in (*self.pool.replicas.values(), *self.pool.leaving))


def target_of(upstream: settings.Upstream) -> Target:
    authorization = (
        f"authorization: Bearer {upstream.credential}\r\n".encode() if upstream.credential else b""
    )
    if upstream.url.startswith("unix:"):
        return Target(b"localhost", b"", authorization, upstream.url.removeprefix("unix:"))
    parts = urlsplit(upstream.url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = parts.path.rstrip("/").removesuffix("/v1")  # what clients ask for begins with it
    tls = host if parts.scheme == "https" else ""
    return Target(parts.netloc.rpartition("@")[2].encode(), path.encode(), authorization, (host, port), tls)
