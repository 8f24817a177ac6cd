"""What a replica writes. It is kept on its node; here it only passes through, as fast as the reader reads."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, cast

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.edge import ThisEdge
from holdfast.api.gate import ReadFromLeader
from holdfast.api.problems import unknown
from holdfast.api.said import gives_text
from holdfast.api.streams import Stream
from holdfast.control.plane import NotReachable, Plane

TAIL_MAX = 1 << 40
TEXT = "text/plain; charset=utf-8"

router = APIRouter(prefix="/v1", route_class=ReadFromLeader, tags=["what happened, and why"])


@router.get("/log", summary="What a replica wrote", **gives_text("its output and errors, as they came", 404))
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
    source = _parts(edge.plane, replica, -(tail_bytes or 0), follow)
    return await Stream(edge.streams, source, TEXT, request.state.lapsed).begun()


async def _parts(plane: Plane, replica: str, offset: int, follow: bool) -> AsyncGenerator[bytes]:
    begun = False
    source = cast(AsyncGenerator[bytes], plane.read_log(replica, offset=offset, follow=follow))
    async with aclosing(source):
        try:
            async for part in source:
                begun = True
                yield part
        except LookupError:
            raise unknown("replica", replica, plane.world.replicas) from None
        except NotReachable as error:
            if not begun:
                raise
            yield f"\nholdfast: the rest is not here: {error}\n".encode()
