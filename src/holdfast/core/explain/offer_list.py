"""What can be had, what do we remember of it, and what do we expect of it now?

The figures are those that `rank` decides by, read off the same table at the same instant: the chance that
a launch comes up, the time until it is ready, the chance that it lasts. So what people read here is why a
launch went where it went. A day is the time that is asked about: launches for what has no end look as far
ahead.

Counts fade (`model.market`), so they are told as what happened "lately", rounded.
"""

from collections.abc import Iterator

import msgspec

from holdfast.core.market import offer_history, rank
from holdfast.core.market.offers import outlives, outlook
from holdfast.core.plan.draft import Draft
from holdfast.model.market import OfferRecord, key_of
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import DAY, HOUR, Instant, MicroUsd, Millis, seconds, usd
from holdfast.model.world import World


class Listed(msgspec.Struct, frozen=True):
    pool: Pool
    offer: Offer
    record: OfferRecord  # faded to now
    chance: float  # that a launch now comes up
    chance_there: float  # that it is there and granted
    ready_ms: Millis  # expected, if it comes up
    lasts_a_day: float
    cost_micro_usd: MicroUsd  # of a useful hour, failures and losses counted
    refusal: str  # why it would not be launched now; empty: it may be

    @property
    def key(self) -> str:
        return key_of(self.pool.name, self.offer.name)


def listing(world: World, now: Instant) -> list[Listed]:
    """All offers of all pools, in the order in which they are known."""
    draft = Draft(world, now)
    table = draft.market
    expected, spot = outlook(table, now), table.bools["spot"]
    last = outlives(expected, DAY / HOUR, spot)
    costs = _costs(draft, now)
    return [
        Listed(
            pool=pool,
            offer=offer,
            record=offer_history.faded(world.records.get(key, OfferRecord(key)), now),
            chance=float(expected.chance[row]),
            chance_there=float(expected.there[row]),
            ready_ms=round(float(expected.ready_ms[row])),
            lasts_a_day=float(last[row]),
            cost_micro_usd=costs[key],
            refusal=_refusal(draft, pool, offer, now),
        )
        for key, row in table.row.items()
        for pool, offer in (draft.offer_of(key),)
    ]


def one(world: World, key: str, now: Instant) -> Listed:
    """KeyError: there is no such offer."""
    return {each.key: each for each in listing(world, now)}[key]


def keys(world: World) -> dict[str, None]:
    return {key_of(pool, offer.name): None for pool in world.pools for offer in world.offers[pool]}


def _costs(draft: Draft, now: Instant) -> dict[str, MicroUsd]:
    """Of those in back-off too: the ranking would leave them out."""
    table = draft.market
    cost = rank.cost_of(table, rank.Ask(), now)
    return {key: int(cost[row]) for key, row in table.row.items()}


def _refusal(draft: Draft, pool: Pool, offer: Offer, now: Instant) -> str:
    """Why not, if not."""
    world, state = draft.world, draft.world.pool_states.get(pool.name)
    record = world.records.get(key_of(pool.name, offer.name))
    count = len(world.in_pool.get(pool.name, ()))
    if not pool.can_launch:
        return "its pool launches no nodes: they join by themselves"
    if record is not None and now < record.retry_at:
        times = f"{record.failures_in_a_row} times in a row" if record.failures_in_a_row > 1 else "once"
        return f"asked again in {seconds(record.retry_at - now)}: failed {times}: {record.why}"
    if state is not None and now < state.retry_at:
        return f"its pool backs off for another {seconds(state.retry_at - now)}: {state.why}"
    refused = draft.purse.refuses(pool, offer.price_micro_usd)
    if refused:
        return refused
    return f"its pool has {count} of at most {pool.max} nodes" if count >= pool.max else ""


# in words


def summary(of: Listed) -> str:
    kind = "spot" if of.offer.spot else "on demand"
    may = "it may be launched" if not of.refusal else "it would not be launched now"
    return f"{of.key}: {usd(of.offer.price_micro_usd)}/h, {kind}, in {_where(of.offer)}; {may}"


def _where(offer: Offer) -> str:
    place = offer.place
    return "/".join(part for part in (place.provider, place.region, place.zone) if part and part != "-")


def because(of: Listed, now: Instant) -> Iterator[str]:
    if of.refusal:
        yield of.refusal
    yield _chances(of)
    record = of.record
    yield _launches(record)
    if record.came_up >= 0.5:
        yield f"those that came up took {seconds(round(record.ready_ms))} on average"
    if record.losses >= 0.05 or record.served_ms >= HOUR:
        served = seconds(round(record.served_ms))
        yield f"nodes served {served} together lately, {_times(record.losses)} one was taken away or died"
    if record.seen_at:
        there = "there" if record.there else "not to be had"
        yield f"it was last seen {_ago(record.seen_at, now)}: {there}"
    else:
        yield "nobody has looked yet whether it is there"
    yield from _prices(record, now)
    yield f"all counted, a useful hour is expected to cost {usd(of.cost_micro_usd)}"


def _chances(of: Listed) -> str:
    there, up = percent(of.chance_there), percent(of.chance)
    lasts = percent(of.lasts_a_day)
    return f"{there} to be granted, {up} to come up, in {seconds(of.ready_ms)}; {lasts} to last a day"


def _launches(record: OfferRecord) -> str:
    if record.asked < 0.05:
        return "it was not asked for lately: others like it are what it is judged by"
    parts = (
        (record.came_up, "came up"),
        (record.refused, "refused for want of stock"),
        (record.failed, "never came up"),
    )
    told = ", ".join(f"{_count(count)} {what}" for count, what in parts if count >= 0.05)
    return f"asked for {_times(record.asked)} lately{f': {told}' if told else ''}"


def _prices(record: OfferRecord, now: Instant) -> Iterator[str]:
    if len(record.prices) > 1:
        told = [f"{usd(price)} {_ago(at, now)}" for at, price in reversed(record.prices[-4:])]
        yield f"its price changed: {', before '.join(told)}"


def _ago(at: Instant, now: Instant) -> str:
    return f"{seconds(max(0, now - at))} ago"


def _times(count: float) -> str:
    return "once" if round(count, 1) == 1 else f"{_count(count)} times"


def _count(count: float) -> str:
    """What fades is no whole number for long."""
    return f"{count:.0f}" if count >= 9.5 or abs(count - round(count)) < 0.05 else f"{count:.1f}"


def percent(share: float) -> str:
    """Rounded down: nothing is certain."""
    return f"{int(100 * share)} %"


def would_help(of: Listed) -> Iterator[str]:
    if "may cost" in of.refusal or "takes nothing above" in of.refusal:
        yield "a larger budget or ceiling"
    elif of.refusal.startswith("its pool has"):
        yield f"raise max of pool {of.pool.name} from {of.pool.max} to {of.pool.max + 1}"
