"""What a replica writes. It is kept on its node; here it only passes through, as fast as the reader reads.

The control plane keeps the end of it, for when its node is gone. A header says so then: what a program wrote
is not mixed with words of ours. Another says where in the log the answer begins, so that a reader that is cut
off goes on where it was: no byte lost, and none twice.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.edge import Edge, ThisEdge, Whoever
from holdfast.api.gate import ReadFromLeader
from holdfast.api.problems import Refused, unknown
from holdfast.api.said import gives_text
from holdfast.api.streams import Cut, Stream
from holdfast.control.plane import HISTORY
from holdfast.control.session import Gone
from holdfast.core.explain.history import workload_of

TAIL_MAX = 1 << 40
OFFSET_MAX = 1 << 60
TEXT = "text/plain; charset=utf-8"
NOTE = "Holdfast-Note"
OFFSET = "Holdfast-Log-Offset"

router = APIRouter(prefix="/v1", route_class=ReadFromLeader, tags=["what happened, and why"])


@router.get(
    "/log",
    summary="What a replica wrote",
    **gives_text(
        "its output and errors, as they came, and all of it: an answer that is cut short ends without the "
        "last chunk of its body. The header `Holdfast-Log-Offset` says where in the log it begins; after a "
        "cut, ask again with `offset`. Where the beginning is gone, or its node, and only the end is kept, "
        "the header `Holdfast-Note` says so. 410: the log is not kept from `offset` on",
        404,
        410,
    ),
)
async def log(
    request: Request,
    edge: ThisEdge,
    who: Whoever,
    replica: Annotated[str, Query(max_length=253, description="such as web/0.3")],
    tail_bytes: Annotated[
        int | None, Query(ge=1, le=TAIL_MAX, description="only the last so many; without: all that is kept")
    ] = None,
    offset: Annotated[
        int | None,
        Query(ge=0, le=OFFSET_MAX, description="from this byte of all that it wrote; not with `tail_bytes`"),
    ] = None,
    follow: Annotated[bool, Query(description="go on with what it writes")] = False,
) -> Response:
    if offset is not None and tail_bytes is not None:
        raise Refused(
            422, "an answer begins at `offset` or with the last `tail_bytes`", "leave one of them out"
        )
    edge.streams.check_room(who.token)
    plane = edge.plane
    try:
        await _insist_on_own(edge, replica)
        found = await plane.open_log(replica, offset=offset, last=tail_bytes or 0, follow=follow)
    except LookupError:
        known = [id for id in plane.world.replicas if edge.own.sees_replica(id)]
        siblings = [id for id in known if id.startswith(replica.partition("/")[0] + "/")]
        raise unknown("replica", replica, siblings or known) from None
    stream = Stream(
        edge.streams,
        _plainly(found.parts),
        TEXT,
        request.state.lapsed,
        token=who.token,
        whole=True,
        closed=found.close,
    )
    if found.note:
        stream.headers[NOTE] = found.note
    if found.start is not None:
        stream.headers[OFFSET] = str(found.start)
    return stream


async def _insist_on_own(edge: Edge, replica: str) -> None:
    """LookupError: it is not of the project. One that has ended was, if a line of its history is: another
    project may have had a workload of this name before."""
    own = edge.own
    if not own.project or (replica in own.world.replicas and own.sees_replica(replica)):
        return
    lines = await edge.plane.store.history(workload=workload_of(replica), project=own.project, limit=HISTORY)
    if all(line.subject != replica for line in lines) or replica in own.world.replicas:
        raise LookupError(f"there is no replica {replica}")


async def _plainly(source: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(source):
        try:
            async for part in source:
                yield part
        except Gone as error:
            raise Cut(str(error)) from None
