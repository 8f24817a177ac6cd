"""How many more replicas may a project have?

The rule: what its seats hold is added up, and a seat is filled only if the sum stays within the quota. A
seat counts once, by the most that any copy in it asks for, from the moment at which a replica is placed in it
until all copies in it are gone. So a failover, a drain and a rolling update, which have two copies in one
seat for a while, need no quota of their own, and a project at its limit is repaired like any other; an update
that asks for more than before does need it. A seat beyond the quota waits, with its reason, and does nothing
else: it preempts nobody, and no node is launched for it.

Nodes: those on which its replicas stand, shared ones too. Money: each replica costs the share of its node
that it asks for (the largest of its shares of CPU, memory and GPUs), and what all of them cost an hour, for
730 hours, is at most the quota of a month. Where nodes or money are limited, it depends on the node whether a
replica fits, so its seats are placed one by one, and nodes that would be too much are left out. For money, a
node is launched only if the whole of it is within what is left (for a gang: of all its nodes), no more
seats are asked for than it lasts for at the cheapest offer, and nobody is preempted for what it does not last
for: else each turn would order nodes, or stop others, for what may not stand there.

A quota that is made smaller takes nothing from what runs. A seat in which something is moves wherever there
is room (failover, drains, updates, consolidation), also when that brings its project to other and dearer
nodes: nothing new is placed then. What is exclusive cannot overlap, so it is asked where it could be once its
seat is empty.

Refused: to add up what was really used of a month. A project that has used up its money on the tenth would
have to be stopped then, and no service should end by arithmetic; a rate can be kept by not growing.
Refused: a quota of whole workloads when they are applied. A service that scales takes what it is not given.
"""

from collections.abc import Iterable, Sequence

from holdfast.core.placement.bin_packing import Bin
from holdfast.core.placement.placement import Spot
from holdfast.model.node import Node
from holdfast.model.project import Project
from holdfast.model.replica import Slot
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Room
from holdfast.model.units import MicroUsd
from holdfast.model.workload import DEFAULT_PROJECT, Workload
from holdfast.model.world import World

PARTS = 1_000_000  # in which shares are counted


class Used:
    """What the seats of one project hold."""

    def __init__(self) -> None:
        self.cpu_milli = self.memory_mib = self.gpu_milli = 0
        self.hour_micro_usd: MicroUsd = 0
        self.nodes: dict[str, None] = {}

    def add(self, needs: Resources, node: str, hour_micro_usd: MicroUsd) -> None:
        self.cpu_milli += needs.cpu_milli
        self.memory_mib += needs.memory_mib
        self.gpu_milli += needs.gpu_milli
        self.hour_micro_usd += hour_micro_usd
        self.nodes[node] = None


