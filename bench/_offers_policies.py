"""Who tries which offer next, for a request that wants so many GPUs of a kind for so long.

Everybody sees the same lists when they are polled, and is told what its own tries met. `ours` folds all that
into the records of `core.market.offer_history` and takes the order of `core.market.rank`. The others do what
people do:

- `cheapest_single`: rents from one provider, the one with the lowest mean price for this kind so far; its
  listed offers from the cheapest, then its others.
- `best_single`: the same with the provider that has had this kind in the largest share of polls so far.
- `static_list`: a list written once, at the first request for a kind: the offers seen in the last thirty
  days, from the cheapest. It is worked down whatever the lists say.
- `next_region`: takes the provider of the cheapest listed offer, tries its regions from the cheapest, then
  goes on to the next provider; only what is listed.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from bench._offers_log import MONTH_S, Item, Kind, Log
from holdfast.core.market import offer_history
from holdfast.core.market.offers import Bools
from holdfast.core.market.rank import Ask, rank
from holdfast.model.market import OfferRecord, key_of
from holdfast.model.offer_table import Table
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import HOUR, MINUTE, SECOND

DRAWS_MAX = 20  # for each request: most of the time may be a hole
RESTART_MS = 10 * MINUTE
WAIT_MICRO_USD = 1_000_000  # a person who waits costs a dollar a minute


class Request(NamedTuple):
    at: float
    kind: Kind
    hours: float


class Known:
    """What the lists have said so far, for the policies that keep no records."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.listed: dict[Kind, dict[str, float]] = defaultdict(dict)  # by the last poll, with their prices
        self.last_seen: dict[Kind, dict[str, tuple[float, float]]] = defaultdict(dict)  # instant and price
        self.polls: dict[Kind, int] = defaultdict(int)
        self.had: dict[Kind, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.prices: dict[Kind, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))

    def poll(self, log: Log, at: int) -> None:
        for row in log.changes[at]:
            name = f"{log.name}|{row.offer}"
            item = log.items.get(row.offer)
            if item is not None:
                self.items[name] = item
                self.listed[item.kind].pop(name, None)
                if row.kind:
                    self.listed[item.kind][name] = row.price
        for kind, offers in self.listed.items():
            self.polls[kind] += 1
            for name, price in offers.items():
                self.last_seen[kind][name] = (at, price)
            for provider in {self.items[name].provider for name in offers}:
                self.had[kind][provider] += 1
                cheapest = min(p for name, p in offers.items() if self.items[name].provider == provider)
                total = self.prices[kind][provider]
                total[0], total[1] = total[0] + cheapest, total[1] + 1

    def recent(self, kind: Kind, now: float) -> list[tuple[float, str]]:
        """Offers seen in the last thirty days with their last price, cheapest first."""
        seen = self.last_seen[kind].items()
        return sorted((price, name) for name, (at, price) in seen if now - at <= MONTH_S)


class Policy(Protocol):
    def poll(self, log: Log, at: int) -> None: ...

    def order(self, request: Request, now: float) -> Iterator[str]:
        """What to try, one after another; asked again for each round of tries."""

    def told(self, name: str, now: float, granted: bool) -> None: ...


