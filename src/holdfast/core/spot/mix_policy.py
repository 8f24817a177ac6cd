"""How many of a service's nodes on spot, in which zones, and how many on demand?

A service wants so many nodes ready all the time. Spot costs a third and comes and goes by zone; on demand is
dear and always there; either takes minutes until it is ready. `launch` says what to launch and what to let go
now. A launch that is refused is an event: ask again at once, with that zone marked as refused, and the next
zone or on demand is ordered in the same moment. A few rules do it.

On demand stands in for spot that cannot be had, never beside spot that is on its way and good; and it stays
until the spot node that takes its place is ready. So nothing is paid twice but the time to ready, and the one
that comes second is the one let go. Where launches often fail, and say so late, on demand is ordered beside
them (`hedge`): the loser is let go as well.

Where: the zone with the least expected cost, which is its price and what a loss costs, times how often it
takes nodes. A node beside others in one zone goes with them, so its loss counts once more for each: that
spreads nodes over zones, unless one zone is so much better that it is worth the risk. Nothing is launched in
a zone that has just taken nodes while on demand stands in for them: spot that is back has to stay.

Before the loss: a node under notice is replaced at once. Zones take nodes away in rows, so one that took some
and left some is covered for some minutes: by spot elsewhere, and by on demand if the chance that it goes on
taking (`reliability.losses`, learnt) is worth it.

What is a minute short worth? Ten percent of the bill on demand for each percent of time, as providers
themselves credit it, times how fast the promise is being used up (`burn`): whoever has kept it so far may
risk more. A spare on spot is kept only while the promise is being broken, and if losses come one at a time.

Refused: a spare always (a tenth of the bill, for a third of a percent). Refused: staying on demand for as
long as spot is expected to be lost again soon: twice the bill, for half as much. Refused: shares of spot and
on demand fixed in advance: they pay for on demand while spot is there, and are short while it is not. The
first two were measured on one public record (AWS1).

What is not from here: how long a zone is expected to stay (`reliability.onoff`), prices, times to ready.
"""

from typing import Final

import msgspec

from holdfast.model.units import HOUR, MicroUsd, Millis, many
from holdfast.reliability.losses import AFTER_LOSS_MS

CREDIT: Final = 10.0  # of the bill, for each unit of time short
STAYS_MS_MIN: Final = AFTER_LOSS_MS  # nobody believes in less


class MixRules(msgspec.Struct, frozen=True):
    """What the user asks for. `floor`: nodes on demand, always. `spares`: on spot, always."""

    floor: int = 0
    spares: int = 0
    availability: float = 0.99  # share of time with all that are wanted
    adaptive_spare: bool = True  # one more while that is not kept

    @property
    def short_share_max(self) -> float:
        """For `reliability.losses.burn`."""
        return 1 - self.availability


class Zone(msgspec.Struct, frozen=True):
    """One spot offer: what we have there, and what is believed of it. Prices are per hour."""

    name: str
    price: MicroUsd
    stays_ms: Millis  # a node launched there now is expected to stay so long
    ready: int = 0
    coming: int = 0
    leaving: int = 0  # of those ready or coming: under notice
    refused: bool = False  # just now, or it is not to be tried yet
    taking: bool = False  # it has taken nodes in the last minutes
    fails: float = 0.0  # chance that a launch comes to nothing
    answer_ms: Millis = 0  # and how long it takes to know
    listed: bool = True  # one more could be asked for at all

    @property
    def count(self) -> int:
        return self.ready + self.coming


class Fleet(msgspec.Struct, frozen=True):
    """What stands, and what is known of its past (`reliability.losses`)."""

    zones: tuple[Zone, ...]
    on_demand_price: MicroUsd
    ready_ms: Millis  # from launch to ready
    on_demand_ready: int = 0
    on_demand_coming: int = 0
    burn: float = 1.0
    follows: float = 0.5
    alone_per_hour: float = 0.0


class Orders(msgspec.Struct, frozen=True):
    spot: tuple[str, ...] = ()  # launch one in each of these; a zone may be there more than once
    on_demand: int = 0  # launch so many
    release_spot: tuple[str, ...] = ()  # let one go in each of these
    release_on_demand: int = 0
    why: tuple[str, ...] = ()


