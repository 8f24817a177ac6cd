"""How many nodes, of which pool; and what happens to those nobody needs?

Demand is what `failover` could not place, plus each pool's minimum, plus its warm standby nodes. Nodes
already on their way count as room: what fits on them is not ordered twice. For the rest the cheapest offer
that fits is taken, pool limits kept, and a pool that failed to launch backs off by itself, never the fleet.

Nothing is stuck for ever: every state of a node has a time-out that ends in termination, termination is
repeated until the provider confirms it, and pools are listed regularly so that a machine nobody remembers
(the answer to its launch was lost) is found and terminated. Ids are chosen by the plan before the request
leaves, so repeating is harmless.

A dead node is given some time to come back before it is terminated; one whose provider says it stopped is not
waited for. Empty nodes above minimum and standby are released after a while. The market between offers comes
on top of this later.
"""

from collections import Counter
from functools import cached_property

from holdfast.core import failover, placement
from holdfast.core.draft import Draft, Unmet
from holdfast.core.packing import Apart, Bin, fill
from holdfast.model import action as do
from holdfast.model.node import COMING, JOINED, Node, NodeState
from holdfast.model.pool import Offer, Pool
from holdfast.model.verdict import Level, Said, Word
from holdfast.model.workload import Needs, Spread, Workload
from holdfast.model.world import World


def update(draft: Draft) -> None:
    for name in draft.look["node"]:
        if name in draft.world.nodes:
            _overdue(draft, draft.world.nodes[name])
    if draft.unmet or draft.look["pool"]:
        tally = {name: Tally(draft.world, name) for name in draft.world.pools}
        _order(draft, tally)
        for name in draft.look["pool"]:
            if name in draft.world.pools:
                _keep_pool(draft, draft.world.pools[name], tally[name])


class Tally:
    """The nodes of one pool, counted once a turn."""

    def __init__(self, world: World, pool: str) -> None:
        nodes = [world.nodes[name] for name in world.in_pool.get(pool, ())]
        self.coming = [node for node in nodes if node.state in COMING]
        usable = [node for node in nodes if node.state in JOINED and node.state is not NodeState.QUARANTINED]
        self.usable = [node for node in usable if node.verdict.level is not Level.DEAD and not node.deadline]
        self.empty = [
            n
            for n in self.usable
            if n.state is NodeState.READY and n.verdict.level is Level.ALIVE and not world.on_node[n.id]
        ]
        self.all = len(nodes)
        self.ordered = 0

    @cached_property
    def by_offer(self) -> Counter[str]:
        """How many there are or will be of each offer."""
        return Counter(node.offer for node in (*self.usable, *self.coming))

    @property
    def count(self) -> int:
        return len(self.usable) + len(self.coming) + self.ordered


# what has been too long in a state


def _overdue(draft: Draft, node: Node) -> None:
    pool = draft.world.pools.get(node.pool)
    why = _why_end(draft, node, can_terminate=pool is None or pool.can_terminate)
    if why:
        draft.add(do.TerminateNode(node=node.id, why=why, cause=node.verdict.rule))


def _why_end(draft: Draft, node: Node, *, can_terminate: bool) -> str:
    policy, age = draft.world.policy.capacity, draft.now - node.since
    match node.state:
        case NodeState.LAUNCHING if age >= policy.launch_timeout_ms:
            return "its launch was never answered"
        case NodeState.BOOTING if age >= policy.boot_timeout_ms and can_terminate:
            return "it never joined"
        case NodeState.TERMINATING if age >= policy.terminate_retry_ms and draft.now >= node.retry_at:
            return "its termination is not confirmed yet"
    kept = node.by_hand and node.clues.word is not Word.STOPPED
    if node.state not in JOINED or not can_terminate or kept or draft.now < node.retry_at:
        return ""
    if node.verdict.level is Level.DEAD:
        if node.clues.word is Word.STOPPED or node.clues.said is Said.GOODBYE:
            return "its provider says it stopped" if node.clues.word is Word.STOPPED else "it said goodbye"
        if draft.now - node.verdict.since >= policy.dead_node_ms:
            return "it has been dead for too long to come back"
    if node.clues.said is Said.NOTICE and node.state is NodeState.DRAINING:
        left = node.verdict.level is Level.ALIVE and not draft.world.on_node[node.id]
        if left or draft.now >= node.deadline:
            return "its work has left before the notice ran out" if left else "its spot notice has run out"
    return ""


def notice(node: Node) -> str:
    """Why it will be gone soon."""
    return "spot notice" if node.spot else "it is leaving"


def take_notice(draft: Draft) -> None:
    """A spot notice is a drain with somebody else's deadline."""
    for name in draft.look["node"]:
        node = draft.world.nodes.get(name)
        if node is None or node.clues.said is not Said.NOTICE:
            continue
        if node.state in (NodeState.READY, NodeState.CORDONED) and node.deadline:
            why = f"{notice(node)}: it will be taken away" if node.spot else notice(node)
            draft.add(do.DrainNode(node=name, deadline=node.deadline, why=why, step=node.repair.step))


# what is missing


