"""A service as a worker sees it: its replicas, who waits for them, and how it goes."""

import math
import zlib
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.gateway.request.service import Served
from holdfast.core.gateway.routing.balancer import NOBODY, Pool
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.fair_queue import Hold
from holdfast.core.gateway.routing.retry_budget import Spread, Tries
from holdfast.core.gateway.routing.updates import ReplicaSpec
from holdfast.gateway.settings import Hold as HoldSettings
from holdfast.gateway.settings import Service as ServiceSettings
from holdfast.gateway.shapes import Usage
from holdfast.gateway.target import Target, target_of
from holdfast.gateway.up import close_idle

if TYPE_CHECKING:
    from holdfast.gateway.exchange import Exchange
    from holdfast.gateway.worker import Worker

NOTE_EVERY = 8  # gaps between events: some say what is usual


class OfModel:
    """What is counted of one model, for metrics: it only grows."""

    __slots__ = ("by_status", "completion_tokens", "first_tokens", "gaps", "name", "prompt_tokens")

    def __init__(self, name: str) -> None:
        self.name = name
        self.first_tokens, self.gaps = Spread(forgets=False), Spread(forgets=False)
        self.prompt_tokens = self.completion_tokens = 0
        self.by_status: dict[int, int] = {}


class Service(Served[ServiceSettings]):
    def __init__(self, wanted: ServiceSettings, worker: "Worker") -> None:
        self.worker = worker
        self.name = wanted.name
        self.hash = zlib.crc32(wanted.name.encode())
        self.pool = Pool(wanted.name)
        self.targets: dict[str, Target] = {}
        self.tries = Tries(worker.now())
        self.waits = Spread(forgets=False)
        self.requests = 0
        self.models: dict[str, OfModel] = {}
        self.change(wanted)

    def change(self, wanted: ServiceSettings) -> None:
        """New settings, or other replicas. What runs goes on."""
        self.settings = wanted
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
        self.set_replicas(specs, wanted.leaving, self.worker.now())
        for replica in before:
            if replica.draining:
                close_idle(replica)
        for replica in self.pool.replicas.values():
            if replica.connection_pool is None:
                replica.connection_pool = []
        staying = {spec.id for spec in specs} | {each.id for each in (*before, *self.pool.leaving)}
        self.targets = {id: target for id, target in self.targets.items() if id in staying}
        self._wait_by(wanted.hold)

    def _wait_by(self, hold: HoldSettings | None) -> None:
        queue = self.queue
        if queue is None:
            self.queue = None if hold is None else Hold(hold.requests, hold.tokens, hold.patience_s)
        elif hold is not None:
            queue.requests_max, queue.tokens_max = hold.requests, float(hold.tokens)
            queue.patience_s = hold.patience_s
            if queue.length:
                self.pump_soon()
        else:
            self.pump(self.worker.now())
            self.queue = None
            for waiting in queue.expired(math.inf):  # nobody would look after them any more
                waiting.gave_up_waiting(self.worker.now())

    def gone(self) -> None:
        """It is not served any more. What runs goes on."""
        self.change(msgspec.structs.replace(self.settings, upstreams=(), leaving=None, hold=None, probe=""))

    @property
    def empty(self) -> bool:
        return not self.settings.upstreams

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

    # how it went

    def of(self, model: str) -> OfModel:
        """Its counters, by the name that stands in the file: whoever asks cannot make more of them."""
        found = self.models.get(model)
        if found is None:
            named = self.settings.models
            if model and model not in named:
                starts = [each for each in named if each.endswith("*") and model.startswith(each[:-1])]
                model = max(starts, key=len, default="")
            found = self.models.setdefault(model, OfModel(model))
        return found

    def began(self, of: OfModel, after_s: float) -> None:
        self.tries.first_token.note(after_s)
        of.first_tokens.note(after_s)

    def went_on(self, of: OfModel, after_s: float) -> None:
        of.gaps.note(after_s)
        if of.gaps.noted % NOTE_EVERY == 0:
            self.tries.gaps.note(after_s)

    def answered(self, replica: Replica, status: int, now: float) -> None:
        if status < 500 and status != 429:
            self.pool.succeeded(replica, now)

    def count(self, exchange: "Exchange", usage: Usage | None) -> None:
        self.requests += 1
        status = 499 if exchange.left_early else exchange.status
        of = exchange.of
        assert of is not None  # known since its service is
        of.by_status[status] = of.by_status.get(status, 0) + 1
        if usage is not None:
            of.prompt_tokens += usage.prompt
            of.completion_tokens += usage.completion

    # who waits

    def wanted(self) -> None:
        self.worker.wants(self)

    def woke(self, waited_s: float) -> None:
        self.waits.note(waited_s)

    def pump_soon(self) -> None:
        self.worker.pump_soon(self)

    def busy(self) -> int:
        """Requests that replicas work on."""
        return sum(replica.streams for replica in (*self.pool.replicas.values(), *self.pool.leaving))
