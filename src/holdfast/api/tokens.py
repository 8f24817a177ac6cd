"""Access tokens and join tokens: make, show, revoke. A secret is shown once, when it is made."""

import secrets
import time

from fastapi import APIRouter
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.bodies import TokenWanted
from holdfast.api.edge import ThisEdge, ThisPlane, give
from holdfast.api.gate import Register, check_known
from holdfast.api.problems import Refused, unknown
from holdfast.api.said import gives
from holdfast.ports.registry import Role, Token
from holdfast.wire.identity import hashed

SECRET_BYTES = 32
PREFIX = {Role.JOIN: "hfj_"}  # so that one found in a file can be told for what it is

router = APIRouter(prefix="/v1/tokens", route_class=Register, tags=["tokens"])


@router.get(
    "", summary="All tokens, without their secrets", **gives(shapes.TokenShown, "as known", many=True)
)
async def tokens(plane: ThisPlane) -> Response:
    return give([_shown(token) for token in await plane.registry.tokens()])


@router.post("", summary="Make a token", **gives(shapes.TokenMade, "with its secret, shown this once", 404))
async def make_token(plane: ThisPlane, body: TokenWanted) -> Response:
    role = Role(body.role)
    if role is not Role.JOIN and (body.pool or body.node):
        raise Refused(422, "only a join token is for a pool or a node", problems=["body.pool, body.node"])
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
        created_at=now,
        expires_at=now + body.ttl_ms if body.ttl_ms is not None else 0,
    )
    await plane.registry.add(token)
    return give(shapes.TokenMade(token.id, secret, role.value))


@router.delete("/{id}", summary="Revoke a token", **gives(shapes.Done, "it is of no use any more", 404))
async def revoke_token(edge: ThisEdge, id: str) -> Response:
    """Here at once; by control planes that have just seen it used, within five seconds."""
    known = "\0" not in id and await edge.plane.registry.revoke(id)
    edge.access.forget(id)
    if not known:
        raise unknown("token", id, [token.id for token in await edge.plane.registry.tokens()])
    return give(shapes.Done(f"revoked {id}"))


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
    )
