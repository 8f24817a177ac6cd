"""A provider's twin: boots, fails, runs out, tells the truth late or not at all.

Calls take effect at once and answer later; the delay between is the caller's (`control`) business. Only while
it is late do they take effect after the caller has given up.

A pool may have a market (`market`): then what can be had, and at which price, is what its trace says.
"""

import random
from collections.abc import Callable
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from holdfast.adapters.providers.settings import Settings
from holdfast.model.action import LaunchNode
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import HOUR, NEVER, SECOND, Instant, MicroUsd, Millis
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, NotFound, OutcomeUnknown, Throttled, Unreachable
from holdfast.sim.event_queue import Kernel
from holdfast.sim.scenario.market import NOTHING_KNOWN, Market, Track

THROTTLED_MS = 20 * SECOND
GIVE_UP_MS = 60 * SECOND  # a caller does not wait longer for an answer
LATE_MS = 90 * SECOND  # a late provider does what it was asked after this
FIRST_LOOK_MS = 1 * SECOND  # at the market, when the machines that were there before are known


class ProviderTraits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a simulated provider behaves."""

    boot_ms: Millis = 40 * SECOND
    boot_spread: float = 0.25  # of boot_ms, both ways
    answer_ms: Millis = 300  # how long an API call takes
    capacity: int = 10_000  # nodes it can have in all
    launch_fails: float = 0.0  # share of launches refused for lack of capacity
    never_boots: float = 0.0  # share of launches that come to nothing
    notice_ms: Millis = 120 * SECOND  # warning before a spot node is taken
    queue_ms: Millis = 0  # a launch waits so long for its turn before it boots
    tells_start: bool = True  # and how long that will be


class Machine(msgspec.Struct):
    id: str
    pool: str
    request: LaunchNode
    since: Instant
    price_micro_usd: MicroUsd  # on demand it stays what it was at the launch
    running: bool = True  # False: stopped (crashed host that the provider noticed, or taken away)
    going: bool = False  # it got notice
    launched: bool = False  # it was asked for; others were there before the story begins


class Past(msgspec.Struct, frozen=True):
    """A machine that is gone."""

    machine: Machine
    until: Instant
    paid: int
    asked: bool  # it was terminated, not taken away or failed


class Spike(msgspec.Struct, frozen=True):
    since: Instant
    until: Instant
    factor: float


class Bill(msgspec.Struct, frozen=True):
    node_ms: Millis
    micro_usd: MicroUsd


class SimProvider:
    takes = Settings({})

    def __init__(self, name: str, traits: ProviderTraits, kernel: Kernel, seed: str) -> None:
        self.name, self.traits, self.kernel = name, traits, kernel
        self.random = random.Random(f"provider/{name}/{seed}")
        self.machines: dict[str, Machine] = {}
        self.terminated: dict[str, None] = {}
        self.past: list[Past] = []
        self.markets: dict[str, Market] = {}  # by pool
        self.spikes: list[Spike] = []
        self.noticed: Callable[[str], None] = self.take_later
        self.made: Callable[[Machine], None] = lambda machine: None
        self.booted: Callable[[LaunchNode], None] = lambda request: None
        self.ended: Callable[[str], None] = lambda node: None
        self.was_reset: Callable[[str], None] = lambda node: None
        self.outage_until: Instant = 0
        self.slow_until: Instant = 0
        self.lies_until: Instant = 0  # says running whatever is true, and forgets half of its list
        self.errors_until: Instant = 0  # does what it is asked and answers with an error
        self.short_until: Instant = 0  # nothing to be had
        self.throttles_until: Instant = 0
        self.denies_until: Instant = 0
        self.late_until: Instant = 0  # gives no answer, and does what it was asked much later
        self.vanish_until: Instant = 0  # offers what it has not
        self.fails_until: Instant = 0  # takes launches, and its machines end before they are up

    def answer_ms(self) -> Millis:
        if self.kernel.now < self.late_until:
            return GIVE_UP_MS
        slow = 100 if self.kernel.now < self.slow_until else 1
        return int(self.traits.answer_ms * slow * self.random.uniform(0.5, 1.5))

    async def launch(self, request: LaunchNode) -> None:
        self._reach()
        if request.node in self.machines or request.node in self.terminated:
            return
        none = self.kernel.now < self.vanish_until or not self.has(request.pool, request.offer)
        none = none or self._is_too_dear(request)
        if none or self.random.random() < self.traits.launch_fails:
            raise CapacityShort(f"{self.name} has no capacity for {request.offer}")
        if self.kernel.now < self.late_until:
            self.kernel.after(LATE_MS, self._make, request)
        else:
            self._make(request)
        self._answer_or_lie()

    def _is_too_dear(self, request: LaunchNode) -> bool:
        """Spot is asked for at a price at most, and the market may have moved since it was listed."""
        most = request.price_max_micro_usd
        price = self._price(request.pool, request.offer, request.price_micro_usd)
        return request.spot and most is not None and price > most

    def _make(self, request: LaunchNode) -> None:
        spent = request.node in self.machines or request.node in self.terminated
        if spent or self._is_too_dear(request):
            return
        self.adopt(request)
        self.machines[request.node].launched = True
        self.made(self.machines[request.node])
        if self.random.random() >= self.traits.never_boots:
            fails, queue = self.kernel.now < self.fails_until, self.traits.queue_ms
            self.kernel.after(queue + self._boot_ms(), self._fail if fails else self._boot, request)

    async def terminate(self, node: str) -> None:
        self._reach()
        if node not in self.machines:
            raise NotFound(f"{self.name} has no {node}")
        if self.kernel.now < self.late_until:
            self.kernel.after(LATE_MS, self._terminate, node)
        else:
            self._terminate(node)
        self._answer_or_lie()

    async def reset(self, node: str) -> None:
        self._reach()
        if node not in self.machines:
            raise NotFound(f"{self.name} has no {node}")
        self.was_reset(node)
        self.machines[node].running = True
        self.kernel.after(self._boot_ms(), self._boot, self.machines[node].request)
        self._answer_or_lie()

    async def state(self, node: str) -> Word:
        self._reach()
        if self.kernel.now < self.lies_until:
            return Word.RUNNING
        machine = self.machines.get(node)
        return Word.RUNNING if machine and machine.running else Word.STOPPED

    async def list(self, pool: str) -> tuple[str, ...]:
        self._reach()
        names = [name for name, machine in self.machines.items() if machine.pool == pool]
        return tuple(names[::2]) if self.kernel.now < self.lies_until else tuple(names)

    async def queued(self, pool: str) -> dict[str, Millis | None]:
        self._reach()
        ours = [machine for machine in self.machines.values() if machine.pool == pool and machine.launched]
        left = {machine.id: machine.since + self.traits.queue_ms - self.kernel.now for machine in ours}
        return {name: ms if self.traits.tells_start else None for name, ms in left.items() if ms > 0}

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        self._reach()
        return tuple(
            replace(offer, price_micro_usd=self._price(pool.name, offer.name, offer.price_micro_usd))
            for offer in pool.offers
            if self.has(pool.name, offer.name)
        )

    def _terminate(self, node: str) -> None:
        self.end(node, asked=True)

    def end(self, node: str, *, asked: bool = False) -> None:
        """The machine is gone, by our will or the market's."""
        machine = self.machines.pop(node, None)
        if machine is not None:
            self.past.append(Past(machine, self.kernel.now, self._paid(machine), asked))
            self.terminated[node] = None
            self.ended(node)

    def adopt(self, request: LaunchNode) -> None:
        """A machine that is there, whether it was launched or was there before the story begins."""
        price = self._price(request.pool, request.offer, request.price_micro_usd)
        self.machines[request.node] = Machine(request.node, request.pool, request, self.kernel.now, price)

    def _boot_ms(self) -> Millis:
        spread = self.traits.boot_spread
        return int(self.traits.boot_ms * self.random.uniform(1 - spread, 1 + spread))

    def _boot(self, request: LaunchNode) -> None:
        if request.node in self.machines:
            self.booted(request)

    def _fail(self, request: LaunchNode) -> None:
        self.end(request.node)

    # the market

    def follow(self, pool: str, market: Market) -> None:
        """From now on the pool's market goes by this."""
        self.markets[pool] = market
        self.kernel.after(FIRST_LOOK_MS, self._market_moves, pool)

    def _market_moves(self, pool: str) -> None:
        market = self.markets[pool]
        for offer, track in market.tracks.items():
            staying = [machine for machine in self._at(pool, offer) if not machine.going]
            spot = sorted((m for m in staying if m.request.spot), key=lambda m: (-m.since, m.id))
            for machine in spot[: max(0, len(staying) - track.left(self.kernel.now))]:
                machine.going = True
                self.noticed(machine.id)
        then = market.next_change(self.kernel.now)
        if then < NEVER:
            self.kernel.at(then, self._market_moves, pool)

    def take_later(self, node: str) -> None:
        """When the time of its notice is over."""
        self.kernel.after(self.traits.notice_ms, self.end, node)

    def _track(self, pool: str, offer: str) -> Track:
        return self.markets[pool].of(offer) if pool in self.markets else NOTHING_KNOWN

    def _at(self, pool: str, offer: str) -> tuple[Machine, ...]:
        return tuple(m for m in self.machines.values() if m.pool == pool and m.request.offer == offer)

    def has(self, pool: str, offer: str) -> bool:
        return self.left(pool, offer) > 0

    def left(self, pool: str, offer: str) -> int:
        """How many more of it can be had."""
        if self.kernel.now < self.short_until:
            return 0
        most = self.traits.capacity - len(self.machines)
        if pool not in self.markets:
            return most
        return min(most, self._track(pool, offer).left(self.kernel.now) - len(self._at(pool, offer)))

    def _price(self, pool: str, offer: str, otherwise: MicroUsd, at: Instant | None = None) -> MicroUsd:
        when = self.kernel.now if at is None else at
        price = self._track(pool, offer).price(when, otherwise)
        for spike in self.spikes:
            if spike.since <= when < spike.until:
                price = round(price * spike.factor)
        return price

    def _paid(self, machine: Machine) -> int:
        """What it has cost up to now, in micro-dollars times milliseconds: spot machines pay the price of the
        day."""
        since, now, request = machine.since, self.kernel.now, machine.request
        if not request.spot:
            return (now - since) * machine.price_micro_usd
        changes = {at for spike in self.spikes for at in (spike.since, spike.until)}
        changes.update(self._track(request.pool, request.offer).at)
        points = [since, *sorted(at for at in changes if since < at < now), now]
        return sum(
            (b - a) * self._price(request.pool, request.offer, request.price_micro_usd, a)
            for a, b in pairwise(points)
        )

    # how it answers

    def _reach(self) -> None:
        if self.kernel.now < self.outage_until:
            raise Unreachable(f"{self.name} does not answer")
        if self.kernel.now < self.throttles_until:
            raise Throttled(f"{self.name} gets too many requests", THROTTLED_MS)
        if self.kernel.now < self.denies_until:
            raise Denied(f"{self.name} does not let us in")

    def _answer_or_lie(self) -> None:
        if self.kernel.now < self.late_until:
            raise OutcomeUnknown(f"{self.name} gave no answer within {GIVE_UP_MS // SECOND} s")
        if self.kernel.now < self.errors_until:
            raise OutcomeUnknown(f"{self.name} answered with an internal error")

    def bill(self, pool: str = "") -> Bill:
        """What all machines have cost up to now, or those of a pool."""
        spans = [(past.until - past.machine.since, past.paid, past.machine.pool) for past in self.past]
        spans += [(self.kernel.now - m.since, self._paid(m), m.pool) for m in self.machines.values()]
        mine = [(ms, paid) for ms, paid, of in spans if pool in ("", of)]
        return Bill(sum(ms for ms, _ in mine), sum(paid for _, paid in mine) // HOUR)

    def price_of(self, machine: Machine) -> MicroUsd:
        """What it costs an hour now."""
        request = machine.request
        if not request.spot:
            return machine.price_micro_usd
        return self._price(request.pool, request.offer, request.price_micro_usd)

    def in_trouble(self) -> bool:
        """It may not do what it is asked, or not say so."""
        calls = max(self.outage_until, self.throttles_until, self.denies_until)
        answers = max(self.slow_until, self.lies_until, self.errors_until, self.late_until)
        return self.kernel.now < max(calls, answers)
