"""What should run on a node, as its agent is told.

Always the whole set, with a generation, never a difference: a lost message, a message twice, or a new leader
needs no special case, because the next set says everything again. The way back is the same: what an agent
reports becomes events here, and its hello lists all that runs.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from holdfast.core.agent.machine import (
    Brief,
    DesiredSet,
    Peer,
    Report,
    Stopping,
    Wanted,
)
from holdfast.model import event as ev
from holdfast.model.replica import LIVE, Phase, Replica, State
from holdfast.model.units import Instant
from holdfast.model.workload import Service
from holdfast.model.world import Gang, World

GATEWAY_SECRET = "HOLDFAST_GATEWAY_SECRET"  # for what answers behind gateways


def no_number(project: str, workload: str) -> int:
    return 0


def desired_set(
    world: World,
    node_id: str,
    now: Instant,
    gateway_secret: Callable[[str], str] | None = None,
    user_number: Callable[[str, str], int] = no_number,
) -> DesiredSet:
    """The set of one node. Stops carry the time left, not an instant: the node's clock is its own.
    `gateway_secret`: of a workload. `user_number`: of a project's workload."""
    replicas = [world.replicas[name] for name in world.on_node.get(node_id, ())]
    live = [r for r in replicas if r.state in LIVE]
    wanted = tuple(_wanted(world, replica) for replica in live)
    stopping = tuple(Stopping(r.id, max(0, r.deadline - now)) for r in replicas if r.state is State.STOPPING)
    node = world.nodes.get(node_id)
    generation = node.generation if node else 0
    briefs = _briefs(world, live, gateway_secret, user_number)
    return DesiredSet(world.leader.generation, generation, wanted, stopping, briefs)


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
        replica.incarnation,
        replica.grace_ms,
    )


def _briefs(
    world: World,
    replicas: list[Replica],
    gateway_secret: Callable[[str], str] | None,
    user_number: Callable[[str, str], int],
) -> dict[str, Brief]:
    briefs = {}
    for name in dict.fromkeys(replica.workload for replica in replicas):
        workload = world.workloads.get(name)
        if workload is not None and workload.program is not None:
            program, shape = workload.program, workload.shape
            if gateway_secret is not None and isinstance(shape, Service) and shape.serves is not None:
                program = replace(program, env={**program.env, GATEWAY_SECRET: gateway_secret(name)})
            user = user_number(workload.project, name)
            briefs[name] = Brief(program, workload.stop_grace_ms, user)
    return briefs


def members_of(world: World, replica: Replica) -> list[Replica]:
    """The replicas of its gang, by rank: in the order of their seats; none if it is in no gang."""
    gang = world.gangs.get(replica.workload)
    if not replica.gang or gang is None or replica.gang != gang.generation:
        return []
    seats = sorted(gang.members, key=lambda slot: int(slot.rpartition("/")[2]))
    seated = (world.replicas[name] for slot in seats for name in world.of_slot.get(slot, ()))
    return [member for member in seated if member.gang == replica.gang and member.state in LIVE]


def is_complete(world: World, members: list[Replica]) -> bool:
    """Is every seat of the generation filled, and the port of every member known?"""
    if not members:
        return False
    seats = world.gangs[members[0].workload].members
    return len(members) == len(seats) and all(member.port for member in members)


def is_ready(world: World, workload: str) -> bool:
    """Is every member of the present generation of its gang ready, or done?"""
    gang = world.gangs.get(workload)
    return gang is not None and bool(gang.members) and all(_is_up(world, slot, gang) for slot in gang.members)


def _is_up(world: World, slot: str, gang: Gang) -> bool:
    if slot not in world.slots:
        return False
    copies = (world.replicas[name] for name in world.of_slot[slot])
    done = world.slots[slot].phase is Phase.DONE
    return done or any(each.state is State.READY and each.gang == gang.generation for each in copies)


def peers_of(world: World, replica: Replica) -> tuple[Peer, ...]:
    """All members of the generation with their ports, or none: a part of them would be a wrong size and wrong
    ranks."""
    members = members_of(world, replica)
    if not is_complete(world, members):
        return ()
    return tuple(Peer(member.id, world.nodes[member.node].address, member.port) for member in members)


def events_of(reports: Iterable[Report], node: str, at: Instant) -> Iterator[ev.Event]:
    """What an agent reports of its replicas, as events. What only a newer agent would say is passed over."""
    for report in reports:
        replica, how = report.replica, report.how
        if report.what == "started":
            port, incarnation = report.port, report.incarnation
            yield ev.ReplicaStarted(at=at, replica=replica, node=node, port=port, incarnation=incarnation)
        elif report.what == "ready":
            yield ev.ReplicaReady(at=at, replica=replica, node=node, incarnation=report.incarnation)
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
