"""When is an exclusive replica provably gone?

The question is not whether it is probably dead, but whether it can possibly still run, because then a second
copy does harm. There are three proofs and no others: its own agent reported its end; the provider confirmed
that its node is terminated; or its lease ran out. The lease is proof because the node enforces it against
itself: a shim beside each exclusive replica stops it when the lease, counted from the *sending* of the last
acknowledged heartbeat, is over, whether or not the agent lives; and when the shim is killed too, the kernel
ends at once whatever the replica started. We count the same lease from *receiving* that
heartbeat, plus a margin, so ours ends later.

Hence an unreachable node needs no verdict at all: whatever it was, after lease + margin its exclusive
replicas have stopped. Replicas that are not exclusive are never fenced; they serve on (static stability)
until their node is told otherwise.

Where the kernel does not do that (`Fencing.NONE`, which a node says with its hello), the end of a lease
proves nothing: agent and shim may be dead and the program alive. Nor does the word of an agent that found a
dead shim and can only have killed what it found. What is left is the provider's word, that of an operator who
strikes the node off, and a restart of the machine. Such a seat stays empty until then; refused is a guess
after a longer time, because no time is long enough for a program that nothing ends.

Epochs: each filling of a slot gets the next number. The program gets it too, and can fence its own writes
with it.
"""

from holdfast.core import timeouts
from holdfast.core.plan.draft import Draft
from holdfast.model.action import Proof
from holdfast.model.node import Fencing
from holdfast.model.replica import Replica, State
from holdfast.model.verdict import Level
from holdfast.model.world import World


def lease_proves(world: World, replica: Replica) -> bool:
    """Will it surely be gone when the lease of its node is over?"""
    return world.nodes[replica.node].fencing is Fencing.KERNEL and not replica.unproven


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
            or draft.now < timeouts.lease_over_at(world, node_id)
        ):
            continue
        for name in world.on_node[node_id]:
            replica = world.replicas[name]
            if replica.exclusive and lease_proves(world, replica):
                draft.gone(
                    replica,
                    Proof.LEASE_OVER,
                    f"{node_id} has not renewed its lease: it stopped {name} itself",
                )
