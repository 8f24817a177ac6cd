"""A plan in the making: the world as it is, and what has been decided so far this turn.

Decisions of one turn must see each other: two replicas must not be given the same last GPU. The draft carries
a copy of the room (made when first needed), the replicas that this plan already ends, and the slots it
already fills. The world itself is not touched; `fold.accept` does that, once, when the plan is journalled.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from types import MappingProxyType

from msgspec.structs import replace

from holdfast.core.cost.budgets import Purse
from holdfast.core.market import offers
from holdfast.core.placement import placement
from holdfast.core.plan.project_quota import Quotas
from holdfast.model import action as do
from holdfast.model.course import Way
from holdfast.model.lease import surely_over
from holdfast.model.node import Node
from holdfast.model.offer_table import Table
from holdfast.model.plan import SEATS_AT_ONCE, Held
from holdfast.model.pool import Offer, Pool
from holdfast.model.replica import LIVE, Replica, Slot, replica_id
from holdfast.model.room import Room
from holdfast.model.units import NEVER, Instant
from holdfast.model.verdict import Level
from holdfast.model.workload import Needs, Spread, Sweep, Workload
from holdfast.model.world import World

CLOSING = (do.CordonNode, do.DrainNode, do.ResetNode, do.QuarantineNode, do.TerminateNode)


class Unmet:
    """Replicas of one workload for which there is no room: demand for capacity. Those that ran before
    (`again`) may use warm standby nodes. `tried`: this very turn, on everything that is here. `moves`:
    something is in their seats, so no quota keeps them from a node."""

    def __init__(
        self,
        workload: Workload,
        count: int,
        at_least: int = 1,
        *,
        again: bool = True,
        tried: bool = False,
        moves: bool = False,
    ) -> None:
        self.workload, self.count, self.at_least = workload, count, at_least
        self.again, self.tried, self.moves = again, tried, moves


NOBODY: Mapping[str, str] = MappingProxyType({})


class Draft:
    def __init__(self, world: World, now: Instant, unlisted: Mapping[str, str] = NOBODY) -> None:
        """`unlisted`: pools that could not be asked what they offer, and why; only words depend on it."""
        self.world, self.now, self.unlisted = world, now, unlisted
        self.look = world.agenda.look(now)
        self.actions: list[do.Action] = []
        self.held: list[Held] = []
        self.unmet: list[Unmet] = []
        self.filled: dict[str, str] = {}  # slot -> node, by this plan
        self._by_workload: dict[str, list[str]] = {}  # of its first `_sorted` slots
        self._sorted = 0
        self.seats_left = SEATS_AT_ONCE
        self.ended: dict[str, None] = {}  # replicas stopped, promoted or declared gone by this plan
        self.proven: dict[str, None] = {}  # those declared gone
        self.reopened: dict[str, None] = {}  # nodes that this plan gives back to work
        self.kept: dict[str, None] = {}  # empty nodes that somebody counts on
        self.unimportant: dict[str, list[str]] = {}  # by pool with a reserve: nodes that hold such work
        self.launched = world.launched
        self.floor = -NEVER  # priorities below this wait while room is being made for others
        self._room: Room | None = None
        self.ways = {name: course.way for name, course in world.courses.items()}  # as this plan has them

    @cached_property
    def purse(self) -> Purse:
        return Purse(self.world, self.now)

    @cached_property
    def quotas(self) -> Quotas:
        return Quotas(self.world)

    @cached_property
    def market(self) -> Table:
        """All offers of all pools, with what is remembered of them."""
        return offers.listed(self.world)

    def needs_of(self, workload: Workload) -> Needs:
        """What it needs of a node; while it goes on demand, one that is not spot. Tasks of a sweep do not
        stand in for one another: they are packed, whatever spread is asked for."""
        needs = workload.needs
        if isinstance(workload.shape, Sweep) and needs.spread is not Spread.NONE:
            needs = replace(needs, spread=Spread.NONE)
        if self.ways.get(workload.name) is Way.ON_DEMAND:
            return replace(needs, spot=False)
        return needs

    def offer_of(self, key: str) -> tuple[Pool, Offer]:
        return self.market.offers[key]

    @property
    def room(self) -> Room:
        if self._room is None:
            self._room = self.world.room.copy()
        return self._room

    def add(self, action: do.Action) -> None:
        self.actions.append(action)
        if isinstance(action, do.SEATING):
            self.seats_left -= 1
        if isinstance(action, CLOSING) and action.node in self.room.row:
            self.room.open[self.room.row[action.node]] = False
        elif isinstance(action, do.UncordonNode):
            self.reopened[action.node] = None

    def place(
        self,
        slot: Slot,
        workload: Workload,
        spot: placement.Spot,
        why: str,
        *,
        gang: int = 0,
        cause: str = "",
    ) -> None:
        epoch = self._next_epoch(slot)
        self.filled[slot.id] = spot.node
        self.quotas.take(workload, slot.id, spot.node)
        self.add(
            do.PlaceReplica(
                replica=replica_id(slot.id, epoch),
                slot=slot.id,
                node=spot.node,
                epoch=epoch,
                role=slot.role,
                needs=workload.needs.resources,
                exclusive=workload.exclusive,
                devices=spot.devices,
                gang=gang,
                version=workload.version,
                resume_ms=slot.progress_ms,
                grace_ms=workload.stop_grace_ms,
                why=why,
                cause=cause or slot.why,
            )
        )

    def promote(
        self, replica: Replica, slot: Slot, why: str, *, gang: int = 0, restart: bool = False
    ) -> None:
        self.filled[slot.id] = replica.node
        self.ended[replica.id] = None  # it is no standby any more
        self.add(
            do.PromoteStandby(
                replica=replica.id,
                slot=slot.id,
                epoch=self._next_epoch(slot),
                gang=gang,
                resume_ms=slot.progress_ms,
                restart=restart,
                why=why,
                cause=slot.why,
            )
        )

    def stop(self, replica: Replica, workload: Workload | None, why: str, cause: str = "") -> None:
        if replica.id not in self.ended:
            self.ended[replica.id] = None
            grace = workload.stop_grace_ms if workload else replica.grace_ms  # deleted: as it was placed
            self.add(do.StopReplica(replica=replica.id, deadline=self.now + grace, why=why, cause=cause))

    def gone(self, replica: Replica, proof: do.Proof, why: str) -> None:
        self.ended[replica.id] = self.proven[replica.id] = None
        self.add(do.DeclareGone(replica=replica.id, proof=proof, why=why, cause=str(proof)))
        row = self.room.row.get(replica.node)
        if row is not None:
            self.room.give(row, replica.needs, replica.devices)

    def may_run(self, slot_id: str) -> bool:
        """Could any copy of this slot still be running, for all we can prove?"""
        if self.now < self.unaccounted_until and self.world.slots[slot_id].workload in self._exclusive:
            return True
        return any(name not in self.proven for name in self.world.of_slot.get(slot_id, ()))

    @property
    def unaccounted_until(self) -> Instant:
        """The journal was restored from a copy: until then exclusive replicas that it does not know of may
        run, on nodes that have not said hello."""
        leases, at = self.world.policy.leases, self.world.behind_at
        return surely_over(at, leases.lease_ms, leases.margin_ms) if at else 0

    @cached_property
    def _exclusive(self) -> set[str]:
        return {name for name, workload in self.world.workloads.items() if workload.exclusive}

    def _next_epoch(self, slot: Slot) -> int:
        return max(slot.epoch, self.world.epoch_least) + 1

    def workloads(self) -> dict[str, None]:
        """Those to look at: themselves, or for one of their seats."""
        names, slots = dict.fromkeys(self.look["workload"]), self.world.slots
        names.update({slots[slot].workload: None for slot in self.look["slot"] if slot in slots})
        return names

    def changed_of(self, workload: str) -> list[str]:
        """Its seats that are to be looked at themselves."""
        return self._changed.get(workload, [])

    @cached_property
    def _changed(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for slot in self.look["slot"]:
            if slot in self.world.slots:
                found.setdefault(self.world.slots[slot].workload, []).append(slot)
        return found

    @property
    def leaving(self) -> bool:
        """Is room being made? A stop on a node that does not hear us makes none for now."""
        return any(True for _ in self._emptied())

    def leaving_for(self, workload: Workload) -> bool:
        """And on a node that its project may use? Others must not wait for what its quota keeps waiting."""
        return any(self.quotas.may_use(workload, node.id) for node in self._emptied())

    def _emptied(self) -> Iterator[Node]:
        world = self.world
        homes = (world.nodes[world.replicas[name].node] for name in world.stopping)
        return (node for node in homes if node.verdict.level is Level.ALIVE)

    def copies_at(self, workload: str) -> tuple[str, ...]:
        """Nodes that hold (or by this plan will hold) copies of the workload: the spread counts them."""
        world = self.world
        held = [world.replicas[name] for slot in world.held.get(workload, ()) for name in world.of_slot[slot]]
        nodes = [r.node for r in held if r.state in LIVE and r.id not in self.ended]
        return (*nodes, *(node for slot in self._filled_of(workload) if (node := self.filled[slot])))

    def _filled_of(self, workload: str) -> list[str]:
        """Of `filled`, those of one workload; it only grows, and is sorted as it does."""
        for slot in islice(self.filled, self._sorted, None):
            self._by_workload.setdefault(self.world.slots[slot].workload, []).append(slot)
        self._sorted = len(self.filled)
        return self._by_workload.get(workload, [])

    def standby_of(self, workload: str) -> Replica | None:
        """The warm replica of this workload that was ready first."""
        return next(iter(self.standbys_of(workload)), None)

    def standbys_of(self, workload: str) -> list[Replica]:
        """Warm replicas of this workload that only need promotion, those that were ready first in front."""
        ready = [
            replica
            for replica in (self.world.replicas[name] for name in self.world.warm.get(workload, ()))
            if replica.id not in self.ended
            and replica.slot in self.world.slots
            and self.world.nodes[replica.node].verdict.level is Level.ALIVE
        ]
        return sorted(ready, key=lambda replica: (replica.ready_at, replica.id))
