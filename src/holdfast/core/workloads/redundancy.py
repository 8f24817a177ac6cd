"""How many replicas, in how many failure domains, with what in reserve: what is the cheapest way to keep the
promise?

The rule: list what could be done (which offers, how many replicas, over how many domains, how many standbys
of which kind), work out the availability and the price of each, and take the cheapest that meets the target.
Then look for the cheapest that has one more nine, and say what it would cost: people choose better between
two prices than between two percentages.

A service is up while at least `serving` replicas serve. It can be short of them in two ways:
- too few nodes are alive. A lost node is back after detection, boot and start; a domain takes all its nodes
  with it;
- enough are alive, but seats are changing hands: a standby takes over after detection and start (warm node)
  or detection and promotion (warm replica), one seat at a time or all those of a domain. It does so as long
  as one is left, which is the same as saying that more nodes are alive than seats.

Both are the same convolution over domains, once with the slow times and once with the quick ones.

An outage of a domain is sat out: nobody should count on renting elsewhere in the hour in which everybody else
tries to, so what is needed must already run elsewhere. A drought of the spot market is not sat out when there
is another domain: it empties one market, and the others are usually open.

What it tends to say: a standby that costs as much as a replica is never better than one more replica, since
that one serves already. Standbys pay when they cost less than a whole node: a warm node shared between
workloads, a warm replica that needs little until it is promoted. With nothing to spare, one domain is better
than three.

Refused: a mix of spot and on-demand in one option (it squares the list; a pool can be given its own floor of
on-demand nodes); credit for spot notices (two minutes' warning are worth having and not worth promising); an
optimiser (price and availability both rise with the replicas, so halving finds the fewest in each family of
options, and a family dearer than the best so far is passed over).

Where the numbers come from: `reliability.rates`, measured; the times from the offer's memory and the
detector's own record.
"""

import enum
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Final

import msgspec

from holdfast.model.place import Level
from holdfast.model.pool import Offer
from holdfast.model.units import MicroUsd, Millis, many, seconds, usd
from holdfast.model.workload import Service
from holdfast.reliability.availability import (
    Floats,
    downtime_ms,
    from_nines,
    percent,
    short_of,
    spread,
    unavailability,
    up_odds,
    whole_nines,
)
from holdfast.reliability.rates import Rates

DOMAINS_MAX: Final = 6  # spreading wider than this buys nothing that can be measured
SPARES_FEW: Final = 4  # replicas listed beyond what the loss of nodes and domains explains
AS_GOOD: Final = 1.05  # when nothing meets the target: this close to the least downtime is as good
NEGLIGIBLE: Final = 1e-15
ROUNDING: Final = 1e-12  # 0.999 asked and 0.9989999999999999 worked out are the same


class Standby(enum.StrEnum):
    NONE = "no standby"
    NODE = "warm node"
    REPLICA = "warm replica"


class Times(msgspec.Struct, frozen=True):
    detect_ms: Millis
    restart_ms: Millis  # start a replica on a node that is there
    boot_ms: Millis  # get a new node that is ready for one
    promote_ms: Millis  # let a warm replica take a seat


class Candidate(msgspec.Struct, frozen=True):
    """Nodes to be had, and their price per hour in each failure domain, cheapest first.

    The last price stands for all further domains.
    """

    name: str
    prices_micro_usd: tuple[MicroUsd, ...]
    rates: Rates
    spot: bool = False


class Need(msgspec.Struct, frozen=True):
    serving: int  # replicas that must be up for the service to be up
    availability: float
    candidates: tuple[Candidate, ...]
    times: Times
    domains: int = 1  # failure domains that the candidates reach
    domains_min: int = 1  # what placement will spread over anyway
    standbys_min: int = 0  # warm replicas wanted in any case
    standbys_max: int = 2
    warm_node_share: float = 1.0  # of a node's price that a warm node costs us: others may share it
    warm_replica_share: float = 1.0  # the same of a warm replica: it may need less than a whole node


class Option(msgspec.Struct, frozen=True):
    offer: str
    spot: bool
    replicas: int
    domains: int
    standby: Standby
    standbys: int
    cost_micro_usd: MicroUsd  # per hour
    availability: float = 0.0

    @property
    def nodes(self) -> int:
        return self.replicas + self.standbys

    def __str__(self) -> str:
        reserve = f" and {many(self.standbys, self.standby)}" if self.standbys else ""
        return (
            f"{many(self.replicas, 'replica')}{reserve} on {self.offer} "
            f"over {many(self.domains, 'domain')}: "
            f"{percent(self.availability)} up, {seconds(downtime_ms(self.availability))} down a month, "
            f"{usd(self.cost_micro_usd)}/h"
        )


