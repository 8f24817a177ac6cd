"""What happens to nodes that nobody needs, and to those that are stuck; and what does a pool itself want?

Besides what has no room (`launch`), a pool wants its minimum and its warm standby nodes. One that was deleted
wants nothing: what is still to come is ended, and what is there is given notice as a spot node is, so that
its work leaves first, within the time of a drain. The pool is forgotten when all of it is gone, and not
sooner: somebody must go on asking its provider. Refused: to end the nodes at once, for whoever is in a hurry
can say so (`drain --deadline`), and whoever is not has lost work.

Nothing is stuck for ever: every state of a node has a time-out that ends in termination, termination is
repeated until the provider confirms it, and pools are listed regularly so that a machine nobody remembers
(the answer to its launch was lost) is found and terminated. Ids are chosen by the plan before the request
leaves, so repeating is harmless.

A dead node is given some time to come back before it is terminated, and then peers are asked a last time: one
that is reached is kept, as one that is unreachable is, for it may serve behind a cut; and it is asked about
again. An operator who lets the brake go answers for the verdicts, not for what has become of the nodes since,
so these are asked about as well. One whose provider says it stopped is not waited for. Empty nodes above
minimum and standby are released after a while; which nodes are worth emptying is asked in `consolidate`. Of
two that were asked for at once, the one that is not ready first is ended.
"""

from holdfast.core import timeouts
from holdfast.core.cost import budgets
from holdfast.core.evidence import peers_say
from holdfast.core.placement.bin_packing import Bin
from holdfast.core.plan.draft import Draft
from holdfast.core.provisioning import boot_times, launch
from holdfast.core.provisioning.launch import Tally
from holdfast.model import action as do
from holdfast.model.node import COMING, JOINED, Answer, Node, NodeState
from holdfast.model.pool import Pool
from holdfast.model.units import Instant, Millis
from holdfast.model.verdict import Level, Peers, Said, Word


def update(draft: Draft) -> None:
    for name in draft.look["node"]:
        if name in draft.world.nodes:
            _overdue(draft, draft.world.nodes[name])
    if draft.unmet or draft.look["pool"]:
        tally = launch.tallies(draft)
        launch.place_orders(draft, tally)
        for name in draft.look["pool"]:
            if name in draft.world.pools:
                _keep_pool(draft, draft.world.pools[name], tally[name])


# what has been too long in a state


def _overdue(draft: Draft, node: Node) -> None:
    pool = draft.world.pools.get(node.pool)
    if node.id in draft.reopened:
        return
    why = _why_end(draft, node, can_terminate=pool is None or pool.can_terminate)
    if why:
        draft.add(do.TerminateNode(node=node.id, why=why, cause=node.verdict.rule))


def _why_end(draft: Draft, node: Node, *, can_terminate: bool) -> str:
    policy, age = draft.world.policy.capacity, draft.now - node.since
    other = draft.world.nodes.get(node.hedge)
    if node.state in COMING and other is not None and other.state is NodeState.READY:
        when = "as well, because of a queue" if node.queued_at or other.queued_at else "at the same time"
        return f"{other.id} was asked for {when}, and was ready first"
    match node.state:
        case NodeState.LAUNCHING if age >= policy.launch_timeout_ms:
            return "its launch was never answered"
        case NodeState.BOOTING if node.clues.word is Word.STOPPED and can_terminate:
            return "its provider does not list it any more"
        case NodeState.BOOTING if age >= policy.boot_timeout_ms and can_terminate:
            return "it never joined"
        case NodeState.TERMINATING if age >= policy.terminate_retry_ms and draft.now >= node.retry_at:
            return "its termination is not confirmed yet"
    state = draft.world.pool_states.get(node.pool)
    wanted = state is not None and not state.deleted_at  # whoever took it by hand wants it; else it goes, too
    kept = node.by_hand and wanted and node.clues.word is not Word.STOPPED
    if node.state not in JOINED or not can_terminate or kept or draft.now < node.retry_at:
        return ""
    if node.verdict.level is Level.DEAD:
        if node.clues.word is Word.STOPPED or node.clues.said is Said.GOODBYE:
            return "its provider says it stopped" if node.clues.word is Word.STOPPED else "it said goodbye"
        if _nobody_reaches(draft, node):
            return "it has been dead for too long to come back"
    if node.clues.said is Said.NOTICE and node.state in (NodeState.DRAINING, NodeState.RESETTING):
        known = node.verdict.level is Level.ALIVE or node.state is NodeState.RESETTING  # emptied before that
        left = known and not draft.world.on_node[node.id]
        if left or draft.now >= node.deadline:
            return "its work has left before the notice ran out" if left else "its spot notice has run out"
    if node.releasing and node.verdict.level is Level.ALIVE and not draft.world.on_node[node.id]:
        return "its work has moved, and it is not needed any more"
    return ""


def _nobody_reaches(draft: Draft, node: Node) -> bool:
    """Its time is over, and of the peers asked since then all have answered, or had time to, and none reached
    it."""
    clues, policy = node.clues, draft.world.policy
    if draft.now < (end := timeouts.give_up_at(node, policy)) or clues.asked_at < end:
        return False
    reached = Answer.REACHED in clues.answers.values()
    if reached and peers_say(clues, policy.detection) not in (Peers.OUTVOTED, Peers.REFUSED):
        return False
    answered = len(clues.answers) >= len(clues.asked)
    return answered or draft.now >= clues.asked_at + policy.detection.ask_again_ms


