"""What an operator orders: nodes in and out of service, the brake, and harm on purpose.

An order is an event like any other, and the core decides what follows from it. What it would pass over in
silence, because the node is not there yet, is refused here with the reason.
"""

from enum import StrEnum

from fastapi import APIRouter
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.api import shapes, views
from holdfast.api.bodies import Chaos, Drain, SellOut
from holdfast.api.edge import Edge, ThisActor, ThisEdge, give
from holdfast.api.gate import Administer, Operate
from holdfast.api.problems import Refused, unknown
from holdfast.api.reads import one_node
from holdfast.api.said import gives
from holdfast.control.plane import Harm, Unsupported
from holdfast.core.state.fold import may_be_forgotten
from holdfast.core.timeouts import lease_over_at
from holdfast.model.event import OperatorOrdered, Order
from holdfast.model.node import JOINED, Node
from holdfast.model.units import Instant, seconds
from holdfast.model.verdict import Level
from holdfast.model.world import World
from holdfast.ports.errors import PortError

JOURNALLED = "the node, when the order is journalled"

router = APIRouter(prefix="/v1", route_class=Operate, tags=["orders"])
harm = APIRouter(prefix="/v1", route_class=Administer, tags=["orders"])


class Deed(StrEnum):
    KILL = "kill"
    HANG = "hang"
    RESUME = "resume"
    PARTITION = "partition"
    NOTICE = "notice"


@router.post(
    "/nodes/{name}/drain",
    summary="Move its work elsewhere, by a deadline",
    **gives(shapes.Node, JOURNALLED, 404, 409),
)
async def drain(edge: ThisEdge, actor: ThisActor, name: str, body: Drain | None = None) -> Response:
    policy_ms = edge.plane.world.policy.repair.drain_ms
    within_ms = body.deadline_ms if body is not None and body.deadline_ms is not None else policy_ms
    return await _order(edge, actor, name, Order.DRAIN, edge.plane.now() + within_ms)


@router.post(
    "/nodes/{name}/cordon", summary="Put nothing new there", **gives(shapes.Node, JOURNALLED, 404, 409)
)
async def cordon(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    return await _order(edge, actor, name, Order.CORDON)


@router.post(
    "/nodes/{name}/uncordon",
    summary="Use it again; ends a drain and a quarantine, and clears its findings",
    **gives(shapes.Node, JOURNALLED, 404, 409),
)
async def uncordon(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    return await _order(edge, actor, name, Order.UNCORDON)


@router.post(
    "/nodes/{name}/forget",
    summary="Strike a dead node off, and free its name",
    **gives(shapes.Done, "when the order is journalled", 404, 409),
)
async def forget(edge: ThisEdge, actor: ThisActor, name: str) -> Response:
    plane = edge.plane
    async with edge.writing:
        node = plane.world.nodes.get(name)
        if node is None:
            raise unknown("node", name, plane.world.nodes)
        if not may_be_forgotten(plane.world, node, plane.now()):
            raise _not_yet(plane.world, node, plane.now())
        await plane.free_name(name)
        await edge.tell(OperatorOrdered(at=plane.now(), order=Order.FORGET, node=name, actor=actor))
    return give(shapes.Done(f"forgot {name}"))


def _not_yet(world: World, node: Node, now: Instant) -> Refused:
    if not node.joined_at:
        what = f"{node.id} has never joined: it can be forgotten when its pool is deleted"
        return Refused(409, what, f"holdfast delete pool {node.pool}")
    if node.verdict.level is not Level.DEAD:
        what = f"{node.id} is {node.verdict.level}: only a dead node can be forgotten"
        return Refused(409, what, f"holdfast drain {node.id} --wait, then stop its agent")
    left = seconds(lease_over_at(world, node.id) - now)
    return Refused(409, f"{node.id} is dead, but its lease is surely over only in {left}", "wait so long")


async def _order(edge: Edge, actor: str, name: str, order: Order, deadline: Instant = 0) -> Response:
    plane = edge.plane
    async with edge.writing:
        node = plane.world.nodes.get(name)
        if node is None:
            raise unknown("node", name, plane.world.nodes)
        if node.state not in JOINED:
            raise Refused(409, f"{name} is {node.state}: it takes no orders", "wait until it has joined")
        told = OperatorOrdered(at=plane.now(), order=order, node=name, deadline=deadline, actor=actor)
        if order is Order.UNCORDON and (found := views.findings_by_node(plane.world).get(name)):
            told = replace(told, why=f"clears: {', '.join(found)}")
        await edge.tell(told)
    return give(one_node(edge, name))


@router.post(
    "/brake/release",
    summary="Let held actions go on",
    **gives(shapes.Brake, "the brakes that were released, when it is journalled", many=True),
)
async def release(edge: ThisEdge, actor: ThisActor) -> Response:
    plane = edge.plane
    async with edge.writing:
        engaged = views.brakes(plane.world)
        if engaged:
            await edge.tell(OperatorOrdered(at=plane.now(), order=Order.RELEASE_BRAKE, actor=actor))
    return give(engaged)


@harm.post(
    "/chaos/sell-out",
    summary="Pretend that a pool's market has nothing, to see what happens",
    **gives(shapes.Done, "when it is done", 404, 409, 502),
)
async def sell_out(edge: ThisEdge, actor: ThisActor, body: SellOut) -> Response:
    plane = edge.plane
    if body.pool not in plane.world.pools:
        raise unknown("pool", body.pool, plane.world.pools)
    offers = [offer.name for offer in plane.world.pools[body.pool].offers]
    if body.offer and body.offer not in offers:
        raise unknown("offer", body.offer, offers)
    deed = plane.sell_out(body.pool, body.offer, body.for_ms)
    what = f"{body.offer or 'everything'} sold out for {seconds(body.for_ms)}"
    order = OperatorOrdered(at=plane.now(), order=Order.CHAOS, pool=body.pool, why=what, actor=actor)
    await _harm(edge, deed, order)
    return give(shapes.Done(f"sold out {body.offer or body.pool}"))


@harm.post(
    "/chaos/{deed}",
    summary="Harm a node on purpose, to see what happens",
    **gives(shapes.Done, "when it is done", 404, 409, 502),
)
async def chaos(edge: ThisEdge, actor: ThisActor, deed: Deed, body: Chaos) -> Response:
    plane = edge.plane
    if body.node not in plane.world.nodes:
        raise unknown("node", body.node, plane.world.nodes)
    order = OperatorOrdered(at=plane.now(), order=Order.CHAOS, node=body.node, why=deed.value, actor=actor)
    await _harm(edge, plane.harm(deed.value, body.node, body.for_ms), order)
    return give(shapes.Done(f"{deed.value} {body.node}"))


async def _harm(edge: Edge, deed: Harm, order: OperatorOrdered) -> None:
    """Told before it is done, so that history has the cause before what comes of it; and if it could not be
    done after all, that is told too."""
    async with edge.writing:
        await edge.tell(replace(order, why=f"{order.why}, asked for by hand"))
    try:
        await deed()
    except (PortError, Unsupported) as error:
        why = f"{order.why} did not work: {error}"
        await edge.tell(replace(order, at=edge.plane.now(), why=why))
        raise
