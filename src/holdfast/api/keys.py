"""Keys of the gateways and limits: make, show, rotate, suspend, restore, delete.

The same paths and the same JSON as a gateway has that runs alone (`gateway.admin`), so that one command line
speaks to either. A secret is shown once, when it is made; the journal has its hash.
"""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.bodies import KeyWanted, LimitsWanted, Rotation, Suspension
from holdfast.api.edge import Edge, ThisActor, ThisEdge, ThisPlane, give
from holdfast.api.fronts import served
from holdfast.api.gate import Operate, Read, ReadFromLeader
from holdfast.api.problems import Refused, unknown
from holdfast.api.said import gives, gives_map
from holdfast.core.gateway.key_audit.audit import Row
from holdfast.core.gateway.quota.limits_in_force import InForce
from holdfast.core.workloads.differences import key_differences, limits_differences
from holdfast.model.event import BudgetDrawn, KeyDeleted, KeyPut, LimitsSet
from holdfast.model.gateway import Key, Limits, inherited, scope_of_key
from holdfast.model.units import Instant
from holdfast.wire import keys as wire
from holdfast.wire.keys import KeyMade, KeyShown, shown

MADE = "with its secret, shown this once"
JOURNALLED = "when it is journalled"
SCOPE = r"^(global|model:[^\x00-\x1f/]+|(key|team):[^\x00-\x1f/]+(/model:[^\x00-\x1f]+)?)$"

Scope = Annotated[
    str,
    Path(max_length=253, pattern=SCOPE, description="global, team:T, model:M, team:T/model:M, key:K, ..."),
]

reads = APIRouter(prefix="/v1", route_class=Read, tags=["keys and limits"])
told = APIRouter(prefix="/v1", route_class=ReadFromLeader, tags=["keys and limits"])
router = APIRouter(prefix="/v1", route_class=Operate, tags=["keys and limits"])


@reads.get("/keys", summary="All keys, without their hashes", **gives(KeyShown, "as known", many=True))
async def keys(plane: ThisPlane) -> Response:
    limits = InForce(plane.world.limits)
    return give([shown(key, limits=limits) for key in plane.world.keys.values()])


@told.get(
    "/keys/report",
    summary="Which keys are used, and which seem to work for nobody",
    **gives(Row, "by what all gateways say, the most suspect first", many=True),
)
async def key_report(plane: ThisPlane) -> Response:
    return give(plane.gateways.report())


@router.post("/keys", summary="Make a key", **gives(KeyMade, MADE, 409))
async def make_key(edge: ThisEdge, actor: ThisActor, body: KeyWanted) -> Response:
    wanted = wire.KeyWanted(
        id=body.id,
        owner=body.owner,
        team=body.team,
        note=body.note,
        models=tuple(body.models),
        limits=_limits(body.limits),
        ttl_ms=body.ttl_ms,
        new_team=body.new_team,
        new_model=body.new_model,
    )
    plane = edge.plane
    async with edge.writing:
        if wanted.id in plane.world.keys:
            raise Refused(409, f"there is a key {wanted.id} already", "rotate it, or take another id")
        try:
            wire.check_names(wanted, plane.world.limits, plane.world.keys.values(), served(plane.world))
        except wire.NotKnown as unknown:
            raise Refused(422, str(unknown), unknown.hint) from None
        key, secret = wire.made(wanted, plane.wall())  # by which it ends, and not by the fleet's time
        await edge.tell(KeyPut(at=plane.now(), key=key, actor=actor))
    return give(KeyMade(_shown(edge, key), secret))


@router.delete("/keys/{id}", summary="Delete a key", **gives(shapes.Done, JOURNALLED, 404))
async def delete_key(edge: ThisEdge, actor: ThisActor, id: str) -> Response:
    async with edge.writing:
        _known(edge, id)
        await edge.tell(KeyDeleted(at=edge.plane.now(), key=id, actor=actor))
    return give(shapes.Done(f"deleted {id}"))


