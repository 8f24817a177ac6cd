"""What is done with a node that lives but is not well?

The ladder: watch -> cordon -> drain -> reset -> replace, and quarantine for what can be neither reset nor
replaced. Each finding says how far up it moves a node at once; coming back again and again moves it further.
Two findings are made here, from what only we see: *flapping* (it returns from suspicion too often) and *fails
every replica* (programs of several different seats failed there while they run elsewhere: the node is broken,
not the programs).

A drain has a deadline; a reset waits for the drain; a node that was repaired `repeats_max` times within a day
is replaced instead. All of it is disruptive, so the brake may hold it, and a budget limits how many nodes are
in repair at once: a bad rule may cost one node in ten, not the fleet.

Refused: acting on one failed replica (most often the program's fault), and returning a drained node to work
because time passed.
"""

from holdfast.core import brake
from holdfast.core.draft import Draft
from holdfast.model import action as do
from holdfast.model.finding import Finding, Severity
from holdfast.model.node import JOINED, Node, NodeState, Step
from holdfast.model.replica import State
from holdfast.model.verdict import Level, Said
from holdfast.model.world import World

FLAPPING = "flapping"
GRAY = "fails every replica"
CONFIDENT = 0.5


def update(draft: Draft) -> None:
    world = draft.world
    budget: int | None = None
    for name in draft.look["node"]:
        node = world.nodes.get(name)
        if node is None or node.state not in JOINED or node.by_hand or node.clues.said is not Said.NOTHING:
            continue
        if node.releasing:  # it goes, or is given back: then is the time to look
            continue
        if draft.now < node.retry_at:  # held by the brake, or its provider failed us, a moment ago
            continue
        if node.state is NodeState.RESETTING:
            _reset_overdue(draft, node)
        if node.verdict.level is not Level.ALIVE or node.state is NodeState.RESETTING:
            continue
        found = [*_known(world, name), *_noticed(draft, node)]
        if not found and not node.repair.step:
            continue
        if budget is None:
            budget = brake.budget_left(world)
        budget -= _step(draft, node, found, budget)


def _known(world: World, node: str) -> list[Finding]:
    return [finding for key, finding in world.findings.items() if key[0] == node]


def _noticed(draft: Draft, node: Node) -> list[Finding]:
    """Findings of our own, raised once."""
    fresh = [
        f
        for f in (flapping(draft, node), gray(draft, node))
        if f and (node.id, f.name) not in draft.world.findings
    ]
    for finding in fresh:
        draft.add(do.RaiseFinding(finding=finding, why=finding.evidence))
    return fresh


def flapping(draft: Draft, node: Node) -> Finding | None:
    policy = draft.world.policy.repair
    recent = [at for at in node.repair.flaps if draft.now - at <= policy.flap_window_ms]
    if len(recent) < policy.flaps_max:
        return None
    evidence = f"came back from suspicion {len(recent)} times within {policy.flap_window_ms // 60_000} min"
    return Finding(
        FLAPPING,
        node.id,
        Severity.RESET,
        0.8,
        evidence,
        draft.now,
        "reset it; replace it if that does not help",
    )


def gray(draft: Draft, node: Node) -> Finding | None:
    """Different seats failed here, none is ready here, and such work is ready elsewhere."""
    world, policy = draft.world, draft.world.policy.repair
    recent = [(at, slot) for at, slot in node.repair.failures if draft.now - at <= policy.gray_window_ms]
    slots = dict.fromkeys(slot for _, slot in recent)
    if len(slots) < policy.gray_failures:
        return None
    first = recent[0][0]
    fine_here = any(
        world.replicas[name].state is State.READY and world.replicas[name].ready_at >= first
        for name in world.on_node[node.id]
    )
    elsewhere = any(_ready_elsewhere(world, slot, node.id) for slot in slots)
    if fine_here or not elsewhere:
        return None
    evidence = f"{len(slots)} different replicas failed here and run elsewhere"
    return Finding(GRAY, node.id, Severity.RESET, 0.9, evidence, draft.now, "take work away, reset it")


