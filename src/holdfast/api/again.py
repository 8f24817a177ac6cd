"""What is started again, or as it was before: retry, restart, rollback; and what is applied now.

Whether there is something to do is `core.workloads.apply`'s to say, what becomes of the seats the fold's.
"""

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.bodies import Rollback
from holdfast.api.edge import ThisActor, ThisEdge, give
from holdfast.api.gate import Operate, Read
from holdfast.api.said import gives
from holdfast.api.writes import changed
from holdfast.core.workloads import apply, differences
from holdfast.files.workload import workload_writer
from holdfast.model.event import WorkloadRestarted, WorkloadRetried
from holdfast.model.workload import Workload
from holdfast.model.world import World

SEATS_NAMED = 5

router = APIRouter(prefix="/v1/workloads", route_class=Operate, tags=["what is wanted"])
looks = APIRouter(prefix="/v1/workloads", route_class=Read, tags=["what there is"])


@router.post(
    "/{name}/retry",
    summary="Start again what failed of it",
    **gives(shapes.Applied, "when it is journalled", 404, 409),
)
async def retry(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    plane = edge.plane
    async with edge.writing:
        old = edge.own.workload(name)
        slots = [plane.world.slots[slot] for slot in plane.world.of_workload.get(name, ())]
        again = apply.check_retry(old, slots)
        await edge.tell(WorkloadRetried(at=plane.now(), workload=name, actor=actor))
    more = f" and {len(again) - SEATS_NAMED} more" if len(again) > SEATS_NAMED else ""
    said = f"{', '.join(again[:SEATS_NAMED])}{more} {'starts' if len(again) == 1 else 'start'} again"
    return give(shapes.Applied(name, apply.kind(old.shape), "changed", old.version, [said]))


@router.post(
    "/{name}/restart",
    summary="Start it anew: a service one copy after the other, the rest from the beginning",
    **gives(shapes.Applied, "when it is journalled", 404, 409),
)
async def restart(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    plane = edge.plane
    async with edge.writing:
        old = edge.own.workload(name)
        apply.check_restart(old)
        await edge.tell(WorkloadRestarted(at=plane.now(), workload=name, actor=actor))
        new = edge.own.workload(name)
    return give(shapes.Applied(name, apply.kind(new.shape), "changed", new.version, ["restarted"]))


@router.post(
    "/{name}/rollback",
    summary="Run what ran under an earlier version; how many there are of it stays",
    **gives(shapes.Applied, "when it is journalled", 404, 409),
)
async def rollback(edge: ThisEdge, actor: ThisActor, name: str, body: Rollback | None = None) -> Response:
    to = body.version if body is not None else None

    def before(old: Workload) -> Workload:
        return apply.rolled_back(old, edge.plane.world.versions.get(name, ()), to)

    note = f"rolled back to version {to}" if to else "rolled back"
    return give(await changed(edge, actor, name, before, note))


@looks.get(
    "/{name}/versions",
    summary="What ran under its last versions",
    **gives(shapes.Version, "the oldest first", 404, many=True),
)
async def versions(edge: ThisEdge, name: str) -> Response:
    return give(_versions(edge.plane.world, edge.own.workload(name)))


def _versions(world: World, workload: Workload) -> list[shapes.Version]:
    found: list[shapes.Version] = []
    before: Workload | None = None
    for version in world.versions.get(workload.name, ()):
        then = apply.at_version(workload, version)
        found.append(_version(before, then, version.number, version.until))
        before = then
    return [*found, _version(before, workload, workload.version, None)]


def _version(before: Workload | None, then: Workload, number: int, until: int | None) -> shapes.Version:
    command = list(then.program.command) if then.program is not None else []
    return shapes.Version(number, until, command, differences.differences(before, then))


@router.get(
    "/{name}/spec",
    summary="What is applied, as a file says it",
    **gives(shapes.Written, "to apply it changes nothing", 404),
)
async def spec(edge: ThisEdge, name: str) -> Response:
    """With the values of its environment, which may be secrets: so this takes an operator."""
    workload = edge.own.workload(name)
    fields = workload_writer.fields(workload)
    return give(shapes.Written(name, workload.version, workload_writer.text(fields), fields))
