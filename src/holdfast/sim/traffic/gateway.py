"""A simulated gateway: the real purse, estimator, pools, holds and budgets, over simulated links.

The twin of a gateway's worker and keeper in one. It may admit what it has borrowed of whoever leads; when
nobody answers, it spends its lease and then closes (or opens, if it is told to). It knows of replicas what it
was last told. It tells how it goes every few seconds, and at once when somebody begins to wait.
"""

import random
from typing import TYPE_CHECKING

from holdfast.core.gateway.quota.broker import Grants
from holdfast.core.gateway.quota.local_quota import Purse, Short
from holdfast.core.gateway.request.token_estimate import Estimator
from holdfast.model.gateway import scope_of_key
from holdfast.model.units import SECOND, Instant, Millis
from holdfast.sim.checks.traffic_checks import LOOK_MS
from holdfast.sim.scenario.scenario import GatewayTraits
from holdfast.sim.traffic.exchange import Exchange
from holdfast.sim.traffic.key_audit import KeyTwin
from holdfast.sim.traffic.requests import Want
from holdfast.sim.traffic.service import Fronted

if TYPE_CHECKING:
    from holdfast.sim.traffic.traffic import Traffic, View

BORROW_WITHIN_MS = 2 * SECOND  # as `gateway.worker` has it, with how often it looks
REPORT_LOOKS = 2
IDLE_MS = 15 * SECOND  # without a request for so long it rests, and its leases lapse: hours cost nothing then
LATE_LOOKS = 5  # hedges are a matter of milliseconds; else who is late is late by seconds
TELL_GAP_MS: Millis = 100


