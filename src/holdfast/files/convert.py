"""From the tables of a file to the scenario that the simulator runs; for tables that have been checked."""

from collections.abc import Iterator

from holdfast.files.forms import Kind, OfferForm, PoolForm, ScenarioForm, WorkloadForm
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import GPU, Resources
from holdfast.model.units import MINUTE
from holdfast.model.workload import Job, Needs, Service, Shape, Sweep, Training, Workload
from holdfast.sim.scenario import PoolSetup, Scenario, WorkloadSetup


def scenario(form: ScenarioForm, name: str) -> Scenario:
    return Scenario(
        name=name,
        title=form.title,
        seed=form.seed,
        lasts_ms=form.lasts,
        settle_ms=min(15 * MINUTE, form.lasts // 2) if form.settle is None else form.settle,
        pools=tuple(pool_setup(pool) for pool in form.pools),
        workloads=tuple(workload_setup(workload) for workload in form.workloads),
        providers=form.providers,
        network=form.network,
        troubles=tuple(form.faults),
        changes=tuple(form.changes),
        control_planes=form.control_planes,
        policy=form.policy,
        domain_mtbf_ms=form.domain_mtbf,
        domain_repair_ms=form.domain_repair,
    )


def pool_setup(form: PoolForm) -> PoolSetup:
    least = form.nodes if form.min is None else form.min
    pool = Pool(
        name=form.name,
        provider=form.provider,
        offers=tuple(offers(form)),
        min=least,
        max=max(form.nodes, least) if form.max is None else form.max,
        standby=form.standby,
        labels=form.labels,
        taints=form.taints,
        can_launch=form.can_launch,
        can_terminate=form.can_terminate,
        can_reset=form.can_reset,
        idle_ms=form.idle,
    )
    return PoolSetup(pool, form.nodes, form.mtbf, form.repair, form.preempt_every)


def offers(form: PoolForm) -> Iterator[Offer]:
    if form.offers:
        yield from (explicit_offer(form, offer) for offer in form.offers)
        return
    for number in range(form.racks_per_zone):
        for zone in form.zones:
            rack = f"{zone}-r{number + 1}" if form.racks_per_zone > 1 else "-"
            name = zone if rack == "-" else rack
            place = Place(form.provider, form.region, zone, rack)
            yield Offer(name, place, _capacity(form), form.price, form.spot)


def _capacity(form: PoolForm) -> Resources:
    return Resources(form.cpus, form.memory, form.gpus * GPU, form.gpu_kind if form.gpus else "")


def explicit_offer(pool: PoolForm, offer: OfferForm) -> Offer:
    own = {k: v for k, v in offer.model_dump(exclude={"name", "zone", "rack"}).items() if v is not None}
    alike = pool.model_copy(update=own)
    place = Place(pool.provider, alike.region, offer.zone, offer.rack)
    return Offer(offer.name, place, _capacity(alike), alike.price, alike.spot)


def workload_setup(form: WorkloadForm) -> WorkloadSetup:
    needs = Needs(
        resources=Resources(form.cpus, form.memory, form.gpus, form.gpu_kind),
        labels=form.labels,
        tolerates=form.tolerates,
        spot=form.spot,
        spread=form.spread,
        spread_over=form.spread_over,
    )
    workload = Workload(
        name=form.name,
        shape=shape(form),
        needs=needs,
        priority=form.priority,
        restart=form.restart,
        checkpoint_ms=form.checkpoint,
        move_cost_ms=form.move_cost,
        stop_grace_ms=form.stop_grace,
        after=form.after,
    )
    return WorkloadSetup(workload, form.program, form.applied_at)


def shape(form: WorkloadForm) -> Shape:
    standby = form.standby or 0
    match form.kind:
        case Kind.SERVICE:
            return Service(form.replicas or 1, standby, form.availability or 0.0)
        case Kind.JOB:
            return Job(standby)
        case Kind.TRAINING:
            least = form.nodes_min or 1
            return Training(least, form.nodes_max or least, standby)
        case Kind.SWEEP:
            return Sweep(form.tasks or 1, form.parallel or 0)


def first_nodes(pool: str, nodes: int) -> list[str]:
    """What the simulator calls the nodes that are there at the beginning."""
    return [f"{pool}-{chr(97 + number % 26)}{number // 26 or ''}" for number in range(nodes)]
