"""Services on a mix of spot and on demand: what is ordered for them, and when do they go back to spot?

`mix_policy` decides in nodes: how many on spot, in which offers, how many on demand. Here it is asked, with
what the world knows, and its answer is carried out: nodes are launched, and copies that stand on demand in
place of spot move to spot when a node there is ready (a successor first, so without a gap; the emptied node
is then released as any other). For such a service `mix_policy` decides what is ordered, and nobody else
(`launch` leaves it alone).

The floor is a matter of seats as well: as long as fewer copies than that are on demand, the next one goes
there; all others go to spot first, and to on demand where spot has no room. A floor whose node was lost, and
whose copy found room on spot meanwhile, is filled again from there.

An offer that may not be launched now (its pool is full, its price is above what may be paid) is as good as
refused. Where only one kind is offered at all, that one does.

A node counts for the service in as far as it has room for one of its copies. Nodes that are on their way are
counted for it too: two services that wait for the same node will not each order one.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.disruption import migrate
from holdfast.core.market import offers, rank
from holdfast.core.market.offer_history import GRID
from holdfast.core.placement import placement
from holdfast.core.placement.bin_packing import Bin
from holdfast.core.plan.draft import Draft
from holdfast.core.provisioning import launch
from holdfast.core.provisioning.launch import Tally
from holdfast.core.spot import mix_policy
from holdfast.model import action as do
from holdfast.model.market import Losses, key_of
from holdfast.model.node import COMING, Node
from holdfast.model.replica import LIVE, Replica, Role, Slot, State
from holdfast.model.units import HOUR, Millis
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World
from holdfast.reliability import losses

STAYS_HOURS_MAX = 48.0  # further ahead nobody looks


def update(draft: Draft) -> None:
    names = draft.workloads()
    if draft.look["pool"] or draft.world.agenda.room_freed:
        names.update(dict.fromkeys(draft.world.mixed))
    for name in names:
        if name in draft.world.mixed and not draft.world.workloads[name].paused:
            _keep(draft, draft.world.workloads[name])


class Look(NamedTuple):
    """What there is for a service, and what is asked for it."""

    view: "View"
    fleet: mix_policy.Fleet
    rules: mix_policy.MixRules
    found: mix_policy.Orders


def look(draft: Draft, tally: dict[str, Tally], workload: Workload) -> Look | None:
    """Nothing for what is on no mix."""
    rules = rules_of(workload)
    if rules is None:
        return None
    most = draft.quotas.money(workload)
    view = View(draft, workload, launch.payable(draft, tally, workload.priority, most))
    fleet = view.fleet(rules)
    if not view.paid_rows:  # nobody offers what the floor is made of
        rules = replace(rules, floor=min(rules.floor, fleet.on_demand_ready + fleet.on_demand_coming))
    return Look(view, fleet, rules, mix_policy.orders(view.wanted, fleet, rules))


def _keep(draft: Draft, workload: Workload) -> None:
    tally = launch.tallies(draft)
    looked = look(draft, tally, workload)
    if looked is None:
        return
    view, fleet, rules, found = looked
    _keep_spares(draft, view, fleet, rules)
    why = f"{workload.name}: {'; '.join(found.why)}"
    for key in found.spot:
        _launch(draft, tally, workload, key, why)
    company = launch.Company(draft, workload, draft.copies_at(workload.name))
    for _ in range(found.on_demand):
        key = _best_on_demand(draft, workload, tally, company)
        _launch(draft, tally, workload, key, why)
        if key:
            company.add(draft.offer_of(key)[1].place)
    standing = sum(not draft.world.nodes[copy.node].spot for copy in copies(draft.world, workload))
    floor = min(rules.floor, view.wanted)
    if standing < floor:
        _move(draft, workload, floor - standing, "its floor is on demand", spot=False)
    elif found.release_on_demand:
        count = min(found.release_on_demand, standing - floor)
        _move(draft, workload, count, "spot is there in place of on demand", spot=True)


def _keep_spares(draft: Draft, view: "View", fleet: mix_policy.Fleet, rules: mix_policy.MixRules) -> None:
    """Empty spot nodes that wait for a copy are not idle, as many as are wanted beside those in use; what is
    in a zone that is taking nodes away may be gone in a moment, and is not in use."""
    spares = mix_policy.spares_of(view.wanted, fleet, rules)
    goal = view.wanted - rules.floor + spares if view.wanted > rules.floor else 0
    calm = {zone.name: zone.count - zone.leaving for zone in fleet.zones if not zone.taking}
    nodes = draft.world.nodes
    waiting = [name for name in view.waiting if key_of(nodes[name].pool, nodes[name].offer) in calm]
    used = sum(calm.values()) - len(waiting)
    draft.kept.update(dict.fromkeys(waiting[: max(0, goal - used)]))


def rules_of(workload: Workload) -> mix_policy.MixRules | None:
    shape = workload.shape
    if not isinstance(shape, Service) or shape.mix is None:
        return None
    return mix_policy.MixRules(floor=shape.mix.on_demand, spares=shape.mix.spares)


def _launch(draft: Draft, tally: dict[str, Tally], workload: Workload, key: str, why: str) -> None:
    if not key:
        return
    pool, offer = draft.offer_of(key)
    kept = launch.kept(pool, workload.priority)
    affordable = not draft.purse.refuses(pool, offer.price_micro_usd)
    if affordable and launch.may_launch(draft, pool, tally[pool.name], kept=kept):
        launch.launch(draft, tally[pool.name], pool, offer, why)


def _best_on_demand(
    draft: Draft, workload: Workload, tally: dict[str, Tally], company: launch.Company
) -> str:
    table = draft.market
    mask = offers.suits(table, workload.needs) & ~table.bools["spot"]
    ask = company.told_in(rank.Ask())
    may = launch.payable(draft, tally, workload.priority, draft.quotas.money(workload))
    ranked = rank.rank(table, ask, draft.now, mask & may)
    return ranked[0].key if len(ranked) else ""


def _move(draft: Draft, workload: Workload, count: int, why: str, *, spot: bool) -> None:
    """So many copies on the other kind of node are succeeded by copies on this kind, where there is room."""
    world = draft.world
    for replica in list(copies(world, workload)):
        home, slot = world.nodes[replica.node], world.slots.get(replica.slot)
        busy = slot is None or slot.id in draft.filled or bool(migrate.newer(draft, replica))
        wrong = home.spot is not spot and replica.state is State.READY and replica.id not in draft.ended
        if count <= 0 or busy or not wrong:
            continue
        assert slot is not None
        ask = migrate.successors(draft, replica, workload)[0]
        for found in placement.place_where(draft.room, ask, spot=spot):
            draft.place(slot, workload, found, why)
            count -= 1


def copies(world: World, workload: Workload) -> Iterator[Replica]:
    for slot in world.of_workload.get(workload.name, ()):
        if world.slots[slot].role is Role.ACTIVE:
            for name in world.of_slot[slot]:
                if world.replicas[name].state in LIVE:
                    yield world.replicas[name]


def _within_quota(draft: Draft, workload: Workload, slots: list[Slot]) -> int:
    """How many of its seats are filled or may be."""
    new = draft.quotas.new_nodes(workload)
    admitted = draft.quotas.admit(workload, slots)
    there = sum(draft.quotas.counted(slot.id) for slot in slots)
    more = draft.quotas.by_money(workload, max(0, len(admitted) - there))
    return min(len(admitted), there + (more if new is None else min(more, new)))


class View:
    """What stands for one service, by offer."""

    def __init__(self, draft: Draft, workload: Workload, payable: offers.Bools) -> None:
        self.draft, self.workload, self.payable = draft, workload, payable
        world, table = draft.world, draft.market
        suiting = offers.suits(table, workload.needs)
        self.spot_rows = [row for row in table.row.values() if suiting[row] and table.bools["spot"][row]]
        self.paid_rows = [row for row in table.row.values() if suiting[row] and not table.bools["spot"][row]]
        slots = [world.slots[slot] for slot in world.of_workload.get(workload.name, ())]
        self.wanted = _within_quota(draft, workload, [slot for slot in slots if slot.role is Role.ACTIVE])
        self.ready: dict[str, int] = {}
        self.coming: dict[str, int] = {}
        self.leaving: dict[str, int] = {}
        self.waiting: list[str] = []  # spot nodes with room for one more
        self._count()

    def _count(self) -> None:
        world = self.draft.world
        homes = set()
        for replica in copies(world, self.workload):
            node = world.nodes[replica.node]
            homes.add(node.id)
            ready = self.ready if replica.state is State.READY else self.coming
            self._add(ready, node)
            if node.deadline:
                self._add(self.leaving, node)
        for slot in world.of_workload.get(self.workload.name, ()):
            if filled := self.draft.filled.get(slot):  # by this very plan
                homes.add(filled)
                self._add(self.coming, world.nodes[filled])
        for pool in world.pools:
            for node in (world.nodes[name] for name in world.in_pool[pool]):
                if node.id not in homes and Bin.of(node).suits(self.workload.needs) and self._is_free(node):
                    waits = node.spot and node.state not in COMING  # for a copy that stands on demand
                    self._add(self.ready if waits else self.coming, node)
                    if waits:
                        self.waiting.append(node.id)
        for action in self.draft.actions:
            if isinstance(action, do.LaunchNode):
                key = key_of(action.pool, action.offer) if action.spot else ""
                self.coming[key] = self.coming.get(key, 0) + 1

    def _is_free(self, node: Node) -> bool:
        """On its way, or open with room for one."""
        if node.state in COMING:
            return True
        room, asked = self.draft.room, self.workload.needs.resources
        row = room.row.get(node.id)
        fits = row is not None and room.cpu[row] >= asked.cpu_milli and room.memory[row] >= asked.memory_mib
        return row is not None and bool(room.open[row]) and bool(fits)

    def _add(self, counts: dict[str, int], node: Node) -> None:
        key = key_of(node.pool, node.offer) if node.spot else ""
        counts[key] = counts.get(key, 0) + 1

    def fleet(self, rules: mix_policy.MixRules) -> mix_policy.Fleet:
        known = losses.as_of(self.draft.world.losses.get(self.workload.name, Losses()), self.draft.now)
        prices = self.draft.market.ints["price"]
        dear = max((int(prices[row]) for row in self.spot_rows), default=0)
        return mix_policy.Fleet(
            zones=(*(self._zone(row) for row in self.spot_rows), *self._unlisted()),
            on_demand_price=min((int(prices[row]) for row in self.paid_rows), default=dear),
            ready_ms=self._ready_ms(),
            on_demand_ready=self.ready.get("", 0) - self.leaving.get("", 0),
            on_demand_coming=self.coming.get("", 0),
            burn=losses.burn(known, rules.short_share_max),
            follows=losses.follows(known),
            alone_per_hour=losses.alone_per_hour(known),
        )

    def _unlisted(self) -> Iterator[mix_policy.Zone]:
        """Nodes of offers that cannot be had any more stand as well as others."""
        listed = {"", *(self.draft.market.ids[row] for row in self.spot_rows)}
        for key in dict.fromkeys((*self.ready, *self.coming)):
            if key not in listed:
                yield mix_policy.Zone(
                    name=key,
                    price=0,
                    stays_ms=mix_policy.STAYS_MS_MIN,
                    ready=self.ready.get(key, 0),
                    coming=self.coming.get(key, 0),
                    leaving=self.leaving.get(key, 0),
                    refused=True,
                    listed=False,
                )

    def _zone(self, row: int) -> mix_policy.Zone:
        table, now = self.draft.market, self.draft.now
        key = table.ids[row]
        stays = offers.outlook(table, now).weights[row] @ GRID.stays.clip(max=STAYS_HOURS_MAX)
        taken_at = int(table.ints["taken_at"][row])
        return mix_policy.Zone(
            name=key,
            price=int(table.ints["price"][row]),
            stays_ms=round(float(stays) * HOUR),
            ready=self.ready.get(key, 0),
            coming=self.coming.get(key, 0),
            leaving=self.leaving.get(key, 0),
            refused=int(table.ints["retry_at"][row]) > now or not self.payable[row],
            taking=taken_at > 0 and now - taken_at < self.draft.world.policy.capacity.after_loss_ms,
        )

    def _ready_ms(self) -> Millis:
        expected = offers.outlook(self.draft.market, self.draft.now).ready_ms
        rows = self.spot_rows or self.paid_rows
        return round(float(expected[rows].mean())) if rows else offers.READY_MS_PRIOR