@router.post("/keys/{id}/rotate", summary="Put a new key in its place", **gives(KeyMade, MADE, 404, 409))
async def rotate_key(edge: ThisEdge, actor: ThisActor, id: str, body: Rotation | None = None) -> Response:
    """The old one is good for a while beside it. One that was replaced or has expired is refused."""
    plane, wanted = edge.plane, body or Rotation(grace_ms=wire.GRACE_MS)
    async with edge.writing:
        now = plane.now()
        try:
            old, fresh, secret = wire.rotated(
                _known(edge, id), plane.world.keys, plane.wall(), wanted.grace_ms
            )
        except wire.NotRotatable as refused:
            raise Refused(409, str(refused), refused.hint) from None
        limits = inherited(plane.world.limits, old.id, fresh.id)
        drawn = inherited(plane.world.drawn, old.id, fresh.id)
        await edge.tell(
            KeyPut(at=now, key=old, actor=actor),
            KeyPut(at=now, key=fresh, actor=actor),
            *[LimitsSet(at=now, scope=scope, limits=each, actor=actor) for scope, each in limits.items()],
            *([BudgetDrawn(at=now, drawn=drawn)] if drawn else []),
        )
    return give(KeyMade(_shown(edge, fresh), secret))


@router.post("/keys/{id}/suspend", summary="Refuse whoever brings it", **gives(KeyShown, JOURNALLED, 404))
async def suspend_key(edge: ThisEdge, actor: ThisActor, id: str, body: Suspension | None = None) -> Response:
    why = body.why if body is not None else ""
    return await _put(edge, actor, id, lambda key: wire.suspended(key, why))


@router.post("/keys/{id}/restore", summary="Let it in again", **gives(KeyShown, JOURNALLED, 404))
async def restore_key(edge: ThisEdge, actor: ThisActor, id: str) -> Response:
    return await _put(edge, actor, id, lambda key: wire.restored(key, edge.plane.wall()))


@reads.get("/limits", summary="All limits but those of single keys", **gives_map(Limits, "by scope"))
async def limits(plane: ThisPlane) -> Response:
    return give(plane.world.limits)


@router.put("/limits/{scope:path}", summary="Limit a scope", **gives(shapes.Done, JOURNALLED, 404))
async def set_limits(edge: ThisEdge, actor: ThisActor, scope: Scope, body: LimitsWanted) -> Response:
    """What is left out is not limited. `key:ID` changes the limits of the key itself."""
    plane, wanted = edge.plane, _limits(body)
    async with edge.writing:
        kind, _, rest = scope.partition(":")
        id = rest.partition("/")[0] if kind == "key" else ""
        key = _known(edge, id) if id else None
        world = plane.world
        why = wire.met_by_nobody(scope, world.limits, world.keys.values(), served(world))
        if key is not None and scope == scope_of_key(id):
            event: KeyPut | LimitsSet = _key_put(plane.now(), key, wire.limited(key, wanted), actor)
        else:
            words = limits_differences(plane.world.limits.get(scope, Limits()), wanted)
            event = LimitsSet(at=plane.now(), scope=scope, limits=wanted, actor=actor, changes=tuple(words))
        await edge.tell(event)
    return give(shapes.Done(f"set {scope}" + f", but {why}" * bool(why)))


async def _put(edge: Edge, actor: str, id: str, change: Callable[[Key], Key]) -> Response:
    async with edge.writing:
        old = _known(edge, id)
        key = change(old)
        await edge.tell(_key_put(edge.plane.now(), old, key, actor))
    return give(_shown(edge, key))


def _key_put(now: Instant, old: Key, new: Key, actor: str) -> KeyPut:
    return KeyPut(at=now, key=new, actor=actor, changes=tuple(key_differences(old, new)))


def _shown(edge: Edge, key: Key) -> KeyShown:
    return shown(key, limits=InForce(edge.plane.world.limits))


def _known(edge: Edge, id: str) -> Key:
    found = edge.plane.world.keys.get(id)
    if found is None:
        raise unknown("key", id, edge.plane.world.keys)
    return found


def _limits(body: LimitsWanted) -> Limits:
    return Limits(**body.model_dump())
