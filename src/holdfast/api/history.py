"""What happened, and why things are as they are.

As a list, or (`Accept: text/event-stream`) as a stream that goes on. A journal entry may have several lines,
so the id of the last line is the entry's number and the id of an earlier one is `NUMBER.HOW-MANY-SO-FAR`:
whoever comes back with the last id it saw gets every line once, wherever it was cut off.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from enum import StrEnum
from functools import partial
from itertools import chain, groupby
from typing import Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api import shapes, views
from holdfast.api.edge import Edge, Lane, ThisEdge, Whoever, give
from holdfast.api.gate import Read
from holdfast.api.problems import Refused, unknown
from holdfast.api.projects import TOKEN, Projects
from holdfast.api.reads import Filter
from holdfast.api.said import gives
from holdfast.api.streams import Stream
from holdfast.control.plane import Plane
from holdfast.core.explain import explain, offer_list
from holdfast.core.explain.dry_run import twin
from holdfast.core.explain.history import workload_of
from holdfast.core.health.detect import Senses
from holdfast.core.scaling.demand import Ears
from holdfast.model.told import Told
from holdfast.model.world import World
from holdfast.ports.errors import PortError

SSE = "text/event-stream"
KEEP_ALIVE_S = 10.0
AGAIN_S = 1.0
LINES_AT_ONCE = 500
AT_ONCE = 1_000  # seats and nodes, of which an explanation is made without a thread
LIMIT_MAX = 1_000
TOLD_MAX = 20  # lines of history in an explanation
SEQ_MAX = 1 << 53
EVENT_ID = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?")
AS_STREAM = {SSE: {"schema": {"type": "string"}}}

Seq = Annotated[int, Query(ge=0, le=SEQ_MAX)]
LastEventId = Annotated[str | None, Header(description="of a stream: the last id that was seen")]

router = APIRouter(prefix="/v1", route_class=Read, tags=["what happened, and why"])

_encode = msgspec.json.Encoder().encode


class About(NamedTuple):
    node: str
    workload: str


class Kind(StrEnum):
    NODE = "node"
    WORKLOAD = "workload"
    REPLICA = "replica"
    POOL = "pool"
    OFFER = "offer"


@router.get(
    "/events",
    summary="History: a list, or a stream of what happens",
    **gives(shapes.Line, "lines of history, oldest first", many=True, also=AS_STREAM),
)
async def events(
    request: Request,
    edge: ThisEdge,
    who: Whoever,
    node: Filter = "",
    workload: Filter = "",
    since: Annotated[
        Seq | None, Query(description="only entries after this number; a list takes 0 for none")
    ] = None,
    before: Annotated[Seq, Query(description="only entries before this number; 0: to the end")] = 0,
    since_ms: Annotated[Seq, Query(description="only from this instant on; 0: from the beginning")] = 0,
    until_ms: Annotated[Seq, Query(description="only before this instant; 0: up to now")] = 0,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="lines, about")] = 100,
    last_event_id: LastEventId = None,
) -> Response:
    """With `since` alone, the oldest lines after it; else the newest. As a stream, all lines after
    `Last-Event-ID` or `since`, or from now on; instants are for lists."""
    if SSE not in request.headers.get("accept", ""):
        told = await edge.plane.store.history(
            node=node,
            workload=workload,
            project=who.project,
            since=since or 0,
            before=before,
            since_at=since_ms,
            until_at=until_ms,
            limit=limit,
        )
        return give([edge.own.line(views.line(each)) for each in told])
    edge.streams.check_room(who.token)
    seq, skip = _begin_at(edge.plane, last_event_id, since)
    source = _stream(edge, About(node, workload), seq, skip)
    return Stream(edge.streams, source, SSE, request.state.lapsed, token=who.token)


def _begin_at(plane: Plane, last_event_id: str | None, since: int | None) -> tuple[int, int]:
    """After which entry to begin, and how many lines of the next one were seen already."""
    if last_event_id:
        match = EVENT_ID.fullmatch(last_event_id)
        if match is None:
            raise Refused(422, "Last-Event-ID is not one of ours", "leave it out to begin from now")
        seq, seen = int(match[1]), int(match[2] or 0)
        return (seq - 1, seen) if seen and seq else (seq, 0)
    return (plane.length if since is None else since), 0


async def _stream(edge: Edge, about: About, seq: int, skip: int) -> AsyncGenerator[bytes]:
    """The lines after entry `seq`, but for the first `skip` of the next one. One batch at a time is held."""
    yield b": what happens, as it happens\n\n"
    plane = edge.plane
    while True:
        length = plane.length
        try:
            while seq < length:
                told = await _after(edge, about, seq)
                if told:
                    yield b"".join(_numbered(edge, told, skip if told[0].seq == seq + 1 else 0))
                # At the very beginning only the first entry was asked for.
                seq, skip = told[-1].seq if told else (length if seq else 1), 0
        except PortError:
            await asyncio.sleep(AGAIN_S)
            yield b": the store does not answer, nothing is lost\n\n"
            continue
        if await plane.wait_for(length, KEEP_ALIVE_S) <= length:
            yield b": still here\n\n"


async def _after(edge: Edge, about: About, seq: int) -> tuple[Told, ...]:
    """The oldest lines after this entry. A store gives the oldest only after an entry that there is."""
    return await edge.plane.store.history(
        node=about.node,
        workload=about.workload,
        project=edge.who.project,
        since=seq,
        before=0 if seq else 2,
        limit=LINES_AT_ONCE,
    )


def _numbered(edge: Edge, told: tuple[Told, ...], skip: int) -> list[bytes]:
    """As server-sent events; the first `skip` were seen already."""
    parts = []
    for seq, entry in groupby(told, key=lambda each: each.seq):
        lines = list(entry)
        for number, each in enumerate(lines, 1):
            mark = f"{seq}" if number == len(lines) else f"{seq}.{number}"
            data = _encode(edge.own.line(views.line(each)))
            parts.append(b"id: %b\nevent: %b\ndata: %b\n\n" % (mark.encode(), each.kind.encode(), data))
    return parts[skip:]


@router.get(
    "/explain/{kind}",
    summary="Why is it as it is, and what would help?",
    **gives(shapes.Explanation, "in words", 404),
)
async def explained(edge: ThisEdge, kind: Kind, name: Annotated[str, Query(max_length=253)]) -> Response:
    plane, own = edge.plane, edge.own
    world, senses, ears = plane.world, plane.senses, plane.ears  # while we read, the leadership may be lost
    if own.project and kind not in (Kind.WORKLOAD, Kind.REPLICA):
        hint = f"{TOKEN}; holdfast explain workload NAME tells what keeps it from running"
        raise Refused(403, f"why a {kind} is as it is concerns the whole fleet", hint)
    told = await _told(plane, kind, name, own.project)
    known = _known(world, kind)
    if _is_visible(own, name) and any(name in names for names in known):
        found = await _explained(edge, world, senses, ears, kind, name)
    elif told:
        found = explain.Explanation(f"{name} is gone: {told[-1].text}", (), ())
    else:
        raise unknown(kind, name, (each for each in chain(*known) if _is_visible(own, each)))
    return give(
        shapes.Explanation(
            kind=kind.value,
            name=name,
            summary=own.veiled(found.summary),
            because=list(map(own.veiled, found.because)),
            would_help=list(map(own.veiled, found.would_help)),
            history=[own.line(views.line(each)) for each in told],
            mix=views.mix(found.mix),
        )
    )


async def _explained(
    edge: Edge, world: World, senses: Senses | None, ears: Ears | None, kind: Kind, name: str
) -> explain.Explanation:
    """Small ones at once. Of a large workload, or in a large fleet, on a thread, and kept for a moment."""
    plane, workload = edge.plane, name if kind is Kind.WORKLOAD else workload_of(name)
    size = len(world.of_workload.get(workload, ())) + len(world.nodes)
    if kind not in (Kind.WORKLOAD, Kind.REPLICA) or size <= AT_ONCE:
        return _explanation(plane, world, senses, ears, kind, name)

    def key() -> tuple[object, ...]:
        return kind, name, plane.length, plane.leading

    def make() -> Callable[[], explain.Explanation]:
        known: explain.Explanation | None = edge.lately.get(key())
        if known is not None:
            return lambda: known
        if not any(name in names for names in _known(world, kind)):
            raise unknown(kind, name, ())
        heard = ears.alone(workload) if ears is not None else None
        return partial(_explanation, plane, twin(world), senses, heard, kind, name)

    at = key()
    found: explain.Explanation | None = edge.lately.get(at)
    if found is None:
        found = await edge.think(make, Lane.WHY)
        edge.lately.put(at, found)
    return found


def _explanation(
    plane: Plane, world: World, senses: Senses | None, ears: Ears | None, kind: Kind, name: str
) -> explain.Explanation:
    now = plane.now()
    match kind:
        case Kind.NODE:
            used = plane.used(name)
            return explain.explain_node(world, senses, name, now, used.replicas if used is not None else {})
        case Kind.WORKLOAD:
            return explain.explain_workload(world, name, now, ears, plane.unlisted, plane.probe_answer)
        case Kind.REPLICA:
            return explain.explain_replica(world, name, now, plane.probe_answer)
        case Kind.POOL:
            return explain.explain_pool(world, name, now, plane.unlisted)
        case Kind.OFFER:
            return explain.explain_offer(world, name, now)


def _known(world: World, kind: Kind) -> tuple[Mapping[str, object], ...]:
    match kind:
        case Kind.NODE:
            return (world.nodes,)
        case Kind.WORKLOAD:
            return (world.workloads,)
        case Kind.REPLICA:
            return (world.replicas, world.slots)
        case Kind.POOL:
            return (world.pools,)
        case Kind.OFFER:
            return (offer_list.keys(world),)


def _is_visible(own: Projects, name: str) -> bool:
    """A workload, slot or replica that the one who asks may see. Others are asked for without a project."""
    return not own.project or own.sees(name.rpartition("/")[0] or name)


async def _told(plane: Plane, kind: Kind, name: str, project: str) -> tuple[Told, ...]:
    """The latest lines about it. Lines are filed by node and by workload; a replica's are among its
    workload's."""
    match kind:
        case Kind.NODE:
            return await plane.store.history(node=name, limit=TOLD_MAX)
        case Kind.WORKLOAD:
            return await plane.store.history(workload=name, project=project, limit=TOLD_MAX)
        case Kind.REPLICA:
            told = await plane.store.history(workload=workload_of(name), project=project, limit=LIMIT_MAX)
            return tuple(
                each for each in told if each.subject == name or each.subject.startswith(f"{name}.")
            )[-TOLD_MAX:]
        case Kind.POOL:
            told = await plane.store.history(limit=LIMIT_MAX)
            return tuple(each for each in told if each.subject == name)[-TOLD_MAX:]
        case Kind.OFFER:
            return ()  # no line says which offer it is about