def share_of(needs: Resources, node: Resources) -> int:
    """The largest of its shares, in PARTS, rounded up."""
    pairs = (
        (needs.cpu_milli, node.cpu_milli),
        (needs.memory_mib, node.memory_mib),
        (needs.gpu_milli, node.gpu_milli),
    )
    return min(PARTS, max((-(-part * PARTS // whole) for part, whole in pairs if whole), default=PARTS))


def seat_cost(needs: Resources, price_micro_usd: MicroUsd, capacity: Resources) -> MicroUsd:
    """An hour of its share of such a node."""
    return -(-price_micro_usd * share_of(needs, capacity) // PARTS)


def cost_of(needs: Resources, node: Node | None) -> MicroUsd:
    """An hour of its share of a node."""
    return seat_cost(needs, node.price_micro_usd, node.capacity) if node is not None else 0


def project_of(world: World, workload: str) -> str:
    known = world.workloads.get(workload)
    return known.project if known is not None else world.project_of.get(workload, DEFAULT_PROJECT)


class Quotas:
    """Of one turn: what is there, and what its plan adds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._used: dict[str, Used] = {}
        self._promised: dict[str, MicroUsd] = {}  # an hour of what is ordered, by project
        self._filled: dict[str, None] = {}  # seats, by this plan
        self._cheapest: dict[str, MicroUsd] = {}  # by workload: see `_least`

    def of(self, workload: Workload) -> Project | None:
        return self.world.projects.get(workload.project)

    def used(self, project: str) -> Used:
        if project not in self._used:
            self._used[project] = self._sum(project)
        return self._used[project]

    def _sum(self, project: str, without: str = "") -> Used:
        used = Used()
        for name, slots in self.world.held.items():
            if slots and project_of(self.world, name) == project:
                for slot in slots:
                    if slot != without:
                        self._count(used, slot)
        return used

    def _count(self, used: Used, slot: str) -> None:
        copies = [self.world.replicas[id] for id in self.world.of_slot[slot]]
        most = Resources(
            max(copy.needs.cpu_milli for copy in copies),
            max(copy.needs.memory_mib for copy in copies),
            max(copy.needs.gpu_milli for copy in copies),
        )
        nodes = self.world.nodes
        used.add(most, copies[0].node, max(cost_of(copy.needs, nodes.get(copy.node)) for copy in copies))
        used.nodes.update(dict.fromkeys(copy.node for copy in copies))

    def counted(self, slot: str) -> bool:
        return bool(self.world.of_slot.get(slot)) or slot in self._filled

    def take(self, workload: Workload, slot: str, node: str) -> None:
        """This plan places a replica there."""
        if self.of(workload) is None or slot in self._filled:
            return
        used, moves, cost = self.used(workload.project), self.counted(slot), 0
        more = self._more(slot, workload.needs.resources)
        if not moves:
            cost = cost_of(workload.needs.resources, self.world.nodes.get(node))
        used.add(more, node, cost)
        self._filled[slot] = None

    def _more(self, slot: str, needs: Resources) -> Resources:
        """What the seat would hold more than it does: nothing, unless it asks for more than before."""
        if slot in self._filled:
            return Resources()
        copies = [self.world.replicas[id].needs for id in self.world.of_slot.get(slot, ())]
        return Resources(
            max(0, needs.cpu_milli - max((there.cpu_milli for there in copies), default=0)),
            max(0, needs.memory_mib - max((there.memory_mib for there in copies), default=0)),
            max(0, needs.gpu_milli - max((there.gpu_milli for there in copies), default=0)),
        )

    # what is left

    def admit(self, workload: Workload, slots: Sequence[Slot]) -> list[Slot]:
        """Those that may be filled, wherever there is room for them, in their order."""
        quota = self.of(workload)
        if quota is None:
            return list(slots)
        used, found = self.used(quota.name), list[Slot]()
        limits = quota.cpu_milli, quota.memory_mib, quota.gpu_milli
        sums = used.cpu_milli, used.memory_mib, used.gpu_milli
        for slot in slots:
            more = self._more(slot.id, workload.needs.resources)
            adds = more.cpu_milli, more.memory_mib, more.gpu_milli
            each = list(zip(limits, sums, adds, strict=True))
            if all(most is None or not add or there + add <= most for most, there, add in each):
                found.append(slot)
                sums = sums[0] + adds[0], sums[1] + adds[1], sums[2] + adds[2]
        return found

    def new_nodes(self, workload: Workload, without: str = "") -> int | None:
        """So many more nodes may its project stand on. None: as many as it likes. `without`: once this seat
        is empty."""
        quota = self.of(workload)
        if quota is None or quota.nodes is None:
            return None
        used = self._sum(quota.name, without) if without else self.used(quota.name)
        return max(0, quota.nodes - len(used.nodes))

    def money(self, workload: Workload) -> MicroUsd | None:
        """So much more an hour may it cost. None: as much as it likes."""
        quota = self.of(workload)
        if quota is None or quota.hour_micro_usd is None:
            return None
        return quota.hour_micro_usd - self.used(quota.name).hour_micro_usd - self._promised.get(quota.name, 0)

    def by_money(self, workload: Workload, count: int) -> int:
        """So many of `count` more replicas may it have, if each costs as little as it can."""
        money = self.money(workload)
        least = self._least(workload) if money is not None else 0
        return count if money is None or not least else max(0, min(count, money // least))

    def may_stop_for(self, workload: Workload, slots: Sequence[Slot]) -> list[Slot]:
        """Seats for which others may be stopped now: those in which something is, and as many others as its
        money and its nodes last for, since each may bring it to one more."""
        lasts = self.by_money(workload, len(slots))
        most = min(lasts, self.new_nodes(workload) or lasts)
        new = {*[slot.id for slot in slots if not self.counted(slot.id)][most:]}
        return [slot for slot in slots if slot.id not in new]

    def _least(self, workload: Workload) -> MicroUsd:
        """What a replica costs an hour on the cheapest node that is there, or may be."""
        if workload.name not in self._cheapest:
            world, needs = self.world, workload.needs
            pairs = [
                (node.price_micro_usd, node.capacity)
                for node in world.nodes.values()
                if Bin.of(node).suits(needs)
            ]
            pairs += [
                (offer.price_micro_usd, offer.capacity)
                for name, pool in world.pools.items()
                for offer in world.offers.get(name, ())
                if Bin.new(pool, offer).suits(needs)
            ]
            costs = (seat_cost(needs.resources, price, of) for price, of in pairs)
            self._cheapest[workload.name] = min(costs, default=0)
        return self._cheapest[workload.name]

    def promise(self, workload: Workload, hour_micro_usd: MicroUsd) -> None:
        """Nodes are ordered, or are on their way, for seats that will cost so much."""
        self._promised[workload.project] = self._promised.get(workload.project, 0) + hour_micro_usd

    def kept_from(self, workload: Workload, room: Room, without: str = "") -> tuple[str, ...]:
        """Nodes on which one more replica would be too much. `without`: once this seat is empty."""
        quota = self.of(workload)
        if quota is None or not quota.by_node:
            return ()
        used = self._sum(quota.name, without) if without else self.used(quota.name)
        full = quota.nodes is not None and len(used.nodes) >= quota.nodes
        hour, needs, nodes = quota.hour_micro_usd, workload.needs.resources, self.world.nodes
        left = None if hour is None else hour - used.hour_micro_usd
        return tuple(
            name
            for name in room.row
            if (full and name not in used.nodes)
            or (left is not None and cost_of(needs, nodes.get(name)) > left)
        )

    def may_use(self, workload: Workload, node: str) -> bool:
        """One more replica there would be within the quota, as far as that depends on the node."""
        new, money = self.new_nodes(workload), self.money(workload)
        if new == 0 and node not in self.used(workload.project).nodes:
            return False
        return money is None or cost_of(workload.needs.resources, self.world.nodes.get(node)) <= money

    def trim(self, workload: Workload, spots: Iterable[Spot]) -> list[Spot]:
        """As many of these, from the first, as its project may have together."""
        found, new, money = list[Spot](), self.new_nodes(workload), self.money(workload)
        there = set(self.used(workload.project).nodes) if new is not None else set[str]()
        for spot in spots:
            if money is not None:
                money -= cost_of(workload.needs.resources, self.world.nodes.get(spot.node))
            if new is not None and spot.node not in there:
                there.add(spot.node)
                new -= 1
            if (money is not None and money < 0) or (new is not None and new < 0):
                break
            found.append(spot)
        return found

    def is_full(self, workload: Workload) -> bool:
        """No seat of it can be filled in which nothing is, on whatever node."""
        return self.of(workload) is not None and bool(self.why(workload))

    # in words

    def why(self, workload: Workload, count: int = 1) -> str:
        """What of the quota keeps so many more replicas from being placed anywhere; empty: nothing does."""
        quota = self.of(workload)
        if quota is None:
            return ""
        used, needs = self.used(quota.name), workload.needs.resources
        said = (
            ("cpus", quota.cpu_milli, used.cpu_milli, needs.cpu_milli, 1_000),
            ("MiB of memory", quota.memory_mib, used.memory_mib, needs.memory_mib, 1),
            ("gpus", quota.gpu_milli, used.gpu_milli, needs.gpu_milli, GPU),
        )
        full = [
            f"{there / unit:g} of {most / unit:g} {what} are taken, and it asks for {each * count / unit:g}"
            for what, most, there, each, unit in said
            if most is not None and each and there + each * count > most
        ]
        return f"the quota of project {quota.name}: {', '.join(full)}" if full else ""

    def refuses_launch(self, workload: Workload, price_micro_usd: MicroUsd, at_least: int = 1) -> str:
        """Why no node at such a price is launched for seats in which nothing is; empty: one may be."""
        new, money = self.new_nodes(workload), self.money(workload)
        if new == 0:
            return f"project {workload.project} stands on as many nodes as it may"
        if money is not None and price_micro_usd > money // at_least:
            left = max(0, money) / 1_000_000
            costs = "a node costs more" if at_least == 1 else f"{at_least} nodes cost more"
            return f"project {workload.project} has {left:.2f} $ an hour left, and {costs}"
        return ""

    def why_nodes(self, workload: Workload, count: int = 1) -> str:
        """What keeps it from so many other nodes."""
        quota, new, money = self.of(workload), self.new_nodes(workload), self.money(workload)
        parts = list[str]()
        if quota is not None and new is not None and new < count:
            parts.append(f"its replicas stand on {len(self.used(quota.name).nodes)} of {quota.nodes} nodes")
        if quota is not None and quota.month_micro_usd is not None and money is not None:
            left = max(0, money) / 1_000_000
            parts.append(f"{left:.2f} $ an hour are left of {quota.month_micro_usd / 1_000_000:g} $ a month")
        return f"the quota of project {quota.name}: {', '.join(parts)}" if quota and parts else ""