def _order(draft: Draft, tally: dict[str, Tally]) -> None:
    """Orders nodes for what could not be placed: first on what is free or coming, then on new ones."""
    world = draft.world
    bins = [Bin.of(node) for pool in tally.values() for node in pool.coming]
    for unmet in sorted(draft.unmet, key=lambda u: (-u.workload.priority, u.workload.name)):
        needs = unmet.workload.needs
        one_each = unmet.at_least > 1 or needs.spread is Spread.REQUIRE
        apart = Apart.of(world, needs, draft.copies_at(unmet.workload.name))
        left = unmet.count - _fits_now(draft, unmet, apart)
        left -= fill(bins, needs, left, one_each=one_each, apart=apart)
        while left > 0:
            pick = _cheapest(draft, tally, needs, apart)
            if pick is None:
                break
            pool, offer = pick
            bin_ = Bin.new(pool, offer)
            took = fill([bin_], needs, left, one_each=one_each, apart=apart)
            if not took:
                break
            why = f"{left} of {unmet.workload.name} have no room"
            left -= took
            bins.append(bin_)
            _launch(draft, tally[pool.name], pool, offer, why)


def _fits_now(draft: Draft, unmet: Unmet, apart: Apart | None) -> int:
    """Work that waits for a proof or for a victim to stop has room already, perhaps."""
    if unmet.at_least > 1:
        return 0
    ask = failover.ask_for(draft, unmet.workload, unmet.count, (), again=unmet.again)
    spots = placement.place(draft.room, ask)
    for spot in spots:
        if apart is not None:
            apart.note(draft.world.nodes[spot.node].place)
    return len(spots)


def _cheapest(
    draft: Draft, tally: dict[str, Tally], needs: Needs, apart: Apart | None
) -> tuple[Pool, Offer] | None:
    fitting = [
        (offer.price_micro_usd, pool.name, offer.name, pool, offer)
        for pool in draft.world.pools.values()
        if _may_launch(draft, pool, tally[pool.name])
        for offer in pool.offers
        if Bin.new(pool, offer).suits(needs) and (apart is None or apart.allows(offer.place))
    ]
    best = min(fitting, key=lambda row: row[:3], default=None)
    return (best[3], best[4]) if best else None


def _may_launch(draft: Draft, pool: Pool, tally: Tally) -> bool:
    state, policy = draft.world.pool_states[pool.name], draft.world.policy.capacity
    within = tally.all + tally.ordered < pool.max and tally.ordered < policy.launches_at_once
    return bool(pool.offers) and pool.can_launch and within and draft.now >= state.retry_at


def may_grow(draft: Draft, workload: Workload) -> bool:
    """Is a node on the way, or would one be launched, that could take one more of it?"""
    tally = {name: Tally(draft.world, name) for name in draft.world.pools}
    apart = Apart.of(draft.world, workload.needs, draft.copies_at(workload.name))
    bins = [Bin.of(node) for pool in tally.values() for node in pool.coming]
    if fill(bins, workload.needs, 1, one_each=False, apart=apart):
        return True
    return _cheapest(draft, tally, workload.needs, apart) is not None


def _launch(draft: Draft, tally: Tally, pool: Pool, offer: Offer, why: str, *, standby: bool = False) -> None:
    tally.by_offer[offer.name] += 1
    tally.ordered += 1
    draft.launched += 1
    draft.add(
        do.LaunchNode(
            node=f"{pool.name}-{draft.launched}",
            pool=pool.name,
            offer=offer.name,
            place=offer.place,
            capacity=offer.capacity,
            price_micro_usd=offer.price_micro_usd,
            spot=offer.spot,
            standby=standby,
            why=why,
        )
    )


def _keep_pool(draft: Draft, pool: Pool, tally: Tally) -> None:
    world = draft.world
    for name, owner in world.orphans.items():
        if owner == pool.name:
            draft.add(do.TerminateNode(node=name, why="its provider lists it, nobody here knows it"))
    while tally.count < pool.min and _may_launch(draft, pool, tally):
        _launch(draft, tally, pool, next_offer(pool, tally), f"{pool.name} has {tally.count} of {pool.min}")
    taken = set(draft.filled.values())
    spare = [n for n in tally.empty if n.id not in taken]
    coming = sum(node.standby for node in tally.coming)
    while len(spare) + coming < pool.standby and _may_launch(draft, pool, tally):
        _launch(draft, tally, pool, next_offer(pool, tally), "a warm standby node", standby=True)
        coming += 1
    _release(draft, pool, tally, spare)
    state = world.pool_states[pool.name]
    if pool.can_launch and draft.now >= state.listed_at + world.policy.capacity.list_every_ms:
        draft.add(do.ListPool(pool=pool.name, why="is everything there known to us?"))


def next_offer(pool: Pool, tally: Tally) -> Offer:
    """Spread a pool's own nodes over its offers' places, cheapest first among equals."""
    return min(pool.offers, key=lambda o: (tally.by_offer[o.name], o.price_micro_usd, o.name))


def _release(draft: Draft, pool: Pool, tally: Tally, spare: list[Node]) -> None:
    """Empty nodes above what the pool wants, idle for long enough, dearest first."""
    wanted = any(Bin.new(pool, offer).suits(u.workload.needs) for u in draft.unmet for offer in pool.offers)
    if not pool.can_terminate or wanted:
        return
    surplus = min(tally.count - pool.min, len(spare) - pool.standby)
    idle = [n for n in spare if n.idle_since and draft.now - n.idle_since >= pool.idle_ms and not n.by_hand]
    for node in sorted(idle, key=lambda n: (-n.price_micro_usd, n.id))[: max(0, surplus)]:
        draft.add(do.TerminateNode(node=node.id, why=f"idle, and {pool.name} has more than it needs"))
