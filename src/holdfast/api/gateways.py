"""For gateways: what they go by, as it changes; quota to lend them; what they tell.

The stream gives the whole view at once, and then what changes of it, within a tenth of a second. It ends when
we do not lead any more: whoever reads it finds the next leader by asking anybody.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.edge import Edge, ThisActor, ThisEdge, ThisPlane, Whoever, give
from holdfast.api.gate import Fronting, Operate, check_type
from holdfast.api.history import AS_STREAM, SSE
from holdfast.api.keys import Scope
from holdfast.api.problems import Refused, unknown
from holdfast.api.said import gives, takes
from holdfast.api.streams import Stream
from holdfast.control.gateways import NAMES_MAX
from holdfast.control.plane import NotLeading
from holdfast.core.gateway.quota.broker import Ask, Grants
from holdfast.gateway.view import View
from holdfast.model.event import KeyPut, LimitsSet
from holdfast.model.gateway import key_of, scope_of_key
from holdfast.model.units import many
from holdfast.wire.gateway import LoadTold, strange, to_send

KEEP_ALIVE_S = 2.0
SETTLE_S = 0.03  # what changes together is told together
ASKS_MAX = 1_000  # as many as a gateway sends together

T = TypeVar("T")

RESET = "what was used of it is forgotten"

router = APIRouter(prefix="/v1/gateway", route_class=Fronting, tags=["for gateways"])
resets = APIRouter(prefix="/v1", route_class=Operate, tags=["keys and limits"])


@router.get(
    "/watch",
    summary="All that a gateway goes by: once, or as a stream whenever it changes",
    **gives(View, "services with their ready replicas, keys with their hashes, limits", also=AS_STREAM),
)
async def watch(request: Request, edge: ThisEdge, who: Whoever) -> Response:
    """A stream begins with an event `view`, all of it. Each `change` after it has a number one higher than
    the last, and says what is new, other or gone."""
    if SSE not in request.headers.get("accept", ""):
        edge.fronts.look(edge.plane.world, edge.plane.length)
        return Response(edge.fronts.whole(), media_type="application/json")
    edge.streams.check_room(who.token, watch=True)
    return Stream(edge.streams, _stream(edge), SSE, request.state.lapsed, token=who.token, watch=True)


async def _stream(edge: Edge) -> AsyncGenerator[bytes]:
    plane, fronts, told = edge.plane, edge.fronts, -1
    while plane.leading:
        length = plane.length
        number = fronts.look(plane.world, length)
        if number != told:
            changes = fronts.since(told) if told >= 0 else None
            told = number
            if changes is None:
                yield b"event: view\ndata: %b\n\n" % fronts.whole()
            else:
                yield b"".join(b"event: change\ndata: %b\n\n" % change for change in changes)
        elif await plane.wait_for(length, KEEP_ALIVE_S) > length:
            await asyncio.sleep(SETTLE_S)
        else:
            yield b": still here\n\n"


@router.post(
    "/lease",
    summary="Borrow quota, and say what became of what was borrowed",
    openapi_extra=takes(Ask, many=True),
    **gives(Grants, "one for each, in their order", many=True),
)
async def lease(request: Request, plane: ThisPlane, who: Whoever) -> Response:
    """What is lent of a budget is journalled before the answer."""
    asks = await _sent(request, list[Ask])
    if len(asks) > ASKS_MAX:
        raise Refused(422, f"at most {ASKS_MAX:,} at a time, got {len(asks):,}")
    wrong = [why for ask in asks if (why := strange(ask))]
    if wrong:
        raise Refused(422, "this cannot be true", "nothing was lent", problems=wrong[:10])
    lent = await plane.gateways.lend(asks, who.token)
    if lent is None:
        raise NotLeading("")
    return give(to_send(lent))


@router.post(
    "/load",
    summary="Tell how it goes with the services behind a gateway, and with its keys",
    openapi_extra=takes(LoadTold),
    **gives(shapes.Done, "when it was heard: it is not journalled, but for keys that are held back now"),
)
async def load(request: Request, edge: ThisEdge, who: Whoever) -> Response:
    """A line about a key counts for the key that it speaks of: not if that was restored or made anew since
    (`since`)."""
    told = await _sent(request, LoadTold)
    if not 0 < len(told.gateway) <= 253:
        raise Refused(422, "a gateway has a name of at most 253 characters")
    plane = edge.plane
    heard = plane.gateways.hear(told, who.token)
    if heard is None:
        raise Refused(429, f"more than {NAMES_MAX} gateways have this token", "give each a token of its own")
    if plane.gateways.found_out(told):
        async with edge.writing:
            events = [KeyPut(at=plane.now(), key=key) for key in plane.gateways.found_out(told)]
            if events:  # nobody has looked meanwhile
                await plane.tell(*events)
    return give(shapes.Done(f"heard of {many(heard, 'service')}"))


@resets.post(
    "/reset-limits/{scope:path}",
    summary="Forget what was used of a limit",
    **gives(shapes.Done, "when it is journalled", 404),
)
async def reset(edge: ThisEdge, actor: ThisActor, scope: Scope) -> Response:
    """A budget is whole again but for what is lent now. A limit a minute that owes something owes nothing,
    and fills from here on: nobody gets a burst by this."""
    plane = edge.plane
    own = key_of(scope)
    async with edge.writing:
        now, key = plane.now(), plane.world.keys.get(own)
        if own and key is None:
            raise unknown("key", own, plane.world.keys)
        if key is not None and scope == scope_of_key(own):
            await edge.tell(KeyPut(at=now, key=key, actor=actor, changes=(RESET,)))
        elif scope in plane.world.limits:
            limits = plane.world.limits[scope]
            await edge.tell(LimitsSet(at=now, scope=scope, limits=limits, actor=actor, changes=(RESET,)))
        else:
            raise unknown("limit", scope, plane.world.limits)
    if not await plane.gateways.reset(scope):
        raise NotLeading("")
    return give(shapes.Done(f"{scope} begins anew"))


async def _sent(request: Request, kind: type[T]) -> T:
    """Machines write these, many times a second: they are read as they are."""
    body = await request.body()
    check_type(request, body)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(422, "the request is not as it should be", problems=[f"body: {error}"]) from None
