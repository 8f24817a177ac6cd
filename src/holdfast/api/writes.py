"""What is wanted: apply it, look first what would happen, change its size, pause it, delete it.

What is wanted becomes events, and the answer comes after they are in the journal. Several documents are one
append: all of them, or none. What an apply means for something that is there already is
`core.workloads.apply`'s to say; nothing is decided here.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api import admins, pools, projects, shapes
from holdfast.api.bodies import Scale, Signals
from holdfast.api.edge import Edge, Lane, ThisActor, ThisEdge, ThisRole, give
from holdfast.api.gate import JSON, Administer, Operate, Rehearse, Signalling, media_type
from holdfast.api.problems import Refused, unknown
from holdfast.api.said import gives, takes_text
from holdfast.control import trial
from holdfast.control.plane import Plane
from holdfast.core.explain.dry_run import Preview, preview, twin
from holdfast.core.explain.scaling import scale_of
from holdfast.core.gateway.routing import route_claims
from holdfast.core.scaling.load_signals import SOURCES_MAX, true
from holdfast.core.workloads import apply as workload_apply
from holdfast.core.workloads import ceilings, dependencies, differences
from holdfast.files.workload.workload_file import Wanted, documents
from holdfast.model.event import (
    Event,
    PolicyApplied,
    PoolApplied,
    PoolDeleted,
    ProjectApplied,
    WorkloadApplied,
    WorkloadDeleted,
)
from holdfast.model.policy import Policy
from holdfast.model.pool import Pool
from holdfast.model.project import Project
from holdfast.model.scale import Signal
from holdfast.model.units import Instant
from holdfast.model.workload import DEFAULT_PROJECT, Workload
from holdfast.ports.registry import Role

TEXT_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/plain", "")
SENT = "what was sent"
FileName = Annotated[str, Query(max_length=253, description="what problems call it")]
PROBLEMS_MAX = 20
DRY_RUN_S = 5.0  # of a processor: what it has found by then is the answer
NOT_ASKED = "its settings are not applied yet"
TAKES = "a workload file: documents of workloads, pools and a policy; as JSON an object or a list of them"

router = APIRouter(prefix="/v1", route_class=Operate, tags=["what is wanted"])
heard = APIRouter(prefix="/v1", route_class=Signalling, tags=["what is wanted"])
dry = APIRouter(prefix="/v1", route_class=Rehearse, tags=["what is wanted"])
supply = APIRouter(prefix="/v1", route_class=Administer, tags=["what is wanted"])


class Change(NamedTuple):
    applied: shapes.Applied
    event: Event | None  # none: nothing changes


@router.post(
    "/apply",
    summary="Make it so",
    openapi_extra=takes_text(TAKES),
    **gives(shapes.Applied, "what became of each document, when it is journalled", 409, many=True),
)
async def apply(
    request: Request, edge: ThisEdge, role: ThisRole, actor: ThisActor, file: FileName = SENT
) -> Response:
    """Pools, projects and the policy take an admin, unless they stay as they are."""
    wanted = await _sent(request, edge, file)
    if role is Role.ADMIN:  # nobody else gets a pool in that is not there already
        await _insist_on_usable(edge.plane, wanted)
    async with edge.writing:
        changes = list(_changes(edge, wanted, actor))
        events = [change.event for change in changes if change.event is not None]
        admins.insist(role, events, edge.plane)
        if events:
            await edge.tell(*events)
    return give([change.applied for change in changes])


@dry.post(
    "/plan",
    summary="What would happen if this were applied?",
    openapi_extra=takes_text(TAKES),
    **gives(shapes.Preview, "decided by the real loop on a copy of the world; nothing changes", 409),
)
async def plan(request: Request, edge: ThisEdge, role: ThisRole, file: FileName = SENT) -> Response:
    """It takes who may apply it. A provider is not contacted for it: what is known of its offers counts."""
    wanted, plane = await _sent(request, edge, file), edge.plane
    refused = await _refused(plane, wanted) if role is Role.ADMIN else {}
    unknown = [each.name for each in wanted if isinstance(each, Pool) and pools.is_new_to(plane.world, each)]
    changes: list[Change] = []

    def run() -> Callable[[], Preview]:
        world, now = plane.world, plane.now()
        changes.extend(_changes(edge, wanted))
        events = [change.event for change in changes if change.event is not None]
        admins.insist(role, events, plane)
        unlisted = plane.unlisted | dict.fromkeys(unknown, NOT_ASKED)
        return partial(preview, twin(world), events, now, unlisted, processor_time(DRY_RUN_S))

    sent = {each.name for each in wanted if isinstance(each, Workload)}
    found = edge.own.preview(await edge.think(run, Lane.DRY), sent)
    return give(
        shapes.Preview(
            changes=[_in_words(change.applied, refused, unknown) for change in changes],
            steps=[shapes.Step(step.action, step.subject, step.text, step.why) for step in found.steps],
            pending=list(found.pending),
            cautions=list(found.cautions),
        )
    )


def processor_time(most_s: float) -> Callable[[], bool]:
    """Is there still some left? Counted from the first time that it is asked, on the thread that asks."""
    ends: float | None = None

    def left() -> bool:
        nonlocal ends
        ends = time.thread_time() + most_s if ends is None else ends
        return time.thread_time() < ends

    return left


def _in_words(applied: shapes.Applied, refused: Mapping[str, str], unknown: Iterable[str]) -> str:
    """Of a dry run: nothing has been done."""
    what = f" ({', '.join(applied.changes)})" if applied.changes else ""
    would = {"unchanged": "would stay as it is"}.get(applied.outcome, f"would be {applied.outcome}")
    if applied.kind == "pool" and applied.name in refused:
        return f"{applied.kind} {applied.name}: would be refused: {refused[applied.name]}"
    if applied.kind == "pool" and applied.name in unknown:
        what += f"; its provider was not contacted: {NOT_ASKED}; only the offers that are known count"
    return f"{applied.kind} {applied.name}: {would}{what}"


async def _refused(plane: Plane, wanted: Iterable[Wanted]) -> dict[str, str]:
    """Pools that can never have a node here, and why. One that is there already may be left as it is."""
    world = plane.world
    fresh = [each for each in wanted if isinstance(each, Pool) and pools.applied(world, each.name) != each]
    found = {
        pool.name: "; ".join(pools.of_host_anew(world, pool)) or await trial.refusal(plane.look, pool)
        for pool in fresh
    }
    return {name: why for name, why in found.items() if why}


async def _insist_on_usable(plane: Plane, wanted: Iterable[Wanted]) -> None:
    problems = [f"pool {name}: {why}" for name, why in (await _refused(plane, wanted)).items()]
    if problems:
        hint = "nothing was changed; put it right where the control plane runs"
        raise Refused(409, "a pool cannot be had here", hint, problems=problems)


async def _sent(request: Request, edge: Edge, file: str) -> list[Wanted]:
    kind = media_type(request)
    if kind != JSON and kind not in TEXT_TYPES:
        raise Refused(415, f"this takes application/yaml, {JSON} or text/plain, not {kind[:80]}")
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise Refused(422, "the body is not UTF-8 text", problems=[str(error)]) from None
    project = edge.who.project
    read = partial(_read, text, file, kind == JSON, project or DEFAULT_PROJECT)
    found = await edge.think(lambda: read, Lane.FILES)
    for each in found:
        projects.check_wanted(project, each)
    return found


def _read(text: str, file: str, is_json: bool, project: str) -> list[Wanted]:
    return documents(_as_yaml(text) if is_json else text, file, project)


def _as_yaml(text: str) -> str:
    """YAML reads JSON, with a few exceptions (tabs, escaped pairs): so it is read as JSON first."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or a number of thousands of digits
        raise Refused(422, "the body is not JSON", problems=[str(error)]) from None
    parts = found if isinstance(found, list) else [found]
    return "".join(f"---\n{json.dumps(part, ensure_ascii=False)}\n" for part in parts)


