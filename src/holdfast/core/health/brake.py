"""May we do harm now?

The question: many nodes went quiet at once. If they are really dead, terminating them is right; if it is our
own link, our own bug or a shared switch, it is a disaster we cause ourselves. The rule: when the share of
nodes in doubt *without independent evidence* passes a threshold, in the whole fleet or in one failure domain,
disruptive actions there are held; adding capacity and copies goes on. A node that said goodbye, or whose
provider says it stopped, is not in doubt.

It lets go when the doubt has shrunk to half of what engages it, or to fewer than `nodes_min`, and stayed so
for a while; or when an operator says so (who then answers for the nodes in doubt at that moment). Fewer than
`nodes_min` never engage it, so they must not hold it either: two of three that their provider goes on listing
as running held it for ever in a small fleet, every later dead node was kept, and these filled the pool until
nothing could be launched. It does not let go because time passed: a partition of an hour must not end in
terminating half a fleet.

But it narrows. A burst is over when all in it have been dead for `quiet_ms`, they are fewer than a majority,
and the others were heard all that time (but for as few as would not hold it). Then the network, the control
plane and the rest of the fleet are shown to be well, and what is left to doubt is what became of these nodes:
from the outside a machine that hangs and one behind a cut look the same. So these are kept until they return,
their provider says that they stopped, or an operator says so; all the others are repaired, drained and
terminated again as on any day. A node that some peer reaches is no dead one: then a cut is going on, and the
brake holds everything.

After a leader change everything disruptive waits for the same grace that verdicts get. In ordinary times
repairs are limited to a share of the fleet at once, so that a wrong rule cannot drain everything one by one.

Refused: a rate limit (so many evictions a minute), which only makes the disaster slower; and to end the dead
of a burst after some hours, or because their neighbours in the rack are well, for a cut may be of any shape
and as long as it likes (decision 0021).
"""

from collections import Counter

from holdfast.core.evidence import peers_say
from holdfast.core.plan.draft import Draft
from holdfast.model import action as do
from holdfast.model.node import COMING, JOINED, Node, NodeState
from holdfast.model.place import Level as Domain
from holdfast.model.plan import Held
from holdfast.model.policy import BrakePolicy
from holdfast.model.units import Instant, many, seconds
from holdfast.model.verdict import Level, Peers, Said, Word
from holdfast.model.world import World

FLEET = "fleet"


def in_doubt(world: World, node: Node) -> bool:
    """Doubted without independent evidence, not answered for by an operator, and not kept as it is."""
    confirmed = node.clues.word is Word.STOPPED or node.clues.said is Said.GOODBYE
    return not confirmed and node.verdict.since > world.brake_released_at and not node.kept_at


def is_kept(world: World, node: Node) -> bool:
    """The brake was narrowed to it and others. Fewer than could engage it do not hold it."""
    return node.id in world.kept and len(world.kept) >= world.policy.brake.nodes_min


def doubts(world: World) -> list[tuple[str, Instant]]:
    """Each node in doubt: its domain, and since when."""
    level = world.policy.brake.domain_level
    nodes = (world.nodes[name] for name in world.doubtful)
    return [(node.place.domain(level), node.verdict.since) for node in nodes if in_doubt(world, node)]


def count(doubted: list[tuple[str, Instant]], since: Instant) -> Counter[str]:
    """How many have come into doubt since then, in the fleet and in each domain."""
    found = Counter(domain for domain, at in doubted if at >= since)
    found[FLEET] = found.total()
    return found


def lets_go_below(policy: BrakePolicy, scope: str, size: int) -> float:
    """With fewer left in doubt, the brake on so many nodes has no reason any more."""
    share = policy.fleet_share if scope == FLEET else policy.domain_share
    return max(policy.nodes_min, share * size / 2)


def sizes(world: World) -> dict[str, int]:
    if world.policy.brake.domain_level is Domain.ZONE:
        return {FLEET: world.joined, **world.joined_in}
    level = world.policy.brake.domain_level
    joined = [node for node in world.nodes.values() if node.state in JOINED]
    return {FLEET: len(joined), **Counter(node.place.domain(level) for node in joined)}


def update(draft: Draft) -> None:
    world = draft.world
    if not (world.doubtful or world.brakes) or not (draft.look["node"] or draft.look["fleet"]):
        return  # nobody's verdict changed, and nothing is due
    policy = world.policy.brake
    doubted = doubts(world)
    size = sizes(world)
    for scope, found in count(doubted, draft.now - policy.window_ms).items():
        share = policy.fleet_share if scope == FLEET else policy.domain_share
        if scope not in world.brakes and found >= policy.nodes_min and found >= share * size.get(scope, 0):
            why = f"{found} of {size.get(scope, 0)} nodes in doubt at once, with no independent word"
            draft.add(do.EngageBrake(scope=scope, why=why))
    _release(draft, doubted, size)


