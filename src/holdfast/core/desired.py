"""What should run on a node, as its agent is told.

Always the whole set, with a generation, never a difference: a lost message, a message twice, or a new leader
needs no special case, because the next set says everything again. The way back is the same: what an agent
reports becomes events here, and its hello lists all that runs.
"""

from collections.abc import Iterable, Iterator

from holdfast.core.node import Brief, DesiredSet, Peer, Report, Stopping, Wanted
from holdfast.model import event as ev
from holdfast.model.replica import LIVE, Replica, State
from holdfast.model.units import Instant
from holdfast.model.world import World


def desired_set(world: World, node_id: str, now: Instant) -> DesiredSet:
    """The set of one node. Stops carry the time left, not an instant: the node's clock is its own."""
    replicas = [world.replicas[name] for name in world.on_node.get(node_id, ())]
    live = [r for r in replicas if r.state in LIVE]
    wanted = tuple(_wanted(world, replica) for replica in live)
    stopping = tuple(Stopping(r.id, max(0, r.deadline - now)) for r in replicas if r.state is State.STOPPING)
    node = world.nodes.get(node_id)
    generation = node.generation if node else 0
    return DesiredSet(world.leader.generation, generation, wanted, stopping, _briefs(world, live))


def _wanted(world: World, replica: Replica) -> Wanted:
    return Wanted(
        replica.id,
        replica.slot,
        replica.epoch,
        replica.exclusive,
        replica.role,
        replica.gang,
        replica.progress_ms,
        peers_of(world, replica),
        replica.needs,
        replica.devices,
    )


def _briefs(world: World, replicas: list[Replica]) -> dict[str, Brief]:
    briefs = {}
    for name in dict.fromkeys(replica.workload for replica in replicas):
        workload = world.workloads.get(name)
        if workload is not None and workload.program is not None:
            briefs[name] = Brief(workload.program, workload.stop_grace_ms)
    return briefs


def members_of(world: World, replica: Replica) -> list[Replica]:
    """The replicas of its gang, in the order of their seats; none if it is in no gang."""
    gang = world.gangs.get(replica.workload)
    if not replica.gang or gang is None:
        return []
    seated = (world.replicas[name] for slot in gang.members for name in world.of_slot.get(slot, ()))
    return [member for member in seated if member.gang == replica.gang and member.state in LIVE]


def peers_of(world: World, replica: Replica) -> tuple[Peer, ...]:
    return tuple(
        Peer(member.id, world.nodes[member.node].address, member.port)
        for member in members_of(world, replica)
    )


def events_of(reports: Iterable[Report], node: str, at: Instant) -> Iterator[ev.Event]:
    """What an agent reports of its replicas, as events. What only a newer agent would say is passed over."""
    for report in reports:
        replica, how = report.replica, report.how
        if report.what == "started":
            yield ev.ReplicaStarted(at=at, replica=replica, node=node, port=report.port)
        elif report.what == "ready":
            yield ev.ReplicaReady(at=at, replica=replica, node=node)
        elif report.what == "saved":
            yield ev.CheckpointSaved(at=at, replica=replica, progress_ms=report.progress_ms, node=node)
        elif report.what == "ended" and how is not None:
            done, why = report.progress_ms, report.why
            yield ev.ReplicaEnded(
                at=at,
                replica=replica,
                node=node,
                how=how,
                progress_ms=done,
                why=why,
                proven=report.proven,
            )
