"""What has it cost, and may this be spent?

A node costs its price from the instant at which we ask for it until its provider confirms that it is gone. A
pool's account is kept by change: whenever a node comes, goes or changes its price, what the nodes cost up to
then is added up, exactly, in whole numbers. Between two changes the sum is one multiplication, so asking
costs the same for one node and for ten thousand. A request that surely had no effect is paid back.

Budgets are hard. A launch is refused if, with it, everything that is there would cost more an hour than may
be, or if the month's money would not last for it and all others for another `COMMIT_MS`: what is launched to
be ended at once helps nobody. When the money of the month comes to its end all the same, what costs something
is given notice in time (`pools`). Where both the fleet and the pool have a budget, both hold.

Refused: projecting the month from the present rate. Load comes and goes; a fleet that is large at noon on the
first would launch nothing for the rest of the month.
"""

from typing import Final

from msgspec.structs import replace

from holdfast.model.money import Account, Budget
from holdfast.model.policy import Policy
from holdfast.model.pool import Pool
from holdfast.model.units import DAY, HOUR, NEVER, Instant, MicroUsd, Millis, usd
from holdfast.model.world import World

COMMIT_MS: Final[Millis] = HOUR

# a calendar without a clock: days are counted from 1970-01-01, years begin in March, eras have 400 years
DAYS_BEFORE_1970: Final = 719_468
DAYS_IN_ERA: Final = 146_097


def month_start(at: Instant) -> Instant:
    """The first instant of the calendar month, by UTC."""
    days = at // DAY
    return (days - _day_of_month(days) + 1) * DAY


def month_end(at: Instant) -> Instant:
    """The first instant of the next one."""
    return month_start(month_start(at) + 32 * DAY)


def _day_of_month(days: int) -> int:
    of_era = (days + DAYS_BEFORE_1970) % DAYS_IN_ERA
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    return of_year - (153 * month + 2) // 5 + 1


def settled(account: Account, at: Instant) -> Account:
    """The account with everything added up to `at`."""
    passed = max(0, at - account.as_of)
    month = month_start(at)
    if month > account.month_from:
        in_month = account.rate_micro_usd * (at - max(month, account.as_of))
    else:
        in_month = account.spent_month + account.rate_micro_usd * passed
    return replace(
        account,
        as_of=max(at, account.as_of),
        month_from=max(month, account.month_from),
        spent_month=in_month,
        spent=account.spent + account.rate_micro_usd * passed,
    )


def changed(account: Account, at: Instant, by_micro_usd: MicroUsd) -> Account:
    """A node came, went, or costs more or less from now on."""
    account = settled(account, at)
    return replace(account, rate_micro_usd=account.rate_micro_usd + by_micro_usd)


def paid_back(account: Account, since: Instant, price_micro_usd: MicroUsd) -> Account:
    """What a node cost since then is taken back: it never was. The account is settled."""
    in_month = price_micro_usd * (account.as_of - max(since, account.month_from))
    return replace(
        account,
        spent_month=account.spent_month - in_month,
        spent=account.spent - price_micro_usd * (account.as_of - since),
    )


def spent_in_month(world: World, pools: tuple[str, ...], at: Instant) -> MicroUsd:
    """Rounded up: a budget is not overdrawn by a fraction."""
    parts = (settled(world.accounts[name], at).spent_month for name in pools if name in world.accounts)
    return -(-sum(parts) // HOUR)


def all_pools(world: World) -> tuple[str, ...]:
    """With those that are gone: what they cost was paid as well."""
    return tuple(dict.fromkeys((*world.pools, *world.accounts)))


def rate(world: World, pools: tuple[str, ...]) -> MicroUsd:
    """What all that is there costs an hour."""
    return sum(world.accounts[name].rate_micro_usd for name in pools if name in world.accounts)


def guard_ms(policy: Policy) -> Millis:
    """So long before the money is used up its nodes are told to go: a drain, and two tries to end them."""
    return policy.repair.drain_ms + 2 * policy.capacity.terminate_retry_ms


def due(world: World, pool: str, at: Instant) -> Instant:
    """When the budgets of a pool and of the fleet need a look though nothing happens."""
    both = ((world.policy.budget, all_pools(world)), (world.pools[pool].budget, (pool,)))
    if all(budget.month_micro_usd is None for budget, _ in both):
        return NEVER
    lasting = [Limit(world, "", *limit, at).lasts_ms() for limit in both]
    return min(month_end(at), at + max(0, min(lasting) - guard_ms(world.policy)))


class Limit:
    """One budget, the pools it is for, and what a plan in the making spends of it."""

    def __init__(self, world: World, what: str, budget: Budget, pools: tuple[str, ...], now: Instant) -> None:
        self.what, self.budget, self.pools, self.now = what, budget, pools, now
        self.rate, self.spent = rate(world, pools), spent_in_month(world, pools, now)

    def by_the_hour(self) -> MicroUsd:
        hour = self.budget.hour_micro_usd
        return NEVER if hour is None else max(0, hour - self.rate)

    def by_the_month(self) -> MicroUsd:
        month = self.budget.month_micro_usd
        return NEVER if month is None else max(0, (month - self.spent) * HOUR // COMMIT_MS - self.rate)

    def refuses(self, price_micro_usd: MicroUsd) -> str:
        """Why a node at this price may not be launched; empty: it may."""
        if price_micro_usd > self.by_the_hour():
            may = usd(self.budget.hour_micro_usd or 0)
            return f"{self.what} may cost {may}/h, and costs {usd(self.rate)}/h"
        if price_micro_usd > self.by_the_month():
            may = usd(self.budget.month_micro_usd or 0)
            return f"{self.what} may cost {may} a month, and has cost {usd(self.spent)}"
        return ""

    def used_up(self) -> str:
        return f"{self.what} may cost {usd(self.budget.month_micro_usd or 0)} a month, which is used up"

    def lasts_ms(self) -> Millis:
        """How long the month's money lasts if everything goes on as it is."""
        month = self.budget.month_micro_usd
        if month is None or not self.rate:
            return NEVER
        left_ms = (month - self.spent) * HOUR // self.rate
        return NEVER if self.now + left_ms >= month_end(self.now) else max(0, left_ms)


class Purse:
    """All budgets, in one turn: launches of the same plan see each other."""

    def __init__(self, world: World, now: Instant) -> None:
        self.world = world
        self.fleet = Limit(world, "the fleet", world.policy.budget, all_pools(world), now)
        self.pools = {
            name: Limit(world, f"pool {name}", pool.budget, (name,), now)
            for name, pool in world.pools.items()
        }

    def refuses(self, pool: Pool, price_micro_usd: MicroUsd) -> str:
        ceiling = pool.price_max_micro_usd
        if ceiling is not None and price_micro_usd > ceiling:
            return f"pool {pool.name} takes nothing above {usd(ceiling)}/h"
        return self.fleet.refuses(price_micro_usd) or self.pools[pool.name].refuses(price_micro_usd)

    def most(self, pool: Pool) -> MicroUsd:
        """The highest price of a node that may be launched. What costs nothing always may."""
        ceiling = NEVER if pool.price_max_micro_usd is None else pool.price_max_micro_usd
        limits = (self.fleet, self.pools[pool.name])
        return min(ceiling, *(min(limit.by_the_hour(), limit.by_the_month()) for limit in limits))

    def take(self, pool: str, price_micro_usd: MicroUsd) -> None:
        for limit in (self.fleet, self.pools[pool]):
            limit.rate += price_micro_usd