def _ready_elsewhere(world: World, slot_id: str, node_id: str) -> bool:
    """Is work of the same kind ready on another node?"""
    slot = world.slots.get(slot_id)
    siblings = world.of_workload.get(slot.workload, {}) if slot else {}
    copies = (world.replicas[name] for sibling in siblings for name in world.of_slot.get(sibling, ()))
    return any(copy.state is State.READY and copy.node != node_id for copy in copies)


def _step(draft: Draft, node: Node, found: list[Finding], budget: int) -> int:
    """The next step on the ladder for this node. Returns what it took from the budget."""
    world, policy = draft.world, draft.world.policy.repair
    sure = [finding for finding in found if finding.confidence >= CONFIDENT]
    worst = max(sure, key=lambda finding: finding.severity, default=None)
    if worst is None or worst.severity is Severity.NOTE:
        _recovering(draft, node)
        return 0
    severity = _escalated(draft, node, worst.severity)
    why = f"{worst.name}: {worst.evidence}"
    empty = node.state is NodeState.CORDONED and node.repair.step is Step.DRAINED  # and waits for the finding
    if node.state is NodeState.DRAINING or (empty and severity > Severity.DRAIN):
        if not world.on_node[node.id] or draft.now >= node.deadline:
            _drained(draft, node, severity, why)
    elif severity >= Severity.DRAIN and node.repair.step < Step.DRAINED:
        if budget > 0:
            deadline = draft.now + policy.drain_ms
            draft.add(do.DrainNode(node=node.id, deadline=deadline, why=why, cause=worst.name))
            return 1
        if node.state is NodeState.READY:
            draft.add(
                do.CordonNode(node=node.id, why=f"{why} (waiting for the repair budget)", cause=worst.name)
            )
    elif severity is Severity.CORDON and node.state is NodeState.READY:
        draft.add(do.CordonNode(node=node.id, why=why, cause=worst.name))
    elif severity is Severity.WATCH and node.repair.step is Step.HEALTHY:
        draft.add(do.WatchNode(node=node.id, repeats=node.repair.repeats, why=why, cause=worst.name))
    return 0


def _escalated(draft: Draft, node: Node, severity: Severity) -> Severity:
    pool = draft.world.pools.get(node.pool)
    often = node.repair.repeats >= draft.world.policy.repair.repeats_max
    if severity is Severity.RESET and (often or not (pool and pool.can_reset)):
        return Severity.REPLACE
    return severity


def _drained(draft: Draft, node: Node, severity: Severity, why: str) -> None:
    pool = draft.world.pools.get(node.pool)
    if severity is Severity.RESET:
        draft.add(do.ResetNode(node=node.id, why=why))
    elif severity is Severity.REPLACE and pool and pool.can_terminate:
        draft.add(do.TerminateNode(node=node.id, why=why))
    elif severity is Severity.REPLACE:
        draft.add(do.QuarantineNode(node=node.id, why=f"{why}; it can be neither reset nor replaced"))
    else:
        draft.add(do.CordonNode(node=node.id, why=why))


def _recovering(draft: Draft, node: Node) -> None:
    """No finding stands against it (any more)."""
    watch_ms = draft.world.policy.repair.watch_ms
    if node.state is NodeState.READY and node.repair.step is Step.RESET:
        draft.add(do.WatchNode(node=node.id, repeats=node.repair.repeats, why="it is back from a reset"))
    elif node.repair.step and node.state is not NodeState.QUARANTINED:
        if node.repair.step is not Step.WATCHED or draft.now - node.repair.since >= watch_ms:
            draft.add(do.UncordonNode(node=node.id, why="no finding stands against it"))


def _reset_overdue(draft: Draft, node: Node) -> None:
    if draft.now - node.since < draft.world.policy.repair.reset_ms:
        return
    pool = draft.world.pools.get(node.pool)
    if pool and pool.can_terminate:
        draft.add(do.TerminateNode(node=node.id, why="it did not come back from a reset"))
    else:
        draft.add(do.QuarantineNode(node=node.id, why="it did not come back from a reset"))
