"""A service as a simulated gateway sees it: its replicas, who waits for them, and how it goes.

How replicas, the hold and the budgets are used is `core.gateway.request.service`, as in the gateway that
serves. What is here beside that is what a gateway's shell has: idle connections, counters, and words about
what changed.
"""

from typing import TYPE_CHECKING, Any

from holdfast.core.gateway.request.lifecycle import Course
from holdfast.core.gateway.request.service import Served
from holdfast.core.gateway.routing.balancer import NOBODY, Pool
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.fair_queue import Hold
from holdfast.core.gateway.routing.retry_budget import Tries
from holdfast.core.gateway.routing.updates import ReplicaSpec
from holdfast.model.units import SECOND, Millis
from holdfast.sim.scenario.scenario import GatewayTraits
from holdfast.wire.gateway import ServiceLoad

if TYPE_CHECKING:
    from holdfast.sim.traffic.exchange import Exchange
    from holdfast.sim.traffic.gateway import Front

HELD_TOKENS = 10_000_000


class Fronted(Served[GatewayTraits]):
    def __init__(self, name: str, front: "Front") -> None:
        self.name, self.front = name, front
        traits = self.settings = front.traits
        self.pool = Pool(name)
        self.tries = Tries(front.now_s)
        self.queue: Hold[Course[Any, Any]] = Hold(traits.held, HELD_TOKENS, traits.patience_ms / SECOND)
        self.empty = True
        self.requests = self.tokens = self.begun = 0  # since the last count
        self.begun_s = 0.0
        self._rates = (0.0, 0.0, 0.0)
        self._idle: dict[str, int] = {}  # connections, by replica

    def told(self, specs: tuple[ReplicaSpec, ...], leaving: tuple[str, ...]) -> None:
        """The replicas that there are now, and those that end what they have begun."""
        self.set_replicas(specs, leaving, self.front.now_s)
        self.empty = not specs
        known = {spec.id for spec in specs}
        for id in [id for id in self._idle if id not in known]:
            del self._idle[id]
        if self.waiting:
            self.pump_soon()

    # whom to ask

    def pick(self, exchange: "Exchange", now: float, *, patient: bool = False) -> Replica | None:
        draw, excluded = self.front.random.random, exchange.excluded or NOBODY
        return self.pool.pick(exchange.cost, exchange.want.prefix, "", now, draw, excluded, patient=patient)

    def idle_connection(self, replica: Replica) -> bool:
        idle = self._idle.get(replica.id, 0)
        if idle:
            self._idle[replica.id] = idle - 1
        return idle > 0

    def keep_connection(self, replica: Replica) -> None:
        if not replica.draining:
            self._idle[replica.id] = self._idle.get(replica.id, 0) + 1

    def forget_connections(self, replica: str) -> None:
        self._idle.pop(replica, None)

    # how it went

    def began(self, after_s: float) -> None:
        self.begun += 1
        self.begun_s += after_s
        self.tries.first_token.note(after_s)

    def succeeded(self, replica: Replica) -> None:
        was_out = replica.health.ejected
        self.pool.succeeded(replica, self.front.now_s)
        if was_out and not replica.health.ejected:
            self.front.traffic.teller.readmitted(self, replica)

    def went(self, replica: Replica, tokens: int, took_s: float, gap_s: float) -> None:
        self.tries.gaps.note(gap_s)
        self.pool.learn_speed(replica, tokens, took_s, self.front.now_s)

    def failed(self, replica: Replica, kind: str, now: float) -> None:
        was_out = replica.health.ejected
        super().failed(replica, kind, now)
        if replica.health.ejected and not was_out:
            self.front.traffic.teller.ejected(self, replica, kind)

    def asked_again(self, replica: Replica) -> None:
        self.front.traffic.teller.failed(self, replica, cut=False)

    def cut(self, replica: Replica) -> None:
        self.front.traffic.teller.failed(self, replica, cut=True)

    # who waits

    def wanted(self) -> None:
        if self.waiting == 1:
            self.front.traffic.teller.waits(self)
            self.front.tell_soon()

    def woke(self, waited_s: float) -> None:
        self.front.traffic.tallies[self.name].waited(round(waited_s * SECOND))

    def pump_soon(self) -> None:
        self.front.pump_soon(self)

    # what is told to the leader

    def count(self, passed_ms: Millis) -> None:
        """The rates since the last time."""
        passed_s, begun = passed_ms / SECOND, max(1, self.begun)
        self._rates = (self.requests / passed_s, self.tokens / passed_s, SECOND * self.begun_s / begun)
        self.requests = self.tokens = self.begun = 0
        self.begun_s = 0.0

    def load(self) -> ServiceLoad:
        streams = sum(replica.streams for replica in (*self.pool.replicas.values(), *self.pool.leaving))
        oldest_ms = 1000 * self.queue.oldest_wait_s(self.front.now_s)
        return ServiceLoad(self.name, float(streams), float(self.waiting), oldest_ms, *self._rates)
