"""What does the fleet cost, what has it cost, and how long does the money last?

Everything is read off the accounts and the budgets (`budgets`); nothing is counted here. A pool that is gone
keeps its account, and what it cost stays in the sums of the fleet.

What the same nodes would cost on demand is asked of the offers: the cheapest on demand of the same pool with
the same capacity, in the same zone if there is one. It is said of the nodes that there are now. Refused:
saying it of the whole past. Nobody knows what on demand cost in hours in which nobody looked.
"""

from collections.abc import Iterator

import msgspec

from holdfast.core.cost import budgets
from holdfast.core.cost.budgets import Limit
from holdfast.model.money import Account, Budget
from holdfast.model.node import Node
from holdfast.model.units import DAY, HOUR, NEVER, Instant, MicroUsd, Millis, many, seconds, usd
from holdfast.model.world import World

FLEET = ""


class Spend(msgspec.Struct, frozen=True):
    """Of one pool, or of the fleet."""

    pool: str  # empty: the fleet
    nodes: int
    rate_micro_usd: MicroUsd  # an hour, now
    month_micro_usd: MicroUsd  # this calendar month so far
    ever_micro_usd: MicroUsd
    budget: Budget
    lasts_ms: Millis | None = None  # how long the month's money lasts; None: beyond the month, or no budget
    on_demand_micro_usd: MicroUsd | None = None  # the same nodes, an hour; None: not known, or none is spot


def report(world: World, now: Instant) -> list[Spend]:
    """The fleet first, then every pool."""
    return [fleet(world, now), *(of_pool(world, name, now) for name in budgets.all_pools(world))]


def fleet(world: World, now: Instant) -> Spend:
    return _spend(world, FLEET, budgets.all_pools(world), world.policy.budget, now)


def of_pool(world: World, name: str, now: Instant) -> Spend:
    pool = world.pools.get(name)
    return _spend(world, name, (name,), pool.budget if pool is not None else Budget(), now)


def _spend(world: World, name: str, pools: tuple[str, ...], budget: Budget, now: Instant) -> Spend:
    accounts = [budgets.settled(world.accounts.get(pool, Account(pool, as_of=now)), now) for pool in pools]
    nodes = [world.nodes[node] for pool in pools for node in world.in_pool.get(pool, ())]
    lasts = Limit(world, "", budget, pools, now).lasts_ms()
    return Spend(
        pool=name,
        nodes=len(nodes),
        rate_micro_usd=budgets.rate(world, pools),
        month_micro_usd=budgets.spent_in_month(world, pools, now),
        ever_micro_usd=-(-sum(account.spent for account in accounts) // HOUR),
        budget=budget,
        lasts_ms=lasts if lasts < NEVER else None,
        on_demand_micro_usd=_on_demand(world, nodes),
    )


def _on_demand(world: World, nodes: list[Node]) -> MicroUsd | None:
    """None: no node is spot, or of one nobody knows what it would cost."""
    if not any(node.spot for node in nodes):
        return None
    prices = [on_demand_price(world, node) if node.spot else node.price_micro_usd for node in nodes]
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


def on_demand_price(world: World, node: Node) -> MicroUsd | None:
    same = [
        offer
        for offer in world.offers.get(node.pool, ())
        if not offer.spot and offer.price_micro_usd and offer.capacity == node.capacity
    ]
    near = [offer for offer in same if offer.place.zone == node.place.zone]
    return min((offer.price_micro_usd for offer in near or same), default=None)


# in words


def tell(of: Spend, now: Instant) -> Iterator[str]:
    """Of its budgets and what they come to; nothing if there are none."""
    who = f"pool {of.pool}" if of.pool else "the fleet"
    budget = of.budget
    if budget.hour_micro_usd is not None:
        yield f"{who} may cost {usd(budget.hour_micro_usd)}/h and costs {usd(of.rate_micro_usd)}/h"
    if budget.month_micro_usd is not None:
        spent = f"has cost {usd(of.month_micro_usd)} of it"
        yield f"{who} may cost {usd(budget.month_micro_usd)} a month and {spent}: {lasting(of, now)}"


def lasting(of: Spend, now: Instant) -> str:
    """How long the month's money lasts."""
    if of.budget.month_micro_usd is None:
        return ""
    if of.lasts_ms == 0:
        return "it is used up"
    if of.lasts_ms is not None:
        return f"as it goes it lasts {_long(of.lasts_ms)}"
    return f"it lasts until the month ends in {_long(budgets.month_end(now) - now)}"


def _long(ms: Millis) -> str:
    return many(ms // DAY, "day") if ms >= 2 * DAY else seconds(ms)


def tell_pool(world: World, name: str, now: Instant) -> Iterator[str]:
    """What a pool costs, its ceiling, and the budgets that hold for it."""
    of, ceiling = of_pool(world, name, now), world.pools[name].price_max_micro_usd
    if of.rate_micro_usd or of.ever_micro_usd:
        month, ever = usd(of.month_micro_usd), usd(of.ever_micro_usd)
        yield f"it costs {usd(of.rate_micro_usd)}/h now, {month} this month, {ever} since ever"
    if ceiling is not None:
        yield f"offers above {usd(ceiling)}/h are left alone"
    yield from tell(of, now)
    yield from tell(fleet(world, now), now)