class Choice(msgspec.Struct, frozen=True):
    option: Option
    meets: bool
    why: str
    next_nine: Option | None = None  # the cheapest with one more whole nine

    @property
    def next_nine_micro_usd(self) -> MicroUsd | None:
        """What the next nine costs on top, per hour."""
        return self.next_nine.cost_micro_usd - self.option.cost_micro_usd if self.next_nine else None


class Odds(msgspec.Struct, frozen=True):
    """How often a candidate's nodes and domains are down, and how often they go."""

    q_node: float
    q_domain: float
    node_losses_per_hour: float
    domain_losses_per_hour: float


def options(need: Need) -> list[Option]:
    """All that could be done, cheapest first, each with its availability. `choose` looks at few of them."""
    scale = Scale(need)
    found = [scale.weigh(family.at(n)) for family in _families(need) for n in family.replicas]
    return sorted(found, key=lambda o: (*_order(o), o.offer, o.domains, o.standby))


def front(found: list[Option]) -> list[Option]:
    """Of options in order of price, those that are better than everything cheaper: a price list."""
    kept: list[Option] = []
    for option in found:
        if not kept or option.availability > kept[-1].availability:
            kept.append(option)
    return kept


@lru_cache(maxsize=256)
def choose(need: Need) -> Choice:
    """The cheapest option that meets the target, or else the best there is; and the next nine."""
    if not need.candidates:
        raise ValueError("there is nothing to choose from: no candidates")
    scale = Scale(need)
    families = list(_families(need))
    chosen = _cheapest(families, scale, need.availability)
    if chosen is None:
        best = _best_there_is(families, scale)
        return Choice(best, False, _why_not(need, best))
    more = _cheapest(families, scale, from_nines(whole_nines(chosen.availability) + 1))
    return Choice(chosen, True, _why(need, chosen, more), more)


def resized(
    shape: Service,
    offers: tuple[Offer, ...],
    domains: int,
    rates: Rates,
    times: Times,
    *,
    warm_replica_share: float = 1.0,
) -> tuple[Service, str]:
    """The shape with as many replicas and warm standbys as its target needs, and why.

    `shape` is what the user wrote: its `replicas` must serve, its `standby` is a floor. Never feed a result
    back in: it would grow. `offers` are those that would really be launched for it: a count worked out for
    on-demand nodes is not enough on spot ones. `domains` is how many failure domains they reach, all of which
    placement uses.
    """
    if shape.availability <= 0.0 or shape.replicas < 1:
        return shape, "no availability is asked for"
    if not offers:
        return shape, "there is no offer to work out the redundancy from"
    choice = choose(need_of(shape, offers, domains, rates, times, warm_replica_share=warm_replica_share))
    sized = msgspec.structs.replace(shape, replicas=choice.option.replicas, standby=choice.option.standbys)
    return sized, choice.why


def need_of(
    shape: Service,
    offers: tuple[Offer, ...],
    domains: int,
    rates: Rates,
    times: Times,
    *,
    warm_replica_share: float = 1.0,
    free_nodes: int = 0,
) -> Need:
    """`free_nodes` are there in any case and have room: warm nodes that cost nothing more."""
    return Need(
        serving=shape.replicas,
        availability=shape.availability,
        candidates=candidates(offers, rates),
        times=times,
        domains=domains,
        domains_min=domains,
        standbys_min=shape.standby,
        standbys_max=max(shape.standby, free_nodes, 2),
        warm_node_share=0.0 if free_nodes else 1.0,
        warm_replica_share=warm_replica_share,
    )


def candidates(offers: tuple[Offer, ...], rates: Rates, level: Level = Level.ZONE) -> tuple[Candidate, ...]:
    """At most two, on-demand and spot, each with its cheapest price in every failure domain."""
    found = []
    for spot in (False, True):
        cheapest: dict[str, Offer] = {}
        for offer in sorted((o for o in offers if o.spot is spot), key=attrgetter("price_micro_usd", "name")):
            cheapest.setdefault(offer.place.domain(level), offer)
        if cheapest:
            first = next(iter(cheapest.values()))
            prices = tuple(offer.price_micro_usd for offer in cheapest.values())
            name = f"{first.name} (spot)" if spot else first.name
            found.append(Candidate(name=name, prices_micro_usd=prices, rates=rates, spot=spot))
    return tuple(found)


