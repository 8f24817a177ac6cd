"""Who finds a GPU at once, at what price, and will it be there for as long as it is wanted?

A stream of requests, "k GPUs of kind X for d hours" (2 to 72, seeded), over recorded lists of offers. What is
true between two polls, and what is not known, is told at the head of `_offers_log`; who tries what, in
`_offers_policies`.

Nobody sees the present: a policy knows the lists polled so far and what its own tries met. A try takes a
minute and meets the truth of that minute. A round is five tries; whoever is served in the first round is
served *at once*. After a round without success the next comes an hour later, with what was listed meanwhile,
for a day; then the request is given up, and counts as a day of waiting. The policies learn from the first
three tenths of the time, and go on learning.

`premium_pct` is over the cheapest that was really there at that moment, `outlived_pct` the share of the
served whose offer stayed for as long as it was wanted (as far as the log tells). The `union` bound is served
whenever anybody has it, by the cheapest; its outlived share is that of requests that any offer outlives. The
`oracle` takes the cheapest that will outlive the request, or else the one that stays longest.
`best_single_hindsight` knows which provider will have been the best for each kind.

A loss costs `ours` what the request says it costs: half of the time wanted (it began anew, without a
checkpoint), unless `--lost-share` says otherwise; the more it costs, the more is paid for what lasts.

The figures at the top are those of stock lists, all in one market. Price lists (where presence proves
nothing) are reported apart under `price_lists`, each a market of its own, as if all that is listed could be
had: they show the premium, not the availability.
"""

import argparse
import heapq
from collections import defaultdict
from itertools import islice

from bench._offers_log import Item, Kind, Log, Stay, logs, synthetic
from bench._offers_policies import Known, Policy, Request, made, requests
from bench._records import source
from bench._say import say

TRY_S = 60
TRIES = 5
ROUND_S = 3600
GIVE_UP_S = 24 * 3600
LEARN_SHARE = 0.3
LOST_SHARE = 0.5  # nobody says they write checkpoints: on average half of what was wanted is lost
HOURS = (2.0, 72.0)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--list-requests", type=int, default=300, help="of each price list; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lost-share", type=float, default=LOST_SHARE, help="of the time wanted, by a loss")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data / "offers"
    found = list(logs(folder)) if folder.exists() else []
    recorded = bool(found)
    if not recorded:
        say(f"no logs in {folder}: a made-up market instead")
        found = [synthetic(args.seed)]
    stock, lists = [log for log in found if log.proves], [log for log in found if not log.proves]
    if not stock:
        say("price lists only: what is listed is taken for what can be had")
    measured = _measure(stock or lists, args, args.requests)
    if stock and lists and args.list_requests:
        measured["price_lists"] = {log.name: _measure([log], args, args.list_requests) for log in lists}
    return source(recorded=recorded) | measured


class Served:
    """What became of one policy's requests."""

    def __init__(self) -> None:
        self.asked = self.at_once = 0
        self.waits: list[float] = []
        self.premiums: list[float] = []
        self.outlived: list[bool] = []

    def figures(self) -> dict[str, float]:
        return {
            "served_pct": round(100 * self.at_once / max(1, self.asked), 2),
            "wait_h_mean": round(_mean(self.waits) / 3600, 3),
            "premium_pct": round(100 * _mean(self.premiums), 2),
            "outlived_pct": round(100 * _mean(self.outlived), 2),
        }


def _mean(values: list[float] | list[bool]) -> float:
    return sum(values) / max(1, len(values))


def _measure(found: list[Log], args: argparse.Namespace, count: int) -> dict[str, object]:
    asked = requests(found, args.seed, count, LEARN_SHARE, HOURS)
    market = Market(found)
    known = Known()
    policies = made(known, args.lost_share)
    served = {name: Served() for name in policies}
    due: list[tuple[float, int, str]] = []
    for number, request in enumerate(asked):
        due += [(request.at, number, name) for name in policies]
    heapq.heapify(due)
    polls = sorted((at, number) for number, log in enumerate(found) for at in log.polls)
    polled = 0
    while due:
        now, number, name = heapq.heappop(due)
        while polled < len(polls) and polls[polled][0] <= now:
            at, which = polls[polled]
            polled += 1
            known.poll(found[which], at)
            for policy in policies.values():
                policy.poll(found[which], at)
        again = _round(market, policies[name], asked[number], now, served[name])
        if again is not None:
            heapq.heappush(due, (again, number, name))
    figures: dict[str, object] = {name: result.figures() for name, result in served.items()}
    figures |= _bounds(market, asked)
    return figures | {
        "requests": len(asked),
        "offers": len(market.items),
        "gap_closed_pct": _closed(figures, market),
    }


