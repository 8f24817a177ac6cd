"""What is done with a node that lives but is not well?

The ladder: watch -> cordon -> drain -> reset -> replace, and quarantine for what can be neither reset nor
replaced. Each finding says how far up it moves a node at once; coming back again and again moves it further.
Two findings are made here, from what only we see: *flapping* (it returns from suspicion too often) and *fails
every replica* (see `gray_failures`: programs fail there that work elsewhere at the same time).

A drain has a deadline; a reset waits for the drain; a node that was repaired `repeats_max` times within a day
is replaced instead. All of it is disruptive, so the brake may hold it, and a budget limits how many nodes are
in repair at once, those in quarantine among them: a bad rule may cost one node in ten, not the fleet.

**Half of a pool stays.** What we found ourselves never takes more than half of a pool's living nodes out of
service at once: when half of a pool fails, the cause is shared (a program, a registry, a network), and fewer
nodes help nobody. So no node of one is ever taken, but where it can be reset or replaced; one of two, one of
three. Never are more than half of a pool in quarantine, whoever found what: a node that would be one too many
keeps what runs there and takes nothing new.

**Findings of ours expire.** They were made of numbers, and numbers age: when the workloads that failed there
are deleted or of a new version, or after the window in which they were counted, the finding is cleared and
the node is tried again. Each time that it was repaired before doubles the wait, so that a broken node costs a
handful of failures a day and a healthy one that was blamed wrongly is back in a quarter of an hour. Findings
of agents stand until they are cleared: they measured. An operator's `uncordon` clears all of them, with the
failures they were made of: only what comes after it counts.

Refused: acting on one failed replica (most often the program's fault), returning a node to work while what an
agent measured stands against it, and keeping one out for ever because of failures of a program that is gone.
"""

from holdfast.core.health import brake, gray_failures
from holdfast.core.health.gray_failures import GRAY
from holdfast.core.plan.draft import CLOSING, Draft
from holdfast.model import action as do
from holdfast.model.finding import Finding, Severity
from holdfast.model.node import JOINED, Node, NodeState, Step
from holdfast.model.units import seconds
from holdfast.model.verdict import Level, Said
from holdfast.model.world import World

FLAPPING = "flapping"
OWN = (FLAPPING, GRAY)  # made of what we counted, not of what an agent measured
CONFIDENT = 0.5
OUT = (NodeState.CORDONED, NodeState.DRAINING, NodeState.RESETTING, NodeState.QUARANTINED)
DOUBLINGS_MAX = 6


def update(draft: Draft) -> None:
    world = draft.world
    budget: int | None = None
    for name in draft.look["node"]:
        node = world.nodes.get(name)
        if node is None or node.state not in JOINED or node.by_hand:
            continue
        if node.clues.said is not Said.NOTHING and not _is_reset_for_good(draft, node):
            continue  # it leaves, and is given up when its time is over (`pools`)
        if node.releasing:  # it goes, or is given back: then is the time to look
            continue
        if draft.now < node.retry_at:  # held by the brake, or its provider failed us, a moment ago
            continue
        if node.state is NodeState.RESETTING:
            _reset_overdue(draft, node)
        if node.verdict.level is not Level.ALIVE or node.state is NodeState.RESETTING:
            continue
        known = _known(world, name)
        standing = _expire(draft, node, known) if known else []
        if len(standing) < len(known):
            continue  # the next turn sees it without them
        found = [*standing, *_noticed(draft, node)]
        if not found and not node.repair.step:
            continue
        if budget is None:
            budget = brake.budget_left(world)
        budget -= _step(draft, node, found, budget)


def _is_reset_for_good(draft: Draft, node: Node) -> bool:
    """It was told to reset, and whoever takes it away does so without us: nobody else ends that."""
    pool = draft.world.pools.get(node.pool)
    return node.state is NodeState.RESETTING and pool is not None and not pool.can_terminate


def _known(world: World, node: str) -> list[Finding]:
    return [finding for key, finding in world.findings.items() if key[0] == node]


def _noticed(draft: Draft, node: Node) -> list[Finding]:
    """Findings of our own, raised once."""
    fresh = [
        f
        for f in (flapping(draft, node), gray_failures.broken(draft.world, node, draft.now))
        if f and (node.id, f.name) not in draft.world.findings
    ]
    if fresh and node.state not in OUT and not _may_be_taken(draft, node):
        return []
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
        expires=draft.now + (policy.flap_window_ms << min(node.repair.repeats, DOUBLINGS_MAX)),
    )