def orders(wanted: int, fleet: Fleet, rules: MixRules) -> Orders:
    worth = _worth(wanted, fleet)
    floor = min(rules.floor, wanted)
    spares = spares_of(wanted, fleet, rules)
    goal = wanted - floor + spares if wanted > floor else 0
    launch = _launches(goal, wanted - floor, fleet, worth)
    covered = _is_worth_covering(fleet, worth)
    standing = sum(_safe(zone, covered=covered) for zone in fleet.zones)
    hoped = [zone for zone in launch if not _hedged(zone, fleet, worth)]
    needed = max(floor, wanted - standing - len(hoped))
    have = fleet.on_demand_ready + fleet.on_demand_coming
    surplus = have - max(floor, wanted - sum(_safe_ready(zone, covered=covered) for zone in fleet.zones))
    kept = wanted - min(floor, fleet.on_demand_ready)  # on spot, until the floor is ready
    found = Orders(
        spot=tuple(zone.name for zone in launch),
        on_demand=max(0, needed - have),
        release_spot=() if launch or needed > have else _surplus(max(goal, kept), kept, fleet),
        release_on_demand=max(0, surplus) if needed <= have else 0,
    )
    return msgspec.structs.replace(found, why=_why(found, floor, spares, fleet, covered=covered))


class Way(msgspec.Struct, frozen=True):
    """A way to have all that are wanted, per hour."""

    name: str
    price: MicroUsd
    losses: MicroUsd  # what losing some of them is expected to cost


def ways(wanted: int, fleet: Fleet, rules: MixRules) -> tuple[Way, ...]:
    """What else could be done, if all of it could be had: for whoever asks what it would cost."""
    worth = _worth(wanted, fleet)
    have = fleet.on_demand_ready + fleet.on_demand_coming
    standing = [zone for zone in fleet.zones for _ in range(zone.count)]
    found = [_way("as it is", have, standing, fleet, worth)]
    floor = min(rules.floor, wanted)
    for name, paid in (("as asked", floor), ("all on spot", 0), ("all on demand", wanted)):
        launched: list[Zone] = []
        free = [msgspec.structs.replace(z, ready=0, coming=0, leaving=0) for z in fleet.zones if z.listed]
        _fill(launched, wanted - paid, free, fleet, worth)
        if paid + len(launched) == wanted:
            found.append(_way(name, paid, launched, fleet, worth))
    return tuple(found)


def _way(name: str, paid: int, spot: list[Zone], fleet: Fleet, worth: float) -> Way:
    price, losses = paid * fleet.on_demand_price, 0.0
    beside: dict[str, int] = {}
    for zone in spot:
        there = beside.get(zone.name, 0)
        losses += expected_cost(zone, there, fleet, worth) - zone.price
        price += zone.price
        beside[zone.name] = there + 1
    return Way(name, price, round(losses))


def spares_of(wanted: int, fleet: Fleet, rules: MixRules) -> int:
    """So many more than wanted, on spot."""
    return rules.spares or int(_spare_pays(fleet, rules, _worth(wanted, fleet)))


# what it costs


def _worth(wanted: int, fleet: Fleet) -> float:
    """Of an hour short."""
    return CREDIT * wanted * fleet.burn * fleet.on_demand_price


def expected_cost(zone: Zone, there: int, fleet: Fleet, worth: float) -> float:
    """Of one more node beside `there` others, per hour: its price, and what losing it costs."""
    loss = worth * fleet.ready_ms * (1 + there)
    return zone.price + loss / max(zone.stays_ms, STAYS_MS_MIN)


def _spare_pays(fleet: Fleet, rules: MixRules, worth: float) -> bool:
    if not rules.adaptive_spare or fleet.burn <= 1 or not fleet.zones:
        return False
    saved = fleet.alone_per_hour * fleet.ready_ms / HOUR * worth
    return saved > min(zone.price for zone in fleet.zones)