def _round(market: "Market", policy: Policy, request: Request, now: float, served: Served) -> float | None:
    """Up to five tries; returns when to try again."""
    first = now == request.at
    served.asked += first
    for name in islice(policy.order(request, now), TRIES):
        now += TRY_S
        stay = market.items[name].at(now)
        policy.told(name, now, stay is not None)
        if stay is not None:
            served.at_once += first
            served.waits.append(now - request.at)
            market.rented(request, name, now, stay, served)
            return None
    again = (request.at if first else now) + ROUND_S
    if again - request.at >= GIVE_UP_S:
        served.waits.append(GIVE_UP_S)
        return None
    return again


class Market:
    """All logs together, as they really were."""

    def __init__(self, found: list[Log]) -> None:
        self.log_of = {f"{log.name}|{offer}": log for log in found for offer in log.items}
        self.items: dict[str, Item] = {
            f"{log.name}|{offer}": item for log in found for offer, item in log.items.items()
        }
        self.of_kind: dict[Kind, list[str]] = defaultdict(list)
        for name, item in self.items.items():
            self.of_kind[item.kind].append(name)

    def there(self, kind: Kind, now: float) -> dict[str, Stay]:
        found = {name: self.items[name].at(now) for name in self.of_kind[kind]}
        return {name: stay for name, stay in found.items() if stay is not None}

    def rented(self, request: Request, name: str, now: float, stay: Stay, served: Served) -> None:
        cheapest = min(other.price for other in self.there(request.kind, now).values())
        served.premiums.append(stay.price / cheapest - 1 if cheapest else 0.0)
        lived = self.outlived(request, name, now)
        if lived is not None:
            served.outlived.append(lived)

    def outlived(self, request: Request, name: str, now: float) -> bool | None:
        """None: nobody knows."""
        end, log = now + request.hours * 3600, self.log_of[name]
        gone = self.items[name].gone_at(now)
        return gone >= end if log.known(now, end) else None


def _bounds(market: Market, asked: list[Request]) -> dict[str, object]:
    union, oracle = Served(), Served()
    single: dict[Kind, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for request in asked:
        there = market.there(request.kind, request.at)
        for provider in {market.items[name].provider for name in there}:
            single[request.kind][provider] += 1
        _bound(market, request, union, oracle)
    best = sum(max(had.values()) for had in single.values())
    return {
        "union": union.figures(),
        "oracle": oracle.figures(),
        "best_single_hindsight": {"served_pct": round(100 * best / max(1, len(asked)), 2)},
    }


def _bound(market: Market, request: Request, union: Served, oracle: Served) -> None:
    union.asked, oracle.asked = union.asked + 1, oracle.asked + 1
    for waited in range(0, GIVE_UP_S, ROUND_S // 4):
        now = request.at + waited
        there = market.there(request.kind, now)
        if there:
            break
    else:
        union.waits.append(GIVE_UP_S)
        oracle.waits.append(GIVE_UP_S)
        return
    for bound in (union, oracle):
        bound.at_once += now == request.at
        bound.waits.append(now - request.at)
    end = now + request.hours * 3600
    lasting = [name for name in there if market.items[name].gone_at(now) >= end]
    pick = min(lasting or there, key=lambda n: (there[n].price, n))
    if not lasting:
        pick = max(there, key=lambda n: market.items[n].gone_at(now))
    market.rented(request, pick, now, there[pick], oracle)
    union.premiums.append(0.0)
    union.outlived = oracle.outlived


def _closed(figures: dict[str, object], market: Market) -> dict[str, float]:
    """The share of the gap between one provider and all of them that each policy closes; none if there is no
    gap, or one provider only."""
    served = {name: found["served_pct"] for name, found in figures.items() if isinstance(found, dict)}
    gap = served["union"] - served["best_single"]
    many = len({item.provider for item in market.items.values()}) > 1
    names = ("ours", "next_region", "static_list", "cheapest_single") if gap > 0 and many else ()
    return {name: round(100 * (served[name] - served["best_single"]) / gap, 1) for name in names}