def _may_be_taken(draft: Draft, node: Node) -> bool:
    """Half of its pool stays in service, whatever we think that we found."""
    world, pool = draft.world, draft.world.pools.get(node.pool)
    alive, out = _counts(world, node, OUT)
    taking = {
        action.finding.node if isinstance(action, do.RaiseFinding) else action.node
        for action in draft.actions
        if isinstance(action, (do.RaiseFinding, *CLOSING))
    }
    out |= {name for name in taking if name in world.in_pool[node.pool]}
    if len(alive) == 1:
        return pool is not None and (pool.can_reset or pool.can_terminate)
    return len((out & alive) | {node.id}) <= len(alive) // 2


def _may_be_quarantined(draft: Draft, node: Node) -> bool:
    if node.verdict.level is Level.DEAD:
        return True
    alive, there = _counts(draft.world, node, (NodeState.QUARANTINED,))
    there |= {action.node for action in draft.actions if isinstance(action, do.QuarantineNode)}
    return len((there & alive) | {node.id}) <= len(alive | {node.id}) // 2


def _counts(world: World, node: Node, states: tuple[NodeState, ...]) -> tuple[set[str], set[str]]:
    """Of its pool: who is alive, and whom repair has in such a state."""
    nodes = [world.nodes[name] for name in world.in_pool[node.pool]]
    alive = {one.id for one in nodes if one.state in JOINED and one.verdict.level is not Level.DEAD}
    return alive, {one.id for one in nodes if one.state in states and not (one.by_hand or one.releasing)}


def _expire(draft: Draft, node: Node, known: list[Finding]) -> list[Finding]:
    """Clears what is over. Returns what still stands."""
    left = []
    for finding in known:
        if why := _over(draft, finding):
            draft.add(do.ClearFinding(node=node.id, name=finding.name, why=why))
        else:
            left.append(finding)
    if len(left) < len(known) and node.state is NodeState.QUARANTINED and not _sure(left):
        draft.add(do.UncordonNode(node=node.id, why="what was found is over: it is tried again"))
    return left


def _over(draft: Draft, finding: Finding) -> str:
    """Why this finding does not stand any more; empty: it does."""
    if finding.expires and draft.now >= finding.expires:
        return f"it has stood for {seconds(draft.now - finding.at)}"
    known = draft.world.workloads
    there = [name for name, version in finding.raised_by if name in known and known[name].version == version]
    if finding.raised_by and not there:
        return f"{', '.join(name for name, _ in finding.raised_by)}: deleted, or of a new version"
    return ""


def _sure(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.confidence >= CONFIDENT]


def _step(draft: Draft, node: Node, found: list[Finding], budget: int) -> int:
    """The next step on the ladder for this node. Returns what it took from the budget."""
    world, policy = draft.world, draft.world.policy.repair
    worst = max(_sure(found), key=lambda finding: finding.severity, default=None)
    if worst is None or worst.severity is Severity.NOTE:
        _recovering(draft, node)
        return 0
    severity = _escalated(draft, node, worst)
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


def _escalated(draft: Draft, node: Node, worst: Finding) -> Severity:
    pool, severity = draft.world.pools.get(node.pool), worst.severity
    often = node.repair.repeats >= draft.world.policy.repair.repeats_max
    if severity is Severity.RESET and (often or not (pool and pool.can_reset)):
        severity = Severity.REPLACE
    for_good = severity is Severity.REPLACE and not (pool and pool.can_terminate)
    if for_good and node.state is not NodeState.QUARANTINED and not _may_be_quarantined(draft, node):
        return Severity.WATCH if worst.name in OWN else Severity.CORDON
    return severity


def _drained(draft: Draft, node: Node, severity: Severity, why: str) -> None:
    pool = draft.world.pools.get(node.pool)
    if severity is Severity.RESET:
        draft.add(do.ResetNode(node=node.id, why=why))
    elif severity is Severity.REPLACE and pool and pool.can_terminate:
        draft.add(do.TerminateNode(node=node.id, why=why))
    elif severity is Severity.REPLACE:
        draft.add(do.QuarantineNode(node=node.id, why=f"{why}; it can be neither reset nor replaced"))
    elif node.state is not NodeState.CORDONED:
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
    pool, why = draft.world.pools.get(node.pool), "it did not come back from a reset"
    if pool and pool.can_terminate:
        draft.add(do.TerminateNode(node=node.id, why=why))
    elif _may_be_quarantined(draft, node):
        draft.add(do.QuarantineNode(node=node.id, why=why))
    else:
        draft.add(do.CordonNode(node=node.id, why=f"{why}, and half of its pool is in quarantine"))
