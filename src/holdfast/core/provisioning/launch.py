"""Which nodes are launched, for what has no room and for what a pool itself wants?

Demand is what `schedule` could not place. Nodes already on their way count as room: what fits on them is not
ordered twice. For the rest the market says in which order to try the offers that suit (`rank`): by what a
useful hour will cost, chances and losses counted. Limits are kept here: pools' maxima, launches at a time,
budgets and price ceilings, and back-offs, which are the offer's own where the offer failed and the pool's
where its provider did.

A node that waits in its provider's queue counts as room too, and another may be asked for beside it
(`queue_hedging`).

Where waiting is dear and the first choice doubtful, two nodes are asked for at once, in different domains,
and whichever joins first stays (`pools` ends the other).

What waiting is worth: a minute of it, as much as `wait_worth` minutes of the cheapest node that would do.
Somebody who pays for a node wants what runs on it more than the money. What a loss costs: the restart, half a
checkpoint period for what has one, and for what has none and is exclusive an hour's work.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from msgspec.structs import replace

from holdfast.core.market import offers, rank
from holdfast.core.placement import placement
from holdfast.core.placement.bin_packing import Apart, Bin, Bins
from holdfast.core.plan import project_quota
from holdfast.core.plan.draft import Draft, Unmet
from holdfast.core.plan.request import ask_for
from holdfast.core.provisioning import queue_hedging
from holdfast.model import action as do
from holdfast.model.course import Way
from holdfast.model.node import COMING, JOINED, Node, NodeState
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import HOUR, NEVER, MicroUsd, seconds
from holdfast.model.verdict import Level
from holdfast.model.workload import Spread, Training, Workload
from holdfast.model.world import World

LOST_WORK_MS = HOUR  # by what is exclusive and saves nothing
COMPANY_MS = HOUR  # what losing another copy at the same time costs


class Tally:
    """The nodes of one pool, counted once a turn; those that the plan gives `back` to work are usable."""

    def __init__(self, world: World, pool: str, back: Collection[str] = ()) -> None:
        nodes = [world.nodes[name] for name in world.in_pool.get(pool, ())]
        self.coming = [node for node in nodes if node.state in COMING]
        usable = [node for node in nodes if node.state in JOINED and node.state is not NodeState.QUARANTINED]
        living = [node for node in usable if node.verdict.level is not Level.DEAD]
        self.usable = [node for node in living if not node.deadline or node.id in back]
        self.empty = [
            n
            for n in self.usable
            if n.state is NodeState.READY and n.verdict.level is Level.ALIVE and not world.on_node[n.id]
        ]
        self.all = len(nodes)
        self.ordered: list[Place] = []

    @cached_property
    def _racks(self) -> Counter[Place]:
        return Counter(node.place for node in (*self.usable, *self.coming))

    @cached_property
    def _zones(self) -> Counter[tuple[str, str, str]]:
        return Counter(_zone(node.place) for node in (*self.usable, *self.coming))

    def crowd(self, place: Place) -> tuple[int, int]:
        """How many there are or will be in its zone, and in its rack."""
        zone = sum(_zone(place) == _zone(other) for other in self.ordered)
        return self._zones[_zone(place)] + zone, self._racks[place] + self.ordered.count(place)

    @property
    def count(self) -> int:
        return len(self.usable) + len(self.coming) + len(self.ordered)


def _zone(place: Place) -> tuple[str, str, str]:
    return place.provider, place.region, place.zone


def tallies(draft: Draft) -> dict[str, Tally]:
    """Of all pools, with what this plan has ordered already."""
    found = {name: Tally(draft.world, name, draft.reopened) for name in draft.world.pools}
    for action in draft.actions:
        if isinstance(action, do.LaunchNode):
            found[action.pool].ordered.append(action.place)
    return found


class Pick:
    """An offer that may be launched now."""

    def __init__(self, pool: Pool, offer: Offer) -> None:
        self.pool, self.offer = pool, offer


def place_orders(draft: Draft, tally: dict[str, Tally]) -> None:
    """Orders nodes for what could not be placed: first on what is free or coming, then on new ones."""
    coming = list(_on_the_way(draft.world, tally))
    queue = [(node, Bins([Bin.of(node)])) for node in coming if queue_hedging.waits(draft.world, node)]
    bins = Bins(Bin.of(node) for node in coming if not queue_hedging.waits(draft.world, node))
    for unmet in sorted(draft.unmet, key=lambda u: (-u.workload.priority, u.workload.name)):
        needs = draft.needs_of(unmet.workload)
        if draft.ways.get(unmet.workload.name) is Way.WAIT or unmet.workload.name in draft.world.mixed:
            continue  # for what waits nothing is bought; for a mix `service_mix` does it
        one_each = unmet.at_least > 1 or needs.spread is Spread.REQUIRE
        copies = draft.copies_at(unmet.workload.name)
        apart = Apart.of(draft.world, needs, copies)
        company = Company(draft, unmet.workload, copies)
        means = Means(draft, unmet)
        wanted = left = means.seats(unmet.count - _fits_now(draft, unmet, apart, company))
        draft.quotas.promise(unmet.workload, max(0, wanted) * means.cost)
        left -= bins.fill(needs, left, one_each=one_each, apart=apart, note=company.add)
        for node, room in queue:
            if left <= 0:
                break
            took = room.fill(needs, left, one_each=one_each, apart=apart, note=company.add)
            if took:
                left -= took
                _burst(draft, tally, node, queue, unmet.workload, apart, company, means.most(wanted - left))
        while left > 0:
            picks = best(draft, tally, unmet.workload, apart, company, most=means.most(wanted - left))
            if not picks:
                break
            bin_ = Bin.new(picks[0].pool, picks[0].offer)
            took = Bins([bin_]).fill(needs, left, one_each=one_each, apart=apart, note=company.add)
            if not took:
                break
            why = f"{left} of {unmet.workload.name} have no room"
            left -= took
            bins.add(bin_)
            _launch_picks(draft, tally, picks, unmet.workload.priority, why)


def _burst(
    draft: Draft,
    tally: dict[str, Tally],
    node: Node,
    queue: Iterable[tuple[Node, Bins]],
    workload: Workload,
    apart: Apart | None,
    company: "Company",
    most: MicroUsd | None,
) -> None:
    """It counts on a node that waits for its turn: is another worth asking for, of which one will stay?"""
    among = queue_hedging.sooner(draft, node, (other for other, _ in queue))
    if any(isinstance(action, do.LaunchNode) and action.hedge == node.id for action in draft.actions):
        return
    for pick in best(draft, tally, workload, apart, company, among, most)[:1]:
        wait = seconds(queue_hedging.wait_ms(node, draft.now))
        why = f"{workload.name} would wait {wait} for {node.id} in its queue; the first one ready stays"
        launch(draft, tally[pick.pool.name], pick.pool, pick.offer, why, hedge=node.id)


def _on_the_way(world: World, tally: dict[str, Tally]) -> Iterator[Node]:
    """Of two that were asked for at once one will go again."""
    for pool in tally.values():
        for node in pool.coming:
            other = world.nodes.get(node.hedge)
            if other is None or other.state not in COMING or node.id < other.id:
                yield node


def _fits_now(draft: Draft, unmet: Unmet, apart: Apart | None, company: "Company") -> int:
    """Work that waits for a proof or for a victim to stop has room already, perhaps. What is to move to spot
    is not helped by room beside it on demand."""
    if unmet.at_least > 1 or (unmet.tried and not draft.reopened):
        return 0
    ask = ask_for(draft, unmet.workload, unmet.count, (), again=unmet.again, moves=unmet.moves)
    to_spot = draft.ways.get(unmet.workload.name) is Way.SPOT
    room = draft.room
    spots = placement.place_where(room, ask, spot=True) if to_spot else placement.place(room, ask)
    for place in (draft.world.nodes[spot.node].place for spot in spots):
        company.add(place)
        if apart is not None:
            apart.note(place)
    return len(spots)


class Means:
    """What the money of its project lasts for."""

    def __init__(self, draft: Draft, unmet: Unmet) -> None:
        self.money = None if unmet.moves else draft.quotas.money(unmet.workload)
        self.cost = 0 if self.money is None else cheapest_seat(draft, unmet.workload)
        self.at_least = unmet.at_least

    def seats(self, count: int) -> int:
        """At most so many, at the cheapest offer."""
        return count if self.money is None or not self.cost else min(count, max(0, self.money) // self.cost)

    def most(self, met: int) -> MicroUsd | None:
        """For the next node, if so many seats have one."""
        if self.money is None:
            return None
        return (self.money - met * self.cost) // max(1, self.at_least - met)


def cheapest_seat(draft: Draft, workload: Workload) -> MicroUsd:
    """What its share of a node costs an hour, at the cheapest offer that would do."""
    needs = draft.needs_of(workload)
    costs = (
        project_quota.seat_cost(needs.resources, offer.price_micro_usd, Bin.new(pool, offer).capacity)
        for pool in draft.world.pools.values()
        for offer in draft.world.offers[pool.name]
        if Bin.new(pool, offer).suits(needs)
    )
    return min(costs, default=0)


class Company:
    """The domains in which copies of a workload stand, or will when the nodes on their way are there. A gang
    has none: its members are lost together wherever they are."""

    def __init__(self, draft: Draft, workload: Workload, copies: Iterable[str]) -> None:
        needs = draft.needs_of(workload)
        self.counted = needs.spread is not Spread.NONE and not isinstance(workload.shape, Training)
        self.level = offers.domain_level(needs.spread_over)
        nodes = copies if self.counted else ()
        self.crowd = Counter([draft.world.nodes[name].place.domain(self.level) for name in nodes])

    def add(self, place: Place, copies: int = 1) -> None:
        if self.counted:
            self.crowd[place.domain(self.level)] += copies

    def told_in(self, ask: rank.Ask) -> rank.Ask:
        told = tuple(sorted(self.crowd.items()))
        cost = COMPANY_MS if self.counted else 0
        return replace(ask, spread_over=self.level, company=told, company_ms=cost)


def best(
    draft: Draft,
    tally: dict[str, Tally],
    workload: Workload,
    apart: Apart | None,
    company: Company,
    among: offers.Bools | None = None,
    most: MicroUsd | None = None,
) -> list[Pick]:
    """What to launch next for one more of the workload: nothing, one, or two of which one will stay. `most`:
    what its project may pay for it."""
    table = draft.market
    suiting = offers.suits(table, draft.needs_of(workload))
    if draft.ways.get(workload.name) is Way.SPOT:
        suiting = suiting & table.bools["spot"]
    mask = suiting & payable(draft, tally, workload.priority, most)
    if apart is not None:
        mask = mask & offers.outside(table, apart.level, apart.taken)
    if among is not None:
        mask = mask & among
    ranking = rank.rank(table, _ask(draft, workload, suiting, company), draft.now, mask)
    return [Pick(*draft.offer_of(candidate.key)) for candidate in rank.hedge(ranking)]


def payable(
    draft: Draft, tally: dict[str, Tally], priority: int, most: MicroUsd | None = None
) -> offers.Bools:
    """The offers of pools that may launch one more for such a priority, at no more than that may cost; and no
    more than `most`, which a project has left."""
    may = {
        name: draft.purse.most(pool) if most is None else min(most, draft.purse.most(pool))
        for name, pool in draft.world.pools.items()
        if may_launch(draft, pool, tally[name], kept=kept(pool, priority))
    }
    return offers.within(draft.market, may)


def _ask(draft: Draft, workload: Workload, suiting: offers.Bools, company: Company) -> rank.Ask:
    worth = draft.world.policy.capacity.wait_worth
    return company.told_in(
        rank.Ask(
            loss_ms=_loss_ms(workload),
            wait_micro_usd=round(worth * offers.cheapest(draft.market, suiting) / 60),
            spot=workload.needs.spot,
        )
    )


def _loss_ms(workload: Workload) -> int:
    if workload.checkpoint_ms:
        return workload.move_cost_ms + workload.checkpoint_ms // 2
    return workload.move_cost_ms + (LOST_WORK_MS if workload.exclusive else 0)


def _launch_picks(draft: Draft, tally: dict[str, Tally], picks: list[Pick], priority: int, why: str) -> None:
    first = picks[0]
    if len(picks) == 1 or not _may_both(draft, tally, first, picks[1], priority):
        launch(draft, tally[first.pool.name], first.pool, first.offer, why)
        return
    names = [f"{pick.pool.name}-{draft.launched + 1 + number}" for number, pick in enumerate(picks)]
    for pick, other in zip(picks, reversed(names), strict=True):
        told = f"{why}; {other} as well, and the first one that is ready stays"
        launch(draft, tally[pick.pool.name], pick.pool, pick.offer, told, hedge=other)


def _may_both(draft: Draft, tally: dict[str, Tally], first: Pick, second: Pick, priority: int) -> bool:
    """Is there money and room for the second beside the first?"""
    pool, both = second.pool, first.offer.price_micro_usd + second.offer.price_micro_usd
    paid = draft.purse.fleet.refuses(both) == "" and draft.purse.pools[pool.name].refuses(both) == ""
    return paid and may_launch(draft, pool, tally[pool.name], others=1, kept=kept(pool, priority))


def kept(pool: Pool, priority: int) -> int:
    """Nodes that are not for such a priority."""
    return pool.reserve.nodes if priority < pool.reserve.priority else 0


def may_launch(draft: Draft, pool: Pool, tally: Tally, *, others: int = 0, kept: int = 0) -> bool:
    """`others`: ordered beside this one. `kept`: for something more important."""
    state, policy = draft.world.pool_states[pool.name], draft.world.policy.capacity
    ordered = len(tally.ordered) + others
    within = tally.all + ordered + kept < pool.max and ordered < policy.launches_at_once
    return bool(draft.world.offers[pool.name]) and pool.can_launch and within and draft.now >= state.retry_at


def may_grow(draft: Draft, workload: Workload) -> bool:
    """Is a node on the way, or would one be launched, to which one of its copies could move?"""
    tally = {name: Tally(draft.world, name) for name in draft.world.pools}
    copies = draft.copies_at(workload.name)
    needs = draft.needs_of(workload)
    apart = Apart.of(draft.world, needs, copies)
    coming = Bins(Bin.of(node) for node in _on_the_way(draft.world, tally))
    if coming.fill(needs, 1, one_each=False, apart=apart):
        return True
    return bool(best(draft, tally, workload, apart, Company(draft, workload, copies)))


def launch(
    draft: Draft,
    tally: Tally,
    pool: Pool,
    offer: Offer,
    why: str,
    *,
    standby: bool = False,
    hedge: str = "",
) -> None:
    tally.ordered.append(offer.place)
    most = draft.purse.most(pool)
    draft.purse.take(pool.name, offer.price_micro_usd)
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
            hedge=hedge,
            price_max_micro_usd=most if offer.spot and most < NEVER else None,
            why=why,
        )
    )


def next_offer(draft: Draft, pool: Pool, tally: Tally) -> Offer | None:
    """For the pool's own sake: spread over its offers' zones and racks, those with the fewest first, and of
    equals the one that the market puts first."""
    if not may_launch(draft, pool, tally):
        return None
    mask = offers.within(draft.market, {pool.name: draft.purse.most(pool)})
    ranked = rank.rank(draft.market, rank.Ask(), draft.now, mask)
    found = [draft.offer_of(key)[1] for key in ranked.keys]
    return min(found, key=lambda offer: tally.crowd(offer.place), default=None)
