"""What of a hello is journalled: what a node may claim, within its bounds.

A key proves which node says hello, not that what it says is true. Its address, its size, and what it runs are
each bounded by what we know ourselves (`node_address`, `node_size`, the world). What is not believed is
replaced by what we know, logged, and counted with what is dropped of reports.
"""

from typing import Protocol

from holdfast.control.node_address import HINT, reached_at
from holdfast.control.node_size import size_of
from holdfast.model.event import NodeJoined
from holdfast.model.node import Fencing, Isolation, LimitedBy
from holdfast.model.resources import Resources
from holdfast.model.units import Instant
from holdfast.model.world import World
from holdfast.wire.messages import Hello

BOOT_MAX = 64
SHOWN_MAX = 128  # characters of what is logged
SIZE_HINT = "its offer says less: if that is wrong, change the offer in the pool"


class Drop(Protocol):
    """Logs and counts what was not believed."""

    def __call__(self, reason: str, node: str, **fields: object) -> None: ...


def joined(hello: Hello, ends: tuple[str, str], world: World, at: Instant, drop: Drop) -> NodeJoined:
    """`ends`: where its link comes from, and our end of it."""
    return NodeJoined(
        at=at,
        node=hello.node,
        running=_known(hello, world),
        pool=hello.pool,
        offer=hello.offer,
        place=hello.place,
        capacity=_size(hello, world, drop),
        address=_address(hello, ends, world, drop),
        probe_port=hello.probe_port,
        fencing=Fencing.KERNEL if hello.fencing == Fencing.KERNEL else Fencing.NONE,
        boot=hello.boot[:BOOT_MAX],
        limits=LimitedBy(hello.limits) if hello.limits in set(LimitedBy) else LimitedBy.UNKNOWN,
        told=hello.told,
        isolation=Isolation(hello.isolation) if hello.isolation in set(Isolation) else Isolation.UNKNOWN,
    )


def _known(hello: Hello, world: World) -> tuple[str, ...]:
    """What runs there of what we know to be there; the rest changes nothing, and is not journalled."""
    there = world.on_node.get(hello.node, ())
    return tuple(name for name in hello.running if name in there)


def _size(hello: Hello, world: World, drop: Drop) -> Resources | None:
    size = size_of(hello, world)
    if size != hello.capacity:
        drop("oversized", hello.node, claimed=str(hello.capacity), instead=str(size), hint=SIZE_HINT)
    return size


def _address(hello: Hello, ends: tuple[str, str], world: World, drop: Drop) -> str:
    known = world.nodes.get(hello.node)
    pool = world.pools.get(known.pool if known is not None else hello.pool)
    found = reached_at(hello.address, *ends, pool.network if pool is not None else ())
    if found.refused:
        claimed, why = hello.address[:SHOWN_MAX], found.refused
        drop("foreign_address", hello.node, claimed=claimed, why=why, instead=found.address, hint=HINT)
    return found.address
