"""The world, as the API shows it. Pure functions; they read, and never write.

A fleet of ten thousand nodes is shown in one answer, and while it is put together nobody listens to those
nodes. So each entry is built once, from what the indexes know already; nothing is searched for, and whoever
asks for thousands asks in parts (`reads.in_parts`). Between two parts the world may change, so an entry that
has gone meanwhile is None here and left out there.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.api import shapes
from holdfast.api.tally import Tally
from holdfast.core.cost import budgets, report
from holdfast.core.explain import offer_list, pending, spot_mix
from holdfast.core.explain.scaling import scale_of
from holdfast.core.health import brake
from holdfast.core.health.detect import Senses
from holdfast.core.plan.project_quota import Quotas
from holdfast.core.workloads import ceilings
from holdfast.core.workloads.apply import kind
from holdfast.model import place, pool, replica, resources, told, workload
from holdfast.model.money import Budget
from holdfast.model.node import JOINED, Node
from holdfast.model.project import Project
from holdfast.model.scale import Scale
from holdfast.model.units import Instant
from holdfast.model.verdict import Level
from holdfast.model.world import World
from holdfast.wire.messages import Used

SEATS_LISTED_MAX = 50
UNKNOWN = "unknown"  # the verdict on a node that never joined: there may be none


class Sight(msgspec.Struct, frozen=True):
    """The world from where we stand: a control plane that follows hears no heartbeats."""

    world: World
    senses: Senses | None
    used: Callable[[str], Used | None]
    now: Instant


# nodes


def node(sight: Sight, name: str, findings: list[str]) -> shapes.Node | None:
    world = sight.world
    it = world.nodes.get(name)
    if it is None:
        return None
    verdict = it.verdict
    return shapes.Node(
        name=name,
        pool=it.pool,
        offer=it.offer,
        place=where(it.place),
        state=_state(it),
        lifecycle=it.state,
        verdict=verdict.level if it.joined_at else UNKNOWN,
        rule=verdict.rule,
        evidence=str(verdict.evidence),
        verdict_since_ms=verdict.since,
        state_since_ms=it.since,
        silent_ms=_silent_ms(sight, name),
        capacity=amount(it.capacity),
        free=_free(world, it),
        used=_used(sight, name),
        price_micro_usd=it.price_micro_usd,
        spot=it.spot,
        standby=it.standby,
        deadline_ms=it.deadline or None,
        address=it.address,
        labels=it.labels,
        taints=list(it.taints),
        replicas=list(world.on_node.get(name, ())),
        findings=findings,
        fencing=it.fencing,
        limits=it.limits,
        isolation=it.isolation,
    )


def _state(it: Node) -> str:
    """Nobody should take a dead node for a ready one who reads no further."""
    if it.state in JOINED and it.verdict.level in (Level.DEAD, Level.UNREACHABLE):
        return str(it.verdict.level)
    return it.state


def findings_by_node(world: World) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, what in world.findings:
        found.setdefault(name, []).append(what)
    return found


def _silent_ms(sight: Sight, name: str) -> int | None:
    if sight.senses is None:
        return None
    row = sight.senses.beats.row.get(name)
    return None if row is None else max(0, sight.now - int(sight.senses.beats.heard[row]))


def _free(world: World, it: Node) -> shapes.Resources:
    room = world.room
    row = room.row.get(it.id)
    if row is None:  # it is not here yet, or leaves
        return amount(it.capacity)
    return shapes.Resources(
        int(room.cpu[row]), int(room.memory[row]), int(room.gpu_free[row]), it.capacity.gpu_kind
    )


def _used(sight: Sight, name: str) -> shapes.Resources | None:
    used = sight.used(name)
    if used is None:
        return None
    return shapes.Resources(used.cpu_milli, used.memory_mib, sum(used.gpu_milli.values()))


def amount(of: resources.Resources) -> shapes.Resources:
    return shapes.Resources(of.cpu_milli, of.memory_mib, of.gpu_milli, of.gpu_kind)


def where(of: place.Place) -> shapes.Place:
    return shapes.Place(of.provider, of.region, of.zone, of.rack)


# workloads


def workload_of(
    sight: Sight, name: str, *, seats_max: int = SEATS_LISTED_MAX, after: str | None = None
) -> shapes.Workload | None:
    """With at most so many seats, those in trouble first; 0: all of them, in order. `after`: the next of
    them, in order, behind this one."""
    world = sight.world
    it = world.workloads.get(name)
    if it is None:
        return None
    tally = Tally(world, it, sight.now)
    slots = tally.shown(seats_max) if seats_max else tally.slots
    if after is not None:
        slots = tally.behind(after)[: seats_max or None]
    shape = it.shape
    return shapes.Workload(
        name=name,
        kind=kind(it.shape),
        version=it.version,
        paused=it.paused,
        priority=it.priority,
        wanted=tally.wanted,
        ready=tally.ready,
        done=tally.done,
        failed=tally.failed,
        standby=tally.standby,
        needs=amount(it.needs.resources),
        command=list(it.program.command) if it.program is not None else [],
        availability=(shape.availability or None) if isinstance(shape, workload.Service) else None,
        scale=_bounds(scale_of(it)),
        deadline_ms=_deadline(world, it),
        missed_deadline=name in world.courses and world.courses[name].missed > 0,
        why=tally.why(),
        seats=[_seat(sight, slot, tally.filling.get(slot.id)) for slot in slots],
        gang=tally.gang,
        project=it.project,
    )


def _deadline(world: World, of: workload.Workload) -> Instant | None:
    course = world.courses.get(of.name)
    if course is None or not isinstance(of.shape, workload.Job):
        return None
    return course.begun + of.shape.deadline_ms


def _bounds(of: Scale | None) -> shapes.Bounds | None:
    return None if of is None else shapes.Bounds(of.min, of.max, [str(signal) for signal in of.per_replica])


def _seat(sight: Sight, slot: replica.Slot, filling: replica.Replica | None) -> shapes.Seat:
    return shapes.Seat(
        slot=slot.id,
        role=slot.role,
        phase=slot.phase,
        replica=filling.id if filling is not None else "",
        last=replica.last_of(slot),
        node=filling.node if filling is not None else "",
        state=filling.state if filling is not None else "pending",
        failures=slot.failures,
        down_ms=max(0, sight.now - slot.down_since) if slot.down_since else None,
        why=slot.why,
    )


def _measured(used: Used, replica: str) -> shapes.Resources | None:
    if replica not in used.replicas:
        return None
    return shapes.Resources(*used.replicas[replica], used.gpu_milli.get(replica, 0))


def replica_of(sight: Sight, name: str) -> shapes.Replica | None:
    it = sight.world.replicas.get(name)
    if it is None:
        return None
    host = sight.world.nodes.get(it.node)
    used = sight.used(it.node)
    return shapes.Replica(
        id=name,
        workload=it.workload,
        slot=it.slot,
        node=it.node,
        epoch=it.epoch,
        role=it.role,
        state=it.state,
        since_ms=it.since,
        version=it.version,
        address=f"{host.address}:{it.port}" if host is not None and host.address and it.port else "",
        devices=list(it.devices),
        gang=it.gang,
        used=_measured(used, name) if used is not None else None,
    )


def replicas_named(world: World, workload_name: str, node_name: str) -> list[str]:
    """Of this workload, on this node; empty: of any, on any."""
    if node_name:
        names: Iterable[str] = world.on_node.get(node_name, ())
    elif workload_name:
        names = (
            name for slot in world.of_workload.get(workload_name, ()) for name in world.of_slot.get(slot, ())
        )
    else:
        return list(world.replicas)
    return [
        name
        for name in names
        if name in world.replicas and workload_name in ("", world.replicas[name].workload)
    ]


def projects_of(world: World, only: str) -> Iterator[shapes.Project]:
    """`only` this one, or all."""
    taken, quotas = ceilings.Taken(world), Quotas(world)
    for name in sorted({*taken.workloads, *world.projects}):
        if only in ("", name):
            used, quota = quotas.used(name), world.projects.get(name, Project(name))
            may = ceilings.of_project(quota)
            yield shapes.Project(
                name=name,
                workloads=taken.workloads[name],
                nodes=len(used.nodes),
                cpu_milli=used.cpu_milli,
                memory_mib=used.memory_mib,
                gpu_milli=used.gpu_milli,
                hour_micro_usd=used.hour_micro_usd,
                nodes_max=quota.nodes,
                cpu_milli_max=quota.cpu_milli,
                memory_mib_max=quota.memory_mib,
                gpu_milli_max=quota.gpu_milli,
                month_micro_usd_max=quota.month_micro_usd,
                priority_max=quota.priority,
                replicas=taken.seats[name],
                replicas_max=may.seats,
                workloads_max=may.workloads,
            )


# the rest


def pool_of(world: World, name: str, now: Instant) -> shapes.Pool:
    it = world.pools[name]
    return shapes.Pool(
        name=name,
        provider=it.provider,
        min=it.min,
        max=it.max,
        standby=it.standby,
        nodes=len(world.in_pool.get(name, ())),
        hour_micro_usd=budgets.rate(world, (name,)),
        price_max_micro_usd=it.price_max_micro_usd,
        budget=_budget(it.budget),
        network=it.network,
        why=pending.trouble(world, name, now),
        deleted=world.pool_states[name].deleted_at > 0,
        profile=it.profile,
        offers=[offer_of(name, offer) for offer in world.offers[name]],
    )


def offer_of(pool_name: str, of: pool.Offer) -> shapes.Offer:
    return shapes.Offer(of.name, pool_name, where(of.place), amount(of.capacity), of.price_micro_usd, of.spot)


def offer_listed(of: offer_list.Listed, now: Instant) -> shapes.OfferListed:
    record = of.record
    return shapes.OfferListed(
        key=of.key,
        name=of.offer.name,
        pool=of.pool.name,
        place=where(of.offer.place),
        capacity=amount(of.offer.capacity),
        price_micro_usd=of.offer.price_micro_usd,
        spot=of.offer.spot,
        prices=[shapes.Price(at, price) for at, price in record.prices],
        chance=of.chance,
        ready_ms=of.ready_ms,
        lasts_a_day=of.lasts_a_day,
        cost_micro_usd=of.cost_micro_usd,
        asked=round(record.asked, 2),
        came_up=round(record.came_up, 2),
        refused=round(record.refused, 2),
        failed=round(record.failed, 2),
        lost=round(record.losses, 2),
        retry_ms=record.retry_at if record.retry_at > now else None,
        refusal=of.refusal,
    )


def spending(world: World, now: Instant) -> shapes.Spending:
    fleet, *pools = report.report(world, now)
    return shapes.Spending(
        now_ms=now,
        month_ends_ms=budgets.month_end(now),
        fleet=_spend(fleet),
        pools=[_spend(each) for each in pools],
        told=[text for each in (fleet, *pools) for text in report.tell(each, now)],
    )


def _spend(of: report.Spend) -> shapes.Spend:
    return shapes.Spend(
        pool=of.pool,
        nodes=of.nodes,
        hour_micro_usd=of.rate_micro_usd,
        month_micro_usd=of.month_micro_usd,
        ever_micro_usd=of.ever_micro_usd,
        budget=_budget(of.budget),
        lasts_ms=of.lasts_ms,
        on_demand_micro_usd=of.on_demand_micro_usd,
    )


def _budget(of: Budget) -> shapes.Budget:
    return shapes.Budget(of.hour_micro_usd, of.month_micro_usd)


def findings(world: World) -> list[shapes.Finding]:
    return [
        shapes.Finding(it.node, it.name, int(it.severity), it.confidence, it.evidence, it.remedy, it.at)
        for it in world.findings.values()
    ]


def brakes(world: World) -> list[shapes.Brake]:
    engaged = [shapes.Brake(it.scope, it.since, it.why) for it in world.brakes.values()]
    return [*engaged, *_kept(world)]


def _kept(world: World) -> list[shapes.Brake]:
    """Brakes that were narrowed, as one."""
    nodes = [node for name in sorted(world.kept) if brake.is_kept(world, node := world.nodes[name])]
    if not nodes:
        return []
    why = f"died at once, and nobody knows that they are gone: {', '.join(node.id for node in nodes)}"
    return [shapes.Brake("kept", min(node.kept_at for node in nodes), why)]


def line(of: told.Told) -> shapes.Line:
    return shapes.Line(of.seq, of.at, of.kind, of.subject, of.text, of.node, of.workload, of.actor)


def mix(told: spot_mix.Told | None) -> shapes.Mix | None:
    if told is None:
        return None
    return shapes.Mix(
        wanted=told.wanted,
        floor=told.floor,
        spares=told.spares,
        on_demand=told.on_demand,
        spot=told.spot,
        offers=[
            shapes.SpotOffer(
                zone.name,
                zone.price,
                zone.stays_ms,
                zone.ready,
                zone.coming,
                zone.leaving,
                zone.refused,
                zone.taking,
            )
            for zone in told.zones
        ],
        ordered=list(told.why),
        alone_per_hour=told.learnt.alone_per_hour,
        more_follow=told.learnt.more_follow,
        cases=told.learnt.cases,
        short_share=told.learnt.short_share,
        short_share_max=told.learnt.short_share_max,
        ways=[shapes.Way(way.name, way.price, way.losses) for way in told.ways],
    )