def live_within_means(draft: Draft) -> None:
    """When the money of the month is used up, all that costs something is given notice, so that it is gone
    before the last of it is spent."""
    world = draft.world
    if not (draft.look["pool"] or draft.look["node"]):
        return
    limits = [draft.purse.fleet, *draft.purse.pools.values()]
    for limit in (limit for limit in limits if limit.budget.month_micro_usd is not None):
        lasts_ms = limit.lasts_ms()
        if lasts_ms > budgets.guard_ms(world.policy):
            continue
        deadline = draft.now + max(0, lasts_ms - 2 * world.policy.capacity.terminate_retry_ms)
        there = (world.pools[name] for name in limit.pools if name in world.pools)
        ours = [pool for pool in there if pool.can_terminate]
        for node in (world.nodes[name] for pool in ours for name in world.in_pool[pool.name]):
            if not node.price_micro_usd or node.state is NodeState.TERMINATING:
                continue
            if node.state in COMING:
                draft.add(do.TerminateNode(node=node.id, why=limit.used_up()))
            elif node.clues.said is not Said.NOTICE or not node.deadline:
                draft.add(do.GiveNotice(node=node.id, deadline=deadline, why=limit.used_up()))


def take_notice(draft: Draft) -> None:
    """A spot notice is a drain with somebody else's deadline. One that was not said again since the node came
    back ends there: whoever said it has gone, or thinks otherwise."""
    for name in draft.look["node"]:
        node = draft.world.nodes.get(name)
        if node is None:
            continue
        if _forgotten(node) and draft.now >= node.deadline:
            draft.add(do.UncordonNode(node=name, why="it came back, and nobody wants it to leave any more"))
        if node.clues.said is not Said.NOTICE:
            continue
        if node.state in (NodeState.READY, NodeState.CORDONED, NodeState.QUARANTINED) and node.deadline:
            why = f"{node.leaves_because}: it will be taken away" if node.spot else node.leaves_because
            draft.add(do.DrainNode(node=name, deadline=node.deadline, why=why, step=node.repair.step))


def _forgotten(node: Node) -> bool:
    """It is drained for a notice that nobody gives: other drains are somebody's still."""
    drained = node.state is NodeState.DRAINING and node.verdict.level is Level.ALIVE
    others = node.by_hand or node.releasing or node.repair.step
    return drained and not others and node.clues.said is Said.NOTHING


# what a pool wants


def _keep_pool(draft: Draft, pool: Pool, tally: Tally) -> None:
    world = draft.world
    strays = [name for name, owner in world.orphans.items() if owner == pool.name]
    for name in strays:
        draft.add(do.TerminateNode(node=name, why="its provider lists it, nobody here knows it"))
    state = world.pool_states[pool.name]
    if state.deleted_at and not tally.all and not strays:
        draft.add(do.ForgetPool(pool=pool.name, why="it was deleted, and none of its nodes is left"))
        return
    if state.deleted_at:
        _clear(draft, pool, state.deleted_at)
    while tally.count < pool.min and (offer := launch.next_offer(draft, pool, tally)):
        launch.launch(draft, tally, pool, offer, f"{pool.name} has {tally.count} of {pool.min}")
    taken = {*draft.filled.values(), *draft.kept}
    spare = [n for n in tally.empty if n.id not in taken]
    coming = sum(node.standby for node in tally.coming)
    standby = boot_times.standbys_of(world, pool, len(tally.usable) - len(tally.empty), draft.now)
    while len(spare) + coming < standby and (offer := launch.next_offer(draft, pool, tally)):
        launch.launch(draft, tally, pool, offer, "a warm standby node", standby=True)
        coming += 1
    _release(draft, pool, tally, spare, standby)
    if pool.can_launch and draft.now >= state.listed_at + _list_every(draft, pool, tally):
        draft.add(do.ListPool(pool=pool.name, why="is everything there known to us?"))
    if pool.lists_offers and draft.now >= state.offers_at + world.policy.capacity.offers_every_ms:
        draft.add(do.ListOffers(pool=pool.name, why="what can be had, and at which price?"))


def _clear(draft: Draft, pool: Pool, deleted_at: Instant) -> None:
    """Whoever cannot end nodes has those left that join by themselves: their work leaves, too."""
    world, why = draft.world, f"pool {pool.name} was deleted"
    for node in (world.nodes[name] for name in world.in_pool[pool.name]):
        if node.state in COMING:
            draft.add(do.TerminateNode(node=node.id, why=why))
        elif node.state is not NodeState.TERMINATING and not (
            node.clues.said is Said.NOTICE and node.deadline
        ):
            deadline = max(draft.now, deleted_at + world.policy.repair.drain_ms)
            draft.add(do.GiveNotice(node=node.id, deadline=deadline, why=why))


def _list_every(draft: Draft, pool: Pool, tally: Tally) -> Millis:
    policy = draft.world.policy.capacity
    waits = pool.queues and any(node.may_queue for node in tally.coming)
    return min(policy.queue_every_ms, policy.list_every_ms) if waits else policy.list_every_ms


def _release(draft: Draft, pool: Pool, tally: Tally, spare: list[Node], standby: int) -> None:
    """Empty nodes above what the pool wants, idle for long enough, dearest first."""
    offers = draft.world.offers[pool.name]
    wanted = any(Bin.new(pool, offer).suits(u.workload.needs) for u in draft.unmet for offer in offers)
    if not pool.can_terminate or wanted:
        return
    surplus = min(tally.count - pool.min, len(spare) - standby)
    idle = [n for n in spare if n.idle_since and draft.now - n.idle_since >= pool.idle_ms and not n.by_hand]
    for node in sorted(idle, key=lambda n: (-n.price_micro_usd, n.id))[: max(0, surplus)]:
        draft.add(do.TerminateNode(node=node.id, why=f"idle, and {pool.name} has more than it needs"))