def _release(draft: Draft, doubted: list[tuple[str, Instant]], size: dict[str, int]) -> None:
    world, policy = draft.world, draft.world.policy.brake
    for scope, brake in world.brakes.items():
        left = count(doubted, brake.since - policy.window_ms)[scope]
        calm = left < lets_go_below(policy, scope, size.get(scope, 0))
        if calm and draft.now - brake.since >= policy.hold_ms:
            draft.add(do.ReleaseBrake(scope=scope, why=f"{left} nodes still in doubt"))
        elif dead := _dead_of_the_burst(world, scope, brake.since, draft.now - policy.quiet_ms):
            why = f"all others were heard for {seconds(policy.quiet_ms)}: {many(len(dead), 'dead node')} kept"
            draft.add(do.NarrowBrake(scope=scope, nodes=dead, why=why))


def _dead_of_the_burst(world: World, scope: str, engaged_at: Instant, quiet_at: Instant) -> tuple[str, ...]:
    """Those who made it engage, if all of them have been dead since then, and nothing else stirred."""
    policy, level = world.policy.brake, world.policy.brake.domain_level
    if max(engaged_at, world.leader.since) > quiet_at:
        return ()
    if len(world.doubtful) >= world.policy.detection.majority * world.joined:
        return ()
    doubted = [node for name in world.doubtful if in_doubt(world, node := world.nodes[name])]
    recent = [node for node in doubted if node.verdict.since > quiet_at]
    burst = [node for node in doubted if engaged_at - policy.window_ms <= node.verdict.since <= quiet_at]
    stirred = len(recent) + _returned_since(world, quiet_at)
    if stirred >= lets_go_below(policy, FLEET, world.joined):
        return ()
    if not all(_nobody_reaches(world, node) for node in burst):
        return ()
    return tuple(node.id for node in burst if scope in (FLEET, node.place.domain(level)))


def _nobody_reaches(world: World, node: Node) -> bool:
    """Dead is final, but peers are asked again: one that they reach is behind a cut."""
    reached = peers_say(node.clues, world.policy.detection) is Peers.REACHED
    return node.verdict.level is Level.DEAD and not reached


def _returned_since(world: World, at: Instant) -> int:
    """How many were silent for a while; new ones were not."""
    return sum(
        node.verdict.since > at >= node.launched_at
        for node in world.nodes.values()
        if node.state in JOINED and node.verdict.level is Level.ALIVE
    )


def engaged_for(world: World, node: Node, now: Instant) -> str:
    """Why disruptive actions on this node must wait; empty: they need not."""
    if now < world.leader.since + world.policy.detection.grace_ms:
        return "a new leader waits before it disturbs anybody"
    for scope in (FLEET, node.place.domain(world.policy.brake.domain_level)):
        if scope in world.brakes:
            return f"brake on {scope}: {world.brakes[scope].why}"
    if is_kept(world, node):
        return f"it died with others at once ({len(world.kept)} are kept), and nobody knows it to be gone"
    return ""


def harmless(node: Node) -> bool:
    """Taking away what is not there any more, never was, or goes by another's will, disturbs nobody."""
    gone = node.clues.word is Word.STOPPED or node.clues.said is not Said.NOTHING
    return gone or node.by_hand or node.state in COMING or node.state is NodeState.TERMINATING


def hold(draft: Draft) -> None:
    """Takes the disruptive actions that must wait out of the draft."""
    world, kept = draft.world, []
    engaging = any(isinstance(action, do.EngageBrake) for action in draft.actions)
    for action in draft.actions:
        why = ""
        node = world.nodes.get(action.node) if isinstance(action, do.DISRUPTIVE) else None
        if node is not None and not harmless(node):
            why = engaged_for(world, node, draft.now) or ("the brake is being engaged" if engaging else "")
        if why:
            draft.held.append(Held(action, why))
        else:
            kept.append(action)
    draft.actions = kept


def budget_left(world: World) -> int:
    """How many more nodes may be in repair at once."""
    policy = world.policy.brake
    allowed = max(policy.disruptive_min, int(policy.disruptive_share * world.joined))
    busy = sum(
        node.state in (NodeState.DRAINING, NodeState.RESETTING, NodeState.QUARANTINED)
        and not node.by_hand
        and not node.releasing
        and node.clues.said is Said.NOTHING
        for node in world.nodes.values()
    )
    return allowed - busy
