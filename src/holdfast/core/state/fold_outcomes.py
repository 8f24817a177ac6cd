"""Which outcomes of replicas are remembered, for `gray_failures` to compare nodes by.

A run succeeded when its program says that it is done, and a copy of a service when it served for `PROVEN_MS`
before somebody stopped it. A success on a node strikes out the failures before it there. Of each version of a
workload the last few outcomes are kept, and of no node more than a quarter of them: a broken node that fails
a hundred replicas while another finishes one must not push that one out.
"""

from msgspec.structs import replace

from holdfast.core.state import index
from holdfast.model import event as ev
from holdfast.model.finding import Finding
from holdfast.model.outcomes import PROVEN_MS, Failed, Outcome, Outcomes
from holdfast.model.replica import Replica, State
from holdfast.model.units import Instant
from holdfast.model.workload import Service
from holdfast.model.world import World

KEPT = 64  # outcomes of a workload
KEPT_OF_A_NODE = 16
FAILURES_KEPT = 64  # on a node, since its last success


def ended(world: World, replica: Replica, event: ev.ReplicaEnded) -> None:
    """Before the replica is dropped."""
    if event.how is ev.Ended.FAILED:
        _failed(world, replica, event.at)
    elif event.how is ev.Ended.DONE or _served(world, replica, event.at):
        _succeeded(world, replica, event.at)


def _served(world: World, replica: Replica, at: Instant) -> bool:
    workload = world.workloads.get(replica.workload)
    ready = replica.ready_at > 0 and replica.state is not State.LOST and at - replica.ready_at >= PROVEN_MS
    return ready and workload is not None and isinstance(workload.shape, Service)


def _succeeded(world: World, replica: Replica, at: Instant) -> None:
    _note(world, replica, Outcome(at, replica.node, ok=True))
    node = world.nodes.get(replica.node)
    if node is not None and node.repair.failed:
        index.put_node(world, replace(node, repair=replace(node.repair, failed=())))


def _failed(world: World, replica: Replica, at: Instant) -> None:
    _note(world, replica, Outcome(at, replica.node, ok=False))
    node = world.nodes.get(replica.node)
    if node is not None:
        age_ms = max(0, at - replica.placed_at)
        latest = Failed(at, replica.slot, replica.workload, replica.version, age_ms)
        failed = (*node.repair.failed, latest)[-FAILURES_KEPT:]
        index.put_node(world, replace(node, repair=replace(node.repair, failed=failed)))


def _note(world: World, replica: Replica, outcome: Outcome) -> None:
    known = world.outcomes.get(replica.workload)
    if known is None or known.version < replica.version:
        known = Outcomes(replica.workload, replica.version)
    elif known.version > replica.version:
        return  # what an older version did says nothing about this one
    recent = known.recent
    if sum(one.node == outcome.node for one in recent) >= KEPT_OF_A_NODE:
        oldest = next(at for at, one in enumerate(recent) if one.node == outcome.node)
        recent = recent[:oldest] + recent[oldest + 1 :]
    world.outcomes[replica.workload] = replace(known, recent=(*recent, outcome)[-KEPT:])


def raise_finding(world: World, finding: Finding) -> None:
    world.findings[finding.node, finding.name] = finding
    world.agenda.note("node", finding.node)
    if finding.expires:
        world.agenda.at(finding.expires, "node", finding.node)


def clear_findings(world: World, node: str) -> None:
    for key in [key for key in world.findings if key[0] == node]:
        del world.findings[key]


def dropped(world: World, workload: str) -> None:
    """It was deleted, or is of a new version: findings that it raised may be over."""
    if workload not in world.workloads:
        world.outcomes.pop(workload, None)
    for (node, _), finding in world.findings.items():
        if any(name == workload for name, _ in finding.raised_by):
            world.agenda.note("node", node)
