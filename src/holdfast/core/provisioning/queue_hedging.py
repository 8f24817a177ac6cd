"""A node that was asked for waits in its provider's queue: wait as well, or ask somewhere else?

A launch may be granted and still have to wait for its turn, as jobs of a batch system do. It is a node on its
way, so it counts as room, and what it is for would wait with it. Whoever else could be ready sooner is worth
asking: when the expected start is further away than the other offer's time to ready (what is remembered of
it) and some patience, that offer is launched beside it. Whichever is ready first stays, and the other is
cancelled (`pools`), so nobody who waits loses its place in the queue by looking around.

When it will start is the provider's own estimate, if it has one. If it has none: who has waited for some time
is expected to wait for as long again. That is the rule for waits of which nothing is known but that they have
no typical length, and it needs no number.

One for each that waits, never two: the second would only be sooner if the first fails, and then it is asked
for anyway. Offers in whose queue we wait already are not asked: what comes later waits longer.

Refused: to count a queue as an offer's time to ready, in its memory. A queue is of now, and the memory of
weeks; the next morning the cluster is empty and would be avoided. Refused: leaving the queue at once. Then
both waits begin anew when the other offer is refused.

Where the number comes from: a minute of patience is what most clouds bill at least, and what estimates of a
scheduler that has just looked are off by.
"""

from collections.abc import Iterable

from holdfast.core.market import offers
from holdfast.core.market.offers import Bools
from holdfast.core.plan.draft import Draft
from holdfast.model.market import key_of
from holdfast.model.node import COMING, Node
from holdfast.model.units import Instant, Millis
from holdfast.model.world import World


def waits(world: World, node: Node) -> bool:
    """It is in a queue, and nobody else was asked for in its place."""
    other = world.nodes.get(node.hedge)
    return bool(node.queued_at) and node.may_queue and (other is None or other.state not in COMING)


def wait_ms(node: Node, now: Instant) -> Millis:
    """How long until its turn comes, as far as anybody can tell."""
    return max(0, node.starts_at - now if node.starts_at else now - node.launched_at)


def sooner(draft: Draft, node: Node, queued: Iterable[Node]) -> Bools:
    """The offers that would be ready before the turn of a node comes."""
    table, patience = draft.market, draft.world.policy.capacity.queue_patience_ms
    found: Bools = offers.outlook(table, draft.now).ready_ms + patience < wait_ms(node, draft.now)
    for other in queued:
        row = table.row.get(key_of(other.pool, other.offer))
        if row is not None:
            found[row] = False
    return found