def _changes(edge: Edge, wanted: list[Wanted], actor: str = "") -> Iterator[Change]:
    world, now = edge.plane.world, edge.plane.now()
    workloads = [each for each in wanted if isinstance(each, Workload)]
    problems = list(dependencies.problems(world, workloads, edge.own.names() if edge.own.project else None))
    if problems:
        what = "a workload waits for what it cannot wait for"
        raise Refused(422, what, "nothing was changed; put `after` right", problems=problems)
    taken = route_claims.problems(world, workloads, of_project=bool(edge.who.project))
    if problems := list(islice(taken, PROBLEMS_MAX)):
        hint = "nothing was changed; take other names, or ask an admin whose they are"
        raise Refused(409, "gateways lead this to another project", hint, problems=problems)
    limits = {each.name: each for each in wanted if isinstance(each, Project)}
    ceilings.check(world, workloads, {**world.projects, **limits})
    for each in wanted:
        match each:
            case Workload():
                old = world.workloads.get(each.name)
                projects.check_name(edge.who.project, world, each)
                projects.check_priority(world.projects.get(each.project), old, each)
                yield _revised(old, workload_apply.revise(old, each), now, actor)
            case Pool(name=name):
                before = pools.applied(world, name)
                words = tuple(differences.pool_differences(before, each))
                pool = PoolApplied(at=now, pool=each, actor=actor, changes=words)
                yield _plain_change("pool", name, before, each, pool)
            case Project(name=name):
                known = world.projects.get(name)
                words = tuple(differences.project_differences(known, each))
                quota = ProjectApplied(at=now, project=each, actor=actor, changes=words)
                yield _plain_change("project", name, known or (None if each.limited else each), each, quota)
            case Policy():
                words = tuple(differences.policy_differences(world.policy, each))
                policy = PolicyApplied(at=now, policy=each, actor=actor, changes=words)
                yield _plain_change("policy", "policy", world.policy, each, policy)


