"""How long do nodes take to join, and how many must stand ready because of that?

The records of offers know what launches took. Whoever plans with it gets the mean over all offers that suit,
each weighed by how often it came up, together with one launch that took the usual time: so a fleet that has
launched nothing yet plans with that, and the first launches do not turn everything round.

A pool that is to cover failures keeps as many warm nodes as fail during a boot, with the asked probability
(`reliability.standby`): from its own measured failure rate (notices count: a spot node that is taken away
fails too), the nodes that work now, and its own time to join. The rates are rounded to steps, so that one
more quiet hour changes nothing.
"""

from typing import Final

from holdfast.core.market.failure_records import records
from holdfast.core.placement.bin_packing import Bin
from holdfast.model.market import key_of
from holdfast.model.pool import Pool
from holdfast.model.units import MINUTE, Instant, Millis
from holdfast.model.workload import Needs
from holdfast.model.world import World
from holdfast.reliability import rates, standby

USUAL_MS: Final[Millis] = 3 * MINUTE


def boot_ms(world: World, needs: Needs | None, pools: tuple[Pool, ...] = ()) -> Millis:
    """Of nodes that such a replica could run on (None: all), in these pools (none given: all that launch)."""
    took, count = float(USUAL_MS), 1.0
    for pool in pools or [pool for pool in world.pools.values() if pool.can_launch]:
        for offer in world.offers[pool.name]:
            record = world.records.get(key_of(pool.name, offer.name))
            if record is None or not record.came_up:
                continue
            if needs is None or Bin.new(pool, offer).suits(needs):
                took, count = took + record.ready_ms * record.came_up, count + record.came_up
    return round(took / count)


def standbys_of(world: World, pool: Pool, working: int, now: Instant) -> int:
    """Warm nodes that the pool wants, with `working` nodes in use."""
    if not pool.standby_covers or not working:
        return pool.standby
    seen = rates.settled(rates.measured(records(world, [pool], now)))
    spot = any(offer.spot for offer in world.offers[pool.name])
    failures = seen.node_failures_per_hour + (seen.preemptions_per_hour if spot else 0.0)
    enough = standby.standbys(working, failures, boot_ms(world, None, (pool,)), pool.standby_covers)
    return max(pool.standby, enough)
