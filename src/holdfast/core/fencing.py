"""When is an exclusive replica provably gone?

The question is not whether it is probably dead, but whether it can possibly still run, because then a second
copy does harm. There are three proofs and no others: its own agent reported its end; the provider confirmed
that its node is terminated; or its lease ran out. The lease is proof because the node enforces it against
itself: a shim beside each exclusive replica stops it when the lease, counted from the *sending* of the last
acknowledged heartbeat, is over, whether or not the agent lives. We count the same lease from *receiving* that
heartbeat, plus a margin, so ours ends later.

Hence an unreachable node needs no verdict at all: whatever it was, after lease + margin its exclusive
replicas have stopped. Replicas that are not exclusive are never fenced; they serve on (static stability)
until their node is told otherwise.

Epochs: each filling of a slot gets the next number. The program gets it too, and can fence its own writes
with it.
"""

from holdfast.core import index
from holdfast.core.draft import Draft
from holdfast.model.action import Proof
from holdfast.model.replica import State
from holdfast.model.verdict import Level


def prove(draft: Draft) -> None:
    """Declares gone every exclusive replica on a node in doubt whose lease is surely over."""
    world = draft.world
    suspects = dict.fromkeys(name for name in draft.look["node"] if name in world.doubtful)
    for slot_id in draft.look["slot"]:
        for name in world.of_slot.get(slot_id, ()):
            if world.replicas[name].state is State.LOST:
                suspects[world.replicas[name].node] = None
    for node_id in suspects:
        node = world.nodes.get(node_id)
        if (
            node is None
            or node.verdict.level is Level.ALIVE
            or draft.now < index.lease_over_at(world, node_id)
        ):
            continue
        for name in world.on_node[node_id]:
            replica = world.replicas[name]
            if replica.exclusive:
                draft.gone(
                    replica,
                    Proof.LEASE_OVER,
                    f"{node_id} has not renewed its lease: it stopped {name} itself",
                )