def _is_worth_covering(fleet: Fleet, worth: float) -> bool:
    """Do we pay on demand for some minutes, beside nodes that may be the next to go?"""
    at_risk = sum(zone.count - zone.leaving for zone in fleet.zones if zone.taking)
    return worth * fleet.follows * fleet.ready_ms > fleet.on_demand_price * AFTER_LOSS_MS * max(1, at_risk)


def _hedged(zone: Zone, fleet: Fleet, worth: float) -> bool:
    return zone.fails * worth * zone.answer_ms > fleet.on_demand_price * fleet.ready_ms


# where


def _launches(goal: int, least: int, fleet: Fleet, worth: float) -> list[Zone]:
    """First what is missing, in zones that are not taking; then in those too, if nothing else stands in."""
    found: list[Zone] = []
    steady = sum(zone.count - zone.leaving for zone in fleet.zones if not zone.taking)
    calm = [zone for zone in fleet.zones if not zone.refused and not zone.taking]
    _fill(found, goal - steady, calm, fleet, worth)
    if fleet.on_demand_ready + fleet.on_demand_coming == 0:
        held = sum(zone.count - zone.leaving for zone in fleet.zones) + len(found)
        _fill(found, least - held, [zone for zone in fleet.zones if not zone.refused], fleet, worth)
    return found


def _fill(found: list[Zone], missing: int, zones: list[Zone], fleet: Fleet, worth: float) -> None:
    for _ in range(missing if zones else 0):
        found.append(min(zones, key=lambda z: _preferred(z, _there(z, found), fleet, worth)))


def _preferred(zone: Zone, there: int, fleet: Fleet, worth: float) -> tuple[float, int, str]:
    """The smallest first. Where nothing costs anything, the zone with the fewest."""
    return expected_cost(zone, there, fleet, worth), there, zone.name


def _there(zone: Zone, found: list[Zone]) -> int:
    return zone.count + sum(other is zone for other in found)


def _safe(zone: Zone, *, covered: bool) -> int:
    """Nodes that need nobody to stand in for them."""
    return 0 if zone.taking and covered else zone.count - zone.leaving


def _safe_ready(zone: Zone, *, covered: bool) -> int:
    return 0 if zone.taking and covered else max(0, zone.ready - zone.leaving)


def _surplus(goal: int, least: int, fleet: Fleet) -> tuple[str, ...]:
    """Ready nodes above the goal, of the zones that will not last, once enough others are ready."""
    left = {zone.name: zone.ready - zone.leaving for zone in fleet.zones}
    steady = sum(zone.ready - zone.leaving for zone in fleet.zones if not zone.taking)
    extra = sum(zone.count - zone.leaving for zone in fleet.zones) - goal
    if steady < least:
        return ()
    released: list[str] = []
    worst = sorted(fleet.zones, key=lambda z: (not z.taking, z.stays_ms, z.name))
    for zone in worst:
        most = left[zone.name] if zone.taking else min(left[zone.name], max(0, steady - goal))
        count = max(0, min(extra - len(released), most))
        steady -= 0 if zone.taking else count
        released += [zone.name] * count
    return tuple(released)


def _why(found: Orders, floor: int, spares: int, fleet: Fleet, *, covered: bool) -> tuple[str, ...]:
    said = []
    if found.spot:
        said.append(
            f"{many(len(found.spot), 'spot node')} in {', '.join(dict.fromkeys(found.spot))}: cheapest"
        )
    if found.on_demand:
        gone = all(zone.refused or zone.taking for zone in fleet.zones)
        why = "no zone has spot" if gone else f"{floor} always" if floor else "spot may not come in time"
        if covered and any(zone.taking and zone.count for zone in fleet.zones):
            why = "a zone is taking spot nodes away, and the next may follow"
        said.append(f"{found.on_demand} on demand: {why}")
    if found.release_on_demand:
        said.append(f"{found.release_on_demand} on demand let go: spot is ready in its place")
    if found.release_spot:
        said.append(f"{many(len(found.release_spot), 'spot node')} let go: others are ready in its place")
    if spares:
        said.append(f"{many(spares, 'spare')} on spot")
    return tuple(said)