def odds_of(candidate: Candidate, domains: int, times: Times) -> Odds:
    rates, slow_ms = candidate.rates, times.detect_ms + times.boot_ms + times.restart_ms
    preemptions = rates.preemptions_per_hour if candidate.spot else 0.0
    droughts = rates.droughts_per_hour if candidate.spot else 0.0
    node_losses = rates.node_failures_per_hour + preemptions
    dry_ms = slow_ms if domains > 1 else rates.drought_ms + slow_ms
    sat_out = unavailability(rates.domain_failures_per_hour, rates.domain_repair_ms)
    dry = unavailability(droughts, dry_ms)
    return Odds(
        q_node=unavailability(node_losses, slow_ms),
        q_domain=1.0 - (1.0 - sat_out) * (1.0 - dry),
        node_losses_per_hour=node_losses,
        domain_losses_per_hour=rates.domain_failures_per_hour + droughts,
    )


def short_share(option: Option, serving: int, odds: Odds, takeover_ms: Millis, alive: Floats) -> float:
    """The share of time with fewer than `serving` up; `alive` has the odds of 0, 1, ... nodes being alive."""
    if not option.standbys:
        return min(1.0, float(alive[:serving].sum()))
    q_seat = unavailability(odds.node_losses_per_hour, takeover_ms)
    q_seats_of_domain = unavailability(odds.domain_losses_per_hour, takeover_ms)
    short = float(alive[:serving].sum())
    for seats in range(serving, option.replicas + 1):
        chance = float(alive[seats] if seats < option.replicas else alive[seats:].sum())
        if chance < NEGLIGIBLE:
            continue
        seats_short = _seats_short(serving, seats, option.domains, q_seat, q_seats_of_domain)
        if seats_short < NEGLIGIBLE:
            break  # and with more seats filled it is smaller still
        short += chance * seats_short
    return min(1.0, short)


_seats_short = lru_cache(maxsize=4096)(short_of)


class Family(msgspec.Struct, frozen=True):
    """Options that differ in the number of replicas only."""

    candidate: Candidate
    domains: int
    standby: Standby
    standbys: int
    standby_share: float
    replicas: range

    def at(self, replicas: int) -> Option:
        return Option(
            offer=self.candidate.name,
            spot=self.candidate.spot,
            replicas=replicas,
            domains=self.domains,
            standby=self.standby,
            standbys=self.standbys,
            cost_micro_usd=_cost_micro_usd(self, replicas),
        )


class Scale:
    """Weighs options of one need; what several of them have in common is worked out once."""

    def __init__(self, need: Need) -> None:
        self.need = need
        self.odds = {c.name: odds_of(c, need.domains, need.times) for c in need.candidates}
        self.alive: dict[tuple[str, int, int], Floats] = {}
        if len(self.odds) < len(need.candidates):
            raise ValueError("two candidates have the same name")

    def weigh(self, option: Option) -> Option:
        takeover_ms = _takeover_ms(option.standby, self.need.times)
        odds = self.odds[option.offer]
        short = short_share(option, self.need.serving, odds, takeover_ms, self._alive(option))
        return msgspec.structs.replace(option, availability=1.0 - short)

    def at_best(self, option: Option) -> float:
        """Its availability if standbys took over in no time: quick to work out, and enough to refuse most."""
        return 1.0 - float(self._alive(option)[: self.need.serving].sum())

    def _alive(self, option: Option) -> Floats:
        key = (option.offer, option.nodes, option.domains)
        if key not in self.alive:
            odds = self.odds[option.offer]
            self.alive[key] = up_odds(option.nodes, option.domains, odds.q_node, odds.q_domain)
        return self.alive[key]


def _cheapest(families: list[Family], scale: Scale, target: float) -> Option | None:
    best: Option | None = None
    for family in families:
        found = _first_that_meets(family, _no_dearer(family, best), scale, target)
        if found and (best is None or _order(found) < _order(best)):
            best = found
    return best


def _no_dearer(family: Family, best: Option | None) -> range:
    if best is None:
        return family.replicas
    return family.replicas[: bisect_right(family.replicas, _price(best), key=lambda n: _price(family.at(n)))]


