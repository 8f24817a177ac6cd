"""Could what is wanted ever run on what could ever be there?

Only what is certainly impossible is refused: a replica larger than every node, a gang larger than all pools
at their max, services whose sum is more than that. Whether the rest fits at a given moment is what the
simulation is for; packing it here would refuse what runs.
"""

from collections.abc import Iterator

from holdfast.core.placement.bin_packing import Bin
from holdfast.files.problem import Problem
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.workload import Needs, Service, Spread, Training, Workload
from holdfast.sim.scenario.scenario import PoolSetup, Scenario


def problems(scenario: Scenario) -> list[Problem]:
    found: list[Problem] = []
    for number, setup in enumerate(scenario.workloads):
        found += _workload(f"workloads[{number}]", setup.workload, scenario.pools)
    return found or list(_all_services(scenario))


def _workload(where: str, workload: Workload, pools: tuple[PoolSetup, ...]) -> Iterator[Problem]:
    homes = [
        (setup, offer)
        for setup in pools
        for offer in setup.pool.offers
        if _suits(setup.pool, offer, workload.needs)
    ]
    if not homes:
        yield _no_home(where, workload.needs, pools)
        return
    match workload.shape:
        case Training(nodes_min=least):
            room = sum(_most(setup) for setup in pools if any(home is setup for home, _ in homes))
            if least > room:
                text = f"expected at most {room} members, one a node of the pools at their max, got {least}"
                yield Problem(
                    f"{where}.nodes_min", text, f"Try: nodes_min = {room}" if room else "Try: a larger max"
                )
        case Service(replicas=wanted):
            yield from _service(where, wanted, workload.needs, homes)


def _service(
    where: str, wanted: int, needs: Needs, homes: list[tuple[PoolSetup, Offer]]
) -> Iterator[Problem]:
    room = sum(
        _most(setup) * max(Bin.new(home.pool, offer).holds(needs) for home, offer in homes if home is setup)
        for setup in {id(setup): setup for setup, _ in homes}.values()
    )
    if wanted > room:
        text = f"expected at most {room}, which is what the pools hold at their max, got {wanted}"
        yield Problem(f"{where}.replicas", text, f"Try: replicas = {room}" if room else "Try: a larger max")
    domains = {offer.place.domain(needs.spread_over) for _, offer in homes}
    if needs.spread is Spread.REQUIRE and needs.spread_over != "node" and wanted > len(domains):
        text = f"expected at most {len(domains)}, one a {needs.spread_over}, got {wanted}"
        yield Problem(f"{where}.replicas", text, 'Try: spread = "prefer"')


def _most(setup: PoolSetup) -> int:
    """How many nodes the pool can ever have."""
    return setup.pool.max if setup.pool.can_launch else setup.nodes


def _suits(pool: Pool, offer: Offer, needs: Needs) -> bool:
    return Bin.new(pool, offer).suits(needs)


def _no_home(where: str, needs: Needs, pools: tuple[PoolSetup, ...]) -> Problem:
    sizes = [offer.capacity for setup in pools for offer in setup.pool.offers]
    asked = needs.resources
    for field, unit, have, want in _measures(sizes, asked):
        if want > have:
            text = f"expected at most {have:g}, the largest node of any pool, got {want:g}"
            example = f'"{have:g}MiB"' if unit == "MiB" else f"{have:g}"
            return Problem(f"{where}.{field}", text, f"Try: {field} = {example}")
    kinds = sorted({size.gpu_kind for size in sizes if size.gpu_milli})
    if asked.gpu_milli and not any(asked.takes_kind(kind) for kind in kinds):
        text = f'expected a kind of GPU that some pool has, got "{asked.gpu_kind}"'
        return Problem(f"{where}.gpu_kind", text, f'Try: gpu_kind = "{kinds[0]}"')
    text = f"expected to fit on a node of some pool, got needs that none meets ({asked}"
    text += f", labels {needs.labels}" if needs.labels else ""
    return Problem(
        where, text + (")" if needs.spot else ", not on spot)"), "Look at: labels, tolerates, spot"
    )


def _measures(sizes: list[Resources], asked: Resources) -> Iterator[tuple[str, str, float, float]]:
    yield "cpus", "", max(size.cpu_milli for size in sizes) / 1000, asked.cpu_milli / 1000
    yield "memory", "MiB", max(size.memory_mib for size in sizes), asked.memory_mib
    yield "gpus", "", max(size.gpu_milli for size in sizes) / GPU, asked.gpu_milli / GPU


def _all_services(scenario: Scenario) -> Iterator[Problem]:
    """All services together, against all pools at their max."""
    wanted = [
        (s.workload.shape.replicas, s.workload.needs.resources)
        for s in scenario.workloads
        if isinstance(s.workload.shape, Service)
    ]
    largest = [(_most(setup), [offer.capacity for offer in setup.pool.offers]) for setup in scenario.pools]
    for field, scale in (("cpu_milli", 1000), ("memory_mib", 1024), ("gpu_milli", GPU)):
        need = sum(count * getattr(resources, field) for count, resources in wanted)
        have = sum(most * max(getattr(size, field) for size in sizes) for most, sizes in largest)
        if need > have:
            unit = {"cpu_milli": "CPUs", "memory_mib": "GiB of memory", "gpu_milli": "GPUs"}[field]
            text = f"expected at most {have / scale:g} {unit} for all services, the pools at their max,"
            yield Problem("workloads", f"{text} got {need / scale:g}", "Try: fewer replicas, or a larger max")
