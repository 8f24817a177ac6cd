"""How is a service spread over spot and on demand: what stands where, what is wanted and why, what was learnt
of its losses, and what would it cost otherwise?

The decision itself is asked again (`service_mix.look`), so an explanation cannot disagree with it. Prices are
those of whole nodes, because nodes are what is ordered. What losses are expected to cost is what makes one
zone dearer than another of the same price: an hour short, as `mix_policy` weighs it, times how likely it is.
"""

from collections.abc import Iterator

import msgspec

from holdfast.core.plan.draft import Draft
from holdfast.core.provisioning import launch
from holdfast.core.spot import mix_policy, service_mix
from holdfast.model.market import Losses
from holdfast.model.units import Instant, MicroUsd, many, seconds, usd
from holdfast.model.workload import Workload
from holdfast.model.world import World
from holdfast.reliability import losses
from holdfast.reliability.losses import AFTER_LOSS_MS

SPOT_SHOWN = 6  # offers
WITHOUT = ("as it is", "all on spot")  # where nobody offers on demand


class Learnt(msgspec.Struct, frozen=True):
    """What is known of the losses of its spot nodes."""

    alone_per_hour: float
    more_follow: float  # the chance that a zone that took some and left some takes more within minutes
    cases: int  # in which that was seen
    short_share: float  # of the time, with fewer ready than wanted
    short_share_max: float  # that may be


class Told(msgspec.Struct, frozen=True):
    wanted: int
    floor: int  # always on demand
    spares: int  # beside those wanted, on spot
    on_demand: int  # copies that stand there
    spot: int
    zones: tuple[mix_policy.Zone, ...]
    why: tuple[str, ...]  # of what is ordered or let go now
    learnt: Learnt
    ways: tuple[mix_policy.Way, ...]


def told(world: World, workload: Workload, now: Instant) -> Told | None:
    """Nothing for what is on no mix, or wants nothing now."""
    if workload.name not in world.mixed or workload.paused:
        return None
    draft = Draft(world, now)
    looked = service_mix.look(draft, launch.tallies(draft), workload)
    if looked is None:
        return None
    view, fleet, rules, found = looked
    homes = [world.nodes[copy.node].spot for copy in service_mix.copies(world, workload)]
    offered = [
        way for way in mix_policy.ways(view.wanted, fleet, rules) if view.paid_rows or way.name in WITHOUT
    ]
    return Told(
        wanted=view.wanted,
        floor=min(rules.floor, view.wanted),
        spares=mix_policy.spares_of(view.wanted, fleet, rules) if view.wanted > rules.floor else 0,
        on_demand=homes.count(False),
        spot=homes.count(True),
        zones=fleet.zones,
        why=found.why,
        learnt=_learnt(world, workload, fleet, rules, now),
        ways=tuple(offered),
    )


def _learnt(
    world: World, workload: Workload, fleet: mix_policy.Fleet, rules: mix_policy.MixRules, now: Instant
) -> Learnt:
    known = losses.as_of(world.losses.get(workload.name, Losses()), now)
    return Learnt(
        alone_per_hour=fleet.alone_per_hour,
        more_follow=fleet.follows,
        cases=round(known.cases - Losses().cases),
        short_share=known.short_ms / known.watched_ms if known.watched_ms else 0.0,
        short_share_max=rules.short_share_max,
    )


def lines(of: Told | None) -> Iterator[str]:
    if of is None:
        return
    yield _standing(of)
    yield from (f"now: {text}" for text in of.why)
    shown = sorted(of.zones, key=lambda zone: (not zone.count, zone.price, zone.name))
    yield from (_zone(zone) for zone in shown[:SPOT_SHOWN])
    if len(shown) > SPOT_SHOWN:
        yield f"and {many(len(shown) - SPOT_SHOWN, 'more spot offer')}"
    yield from _losses(of.learnt)
    first, *others = of.ways
    if any(way.price for way in of.ways):
        yield _way(first, first)
        yield from (_way(way, first) for way in others if _cost(way) != _cost(first))


def _standing(of: Told) -> str:
    always = f", {of.floor} of them always on demand" if of.floor else ""
    spares = f", and {many(of.spares, 'spare')} on spot" if of.spares else ""
    stands = f"{of.spot} on spot and {of.on_demand} on demand; {of.wanted} wanted{always}{spares}"
    beyond = min(of.on_demand, of.wanted) - of.floor
    if beyond <= 0:
        return stands
    if all(zone.refused or zone.taking for zone in of.zones):
        return f"{stands}. {beyond} on demand because there is no spot to be had"
    return f"{stands}. {beyond} on demand until spot is ready in its place"


def _zone(zone: mix_policy.Zone) -> str:
    there = many(zone.ready, "node") if zone.ready or not zone.coming else ""
    coming = f"{zone.coming} coming" if zone.coming else ""
    notes = [text for text in (there, coming) if text]
    if zone.leaving:
        notes.append(f"{zone.leaving} of them under notice")
    if zone.listed:
        notes.append(f"{usd(zone.price)}/h, expected to stay {seconds(zone.stays_ms)}")
    if zone.refused:
        notes.append("none may be had now")
    if zone.taking:
        notes.append("it has taken nodes away in the last minutes")
    return f"spot {zone.name}: {', '.join(notes)}"


def _losses(learnt: Learnt) -> Iterator[str]:
    seen = f"seen {many(learnt.cases, 'time')}" if learnt.cases else "assumed, as none was seen yet"
    yield (
        f"learnt: {learnt.alone_per_hour:.3f} losses of a single node an hour; where others were left, more "
        f"followed within {seconds(AFTER_LOSS_MS)} in {learnt.more_follow * 100:.0f} % of cases ({seen})"
    )
    short, accepted = learnt.short_share * 100, learnt.short_share_max * 100
    yield f"fewer ready than wanted {short:.2f} % of the time, {accepted:.2g} % is accepted"


def _cost(way: mix_policy.Way) -> tuple[MicroUsd, MicroUsd]:
    return way.price, way.losses


def _way(way: mix_policy.Way, now: mix_policy.Way) -> str:
    more = way.price - now.price
    than = f" ({usd(abs(more))} {'more' if more > 0 else 'less'})" if more else ""
    risk = f", and losses are expected to cost {usd(way.losses)}/h" if way.losses else ""
    name = way.name if way is now else f"instead, {way.name}"
    return f"{name}: {usd(way.price)}/h{than}{risk}"