def _first_that_meets(family: Family, replicas: range, scale: Scale, target: float) -> Option | None:
    """Within a family both price and availability rise with the replicas, so halving finds it."""

    def meets(count: int) -> bool:
        option, enough = family.at(count), target - ROUNDING
        return scale.at_best(option) >= enough and scale.weigh(option).availability >= enough

    if not replicas or not meets(replicas[-1]):
        return None
    return scale.weigh(family.at(replicas[bisect_left(replicas, True, key=meets)]))


def _best_there_is(families: list[Family], scale: Scale) -> Option:
    largest = (scale.weigh(family.at(family.replicas[-1])) for family in families)
    best = max(largest, key=attrgetter("availability"))
    as_good = 1.0 - (1.0 - best.availability) * AS_GOOD
    return _cheapest(families, scale, as_good) or best


def _price(option: Option) -> tuple[MicroUsd, int]:
    return option.cost_micro_usd, option.nodes


def _order(option: Option) -> tuple[MicroUsd, int, float]:
    return option.cost_micro_usd, option.nodes, -option.availability


def _families(need: Need) -> Iterator[Family]:
    """The likely winners first, cheap and wide, so that the others are soon too dear to be looked at."""
    domains_most = max(1, min(need.domains, DOMAINS_MAX))
    domains_least = min(need.domains_min, domains_most)
    most = _replicas_max(need.serving, domains_most)
    for candidate in sorted(need.candidates, key=attrgetter("prices_micro_usd", "name")):
        for domains in range(domains_most, 0, -1):
            for standby, standbys, share in _reserves(need):
                first = max(need.serving, domains - standbys)  # no domain stays empty
                last = most if domains >= domains_least else min(most, domains - standbys)
                if first <= last:
                    replicas = range(first, last + 1)
                    yield Family(candidate, domains, standby, standbys, share, replicas)


def _reserves(need: Need) -> Iterator[tuple[Standby, int, float]]:
    """At full price no standby is listed beyond what is demanded: one more replica is always better."""
    if need.standbys_min == 0:
        yield Standby.NONE, 0, 1.0
        if need.warm_node_share < 1.0:
            for standbys in range(1, need.standbys_max + 1):
                yield Standby.NODE, standbys, need.warm_node_share
    most = need.standbys_max if need.warm_replica_share < 1.0 else need.standbys_min
    for standbys in range(max(1, need.standbys_min), most + 1):
        yield Standby.REPLICA, standbys, need.warm_replica_share


def _replicas_max(serving: int, domains: int) -> int:
    """A third more than must serve, or what survives the loss of two domains where possible; and a few."""
    lost = min(2, domains - 1)
    return max(math.ceil(serving * 4 / 3), math.ceil(serving * domains / (domains - lost))) + SPARES_FEW


def _cost_micro_usd(family: Family, replicas: int) -> MicroUsd:
    """A standby costs its share of what the nodes cost on average."""
    prices, nodes = family.candidate.prices_micro_usd, replicas + family.standbys
    filled = spread(nodes, family.domains)
    total = sum(count * prices[min(i, len(prices) - 1)] for i, count in enumerate(filled))
    return round(total * (replicas + family.standby_share * family.standbys) / nodes)


def _takeover_ms(standby: Standby, times: Times) -> Millis:
    match standby:
        case Standby.NONE:
            return times.detect_ms + times.boot_ms + times.restart_ms
        case Standby.NODE:
            return times.detect_ms + times.restart_ms
        case Standby.REPLICA:
            return times.detect_ms + times.promote_ms


def _why_not(need: Need, best: Option) -> str:
    limit = (
        "there is only one failure domain, and it fails as a whole"
        if need.domains <= 1
        else f"more replicas over {many(best.domains, 'domain')} hardly help"
    )
    asked = f"nothing on offer keeps {need.serving} serving {percent(need.availability)} of the time"
    return f"{asked}: {limit}. The best is {best}"


def _why(need: Need, chosen: Option, more: Option | None) -> str:
    asked = (
        f"{percent(need.availability)} asked, {need.serving} must serve. The cheapest that keeps it: {chosen}"
    )
    nine = percent(from_nines(whole_nines(chosen.availability) + 1))
    if more is None:
        return f"{asked}. No option reaches {nine}"
    extra = more.cost_micro_usd - chosen.cost_micro_usd
    return f"{asked}. {nine} would cost {f'{usd(extra)}/h' if extra else 'nothing'} more"
