"""Timeouts: until when is waited for a node, a replica, a lease, a drain.

Each is an instant, or a length, that follows from an entry of the world and the policy. `index` notes them on
the agenda, so that a turn looks when they are over; decisions compare them with the time of the turn; and
`explain` shows them. All read them here, so that none waits for another instant than the one that was noted.

**The last call of a drain** is how long before its end what still runs there is stopped. Exclusive work
needs its time to save: it is told `drain_last_call` before the end, at once if there is less. A copy of a
service has nothing to save and is missed as soon as it stops, so it goes on serving while its successor
starts: a quarter of the time given is enough to end open requests. Where only thirty seconds' notice is
given (some markets give no more), one last call for both would stop every copy the moment the notice comes.
"""

from holdfast.model.lease import surely_over
from holdfast.model.node import JOINED, Node, NodeState
from holdfast.model.policy import Policy
from holdfast.model.replica import Replica, State
from holdfast.model.units import Instant
from holdfast.model.verdict import Level as Belief
from holdfast.model.verdict import Word
from holdfast.model.world import World

SERVING_SHARE = 4  # of the time given, a fourth is for ending


def lease_over_at(world: World, node_id: str) -> Instant:
    """When a node that we do not hear surely holds no lease any more. A leader before us may have renewed it
    up to the moment we took over; and when the policy changed, it may still hold one of the old length."""
    heard = max(world.nodes[node_id].heard_at, world.leader.since)
    leases, (changed_at, old_ms) = world.policy.leases, world.lease_before
    by_the_old = surely_over(min(heard, changed_at), old_ms, leases.margin_ms) if old_ms else 0
    return max(by_the_old, surely_over(heard, leases.lease_ms, leases.margin_ms))


def next_ask(node: Node, policy: Policy) -> Instant:
    """When to ask others about a doubtful node again: soon at first, then ever more seldom."""
    asked_at = max(node.clues.asked_at, node.clues.word_at)
    if not asked_at:
        return node.verdict.since
    again = asked_at + max(policy.detection.ask_again_ms, (asked_at - node.verdict.since) // 4)
    if node.verdict.level is Belief.DEAD and node.clues.asked_at < (end := give_up_at(node, policy)):
        if node.clues.word is Word.WAITING:  # only its provider is asked, and not before that had its time
            again = max(again, node.clues.word_at + policy.detection.alone_ms + 1)
        return min(again, end)
    return again


def give_up_at(node: Node, policy: Policy) -> Instant:
    """From then on a dead node is terminated, if nobody reaches it."""
    return max(node.verdict.since + policy.capacity.dead_node_ms, node.retry_at)


def node_dues(node: Node, policy: Policy) -> list[Instant]:
    """When this node needs a look though nothing happens: nothing is stuck for ever in any state."""
    dues: list[Instant] = []
    match node.state:
        case NodeState.LAUNCHING:
            dues.append(node.since + policy.capacity.launch_timeout_ms)
        case NodeState.BOOTING:
            dues.append(node.since + policy.capacity.boot_timeout_ms)
        case NodeState.TERMINATING:
            dues.append(max(node.since + policy.capacity.terminate_retry_ms, node.retry_at))
        case NodeState.RESETTING:
            dues.append(max(node.since + policy.repair.reset_ms, node.retry_at))
        case NodeState.DRAINING:
            calls = (last_call(node, policy, exclusive=exclusive) for exclusive in (True, False))
            dues += (*calls, node.deadline)
        case NodeState.READY | NodeState.CORDONED | NodeState.QUARANTINED:
            pass
    if node.state in JOINED:
        dues += _doubt_dues(node, policy)
        if node.repair.step:
            dues.append(node.repair.since + policy.repair.watch_ms)
    return dues


def _doubt_dues(node: Node, policy: Policy) -> list[Instant]:
    if node.verdict.level is Belief.ALIVE:
        return []
    dues = [next_ask(node, policy)]
    if node.verdict.level is Belief.DEAD:
        end = give_up_at(node, policy)
        asked_at = node.clues.asked_at
        dues.append(end if asked_at < end else asked_at + policy.detection.ask_again_ms)
    if node.verdict.level is Belief.UNREACHABLE:
        dues.append(node.verdict.since + policy.detection.unreachable_patience_ms)
    return dues


def start_timeout(replica: Replica, policy: Policy) -> int:
    """A program that is started anew must have ended first."""
    rules = policy.replicas
    limit = rules.place_timeout_ms if replica.state is State.PLACED else rules.ready_timeout_ms
    return limit + (replica.grace_ms if replica.incarnation else 0)


def last_call(node: Node, policy: Policy, *, exclusive: bool) -> Instant:
    before = policy.replicas.drain_last_call_ms
    if not exclusive:
        before = min(before, max(0, node.deadline - node.since) // SERVING_SHARE)
    return node.deadline - before
