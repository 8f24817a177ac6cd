"""What there is: nodes, pools, offers, money, workloads, replicas, findings, and all of it on one page."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.api import shapes, views
from holdfast.api.edge import Edge, ThisEdge, ThisPlane, give
from holdfast.api.gate import Read
from holdfast.api.problems import unknown
from holdfast.api.said import gives
from holdfast.control.plane import Plane
from holdfast.core.explain import offer_list

PART_S = 0.01  # at a stretch, before others may run
MANY = 1_000  # seats
SEATS_MAX = 10_000  # of one workload in one answer

T = TypeVar("T")
Filter = Annotated[str, Query(max_length=253, pattern=r"^[^\x00]*$")]

router = APIRouter(prefix="/v1", route_class=Read, tags=["what there is"])


def sight_of(plane: Plane) -> views.Sight:
    return views.Sight(plane.world, plane.senses, plane.used, plane.now())


async def in_parts(names: list[str], make: Callable[[str], T | None]) -> list[T]:
    """All of them, but not all in one go: a large fleet must not be deaf while somebody looks at it."""
    made: list[T] = []
    until = time.perf_counter() + PART_S
    for name in names:
        each = make(name)
        if each is not None:
            made.append(each)
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + PART_S
    return made


@router.get("/status", summary="The fleet on one page", **gives(shapes.Status, "all of it"))
async def status(edge: ThisEdge) -> Response:
    plane = edge.plane
    leader, world = await plane.leader(), plane.world
    held = leader.left_ms > 0
    return give(
        shapes.Status(
            leader=leader.leader if held else "",
            leader_url=leader.address if held else "",
            generation=leader.generation,
            leading=plane.leading,
            now_ms=plane.now(),
            journal=plane.length,
            brakes=views.brakes(world),
            nodes=await nodes_of(edge),
            workloads=await workloads_of(edge),
            clock_off_ms=plane.clock_off_ms,
        )
    )


async def nodes_of(edge: Edge) -> list[shapes.Node]:
    sight, own = sight_of(edge.plane), edge.own
    findings = views.findings_by_node(sight.world)
    edge.rates.listed(edge.who, len(sight.world.nodes))
    return await in_parts(
        list(sight.world.nodes), lambda name: own.node(views.node(sight, name, findings.get(name, [])))
    )


async def workloads_of(edge: Edge) -> list[shapes.Workload]:
    sight, own = sight_of(edge.plane), edge.own
    names = own.names()
    edge.rates.listed(edge.who, len(names))
    return await in_parts(names, lambda name: own.shown(_listed(edge, sight, name)))


def _listed(edge: Edge, sight: views.Sight, name: str) -> shapes.Workload | None:
    """To count many seats takes its time, so what was counted is good until something is journalled."""
    if len(sight.world.of_workload.get(name, ())) <= MANY:
        return views.workload_of(sight, name)
    key = "seats", name, edge.plane.length, edge.plane.leading
    found: shapes.Workload | None = edge.lately.get(key)
    if found is None:
        found = views.workload_of(sight, name)
        edge.lately.put(key, found)
    return found


def one_node(edge: Edge, name: str) -> shapes.Node:
    sight = sight_of(edge.plane)
    found = edge.own.node(views.node(sight, name, views.findings_by_node(sight.world).get(name, [])))
    if found is None:
        raise unknown("node", name, sight.world.nodes)
    return found


@router.get("/nodes", summary="All nodes", **gives(shapes.Node, "in the order they came", many=True))
async def nodes(edge: ThisEdge) -> Response:
    return give(await nodes_of(edge))


@router.get("/nodes/{name}", summary="One node", **gives(shapes.Node, "the node", 404))
async def node(edge: ThisEdge, name: str) -> Response:
    return give(one_node(edge, name))


@router.get("/pools", summary="All pools", **gives(shapes.Pool, "with their offers", many=True))
async def pools(plane: ThisPlane) -> Response:
    return give([views.pool_of(plane.world, name, plane.now()) for name in plane.world.pools])


@router.get(
    "/offers",
    summary="All offers of all pools, with what is remembered and expected of each",
    **gives(shapes.OfferListed, "what can be had", many=True),
)
async def offers(plane: ThisPlane) -> Response:
    now = plane.now()
    return give([views.offer_listed(each, now) for each in offer_list.listing(plane.world, now)])


@router.get(
    "/spend",
    summary="What the fleet costs and has cost, and how long the money lasts",
    **gives(shapes.Spending, "the fleet and every pool"),
)
async def spend(plane: ThisPlane) -> Response:
    return give(views.spending(plane.world, plane.now()))


@router.get("/workloads", summary="All workloads", **gives(shapes.Workload, "with their seats", many=True))
async def workloads(edge: ThisEdge) -> Response:
    return give(await workloads_of(edge))


@router.get(
    "/workloads/{name}",
    summary="One workload",
    **gives(shapes.Workload, "with its seats, 10,000 at most", 404),
)
async def workload(
    edge: ThisEdge,
    name: str,
    after: Annotated[
        Filter | None, Query(description="only seats after this slot, in order; empty: from the first")
    ] = None,
) -> Response:
    """Without `after`: all its seats in order or, if they are more, those in trouble first."""
    edge.own.workload(name)
    seats = len(edge.plane.world.of_workload.get(name, ()))
    edge.rates.listed(edge.who, seats)
    sight, most = sight_of(edge.plane), SEATS_MAX if seats > SEATS_MAX else 0
    return give(edge.own.shown(views.workload_of(sight, name, seats_max=most, after=after)))


@router.get(
    "/replicas",
    summary="Replicas, of one workload or on one node",
    **gives(shapes.Replica, "those that run, start or stop, and lost ones that may still run", many=True),
)
async def replicas(edge: ThisEdge, workload: Filter = "", node: Filter = "") -> Response:
    sight, own = sight_of(edge.plane), edge.own
    names = [id for id in views.replicas_named(sight.world, workload, node) if own.sees_replica(id)]
    edge.rates.listed(edge.who, len(names))
    return give(await in_parts(names, lambda name: views.replica_of(sight, name)))


@router.get(
    "/projects",
    summary="All projects: what they take of the fleet, and their quotas",
    **gives(shapes.Project, "those with workloads or a quota", many=True),
)
async def projects(edge: ThisEdge) -> Response:
    return give(list(views.projects_of(edge.plane.world, edge.who.project)))


@router.get("/findings", summary="What is wrong with nodes", **gives(shapes.Finding, "by node", many=True))
async def findings(edge: ThisEdge) -> Response:
    return give([edge.own.finding(each) for each in views.findings(edge.plane.world)])
