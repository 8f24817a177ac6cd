"""What should run on a node, as its agent is told.

Always the whole set, with a generation, never a difference: a lost message, a message twice, or a new leader
needs no special case, because the next set says everything again. The way back is the same: what an agent
reports becomes events here, and its hello lists all that runs.
"""

from holdfast.core.node import DesiredSet, Report, Stopping, Wanted
from holdfast.model import event as ev
from holdfast.model.replica import LIVE, State
from holdfast.model.units import Instant
from holdfast.model.world import World


def desired_set(world: World, node_id: str, now: Instant) -> DesiredSet:
    """The set of one node. Stops carry the time left, not an instant: the node's clock is its own."""
    replicas = [world.replicas[name] for name in world.on_node.get(node_id, ())]
    wanted = tuple(
        Wanted(r.id, r.slot, r.epoch, r.exclusive, r.role, r.gang, r.progress_ms)
        for r in replicas
        if r.state in LIVE
    )
    stopping = tuple(Stopping(r.id, max(0, r.deadline - now)) for r in replicas if r.state is State.STOPPING)
    node = world.nodes.get(node_id)
    return DesiredSet(world.leader.generation, node.generation if node else 0, wanted, stopping)


def event_of(report: Report, node: str, at: Instant) -> ev.Event:
    """What an agent reports of a replica, as an event."""
    if report.what == "started":
        return ev.ReplicaStarted(at=at, replica=report.replica, node=node)
    if report.what == "ready":
        return ev.ReplicaReady(at=at, replica=report.replica, node=node)
    assert report.how is not None
    return ev.ReplicaEnded(
        at=at,
        replica=report.replica,
        node=node,
        how=report.how,
        progress_ms=report.progress_ms,
        why=report.why,
    )
