"""What a replica writes. It is kept on its node; here it only passes through, as fast as the reader reads.

Of what has ended the control plane keeps the end, for when its node is gone. A header says so then: what a
program wrote is not mixed with words of ours.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.edge import ThisEdge
from holdfast.api.gate import ReadFromLeader
from holdfast.api.problems import unknown
from holdfast.api.said import gives_text
from holdfast.api.streams import Stream
from holdfast.control.plane import NotReachable
from holdfast.control.session import Gone

TAIL_MAX = 1 << 40
TEXT = "text/plain; charset=utf-8"
NOTE = "Holdfast-Note"

router = APIRouter(prefix="/v1", route_class=ReadFromLeader, tags=["what happened, and why"])


@router.get(
    "/log",
    summary="What a replica wrote",
    **gives_text(
        "its output and errors, as they came. Where its node is gone the end of it is kept, and the header "
        "`Holdfast-Note` says so",
        404,
    ),
)
async def log(
    request: Request,
    edge: ThisEdge,
    replica: Annotated[str, Query(max_length=253, description="such as web/0.3")],
    tail_bytes: Annotated[
        int | None, Query(ge=1, le=TAIL_MAX, description="only the last so many; without: all that is kept")
    ] = None,
    follow: Annotated[bool, Query(description="go on with what it writes")] = False,
) -> Response:
    edge.streams.check_room()
    plane = edge.plane
    try:
        found = await plane.open_log(replica, offset=-(tail_bytes or 0), follow=follow)
    except LookupError:
        known = plane.world.replicas
        siblings = [id for id in known if id.startswith(replica.partition("/")[0] + "/")]
        raise unknown("replica", replica, siblings or known) from None
    stream = Stream(edge.streams, _plainly(found.parts), TEXT, request.state.lapsed)
    if found.note:
        stream.headers[NOTE] = found.note
    return await stream.begun()


async def _plainly(source: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(source):
        try:
            async for part in source:
                yield part
        except Gone as error:
            raise NotReachable(str(error)) from None
