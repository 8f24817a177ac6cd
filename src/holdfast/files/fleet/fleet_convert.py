"""From the fields of a pool or a workload to the nouns of the domain; for fields that have been checked."""

from collections.abc import Iterator

from holdfast.files.fleet.fleet_schema import (
    Kind,
    OfferForm,
    PoolFields,
    ProjectFields,
    WorkloadFields,
)
from holdfast.files.fleet.scale_schema import scale_of
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.program import Program
from holdfast.model.project import Project
from holdfast.model.resources import GPU, Resources
from holdfast.model.workload import DEFAULT_PROJECT, Job, Needs, Service, Shape, Sweep, Training, Workload

SHARED = tuple(OfferForm.model_fields.keys() & PoolFields.model_fields.keys() - {"name"})


def pool(
    form: PoolFields,
    least: int,
    most: int,
    found: tuple[Offer, ...],
    settings: dict[str, str] | None = None,
    profile: str = "",
) -> Pool:
    return Pool(
        name=form.name,
        provider=form.provider,
        offers=found,
        min=least,
        max=most,
        standby=form.standby,
        standby_covers=form.standby_covers,
        labels=form.labels,
        taints=form.taints,
        can_launch=form.can_launch,
        can_terminate=form.can_terminate,
        can_reset=form.can_reset,
        lists_offers=form.lists_offers,
        lists_stock=form.lists_stock,
        queues=form.queues,
        idle_ms=form.idle,
        budget=form.budget,
        reserve=form.reserve,
        price_max_micro_usd=form.price_max,
        settings=settings or {},
        profile=profile,
    )


def offers(form: PoolFields) -> Iterator[Offer]:
    if form.offers:
        yield from (explicit_offer(form, offer) for offer in form.offers)
        return
    for number in range(form.racks_per_zone):
        for zone in form.zones:
            rack = f"{zone}-r{number + 1}" if form.racks_per_zone > 1 else "-"
            name = zone if rack == "-" else rack
            place = Place(form.provider, form.region, zone, rack)
            yield Offer(name, place, _capacity(form), form.price, form.spot)


def _capacity(form: PoolFields) -> Resources:
    return Resources(form.cpus, form.memory, form.gpus * GPU, form.gpu_kind if form.gpus else "")


def explicit_offer(pool: PoolFields, offer: OfferForm) -> Offer:
    own = {name: getattr(offer, name) for name in SHARED if getattr(offer, name) is not None}
    alike = pool.model_copy(update=own)
    place = Place(pool.provider, alike.region, offer.zone, offer.rack)
    return Offer(offer.name, place, _capacity(alike), alike.price, alike.spot)


def project(form: ProjectFields) -> Project:
    return Project(
        form.name,
        form.nodes,
        form.cpus,
        form.memory,
        form.gpus,
        form.month,
        form.priority,
        form.replicas,
        form.workloads,
    )


def workload(
    form: WorkloadFields,
    program: Program | None = None,
    *,
    paused: bool = False,
    project: str = DEFAULT_PROJECT,
) -> Workload:
    """`project`: of one that names none."""
    return Workload(
        name=form.name,
        shape=shape(form),
        needs=needs(form),
        priority=form.priority,
        restart=form.restart,
        checkpoint_ms=form.checkpoint,
        move_cost_ms=form.move_cost,
        stop_grace_ms=form.stop_grace,
        after=form.after,
        paused=paused,
        program=program,
        project=form.project or project,
    )


def needs(form: WorkloadFields) -> Needs:
    return Needs(
        resources=Resources(form.cpus, form.memory, form.gpus, form.gpu_kind),
        labels=form.labels,
        tolerates=form.tolerates,
        spot=form.spot,
        spread=form.spread,
        spread_over=form.spread_over,
    )


def shape(form: WorkloadFields) -> Shape:
    standby = form.standby or 0
    match form.kind:
        case Kind.SERVICE:
            scale = scale_of(form.scale) if form.scale is not None else None
            copies, target = form.replicas or 1, form.availability or 0.0
            return Service(copies, standby, target, scale, form.mix, form.serves)
        case Kind.JOB:
            return Job(standby, form.deadline or 0, form.work or 0)
        case Kind.TRAINING:
            least = form.nodes_min or 1
            return Training(least, form.nodes_max or least, standby)
        case Kind.SWEEP:
            return Sweep(form.tasks or 1, form.parallel or 0)
