"""The only writer of the world.

The question: what do we know, after this? Two things change what we know: something happened (`observe`), or
we decided something (`accept`). A decision takes effect here *before* anyone carries it out: a node is
LAUNCHING before the request leaves, a replica is PLACED before its node hears of it. So a crash between
deciding and doing leaves a world that knows what may have been done, and every retry repeats the same ids.

Replaying the journal through these two functions rebuilds the world exactly; they must therefore depend on
nothing but their arguments. Refused: letting each decision write its own part of the world. It reads shorter,
and then nobody can say who changed an entry, or replay it.
"""

from holdfast.core.state import fold_events, fold_plan
from holdfast.core.state.fold_nodes import may_be_forgotten
from holdfast.core.state.fold_plan import accept
from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.world import World

__all__ = ["accept", "apply", "may_be_forgotten", "observe"]

observe = fold_events.observe


def apply(world: World, entry: Event | Plan) -> None:
    """One journal entry, whichever it is."""
    if isinstance(entry, Plan):
        fold_plan.accept(world, entry)
    else:
        fold_events.observe(world, entry)