class Simple:
    """A policy that lives by the lists alone."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def poll(self, log: Log, at: int) -> None:
        pass

    def told(self, name: str, now: float, granted: bool) -> None:
        pass

    def of_provider(self, kind: Kind, provider: str, now: float) -> Iterator[str]:
        known, listed = self.known, self.known.listed[kind]
        recent = [name for _, name in known.recent(kind, now) if known.items[name].provider == provider]
        yield from sorted((n for n in recent if n in listed), key=lambda n: (listed[n], n))
        yield from (name for name in recent if name not in listed)


class CheapestSingle(Simple):
    def order(self, request: Request, now: float) -> Iterator[str]:
        prices = self.known.prices[request.kind]
        mean = {provider: total / count for provider, (total, count) in prices.items()}
        if mean:
            yield from self.of_provider(request.kind, min(mean, key=lambda p: (mean[p], p)), now)


class BestSingle(Simple):
    def order(self, request: Request, now: float) -> Iterator[str]:
        had = self.known.had[request.kind]
        if had:
            yield from self.of_provider(request.kind, max(had, key=lambda p: (had[p], p)), now)


class StaticList(Simple):
    def __init__(self, known: Known) -> None:
        super().__init__(known)
        self.lists: dict[Kind, list[str]] = {}

    def order(self, request: Request, now: float) -> Iterator[str]:
        if request.kind not in self.lists:
            self.lists[request.kind] = [name for _, name in self.known.recent(request.kind, now)]
        yield from self.lists[request.kind]


class NextRegion(Simple):
    def order(self, request: Request, now: float) -> Iterator[str]:
        listed, items = self.known.listed[request.kind], self.known.items
        cheapest: dict[str, float] = {}
        for name, price in listed.items():
            provider = items[name].provider
            cheapest[provider] = min(price, cheapest.get(provider, price))
        yield from sorted(
            listed, key=lambda n: (cheapest[items[n].provider], items[n].provider, listed[n], n)
        )


class Ours:
    def __init__(self, lost_share: float) -> None:
        self.lost_share = lost_share
        self.table = Table(1024)
        self.records: dict[str, OfferRecord] = {}
        self.offers: dict[str, tuple[Pool, Offer]] = {}
        self.prices: dict[str, float] = {}

    def poll(self, log: Log, at: int) -> None:
        """A stock list is a look at every offer ever in it; of a price list only changes are news."""
        now = at * SECOND
        pool = Pool(log.name, log.name, ())
        changed = {row.offer: row for row in log.changes[at] if row.offer in log.items}
        for offer, row in changed.items():
            if row.kind:
                self._put(pool, offer, log.items[offer], row.price)
        for offer in log.items if log.proves else changed:
            key = key_of(log.name, offer)
            if key in self.records:
                stay = changed.get(offer)
                there = stay.kind is not None if stay else key in self.prices
                if not there:
                    self.prices.pop(key, None)
                    if not log.proves:
                        self.table.drop(key)
                price = round(1e6 * self.prices.get(key, 0.0))
                self._note(offer_history.listed(self.records[key], now, there, price, proves=log.proves))

    def _put(self, pool: Pool, name: str, item: Item, price: float) -> None:
        key = key_of(pool.name, name)
        place = Place(item.provider, item.region or "-", item.zone or "-")
        capacity = Resources(gpu_milli=item.kind[1] * GPU, gpu_kind=item.kind[0])
        offer = Offer(name, place, capacity, round(1e6 * price))
        self.prices[key] = price
        self.records.setdefault(key, OfferRecord(key))
        self.table.put(pool, offer, self.records[key])

    def _note(self, record: OfferRecord) -> None:
        self.records[record.key] = record
        self.table.note(record)

    def order(self, request: Request, now: float) -> Iterator[str]:
        ask = Ask(
            wanted_ms=round(request.hours * HOUR),
            loss_ms=RESTART_MS + round(self.lost_share * request.hours * HOUR),
            wait_micro_usd=WAIT_MICRO_USD,
            delisting_is_loss=True,
        )
        ranking = rank(self.table, ask, round(now * SECOND), self._suits(request.kind))
        for key in ranking.keys:
            yield key.replace("/", "|", 1)

    def _suits(self, kind: Kind) -> Bools:
        number = self.table.kinds.number.get(kind[0], -1)
        gpus: Bools = self.table.ints["gpu"] == kind[1] * GPU
        found: Bools = gpus & (self.table.ints["kind"] == number) & self.table.bools["used"]
        return found

    def told(self, name: str, now: float, granted: bool) -> None:
        key, at = name.replace("|", "/", 1), round(now * SECOND)
        record = offer_history.asked(self.records[key], at)
        self._note(offer_history.came_up(record, at, 0) if granted else offer_history.refused(record, at))


def made(known: Known, lost_share: float) -> dict[str, Policy]:
    return {
        "ours": Ours(lost_share),
        "cheapest_single": CheapestSingle(known),
        "best_single": BestSingle(known),
        "static_list": StaticList(known),
        "next_region": NextRegion(known),
    }


def requests(
    logs: list[Log], seed: int, count: int, learn_share: float, hours: tuple[float, float]
) -> list[Request]:
    """Evenly over the time after the first part of the logs, holes left out; of a kind drawn by how many
    offers of it were seen in the thirty days before; the duration drawn evenly on a logarithmic scale."""
    dice = np.random.default_rng(seed)
    start, end = min(log.polls[0] for log in logs), max(log.polls[-1] for log in logs)
    start += round(learn_share * (end - start))
    found: list[Request] = []
    for _ in range(DRAWS_MAX * count):
        at, lot, length = float(dice.uniform(start, end)), float(dice.random()), dice.uniform(*np.log(hours))
        kinds = _seen_kinds(logs, at)
        if kinds:
            found.append(Request(at, kinds[int(lot * len(kinds))], float(np.exp(length))))
        if len(found) == count:
            break
    return sorted(found)


def _seen_kinds(logs: list[Log], at: float) -> list[Kind]:
    spanning = [log for log in logs if log.polls[0] <= at <= log.polls[-1]]
    if not spanning or not all(log.known(at, at) for log in spanning):
        return []
    return sorted(
        item.kind
        for log in spanning
        for item in log.items.values()
        if any(stay.start <= at and stay.end >= at - MONTH_S for stay in item.stays)
    )
