"""Where should a node be launched: which of the offers that suit costs least, all things counted?

The price is only the beginning. A launch may be refused or never come up: that costs time, and then the next
best is tried. A node may be taken away: that costs a restart and the work since the last checkpoint, paid at
its price. So the offers are ranked by the expected cost of a useful hour:

    price x (1 + losses expected x time lost by each / time wanted)
    + starts (the first, and one after each loss) x what the wait for each is worth / time wanted
    + the risk of standing where others of the same work stand already
    + a little for every share of that work which one failure domain would take down

where the wait for a start is the time to ready, plus the time lost by failing / the chance not to fail.

That last term is exact, not a rule of thumb: if offers are tried one after another until one comes up,
trying A before B is right if and only if A's cost with this term is the lower (exchange A and B in any order
of tries and compare; what comes after them cancels out). So the ranked list is the order of tries, and nobody
has to search through orders.

What is above the price ceiling, not allowed (spot), or in back-off of its own is left out, not penalised.
What must not go down together pays for company: the rate at which whole domains are lost, times what losing
company costs, for each one that stands there. A crowded domain is dear, not forbidden: `Spread.REQUIRE` is
the caller's mask.

That risk alone is a ten-thousandth of the price for each copy on demand. What an offer has shown of itself
(one zone has come up once, the others were never tried) is worth more than that, and at a price of 0 it is
nothing at all: all copies then stood in one zone. So the share of the copies that stand in a domain costs as
well: `APART_WORTH` of the price if all of them do. Offers whose costs differ by less than that share their
copies, the dearer the fewer; where they differ by more, the cheap one has them all. For two domains the
copies then cost at most an eighth of `APART_WORTH` more, on average, than in the cheapest place: 0.25 %. A
node that costs nothing, or next to nothing, is as dear to lose as one of `NODE_HOUR_MIN`. Refused: counting
copies instead of shares, for then a service of a hundred would pay any price to be even.

Two launches at a time (`hedge`) are worth it when the time that a failure of the first would cost, saved if
the second comes up, is worth more than paying both until one is ready. The second is in another domain: what
keeps the first from coming up is often shared. Never three: the gain of the third is a product of two
failures.

Where the numbers come from. `REFUSED_MS`: an API that has none says so in seconds; throttling and the next
turn make it a minute. `NEVER_UP_MS` is the default of `CapacityPolicy.boot_timeout_ms`: so long passes before
we know. `PAID_AT_LEAST_MS`: clouds bill a minute at least. `APART_WORTH` is chosen: ten times what knowing
one zone and not the other is worth, and nothing that shows on a bill. `NODE_HOUR_MIN`: the smallest machines
that are rented cost a cent or half of one. Domains are lost at the rate of
`reliability.rates`, spot offers also as often as their belief says that they go.

Refused: a bandit (upper confidence bounds, Thompson draws). A try costs real minutes of somebody's time, and
lists and siblings tell about offers that were never tried; and the core draws no lots.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
import numpy as np

from holdfast.core.market.offer_history import GRID
from holdfast.core.market.offers import (
    Bools,
    Ints,
    Outlook,
    domain_level,
    outlives,
    outlook,
)
from holdfast.model.offer_table import Table
from holdfast.model.place import Level
from holdfast.model.units import DAY, HOUR, MINUTE, NEVER, Instant, MicroUsd, Millis, seconds, usd
from holdfast.reliability import rates
from holdfast.reliability.onoff import Floats

REFUSED_MS: Final = 1 * MINUTE
NEVER_UP_MS: Final = 15 * MINUTE
PAID_AT_LEAST_MS: Final = 1 * MINUTE
CHANCE_MIN: Final = 1e-3
SURVIVAL_MIN: Final = 1e-9
APART_WORTH: Final = 0.02
NODE_HOUR_MIN: Final = 10_000  # micro-dollars
STEPS_PER_DECADE: Final = 24  # a tenth more or less is the same time wanted


class Ask(msgspec.Struct, frozen=True):
    """What is wanted of an offer, besides suiting."""

    wanted_ms: Millis = 1 * DAY  # how long; for what has no end, how far it is sensible to look ahead
    loss_ms: Millis = 10 * MINUTE  # what a loss costs in node-time: restart and work lost
    wait_micro_usd: MicroUsd = 0  # what a minute of waiting is worth
    price_max_micro_usd: MicroUsd = NEVER  # per hour
    spot: bool = True
    delisting_is_loss: bool = False  # on demand too: without the offer there is nothing to go on with
    spread_over: Level = Level.ZONE
    company: tuple[tuple[str, int], ...] = ()  # domains with how many others of the same work stand there
    company_ms: Millis = 0  # what losing another one at the same time costs, in node-time


class Candidate(NamedTuple):
    key: str
    row: int
    cost_micro_usd: int  # expected, of a useful hour
    price_micro_usd: int
    chance: float  # that a launch now comes up
    ready_ms: int
    outlives: float  # the chance to be there for as long as it is wanted
    lost_ms: int  # time that is expected to be lost by failing
    wanted_ms: Millis

    @property
    def why(self) -> str:
        parts = [
            f"{usd(self.price_micro_usd)} an hour",
            f"{_percent(self.chance)} to come up, in {seconds(self.ready_ms)}",
            f"{_percent(self.outlives)} to last {seconds(max(MINUTE, self.wanted_ms))}",
        ]
        return f"{', '.join(parts)}: {usd(self.cost_micro_usd)} a useful hour"


class Lasting(NamedTuple):
    """By row: the chance to outlive the time wanted, and how many losses are expected in it, each replaced by
    its like."""

    survive: Floats
    losses: Floats


class Prospects(NamedTuple):
    """By row: what is the same whoever asks."""

    open: Bools  # not in back-off
    lost_ms: Floats  # expected to be lost by failing
    delay_ms: Floats  # time to ready, and what is lost by failing before one that comes up


class Ranking:
    """The offers that may be tried, best first. Candidates are made when they are looked at, of what was
    expected at the instant of the ask."""

    def __init__(self, table: Table, ask: Ask, now: Instant, rows: Ints, cost: Ints) -> None:
        self.table, self.ask, self.rows, self._cost = table, ask, rows, cost
        self._expected, self._prospects = outlook(table, now), prospects(table, now)
        self._survive = lasting(table, ask, now).survive

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Candidate]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Candidate:
        row, expected = int(self.rows[number]), self._expected
        return Candidate(
            key=self.table.ids[row],
            row=row,
            cost_micro_usd=int(self._cost[number]),
            price_micro_usd=int(self.table.ints["price"][row]),
            chance=float(expected.chance[row]),
            ready_ms=round(float(expected.ready_ms[row])),
            outlives=float(self._survive[row]),
            lost_ms=round(float(self._prospects.lost_ms[row])),
            wanted_ms=self.ask.wanted_ms,
        )

    @cached_property
    def launches(self) -> tuple[Candidate, ...]:
        return _hedge(self)

    @property
    def keys(self) -> list[str]:
        return [self.table.ids[row] for row in self.rows.tolist()]


def rank(table: Table, ask: Ask, now: Instant, suiting: Bools) -> Ranking:
    """Of the rows that suit, those that may be tried now, in the order in which to try them."""
    memo, key = table.at(now), (ask, suiting.tobytes())
    found = memo.get(key)
    if not isinstance(found, Ranking):
        found = memo[key] = _rank(table, ask, now, suiting)
    return found


def _rank(table: Table, ask: Ask, now: Instant, suiting: Bools) -> Ranking:
    may = suiting & prospects(table, now).open
    if not ask.spot:
        may &= ~table.bools["spot"]
    if ask.price_max_micro_usd < NEVER:
        may &= table.ints["price"] <= ask.price_max_micro_usd
    rows = may.nonzero()[0]
    cost = np.rint(_cost(table, ask, now, rows)).astype(np.int64)
    order = np.lexsort((table.names[rows], cost))
    return Ranking(table, ask, now, rows[order], cost[order])


def prospects(table: Table, now: Instant) -> Prospects:
    memo = table.at(now)
    found = memo.get("prospects")
    if not isinstance(found, Prospects):
        expected = outlook(table, now)
        lost = (1 - expected.there) * REFUSED_MS + expected.there * (1 - expected.up) * NEVER_UP_MS
        delay = expected.ready_ms + lost / np.maximum(CHANCE_MIN, expected.chance)
        open_ = table.bools["used"] & (table.ints["retry_at"] <= now)
        found = memo["prospects"] = Prospects(open_, lost, delay)
    return found


def lasting(table: Table, ask: Ask, now: Instant) -> Lasting:
    """For the time wanted, rounded to a step of a fine scale so that a thousand workloads share the
    answers."""
    step = round(STEPS_PER_DECADE * math.log10(max(MINUTE, ask.wanted_ms)))
    memo, key = table.at(now), (step, ask.delisting_is_loss)
    found = memo.get(key)
    if not isinstance(found, Lasting):
        hours = 10 ** (step / STEPS_PER_DECADE) / HOUR
        survive = outlives(outlook(table, now), hours, table.bools["spot"] | ask.delisting_is_loss)
        found = memo[key] = Lasting(survive, -np.log(np.maximum(survive, SURVIVAL_MIN)))
    return found


def _cost(table: Table, ask: Ask, now: Instant, rows: Ints) -> Floats:
    """Of a useful hour, in micro-dollars."""
    wanted_ms = max(MINUTE, ask.wanted_ms)
    price = table.ints["price"][rows]
    losses = lasting(table, ask, now).losses[rows]
    cost: Floats = price * (1 + losses * (ask.loss_ms / wanted_ms))
    if ask.wait_micro_usd:
        starts = (1 + losses) * (ask.wait_micro_usd / MINUTE * HOUR / wanted_ms)
        cost += prospects(table, now).delay_ms[rows] * starts
    if ask.company and ask.company_ms > 0:
        cost += np.maximum(price, NODE_HOUR_MIN) * _company(table, ask, outlook(table, now), rows)
    return cost


def _company(table: Table, ask: Ask, expected: Outlook, rows: Ints) -> Floats:
    """What standing with others costs, as a share of the price: those who are expected to be lost at the same
    time as a node here, and how much of the whole stands here."""
    level = domain_level(ask.spread_over)
    numbers = table.domains[level].number
    crowd = np.zeros(len(numbers) + 1)
    for domain, count in ask.company:
        crowd[numbers.get(domain, -1)] += count
    crowd[-1] = 0.0  # domains that no offer is in
    whole = rates.mean_per_hour(rates.DOMAIN_PRIOR)
    droughts = expected.weights[rows] @ (1 / GRID.stays)
    lost = whole + np.where(table.bools["spot"][rows], droughts, 0.0)
    share = APART_WORTH / max(1, sum(count for _, count in ask.company))
    found: Floats = crowd[table.domain[level][rows]] * (lost * (ask.company_ms / HOUR) + share)
    return found


def cost_of(table: Table, ask: Ask, now: Instant) -> Floats:
    """By row, whether it may be tried or not: the expected cost of a useful hour, in micro-dollars."""
    found: Floats = np.rint(_cost(table, ask, now, np.arange(len(table.ids))))
    return found


def hedge(ranking: Ranking) -> tuple[Candidate, ...]:
    """What to launch now: nothing, the best, or the best and one more, of which the slower is cancelled when
    the other is ready."""
    return ranking.launches


def _hedge(ranking: Ranking) -> tuple[Candidate, ...]:
    if not len(ranking):
        return ()
    first = ranking[0]
    second = _elsewhere(ranking) if ranking.ask.wait_micro_usd else None
    if second is None:
        return (first,)
    saved_ms = first.lost_ms * second.chance
    both_ms = first.chance * second.chance * max(first.ready_ms, PAID_AT_LEAST_MS)
    gain = saved_ms * ranking.ask.wait_micro_usd / MINUTE
    return (first, second) if gain > both_ms * second.price_micro_usd / HOUR else (first,)


def _elsewhere(ranking: Ranking) -> Candidate | None:
    """The best that is not in the first one's domain."""
    level = domain_level(ranking.ask.spread_over)
    domains = ranking.table.domain[level][ranking.rows]
    other = int(np.argmax(domains != domains[0]))  # 0: none
    return ranking[other] if other else None


def _percent(share: float) -> str:
    return f"{math.floor(100 * share + 0.5)} %"