class Front:
    def __init__(self, traffic: "Traffic", name: str, life: int) -> None:
        self.traffic, self.name = traffic, name
        self.kernel, self.serving = traffic.sim.kernel, traffic.serving
        self.traits: GatewayTraits = traffic.traits
        self.purse: Purse = Purse(f"{name}.{life}", traffic.limits, self.now_s, opens=self.traits.fail_open)
        self.estimator: Estimator = Estimator()
        self.random = random.Random(f"{name}.{life}/{traffic.sim.seed}")
        self.services: dict[str, Fronted] = {}
        self.exchanges: dict[Exchange, None] = {}
        self.alive = True
        self.keys = KeyTwin(self)
        self.watching = False  # a view is on its way to it
        self.learned = 0
        self.seen: tuple[int, int] = (0, 0)  # of the view that it goes by; 0: none yet
        self.closed = False  # its lease is over, and nobody answers
        self._short: list[Exchange] = []
        self._borrowing: list[Exchange] = []
        self.postponed: list[Exchange] = []  # until a broker lends again
        self._wants: dict[str, list[float]] = {}
        self._asked_at: Instant = -1
        self._looking = False
        self._busy_at: Instant = self.now
        self._looks = 0
        self._told_at: Instant = self.now
        self._telling = False
        self._pumping: set[str] = set()
        if traffic.tells:
            self.tell()

    @property
    def now(self) -> Instant:
        return self.kernel.now

    @property
    def now_s(self) -> float:
        return self.kernel.now / SECOND

    @property
    def takes(self) -> bool:
        """Does it take connections? Not before it knows what it leads to."""
        return self.alive and self.seen > (0, 0)

    def waits_for(self, service: str) -> bool:
        return self.alive and service in self.services and self.services[service].waiting > 0

    def told(self, view: "View") -> None:
        if self.alive and view.number > self.seen:
            self.seen = view.number
            self.keys.told(view.keys)
            for name, (specs, leaving) in view.services.items():
                if name not in self.services:
                    self.services[name] = Fronted(name, self)
                self.services[name].told(specs, leaving)

    # requests

    def asked(self, service: str, want: Want) -> None:
        fronted = self.services[service]
        fronted.requests += 1
        exchange = Exchange(self, fronted, want, self.keys.known.get(want.key.id, want.key))
        self.exchanges[exchange] = None
        self._busy_at = self.now
        self._look_after()
        self.traffic.checks.served(exchange)
        if exchange.key.suspended:
            exchange.refuse("suspended", scope_of_key(exchange.key.id))
        else:
            exchange.lent()

    def ended(self, exchange: Exchange) -> None:
        del self.exchanges[exchange]
        if exchange.taking is not None:
            exchange.service.tokens += exchange.taking.used or 0
        self.traffic.ended(exchange)
        self.keys.saw(exchange)

    def die(self) -> None:
        self.alive = False
        self.keys.save()
        for exchange in list(self.exchanges):
            exchange.gone()
            self.traffic.ended(exchange)
        self.exchanges.clear()

    # quota that must be borrowed first

    def borrow(self, exchange: Exchange, short: Short) -> None:
        """One question at a time is on its way; what comes up meanwhile is asked together."""
        self._short.append(exchange)
        for name, amount in short.wants.items():
            self._wants.setdefault(name, []).append(amount)
        if self._asked_at < 0:
            self._ask(full=False)

    def _ask(self, *, full: bool) -> bool:
        wants = {name: self.purse.worth_asking(name, amounts) for name, amounts in self._wants.items()}
        self._wants.clear()
        self._borrowing, self._short = self._short, []
        ask = self.purse.ask(self.now_s, wants, full)
        if not ask.parts and not wants:
            return False
        self._asked_at = self.now
        self.traffic.borrow(self, ask)
        return True

    def granted(self, grants: Grants) -> None:
        if self.alive and self.purse.hear(grants, self.now_s):
            self._say_closed(closed=False)
            self._answered()

    def _answered(self) -> None:
        self._asked_at = -1
        waiting, self._borrowing = self._borrowing, []
        for exchange in waiting:
            exchange.lent()
        if (self._short or self.purse.hurries) and self._asked_at < 0:
            self._ask(full=self.purse.hurries)

    def report(self) -> None:
        if self._asked_at < 0:
            self._ask(full=True)

    def _say_closed(self, *, closed: bool) -> None:
        if self.closed != closed:
            self.closed = closed
            self.traffic.teller.closed(self, closed=closed)

    # now and then

    def _look_after(self) -> None:
        if not self._looking:
            self._looking = True
            self.kernel.after(LOOK_MS, self._look)

    def _look(self) -> None:
        if not self.alive:
            return
        now = self.now
        self._looks += 1
        if self.traits.hedge or self._looks % LATE_LOOKS == 0:
            for exchange in list(self.exchanges):
                exchange.look(self.now_s)
        for service in self.services.values():
            if service.waiting:
                service.pump(self.now_s)
                self.tell_soon()
        if 0 <= self._asked_at < now - BORROW_WITHIN_MS:
            self.purse.silent()
            self._say_closed(closed=True)
            self._answered()
        postponed, self.postponed = self.postponed, []
        for exchange in postponed:
            exchange.lent()
        if self.exchanges:
            self._busy_at = now
        if self._looks % REPORT_LOOKS == 0:
            self.report()
        self._looking = self._asked_at >= 0 or now - self._busy_at < IDLE_MS
        if self._looking:
            self.kernel.after(LOOK_MS, self._look)

    def pump_soon(self, service: Fronted) -> None:
        if service.name not in self._pumping:
            self._pumping.add(service.name)
            self.kernel.after(0, self._pump, service)

    def _pump(self, service: Fronted) -> None:
        self._pumping.discard(service.name)
        if self.alive:
            service.pump(self.now_s)

    # what is told to the leader

    def tell(self) -> None:
        if self.alive:
            every_ms = self.traffic.tell_ms
            self.kernel.after(every_ms, self.tell)
            for service in self.services.values():
                service.count(every_ms)
            self._tell()

    def tell_soon(self) -> None:
        if self.traffic.tells and not self._telling:
            self._telling = True
            self.kernel.at(self._told_at + TELL_GAP_MS, self._tell_now)

    def _tell_now(self) -> None:
        self._telling = False
        if self.alive:
            self._tell()

    def _tell(self) -> None:
        self._told_at = self.now
        self.traffic.hear(self, [service.load() for service in self.services.values()])
