"""A provider's twin: boots, fails, runs out, tells the truth late or not at all.

Calls take effect at once and answer later; the delay between is the caller's (`control`) business.
"""

import random
from collections.abc import Callable

import msgspec

from holdfast.model.action import LaunchNode
from holdfast.model.units import HOUR, SECOND, Instant, MicroUsd, Millis
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, NotFound, OutcomeUnknown, Throttled, Unreachable
from holdfast.sim.kernel import Kernel

THROTTLED_MS = 20 * SECOND


class ProviderTraits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a simulated provider behaves."""

    boot_ms: Millis = 40 * SECOND
    boot_spread: float = 0.25  # of boot_ms, both ways
    answer_ms: Millis = 300  # how long an API call takes
    capacity: int = 10_000  # nodes it can have in all
    launch_fails: float = 0.0  # share of launches refused for lack of capacity
    never_boots: float = 0.0  # share of launches that come to nothing
    notice_ms: Millis = 120 * SECOND  # warning before a spot node is taken


class Machine(msgspec.Struct):
    id: str
    pool: str
    request: LaunchNode
    since: Instant
    running: bool = True  # False: stopped (crashed host that the provider noticed, or taken away)


class Bill(msgspec.Struct, frozen=True):
    node_ms: Millis
    micro_usd: MicroUsd


class SimProvider:
    def __init__(self, name: str, traits: ProviderTraits, kernel: Kernel, seed: str) -> None:
        self.name, self.traits, self.kernel = name, traits, kernel
        self.random = random.Random(f"provider/{name}/{seed}")
        self.machines: dict[str, Machine] = {}
        self.terminated: dict[str, None] = {}
        self.past: list[tuple[Millis, MicroUsd]] = []  # machines that are gone: how long, what price
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

    def answer_ms(self) -> Millis:
        slow = 100 if self.kernel.now < self.slow_until else 1
        return int(self.traits.answer_ms * slow * self.random.uniform(0.5, 1.5))

    async def launch(self, request: LaunchNode) -> None:
        self._reach()
        if request.node in self.machines or request.node in self.terminated:
            return
        full = len(self.machines) >= self.traits.capacity or self.kernel.now < self.short_until
        if full or self.random.random() < self.traits.launch_fails:
            raise CapacityShort(f"{self.name} has no capacity for {request.offer}")
        self.machines[request.node] = Machine(request.node, request.pool, request, self.kernel.now)
        if self.random.random() >= self.traits.never_boots:
            self.kernel.after(self._boot_ms(), self._boot, request)
        self._answer_or_lie()

    async def terminate(self, node: str) -> None:
        self._reach()
        if node not in self.machines:
            raise NotFound(f"{self.name} has no {node}")
        self.end(node)
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

    def end(self, node: str) -> None:
        """The machine is gone, by our will or the market's."""
        machine = self.machines.pop(node, None)
        if machine is not None:
            self.past.append((self.kernel.now - machine.since, machine.request.price_micro_usd))
            self.terminated[node] = None
            self.ended(node)

    def adopt(self, request: LaunchNode) -> None:
        """A machine that was there before the story begins."""
        self.machines[request.node] = Machine(request.node, request.pool, request, self.kernel.now)

    def _boot_ms(self) -> Millis:
        spread = self.traits.boot_spread
        return int(self.traits.boot_ms * self.random.uniform(1 - spread, 1 + spread))

    def _boot(self, request: LaunchNode) -> None:
        if request.node in self.machines:
            self.booted(request)

    def _reach(self) -> None:
        if self.kernel.now < self.outage_until:
            raise Unreachable(f"{self.name} does not answer")
        if self.kernel.now < self.throttles_until:
            raise Throttled(f"{self.name} gets too many requests", THROTTLED_MS)
        if self.kernel.now < self.denies_until:
            raise Denied(f"{self.name} does not let us in")

    def _answer_or_lie(self) -> None:
        if self.kernel.now < self.errors_until:
            raise OutcomeUnknown(f"{self.name} answered with an internal error")

    def bill(self) -> Bill:
        present = [(self.kernel.now - m.since, m.request.price_micro_usd) for m in self.machines.values()]
        spans = [*self.past, *present]
        return Bill(sum(ms for ms, _ in spans), sum(ms * price for ms, price in spans) // HOUR)
