"""How much does a node have?

The question: placement counts with what a node reports of itself, so one that reports too much attracts the
work of a fleet.

The rule: a node of a pool that launches its nodes has at most what its offer has, because that was asked for
and is paid for; where its offer is not known (it may have gone from the provider's list since), at most what
the largest offer of the pool has. Less is believed: a machine may be smaller than its kind promises. What an
offer leaves at 0 cpus or memory was never said, and does not bound; of GPUs 0 means none. A node of a pool
that takes newcomers is what it says it is, up to what may stand in a file (`session`): nobody else knows.

Refused: doing this when the event is folded in. Journals that were written before would be read as other
worlds than they were, with work on nodes that have no room for it.
"""

from collections.abc import Iterable

from holdfast.model.pool import Offer
from holdfast.model.resources import Resources
from holdfast.model.world import World
from holdfast.wire.messages import Hello


def size_of(hello: Hello, world: World) -> Resources | None:
    """As it may be journalled."""
    node, has = world.nodes.get(hello.node), hello.capacity
    pool = world.pools.get(node.pool if node is not None else hello.pool)
    if has is None or pool is None or not pool.can_launch:
        return has
    name = node.offer if node is not None else hello.offer
    offers = {offer.name: offer for offer in (*pool.offers, *world.offers.get(pool.name, ()))}
    bounds = [offers[name]] if name in offers else list(offers.values())
    return _bounded(has, bounds) if bounds else has


def _bounded(has: Resources, offers: Iterable[Offer]) -> Resources:
    most = [offer.capacity for offer in offers]
    gpus = min(has.gpu_milli, max(each.gpu_milli for each in most))
    kinds = [each.gpu_kind for each in most if each.gpu_kind]
    return Resources(
        min(has.cpu_milli, _most(each.cpu_milli for each in most) or has.cpu_milli),
        min(has.memory_mib, _most(each.memory_mib for each in most) or has.memory_mib),
        gpus,
        (has.gpu_kind if has.gpu_kind in kinds or not kinds else kinds[0]) if gpus else "",
    )


def _most(said: Iterable[int]) -> int:
    """0: at least one of them does not say."""
    numbers = list(said)
    return max(numbers) if all(numbers) else 0
