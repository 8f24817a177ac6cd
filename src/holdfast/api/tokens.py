"""Access tokens and join tokens: make, show, revoke. A secret is shown once, when it is made."""

import secrets
import time

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.bodies import TokenWanted
from holdfast.api.edge import Edge, ThisActor, ThisEdge, ThisPlane, give
from holdfast.api.gate import Register, check_known, sent_on
from holdfast.api.problems import Refused, unknown
from holdfast.api.said import gives
from holdfast.control.plane import NotLeading
from holdfast.model.event import TokenMade, TokenRevoked
from holdfast.model.units import seconds
from holdfast.ports.errors import PortError
from holdfast.ports.registry import Role, Token
from holdfast.wire.identity import hashed

SECRET_BYTES = 32
OF_PROJECTS = (Role.READ, Role.OPERATOR, Role.SIGNALS)
PREFIX = {Role.JOIN: "hfj_"}  # so that one found in a file can be told for what it is

log = structlog.get_logger("holdfast.api")

router = APIRouter(prefix="/v1/tokens", route_class=Register, tags=["tokens"])


@router.get(
    "", summary="All tokens, without their secrets", **gives(shapes.TokenShown, "as known", many=True)
)
async def tokens(plane: ThisPlane) -> Response:
    return give([_shown(token) for token in await plane.registry.tokens()])


@router.post("", summary="Make a token", **gives(shapes.TokenMade, "with its secret, shown this once", 404))
async def make_token(request: Request, edge: ThisEdge, actor: ThisActor, body: TokenWanted) -> Response:
    """By the leader, if there is one: history says who made it."""
    plane = edge.plane
    if not plane.leading and (await plane.leader()).left_ms > 0:
        return await sent_on(request, edge)
    role = Role(body.role)
    if role is not Role.JOIN and (body.pool or body.node):
        what = "only a join token is for a pool or a node"
        given = [name for name in ("pool", "node") if getattr(body, name)]
        raise Refused(422, what, f"leave out {' and '.join(given)}", problems=[f"body.{given[0]}: {what}"])
    if body.uses > 1 and (role is not Role.JOIN or body.node):
        what = "only a join token has a number of uses" if role is not Role.JOIN else "one node joins once"
        raise Refused(422, what, "leave out uses", problems=[f"body.uses: {what}"])
    if body.project and role not in OF_PROJECTS:
        what = f"a token of the role {role} is for the whole fleet"
        raise Refused(422, what, "leave out project", problems=[f"body.project: {what}"])
    if body.pool and body.pool not in plane.world.pools:
        check_known(plane)
        raise unknown("pool", body.pool, plane.world.pools)
    secret = PREFIX.get(role, "hf_") + secrets.token_urlsafe(SECRET_BYTES)
    now = time.time_ns() // 1_000_000
    token = Token(
        id=secrets.token_hex(6),
        hash=hashed(secret),
        role=role,
        note=body.note,
        pool=body.pool,
        node=body.node,
        uses=body.uses,
        project=body.project,
        created_at=now,
        expires_at=now + body.ttl_ms if body.ttl_ms is not None else 0,
    )
    await plane.registry.add(token)
    await _record(edge, TokenMade(at=plane.now(), token=token.id, what=_in_words(token), actor=actor))
    return give(shapes.TokenMade(token.id, secret, role.value, edge.authority.pin_for(role)))


@router.delete("/{id}", summary="Revoke a token", **gives(shapes.Done, "it is of no use any more", 404))
async def revoke_token(edge: ThisEdge, actor: ThisActor, id: str) -> Response:
    """Here at once; by control planes that have just seen it used, within five seconds. Whoever is asked does
    it, also while nobody leads; history says who did it if it was the leader, else the log."""
    known = "\0" not in id and await edge.plane.registry.revoke(id)
    edge.access.forget(id)
    if not known:
        raise unknown("token", id, [token.id for token in await edge.plane.registry.tokens()])
    await _record(edge, TokenRevoked(at=edge.plane.now(), token=id, actor=actor))
    return give(shapes.Done(f"revoked {id}"))


async def _record(edge: Edge, event: TokenMade | TokenRevoked) -> None:
    """Done is done: that it could not be journalled is no reason to say that it was not."""
    try:
        if edge.plane.leading:
            await edge.tell(event)
            return
    except (PortError, NotLeading) as error:
        log.warning("not journalled", why=str(error))
    edge.audit.orders([edge.signed(event)])
    log.warning("token changed", token=event.token, actor=event.actor, what=type(event).__name__)


def _in_words(token: Token) -> str:
    words = [f"role {token.role}", f"for {token.note}" if token.note else ""]
    words += [f"pool {token.pool}" if token.pool else "", f"node {token.node}" if token.node else ""]
    words += [f"project {token.project}" if token.project else ""]
    words += [f"{token.uses} uses" if token.uses > 1 else ""]
    words += [f"for {seconds(token.expires_at - token.created_at)}" if token.expires_at else ""]
    return ", ".join(word for word in words if word)


def _shown(token: Token) -> shapes.TokenShown:
    return shapes.TokenShown(
        id=token.id,
        role=token.role.value,
        note=token.note,
        pool=token.pool,
        node=token.node,
        created_ms=token.created_at,
        expires_ms=token.expires_at or None,
        used_by=token.used_by,
        uses=token.uses,
        used=token.uses - token.left,
        project=token.project,
        first_used_ms=token.first_used or None,
    )
