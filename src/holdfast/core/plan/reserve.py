"""Which nodes of a pool are kept for what is more important?

A pool may keep its last nodes for work of some priority and above. `launch` launches them for nobody else;
here the same holds for nodes that are there already, because of a minimum, or because something important
needed them a moment ago. Otherwise the first unimportant copy that comes along would sit where room was
promised.

The rule counts nodes, as the promise does: at most `max` less the reserve may hold something less important.
A node that holds some may take more of it. Beyond that number, nodes without any are out of bounds, whether
they are empty or hold important work. Nodes of the pool that are not launched yet count as kept, so a pool
that may still grow by its reserve keeps none of those it has.

Nobody is moved or stopped for a reserve: what was there before it was made stays until it ends. Somebody
important who finds no room all the same preempts, as ever (`preempt`).

Refused: keeping room by resources (so many GPUs) over all nodes. Free shares on many nodes hold no replica
that needs a whole one.
"""

from collections.abc import Iterable

from holdfast.core.plan.draft import Draft
from holdfast.model.pool import Pool
from holdfast.model.world import World


def kept_from(draft: Draft, priority: int) -> tuple[str, ...]:
    """The nodes that are not for such a priority, as this plan has it."""
    found: list[str] = []
    for pool in draft.world.pools.values():
        if holds(pool, priority):
            found += kept_in(draft.world, pool, _used(draft, pool))
    return tuple(found)


def kept_now(world: World, priority: int) -> tuple[str, ...]:
    """The same of the world as it is."""
    pools = [pool for pool in world.pools.values() if holds(pool, priority)]
    return tuple(name for pool in pools for name in kept_in(world, pool, _unimportant(world, pool)))


def holds(pool: Pool, priority: int) -> bool:
    return pool.reserve.nodes > 0 and priority < pool.reserve.priority


def kept_in(world: World, pool: Pool, used: Iterable[str]) -> list[str]:
    """Of the nodes without anything unimportant, all but as many as may still get some: the first ones."""
    taken = dict.fromkeys(used)
    clean = [name for name in world.in_pool[pool.name] if name not in taken and name in world.room.row]
    return clean[max(0, pool.max - pool.reserve.nodes - len(taken)) :]


def _used(draft: Draft, pool: Pool) -> list[str]:
    """Nodes with something unimportant on them, or soon by this plan. What is there is counted once."""
    world = draft.world
    if pool.name not in draft.unimportant:
        draft.unimportant[pool.name] = _unimportant(world, pool)
    nodes = world.in_pool[pool.name]
    filled = ((node, world.slots[slot].workload) for slot, node in draft.filled.items() if node in nodes)
    return [*draft.unimportant[pool.name], *(node for node, name in filled if _is_less(world, name, pool))]


def _unimportant(world: World, pool: Pool) -> list[str]:
    return [
        node
        for node in world.in_pool[pool.name]
        if any(_is_less(world, world.replicas[name].workload, pool) for name in world.on_node[node])
    ]


def _is_less(world: World, workload: str, pool: Pool) -> bool:
    known = world.workloads.get(workload)
    return known is None or known.priority < pool.reserve.priority
