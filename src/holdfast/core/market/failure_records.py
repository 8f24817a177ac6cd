"""Failure records: what has been seen of pools and their zones, as the failure rates are estimated from it.

Deaths, notices and node-time of the pools, outages and time of the zones that their offers reach. Redundancy
and the number of warm nodes rest on the same records.

Node-time counts for nodes that are there as much as for those that have left: a record of the dead alone
would call every fleet worse than it is.
"""

from holdfast.model.place import Level
from holdfast.model.pool import Pool
from holdfast.model.units import Instant
from holdfast.model.world import World
from holdfast.reliability import rates


def records(world: World, pools: list[Pool], now: Instant) -> rates.Records:
    """What has been seen of these pools and their zones so far. Node-time counts for nodes that are there as
    much as for those that have left: or else only the dead would speak."""
    states = [world.pool_states[pool.name] for pool in pools]
    serving = [world.serving.get(pool.name, (0, 0)) for pool in pools]
    there = sum(count * now - joined_at for count, joined_at in serving)
    exposure = sum(state.served_ms for state in states) + there
    offers = [offer for pool in pools for offer in world.offers[pool.name]]
    reached = dict.fromkeys(offer.place.domain(Level.ZONE) for offer in offers)
    zones = [world.zones[name] for name in reached if name in world.zones]
    down_ms = sum(zone.down_ms + (now - zone.down_since if zone.down_since else 0) for zone in zones)
    return rates.Records(
        nodes=rates.Record(sum(state.deaths for state in states), exposure),
        domains=rates.Record(
            sum(zone.outages for zone in zones), sum(now - zone.since for zone in zones), down_ms
        ),
        preemptions=rates.Record(
            sum(state.notices for state in states), exposure if any(offer.spot for offer in offers) else 0
        ),
    )
