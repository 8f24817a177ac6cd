"""What every request passes before its endpoint sees it, and what becomes of an error after.

In this order: is there a token, and is its role enough; does this endpoint need the leader, and is that us;
is the body of a size that we read at all. So a stranger learns nothing and costs little. An order that
reaches a control plane which does not lead is sent on to the one that does (307 keeps method and body); reads
are answered by all.

This is the request boundary, the one place of the API that may catch everything: what nobody foresaw becomes
a 500 without details, and a traceback in the log.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar

import structlog
from fastapi.routing import APIRoute
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.api import problems, projects
from holdfast.api.access import Admitted, Forbidden
from holdfast.api.edge import Edge, edge_of
from holdfast.api.problems import Refused
from holdfast.api.streams import Stream
from holdfast.api.token_limits import LoopTime
from holdfast.control.front import DRAIN, KNOWN
from holdfast.control.plane import NotLeading, Plane
from holdfast.ports.errors import PortError
from holdfast.ports.registry import Role

BODY_MAX = 4 << 20
BODY_WITHIN_S = 30.0
SPILL_MAX = 16 << 20  # of a body that is too large, so that its sender can read our answer
SPILL_WITHIN_S = 2.0
ANSWER_WITHIN_S = 30.0
JSON = "application/json"
RETRY = {"Retry-After": "2"}
SOON = "a new leader is found within seconds; try again"
LATER = "its store comes first: the log of the control plane says more"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

log = structlog.get_logger("holdfast.api")


class Open(APIRoute):
    """Anybody may ask. The other routes say who, and whether it takes the leader to answer."""

    least: ClassVar[Role | None] = None
    leads: ClassVar[bool] = False
    shows: ClassVar[bool] = False  # the world: then it must be known

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S + BODY_WITHIN_S):
                    return await self._through(request, handler)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody is there to read it
            except Exception as error:
                return await _answer_to(error, request)

        return guarded

    async def _through(self, request: Request, handler: Handler) -> Response:
        edge = edge_of(request)
        if self.least is not None:
            registry = edge.plane.registry
            admitted = await edge.access.admit(request, registry, self.least)
            _tell_front(request, "good")
            admitted = self._in_project(request, admitted)
            request.state.admitted = admitted
            edge.rates.take(admitted)
            edge.audit.used(admitted)
            request.state.lapsed = partial(edge.access.lapsed, request, registry)
            with contextlib.ExitStack() as place:
                place.enter_context(edge.rates.place(admitted))
                held = LoopTime(self._answered(request, handler, edge))
                try:
                    response = await held
                finally:
                    edge.rates.held(admitted, held.seconds)
                if not isinstance(response, Stream):  # they have a bound of their own
                    return Held(response, place.pop_all().close)
                return response
        return await self._answered(request, handler, edge)

    async def _answered(self, request: Request, handler: Handler, edge: Edge) -> Response:
        if self.leads and not edge.plane.leading:
            return await sent_on(request, edge)
        if self.shows:
            check_known(edge.plane)
        if request.method in ("POST", "PUT"):
            request = await with_body(request)
            if self.body_field is not None:
                check_type(request, await request.body())
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await handler(request)

    def _in_project(self, request: Request, who: Admitted) -> Admitted:
        project = projects.chosen(who.project, request.headers.get(projects.HEADER, ""))
        if self.name in projects.OPEN:
            return replace(who, project=project)
        if who.project:
            what = f"this is of the whole fleet, and the token is for the project {who.project}"
            raise Forbidden(who, what, projects.TOKEN)
        return who


class Held(Response):
    """A response that is in memory until its client has taken it, or was let go."""

    def __init__(self, response: Response, done: Callable[[], None]) -> None:
        self.response, self.done = response, done
        self.status_code, self.background = response.status_code, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.response(scope, receive, send)
            drain = scope.get("extensions", {}).get(DRAIN)
            if drain is not None:  # all of it was given away, and may lie in a buffer still
                await drain["drained"]()
        finally:
            self.done()


def check_known(plane: Plane) -> None:
    """Nobody is told that there is no such thing by one that has not read the journal yet."""
    if not plane.world.leader.generation:
        raise Refused(503, f"nothing is known here yet: {plane.trouble}", _hint(plane), headers=RETRY)


def _hint(plane: Plane) -> str:
    """Where the store fails no leader is found, however long one waits."""
    return LATER if plane.failure else SOON


class Read(Open):
    least = Role.READ
    shows = True


class Count(Read):
    """What the process itself has seen."""

    shows = False


class ReadFromLeader(Read):
    """What only the leader can answer: it is the one the agents are connected to."""

    leads = True


class Operate(Open):
    least = Role.OPERATOR
    leads = True


class Rehearse(Read):
    """What an order would come to. It shows more than reading does: what stays as it is was guessed right."""

    least = Role.OPERATOR


class Signalling(Operate):
    """What a service scales by: also by machines that may do nothing else."""

    least = Role.SIGNALS


class Fronting(Open):
    """For gateways, and not for operators: it shows the hashes of all keys, and lends their quota."""

    least = Role.GATEWAY
    leads = True


class Administer(Open):
    least = Role.ADMIN
    leads = True


class Register(Open):
    """Tokens are in the registry, which all control planes share: a leak is stopped even if nobody leads."""

    least = Role.ADMIN


async def _answer_to(error: Exception, request: Request) -> Response:
    if isinstance(error, Refused):
        edge_of(request).audit.refused(request, error)
        if error.status_code in (401, 429) and not hasattr(request.state, "admitted"):
            _tell_front(request, "bad")
    if isinstance(error, NotLeading):  # since we looked
        return await sent_on(request, edge_of(request))
    found = problems.explained(error)
    if found is not None:
        return found
    log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
    hint = "this is a fault of holdfast: its log says more; please report it"
    return problems.answer(500, "something went wrong here", hint)


def _tell_front(request: Request, what: str) -> None:
    """What the token was that this connection brought."""
    known = request.scope.get("extensions", {}).get(KNOWN)
    if known is not None:
        known[what]()


async def sent_on(request: Request, edge: Edge) -> Response:
    """To the leader; or, when nobody leads, back to the sender."""
    try:
        leader = await edge.plane.leader()
    except PortError:
        leader = None
    url = leader.address.rstrip("/") if leader is not None and leader.left_ms > 0 else ""
    if not url or url == edge.plane.url.rstrip("/"):
        why = f": {edge.plane.failure}" if edge.plane.failure else ""
        return problems.answer(503, f"no control plane leads just now{why}", _hint(edge.plane), headers=RETRY)
    path = request.scope.get("raw_path", b"").decode("ascii", "replace") or request.url.path
    query = f"?{request.url.query}" if request.url.query else ""
    return problems.answer(
        307, f"the leader is {url}", "follow the Location", headers={"Location": f"{url}{path}{query}"}
    )


async def with_body(request: Request) -> Request:
    """The same request with its whole body read, within bounds."""
    if int(request.headers.get("content-length") or 0) > BODY_MAX:
        await _spill(request.receive)
        raise _too_large()
    bounded = Request(request.scope, _bounded(request.receive))
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            await bounded.body()
    except TimeoutError:
        raise Refused(408, "the body did not arrive", headers={"Connection": "close"}) from None
    return bounded


def _bounded(receive: Receive) -> Receive:
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_MAX:
            await _spill(receive)
            raise _too_large()
        return message

    return counted


async def _spill(receive: Receive) -> None:
    """Who is cut off in the middle of sending may never read why: take a little more first."""
    spilt = 0
    try:
        async with asyncio.timeout(SPILL_WITHIN_S):
            while spilt < SPILL_MAX:
                message = await receive()
                spilt += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except TimeoutError:
        pass


def _too_large() -> Refused:
    return Refused(
        413,
        f"the body is larger than {BODY_MAX >> 20} MiB",
        "send fewer documents at a time",
        headers={"Connection": "close"},
    )


def check_type(request: Request, body: bytes) -> None:
    if body and media_type(request) != JSON:
        raise Refused(415, f"this takes {JSON}, not {media_type(request)[:80] or 'an unnamed type'}")


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
