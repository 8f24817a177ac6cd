"""What the endpoints share: the control plane behind them, who may come in, and the streams that are open."""

import asyncio
from typing import Annotated, cast

import msgspec
from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.access import Access
from holdfast.api.streams import Streams
from holdfast.control.plane import Plane
from holdfast.ports.registry import Role

_encode = msgspec.json.Encoder().encode


class Edge:
    def __init__(self, plane: Plane, access: Access) -> None:
        self.plane, self.access = plane, access
        self.streams = Streams()
        # What is written depends on what was read before (a version rises by one): one at a time.
        self.writing = asyncio.Lock()
        # Reading files and dry runs take seconds of a processor when they are large: one at a time.
        self.thinking = asyncio.Lock()


async def edge_in(request: Request) -> Edge:
    return edge_of(request)


async def plane_in(request: Request) -> Plane:
    return edge_of(request).plane


async def role_in(request: Request) -> Role:
    return cast(Role, request.state.role)


def edge_of(request: Request) -> Edge:
    return cast(Edge, request.app.state.edge)


ThisEdge = Annotated[Edge, Depends(edge_in)]
ThisPlane = Annotated[Plane, Depends(plane_in)]
ThisRole = Annotated[Role, Depends(role_in)]


def give(shape: object) -> Response:
    """A shape, or a list of them, as JSON. Not validated again: it is ours, and tests compare it with the
    OpenAPI document."""
    return Response(_encode(shape), media_type="application/json")
