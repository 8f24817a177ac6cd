"""How a workload asks for room.

The scheduler, the provisioner, the consolidator and the reports all ask `placement` the same question for a
workload, so it is put together in one place: what a replica needs, how far copies are to be apart, and which
nodes are out of bounds for it (kept for more important work, beyond its project's quota, or paid for by a job
that waits for a cheaper offer).

The request is of a plan in the making: nodes that the same plan has filled already count as full.
"""

from holdfast.core.placement import placement
from holdfast.core.plan import reserve
from holdfast.core.plan.draft import Draft
from holdfast.model.course import Way
from holdfast.model.node import Node
from holdfast.model.workload import Spread, Workload


def ask_for(
    draft: Draft,
    workload: Workload,
    count: int,
    avoid: tuple[str, ...],
    *,
    again: bool,
    moves: bool = False,
    without: str = "",
) -> placement.Ask:
    """`moves`: for seats in which something is, which no quota keeps from a node. `without`: once this seat
    is empty."""
    needs = draft.needs_of(workload)
    if draft.ways.get(workload.name) in (Way.WAIT, Way.SPOT):
        nodes = draft.world.nodes
        avoid = (*avoid, *(name for name in draft.room.row if is_kept_by_waiting(draft, nodes[name])))
    avoid = (*avoid, *reserve.kept_from(draft, workload.priority))
    if not moves:
        avoid = (*avoid, *draft.quotas.kept_from(workload, draft.room, without))
    return placement.Ask(
        needs=needs,
        count=count,
        at_least=1,
        beside=() if needs.spread is Spread.NONE else draft.copies_at(workload.name),
        avoid=avoid,
        use_standby=again,
        even=workload.name in draft.world.promised,
    )


def is_kept_by_waiting(draft: Draft, node: Node) -> bool:
    """It is paid for on demand, and nobody uses it but, perhaps, jobs that go another way."""
    if node.spot or not node.price_micro_usd:
        return False
    there = (draft.world.replicas[name].workload for name in draft.world.on_node[node.id])
    return all(draft.ways.get(name) in (Way.WAIT, Way.SPOT) for name in there)
