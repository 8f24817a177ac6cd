"""A service as a simulated gateway sees it: its replicas, who waits for them, and how it goes.

The pool, the hold and the budgets for tries are the real ones. What is here beside them is what a gateway's
shell has: idle connections, counters, and words about what changed.
"""

from typing import TYPE_CHECKING

from holdfast.core.gateway.hold import Hold
from holdfast.core.gateway.picker import Pool
from holdfast.core.gateway.replicas import Replica, ReplicaSpec
from holdfast.core.gateway.tries import Tries
from holdfast.model.units import SECOND, Instant, Millis
from holdfast.wire.gateway import ServiceLoad

if TYPE_CHECKING:
    from holdfast.sim.exchange import Exchange
    from holdfast.sim.front import Front

HELD_TOKENS = 10_000_000


class Fronted:
    def __init__(self, name: str, front: "Front") -> None:
        self.name, self.front = name, front
        traits = front.traits
        self.pool = Pool(name)
        self.tries = Tries(front.now_s)
        self.queue: Hold[Exchange] = Hold(traits.held, HELD_TOKENS, traits.patience_ms / SECOND)
        self.empty = True
        self.hedged = 0
        self.requests = self.tokens = self.begun = self.begun_ms = 0  # since the last count
        self._rates = (0.0, 0.0, 0.0)
        self._idle: dict[str, int] = {}  # connections, by replica

    def told(self, specs: tuple[ReplicaSpec, ...]) -> None:
        """The replicas that there are now."""
        self.pool.set_replicas(specs, self.front.now_s)
        self.empty = not specs
        known = {spec.id for spec in specs}
        for id in [id for id in self._idle if id not in known]:
            del self._idle[id]
        if self.waiting:
            self.front.pump_soon(self)

    @property
    def waiting(self) -> int:
        return self.queue.length

    @property
    def stall_ms(self) -> Millis:
        return min(self.front.traits.stall_ms, int(self.tries.stall_after_s() * SECOND))

    # whom to ask

    def pick(self, exchange: "Exchange", now: Instant, *, patient: bool = False) -> Replica | None:
        want = exchange.want
        draw, excluded = self.front.random.random, exchange.excluded
        return self.pool.pick(exchange.tokens, want.prefix, "", now / SECOND, draw, excluded, patient=patient)

    def may_hedge(self, waited_ms: Millis, now: Instant) -> bool:
        saturation = self.pool.saturation()
        late = waited_ms / SECOND > self.tries.hedge_after_s(saturation)
        return late and self.tries.may_hedge(saturation, now / SECOND)

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

    def answered(self, replica: Replica, after_ms: Millis) -> None:
        self.begun += 1
        self.begun_ms += after_ms
        self.tries.first_token.note(after_ms / SECOND)
        was_out = replica.health.ejected
        self.pool.succeeded(replica, self.front.now_s)
        if was_out and not replica.health.ejected:
            self.front.traffic.teller.readmitted(self, replica)

    def went(self, replica: Replica, tokens: int, took_s: float, gap_s: float) -> None:
        self.tries.gaps.note(gap_s)
        self.pool.learn_speed(replica, tokens, took_s, self.front.now_s)

    def failed(self, replica: Replica, kind: str, now: Instant) -> None:
        was_out = replica.health.ejected
        if kind == "connect":
            self.pool.unreachable(replica, now / SECOND)
        else:
            self.pool.failed(replica, now / SECOND)
        if replica.health.ejected and not was_out:
            self.front.traffic.teller.ejected(self, replica, kind)

    def asked_again(self, replica: Replica) -> None:
        self.front.traffic.teller.failed(self, replica, cut=False)

    def cut(self, replica: Replica) -> None:
        self.front.traffic.teller.failed(self, replica, cut=True)

    # who waits

    def held(self, exchange: "Exchange", since: Instant) -> bool:
        first = not self.waiting
        if not self.queue.add(exchange, exchange.want.key.id, exchange.tokens, since / SECOND):
            return False
        if first:
            self.front.traffic.teller.waits(self)
            self.front.tell_soon()
        return True

    def unheld(self, exchange: "Exchange") -> None:
        self.queue.drop(exchange)

    def woke(self, exchange: "Exchange", now: Instant) -> None:
        traffic = self.front.traffic
        traffic.checks.held_until(exchange, now)
        traffic.tallies[self.name].waited(now - exchange.held_since)

    def pump(self) -> None:
        """Those who wait, in their turn, as long as there is room."""
        now_s = self.front.now_s
        for late in self.queue.expired(now_s):
            late.gave_up_waiting()
        while True:
            exchange = self.queue.next(now_s)
            if exchange is None:
                return
            if not exchange.wake():
                self.queue.add(exchange, exchange.want.key.id, exchange.tokens, exchange.held_since / SECOND)
                return

    # what is told to the leader

    def count(self, passed_ms: Millis) -> None:
        """The rates since the last time."""
        passed_s, begun = passed_ms / SECOND, max(1, self.begun)
        self._rates = (self.requests / passed_s, self.tokens / passed_s, self.begun_ms / begun)
        self.requests = self.tokens = self.begun = self.begun_ms = 0

    def load(self) -> ServiceLoad:
        streams = sum(replica.streams for replica in (*self.pool.replicas.values(), *self.pool.leaving))
        oldest_ms = 1000 * self.queue.oldest_wait_s(self.front.now_s)
        return ServiceLoad(self.name, float(streams), float(self.waiting), oldest_ms, *self._rates)
