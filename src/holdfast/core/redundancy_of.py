"""How many copies does a service with an availability target get in this world?

`redundancy` answers for given rates, prices and times; here they are read off the world: deaths and
node-hours of the pools whose offers suit the service, the failure domains those offers reach, and the times
this fleet needs to notice, restart and boot. The rates are rounded to steps, so that one more uneventful hour
does not change the answer, and a service is not resized for nothing.
"""

from holdfast.core import redundancy
from holdfast.core.packing import Bin
from holdfast.model.place import Level
from holdfast.model.pool import Pool
from holdfast.model.units import MINUTE, SECOND
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World
from holdfast.reliability import rates

BOOT_MS = 2 * MINUTE  # until the market remembers how long each offer takes
RESTART_MS = 10 * SECOND
PROMOTE_MS = 1 * SECOND


def resized(world: World, workload: Workload) -> tuple[Service, str]:
    assert isinstance(workload.shape, Service)
    pools = [
        pool
        for pool in world.pools.values()
        if any(Bin.new(pool, offer).suits(workload.needs) for offer in pool.offers)
    ]
    offers = tuple(o for pool in pools for o in pool.offers if Bin.new(pool, o).suits(workload.needs))
    level = workload.needs.spread_over if workload.needs.spread_over is not Level.NODE else Level.ZONE
    domains = len({offer.place.domain(level) for offer in offers})
    policy = world.policy.detection
    times = redundancy.Times(
        detect_ms=policy.silent_min_ms,
        restart_ms=RESTART_MS,
        boot_ms=BOOT_MS,
        promote_ms=PROMOTE_MS,
    )
    seen = rates.settled(rates.measured(records(world, pools)))
    return redundancy.resized(workload.shape, offers, max(1, domains), seen, times)


def records(world: World, pools: list[Pool]) -> rates.Records:
    """What has been seen of these pools so far."""
    states = [world.pool_states[pool.name] for pool in pools]
    exposure = sum(state.served_ms for state in states)
    deaths = sum(state.deaths for state in states)
    spot = sum(state.notices for state in states)
    return rates.Records(
        nodes=rates.Record(deaths, exposure),
        preemptions=rates.Record(spot, exposure if any(o.spot for pool in pools for o in pool.offers) else 0),
    )