def _revised(old: Workload | None, new: Workload, now: Instant, actor: str, note: str = "") -> Change:
    """`note` is said before what changed, where something did."""
    outcome = "created" if old is None else "unchanged" if new is old else "changed"
    words = differences.differences(old, new) if old is not None and new is not old else []
    words = [note, *words] if note and words else words
    applied = shapes.Applied(new.name, workload_apply.kind(new.shape), outcome, new.version, words)
    event = WorkloadApplied(at=now, workload=new, actor=actor, changes=tuple(words))
    return Change(applied, None if new is old else event)


def _plain_change(
    kind: str, name: str, old: object, new: object, event: PoolApplied | PolicyApplied | ProjectApplied
) -> Change:
    outcome = "created" if old is None else "unchanged" if new == old else "changed"
    applied = shapes.Applied(name, kind, outcome, 0, list(event.changes))
    return Change(applied, None if new == old else event)


# one pool


@supply.delete(
    "/pools/{name}",
    summary="Empty its nodes, let them go, and forget it",
    **gives(shapes.Applied, "when it is journalled; it is in the list until its nodes are gone", 404, 409),
)
async def delete_pool(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    plane = edge.plane
    async with edge.writing:
        _insist_on_deletable(plane, name)
        if not plane.world.pool_states[name].deleted_at:
            await edge.tell(PoolDeleted(at=plane.now(), pool=name, actor=actor))
    return give(shapes.Applied(name, "pool", "deleted", 0))


def _insist_on_deletable(plane: Plane, name: str) -> None:
    pool = plane.world.pools.get(name)
    if pool is None:
        raise unknown("pool", name, plane.world.pools)
    if name in plane.own_pools:
        what = f"{name} belongs to this `holdfast up`, and every start brings it again"
        raise Refused(409, what, "give `holdfast up` another --nodes, or stop it")
    there = sorted(plane.world.in_pool[name])
    if there and not pool.can_terminate:
        some = f"{', '.join(there[:3])}{', ...' if len(there) > 3 else ''}"
        what = f"the nodes of {name} ({some}) join by themselves: nobody here can end them"
        raise Refused(409, what, f"holdfast drain {there[0]} --wait, stop its agent, and holdfast forget it")


# one workload


@router.delete(
    "/workloads/{name}", summary="Want it no more", **gives(shapes.Applied, "when it is journalled", 404)
)
async def delete_workload(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    async with edge.writing:
        old = edge.own.workload(name)
        await edge.tell(WorkloadDeleted(at=edge.plane.now(), workload=name, actor=actor))
    return give(shapes.Applied(name, workload_apply.kind(old.shape), "deleted", old.version))


@router.post(
    "/workloads/{name}/scale",
    summary="Want more or fewer of it",
    **gives(shapes.Applied, "when it is journalled", 404, 409),
)
async def scale(edge: ThisEdge, actor: ThisActor, name: str, body: Scale) -> Response:
    return give(await changed(edge, actor, name, lambda old: workload_apply.scaled(old, body.count)))


@heard.post(
    "/workloads/{name}/signals",
    summary="Tell how it goes, so that it can grow and shrink",
    **gives(shapes.Done, "when it was heard: signals are not journalled", 404, 409),
)
async def signals(edge: ThisEdge, name: str, body: Signals) -> Response:
    workload = edge.own.workload(name)
    if name not in edge.plane.world.scaled:
        hint = f"give {name} a `scale`, or holdfast scale {name} N"
        raise Refused(409, f"{workload.name} does not scale: its size is fixed", hint)
    wrong = [f"signals.{signal}: got {value:g}" for signal, value in body.signals.items() if not true(value)]
    if wrong:
        hint = "a signal is a number from 0 to 1e12; nothing was taken"
        raise Refused(422, "this cannot be true", hint, problems=wrong)
    refused = edge.plane.hear(name, body.source, body.signals)
    if refused:
        text = f"{name} has {SOURCES_MAX:,} sources of {', '.join(refused)} already, and no room for another"
        raise Refused(409, text, "give fewer names: the same `source` each time for the same gateway")
    return give(shapes.Done(_heard(workload, body.signals)))


def _heard(workload: Workload, said: Iterable[Signal]) -> str:
    scale = scale_of(workload)
    counted = {*(scale.per_replica if scale is not None else ()), Signal.QUEUE, Signal.OLDEST_WAIT}
    idle = [signal for signal in said if signal not in counted]
    but = f"; it does not scale by {', '.join(idle)}" if idle else ""
    return f"heard {', '.join(said)} of {workload.name}{but}"


@router.post(
    "/workloads/{name}/pause",
    summary="Stop what runs, and keep it known",
    **gives(shapes.Applied, "when it is journalled", 404),
)
async def pause(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    return give(await changed(edge, actor, name, lambda old: workload_apply.paused(old, True)))


@router.post(
    "/workloads/{name}/resume", summary="Run it again", **gives(shapes.Applied, "when it is journalled", 404)
)
async def resume(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    return give(await changed(edge, actor, name, lambda old: workload_apply.paused(old, False)))


async def changed(
    edge: Edge, actor: str, name: str, change: Callable[[Workload], Workload], note: str = ""
) -> shapes.Applied:
    async with edge.writing:
        old = edge.own.workload(name)
        new = change(old)
        ceilings.check(edge.plane.world, [new], edge.plane.world.projects)
        done = _revised(old, old if new == old else new, edge.plane.now(), actor, note)
        if done.event is not None:
            await edge.tell(done.event)
    return done.applied
