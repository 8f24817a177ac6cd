"""Are the limits kept, and do the books agree with the bills? By what providers really have.

Checked whenever a machine comes into being: no pool has more than its maximum, nothing was asked for above
its price ceiling, and all that is there costs no more an hour than it may. Checked all the time: the bill of
the month. A spot machine counts at the lowest of what it was asked for, what it costs now and what its
provider last listed, because nobody is asked before a market becomes dearer, or told before the next list.

Checked at the end, from the journal alone and without the core's own sums:

- **The books are the spans, to the unit.** A node costs its price from the instant of the plan that asks for
  it until its provider's confirmation is journalled; a request that surely failed costs nothing. That there
  is no such machine confirms nothing while one that nobody has seen yet may still come. The sum of
  price times span is the account, exactly: both are whole numbers.
- **No machine lives outside its span.** It begins after it was asked for and ends before that is confirmed:
  so the bills are never above the books. The only exception are orphans, which began after they had been
  given up; they must be found and ended in the time of two lists, longer only while nobody can reach them.
- **The books are above the bills by answer times only.** When nothing is wrong with a provider or a control
  plane, the confirmation of a termination is in the journal within one and a half answer times (the slowest
  answer) and a second (a turn).

Where a control plane's clock was set, spans are not compared with what really was. A provider that lies about
what it has is not held to its maximum or budget either: nobody could know.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.cost import budgets as budget_rules
from holdfast.model import event as ev
from holdfast.model.action import LaunchNode, TerminateNode
from holdfast.model.market import key_of
from holdfast.model.money import Budget
from holdfast.model.plan import Plan
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import DAY, HOUR, MINUTE, NEVER, SECOND, Instant, MicroUsd, Millis, seconds, usd
from holdfast.model.world import World
from holdfast.sim.scenario.scenario import OF_SIGNALS, Fault
from holdfast.sim.twins.provider import Machine, SimProvider

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

LOOK_MS = 10 * SECOND  # at the bill of the month
HELPLESS_MS = 15 * MINUTE  # after trouble with a provider or a leader, money may have run out meanwhile
MONTH_MS = 31 * DAY  # stories begin in January
A_TURN_MS = SECOND
SURELY_FAILED = ("CapacityShort", "Denied", "Throttled")
LATE_MS = 5 * MINUTE  # after a launch was given up its machine may still come
REPEATED = "again."  # what a new leader asks for once more may have worked the first time

Launch = tuple[Pool, Offer]


class Span(msgspec.Struct):
    """A node in the books."""

    pool: str
    offer: str
    spot: bool
    price_micro_usd: MicroUsd
    opened: Instant
    settled: Instant = 0  # paid for up to then
    closed: Instant = NEVER
    cost: int = 0
    launching: bool = True
    seen: bool = False  # somebody said that it is there
    undone: bool = False

    def settle(self, at: Instant) -> None:
        self.cost += self.price_micro_usd * (at - self.settled)
        self.settled = at


class Ledger:
    def __init__(self, sim: "Simulation") -> None:
        self.sim, self.kernel = sim, sim.kernel
        self.pools = {setup.pool.name: setup.pool for setup in sim.scenario.pools}
        self.helpless_until: Instant = 0
        self.overdrawn: set[str] = set()
        self.told: set[str] = set()
        self.listed: dict[str, MicroUsd] = {}  # the price of each offer in the last list that had it
        for provider in sim.providers.values():
            provider.made = self.made
        budgets = [sim.scenario.policy.budget, *(pool.budget for pool in self.pools.values())]
        if any(budget.month_micro_usd is not None for budget in budgets):
            self.kernel.at(LOOK_MS, self.look)

    def _violated(self, what: str) -> None:
        if what not in self.told:
            self.told.add(what)
            self.sim.truth.violated(what)

    def _provider(self, pool: Pool) -> SimProvider:
        return self.sim.providers[pool.provider]

    # when a machine comes

    def made(self, machine: Machine) -> None:
        pool, price = self.pools[machine.pool], machine.request.price_micro_usd
        if pool.price_max_micro_usd is not None and price > pool.price_max_micro_usd:
            self._violated(f"{machine.id} was asked for at {usd(price)}, above the ceiling of {pool.name}")
        most = machine.request.price_max_micro_usd
        if most is not None and self._provider(pool).price_of(machine) > most:
            self._violated(f"{machine.id} costs more than the {usd(most)} that it was asked for at most")
        if any(provider.lies_until for provider in self.sim.providers.values()):
            return
        there = sum(m.pool == pool.name for m in self._provider(pool).machines.values())
        if there > pool.max:
            self._violated(f"{machine.id} is one of {there} in {pool.name}, which may have {pool.max}")
        self._within(machine, "the fleet", self.sim.scenario.policy.budget, tuple(self.pools.values()))
        self._within(machine, pool.name, pool.budget, (pool,))

    def _within(self, machine: Machine, what: str, budget: Budget, pools: tuple[Pool, ...]) -> None:
        if budget.hour_micro_usd is None or not machine.request.price_micro_usd:
            return
        rate = sum(self._rate(pool) for pool in pools)
        if rate > budget.hour_micro_usd:
            may = usd(budget.hour_micro_usd)
            self._violated(f"with {machine.id} {what} costs {usd(rate)} an hour, and may cost {may}")

    def _rate(self, pool: Pool) -> MicroUsd:
        provider = self._provider(pool)
        mine = [machine for machine in provider.machines.values() if machine.pool == pool.name]
        return sum(self._least(provider, machine) for machine in mine)

    def _least(self, provider: SimProvider, machine: Machine) -> MicroUsd:
        request, costs = machine.request, provider.price_of(machine)
        listed = self.listed.get(key_of(request.pool, request.offer), costs) if request.spot else costs
        return min(request.price_micro_usd, costs, listed)

    def journalled(self, entry: ev.OffersListed) -> None:
        """What a control plane knows of prices."""
        for offer in entry.offers or ():
            self.listed[key_of(entry.pool, offer.name)] = offer.price_micro_usd

    # the month

    def look(self) -> None:
        self.kernel.after(LOOK_MS, self.look)
        if self.sim.listening() is None or any(p.in_trouble() for p in self.sim.providers.values()):
            self.helpless_until = self.kernel.now + HELPLESS_MS
        if self.kernel.now >= MONTH_MS:
            return
        self._month("the fleet", self.sim.scenario.policy.budget, tuple(self.pools.values()))
        for pool in self.pools.values():
            self._month(pool.name, pool.budget, (pool,))

    def _month(self, what: str, budget: Budget, pools: tuple[Pool, ...]) -> None:
        """What cannot be ended goes on to cost; what costs more than was known may have cost too much."""
        dearer = any(setup.market is not None for setup in self.sim.scenario.pools)
        dearer |= any(provider.spikes for provider in self.sim.providers.values())
        if budget.month_micro_usd is None or dearer or not all(pool.can_terminate for pool in pools):
            return
        bill = sum(self._provider(pool).bill(pool.name).micro_usd for pool in pools)
        if bill > budget.month_micro_usd and what not in self.overdrawn:
            self.overdrawn.add(what)
            if self.kernel.now >= self.helpless_until:
                self._violated(f"{what} costs more a month than {usd(budget.month_micro_usd)}")

    # the books, at the end

    def audit(self, world: World) -> None:
        books = Books(self.pools, self.sim.scenario.policy.capacity.launch_timeout_ms + LATE_MS)
        for entry in self.sim.store.entries:
            books.note(entry)
        for name, account in world.accounts.items():
            mine = [span for span in books.spans if span.pool == name and not span.undone]
            for span in mine:
                span.settle(min(span.closed, account.as_of))
            if account.spent != sum(span.cost for span in mine):
                ours = usd(sum(span.cost for span in mine) // HOUR)
                self._violated(f"the books of {name} say {usd(account.spent // HOUR)}, its nodes cost {ours}")
        if not any(trouble.fault is Fault.CLOCK_JUMP for trouble in self.sim.scenario.troubles):
            for provider in self.sim.providers.values():
                for machine, until, asked in _lives(provider):
                    self._compare(books, provider, machine, until, asked)

    def _compare(
        self, books: "Books", provider: SimProvider, machine: Machine, until: Instant, asked: bool
    ) -> None:
        span = books.last.get(machine.id)
        if span is None or machine.since < span.opened:
            self._violated(f"{machine.id} began before it was asked for")
        elif span.undone and machine.since < span.closed:
            self._violated(f"{machine.id} is there, and its launch was taken to have failed")
        elif until > span.closed:
            self._off_the_books(machine, until - max(machine.since, span.closed))
        elif asked and span.closed < NEVER and self._is_calm():
            lag, most = span.closed - until, provider.traits.answer_ms * 3 // 2 + A_TURN_MS
            if lag > most:
                self._violated(f"{machine.id} was paid for {seconds(lag)} after its end")

    def _off_the_books(self, machine: Machine, ms: Millis) -> None:
        trouble = sum(t.lasts_ms * t.times for t in self.sim.scenario.troubles)
        if ms > 2 * self.sim.scenario.policy.capacity.list_every_ms + MINUTE + trouble:
            self._violated(f"{machine.id} cost money off the books for {seconds(ms)}")

    def _is_calm(self) -> bool:
        return all(trouble.fault in OF_SIGNALS for trouble in self.sim.scenario.troubles)


def may_be_paid(
    sim: "Simulation", world: World, pool: Pool, offer: Offer, chosen: Sequence[Launch], now: Instant
) -> bool:
    """Would one more be within the ceiling and the budgets, beside what else is to be launched?"""
    if pool.price_max_micro_usd is not None and offer.price_micro_usd > pool.price_max_micro_usd:
        return False
    pools = tuple(
        setup.pool for setup in sim.scenario.pools
    )  # those that were deleted have cost something too
    limits = ((sim.scenario.policy.budget, pools), (pool.budget, (pool,)))
    new = [*chosen, (pool, offer)]
    return not offer.price_micro_usd or all(_has_room(world, *limit, new, now) for limit in limits)


def _has_room(
    world: World, budget: Budget, pools: tuple[Pool, ...], new: Sequence[Launch], now: Instant
) -> bool:
    """An hour of everything must be left of the month, by the books: `audit` has found them right. They are
    above the bills where spot became cheaper and its provider lists no prices."""
    names = {pool.name for pool in pools}
    nodes = [world.nodes[name] for pool in pools for name in world.in_pool.get(pool.name, ())]
    rate = sum(node.price_micro_usd for node in nodes)
    rate += sum(offer.price_micro_usd for pool, offer in new if pool.name in names)
    if budget.hour_micro_usd is not None and rate > budget.hour_micro_usd:
        return False
    spent = budget_rules.spent_in_month(world, tuple(names), now)
    return budget.month_micro_usd is None or spent + rate <= budget.month_micro_usd


def _lives(provider: SimProvider) -> Iterator[tuple[Machine, Instant, bool]]:
    """Every machine there ever was, until when, and whether it was terminated."""
    yield from ((past.machine, past.until, past.asked) for past in provider.past)
    yield from ((machine, provider.kernel.now, False) for machine in provider.machines.values())


class Books:
    """The journal read once more, for money alone."""

    def __init__(self, pools: dict[str, Pool], late_ms: Millis) -> None:
        """`late_ms`: a machine that nobody has seen yet may come so long after it was asked for."""
        self.pools, self.late_ms = pools, late_ms
        self.offers: dict[str, tuple[Offer, ...]] = {name: pool.offers for name, pool in pools.items()}
        self.spans: list[Span] = []
        self.last: dict[str, Span] = {}  # by node
        self.open: dict[str, Span] = {}

    def note(self, entry: ev.Event | Plan) -> None:
        match entry:
            case Plan(at=at, actions=actions):
                for action in actions:
                    self._decided(action, at)
            case ev.NodeJoined(node=node, pool=pool, offer=offer) if node not in self.open and pool:
                found = next((o for o in self.offers[pool] if o.name == offer), None)
                price, spot = (found.price_micro_usd, found.spot) if found else (0, False)
                self._begin(node, Span(pool, offer, spot, price, entry.at, launching=False, seen=True))
            case ev.NodeJoined(node=node) | ev.NodeLaunched(node=node):
                self._seen(node)
            case ev.PoolListed(nodes=nodes):
                for node in nodes:
                    self._seen(node)
            case ev.NodeTerminated(node=node, found=found) if node in self.open:
                span = self.open[node]
                if found or span.seen or entry.at >= span.opened + self.late_ms:
                    self._end(node, entry.at)
            case ev.ActionFailed(node=node, error=error, action=action) if node in self.open:
                repeated = action.startswith(REPEATED) and error != "CapacityShort"
                if error in SURELY_FAILED and self.open[node].launching and not repeated:
                    self.open[node].undone = True
                    self._end(node, entry.at)
            case ev.LeaderChanged(stepped_ms=ms) if ms:
                self._stepped(ms, entry.at)
            case ev.OffersListed(pool=pool, offers=offers) if offers is not None:
                self._listed(pool, offers, entry.at)
            case _:
                pass

    def _decided(self, action: object, at: Instant) -> None:
        match action:
            case LaunchNode(node=node, pool=pool, offer=offer, spot=spot, price_micro_usd=price):
                self._begin(node, Span(pool, offer, spot, price, at))
            case TerminateNode(node=node) if node in self.open:
                self.open[node].launching = False
            case _:
                pass

    def _seen(self, node: str) -> None:
        if node in self.open:
            self.open[node].launching, self.open[node].seen = False, True

    def _begin(self, node: str, span: Span) -> None:
        span.settled = span.opened
        self.spans.append(span)
        self.last[node] = self.open[node] = span

    def _end(self, node: str, at: Instant) -> None:
        span = self.open.pop(node)
        span.settle(at)
        span.closed = at

    def _stepped(self, ms: Millis, at: Instant) -> None:
        """A clock was set forward: that is no time, and costs nothing."""
        for span in self.open.values():
            span.settled = min(span.settled + ms, at)
            if not span.seen:
                span.opened = min(span.opened + ms, at)

    def _listed(self, pool: str, offers: tuple[Offer, ...], at: Instant) -> None:
        """Spot costs what it costs now, if that is known. What is still being asked for keeps the price at
        which it was asked for, so that it can be paid back to the unit."""
        if not self.pools[pool].lists_offers:
            return
        self.offers[pool] = offers
        prices = {offer.name: offer.price_micro_usd for offer in offers if offer.spot}
        for span in self.open.values():
            if span.pool == pool and span.spot and not span.launching and span.offer in prices:
                span.settle(at)
                span.price_micro_usd = prices[span.offer]
