"""What is free, what would fit, and what fails next: the capacity report.

Asking what becomes of every workload for every failure domain takes up to a second of a processor, so it is
asked of a copy of the world on another thread, as dry runs are.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.edge import Lane, ThisEdge, give
from holdfast.api.gate import Read
from holdfast.api.problems import unknown
from holdfast.api.reads import Filter
from holdfast.api.said import gives
from holdfast.core.explain import failure_impact, headroom
from holdfast.core.explain.dry_run import twin
from holdfast.model.place import Level
from holdfast.model.units import Instant
from holdfast.model.world import World

router = APIRouter(prefix="/v1", route_class=Read, tags=["what there is"])

Over = Annotated[
    Literal["provider", "region", "zone", "rack"],
    Query(description="of the failure domains whose loss is asked about: provider, region, zone or rack"),
]


@router.get(
    "/capacity",
    summary="What is free, what would fit, and what fails next if a failure domain goes",
    **gives(shapes.Capacity, "answered by the real decisions on a copy of the world; nothing changes", 404),
)
async def capacity(edge: ThisEdge, level: Over = "zone", domain: Filter = "") -> Response:
    """`domain` asks about one loss alone: by its path, such as `aws/us-east-1/a`, or by the end of it."""

    def run() -> Callable[[], shapes.Capacity]:
        world, names = edge.plane.world, failure_impact.domains(edge.plane.world, Level(level))
        named = failure_impact.named(names, domain) if domain else names
        if domain and not named:
            raise unknown(level, domain, names)
        return partial(report, twin(world), Level(level), named, edge.plane.now())

    return give(await edge.think(run, Lane.DRY))


def report(world: World, level: Level, domains: list[str], now: Instant) -> shapes.Capacity:
    room = headroom.headroom(world, now)
    found = [failure_impact.if_lost(world, level, domain, now) for domain in domains]
    worst = failure_impact.tell_worst(found)
    return shapes.Capacity(
        now_ms=now,
        level=level,
        told=[*headroom.tell(room), *([worst] if worst else [])],
        cpu_milli=room.cpu_milli,
        cpu_milli_unusable=room.cpu_milli_unusable,
        gpu_milli_unusable=room.gpu_milli_unusable,
        free=[msgspec.convert(row, shapes.Free, from_attributes=True) for row in room.free],
        gpus=[_kind(kind) for kind in room.kinds],
        fits=[shapes.Fits(fit.workload, fit.more, fit.waiting) for fit in room.fits],
        losses=[_loss(loss) for loss in sorted(found, key=lambda loss: loss.harm, reverse=True)],
    )


def _kind(of: headroom.Kind) -> shapes.FreeGpus:
    together = {str(size): count for size, count in of.together.items()}
    return shapes.FreeGpus(of.kind, of.gpus, of.shares_milli, of.largest, together, of.stranded_milli)


def _loss(of: failure_impact.Loss) -> shapes.Loss:
    return shapes.Loss(
        level=of.level,
        domain=of.domain,
        told=failure_impact.tell(of),
        nodes=of.nodes,
        lost=of.lost,
        short=of.short,
        hits=[_hit(hit) for hit in of.hits],
        pushed_out=of.pushed_out,
    )


def _hit(of: failure_impact.Hit) -> shapes.Hit:
    return shapes.Hit(
        workload=of.workload,
        priority=of.priority,
        lost=of.lost,
        left=of.left,
        promoted=of.promoted,
        placed=of.placed,
        by_preemption=of.by_preemption,
        short=of.short,
        standbys=of.standbys,
        availability=of.availability or None,
        broken=of.broken,
    )
