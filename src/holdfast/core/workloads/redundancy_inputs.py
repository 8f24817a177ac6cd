"""How many copies does a service with an availability target get in this world?

`redundancy` answers for given rates, prices and times; here they are read off the world: deaths and
node-hours of the pools whose offers suit the service, the failure domains those offers reach and how often
they were lost, and the times this fleet needs to notice, restart and boot. The rates are rounded to steps, so
that one more uneventful hour does not change the answer, and a service is not resized for nothing.
"""

from holdfast.core.market.failure_records import records
from holdfast.core.placement.bin_packing import Bin
from holdfast.core.workloads import redundancy
from holdfast.model.place import Level
from holdfast.model.pool import Offer
from holdfast.model.units import MINUTE, SECOND, Instant
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World
from holdfast.reliability import rates

BOOT_MS = 2 * MINUTE  # until the market remembers how long each offer takes
RESTART_MS = 10 * SECOND
PROMOTE_MS = 1 * SECOND


def resized(world: World, workload: Workload, now: Instant) -> tuple[Service, str]:
    assert isinstance(workload.shape, Service)
    pools = [
        pool
        for pool in world.pools.values()
        if any(Bin.new(pool, offer).suits(workload.needs) for offer in world.offers[pool.name])
    ]
    offers = tuple(
        o for pool in pools for o in world.offers[pool.name] if Bin.new(pool, o).suits(workload.needs)
    )
    policy = world.policy.detection
    times = redundancy.Times(
        detect_ms=policy.silent_min_ms,
        restart_ms=RESTART_MS,
        boot_ms=BOOT_MS,
        promote_ms=PROMOTE_MS,
    )
    seen = rates.settled(rates.measured(records(world, pools, now)))
    return redundancy.resized(workload.shape, offers, domains_of(workload, offers), seen, times)


def domains_of(workload: Workload, offers: tuple[Offer, ...]) -> int:
    """Zones, or what is wider: outages are recorded of zones, and racks in one zone go down with it."""
    spread = workload.needs.spread_over
    level = Level.ZONE if spread in (Level.NODE, Level.RACK) else spread
    return max(1, len({offer.place.domain(level) for offer in offers}))
