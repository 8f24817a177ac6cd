"""What fails next if a zone (a provider, a region, a rack) goes?

The question is answered by the functions that would decide it, on a draft that nobody carries out: the nodes
of the domain are closed, what runs there is lost, and then the workloads are served in the order of
`schedule`, each with its real ask. A warm replica takes a seat, else `placement` looks for room (warm standby
nodes included: that is what they are for), else `preempt` names who would have to stop. A gang that is left
with fewer than its least stops as a whole.

Only what is here counts, as in `redundancy`: nobody should plan on renting elsewhere in the hour in which
everybody else tries to. So what is called short may well be launched within minutes; whether it is belongs to
the market. Seats that wait already are not counted: their trouble is not the domain's.

A promise (`availability`) is broken at once if fewer than the asked replicas are ready outside the domain,
and for as long as the domain is gone if there are fewer even after everything that fits has started again.

Refused: turning the real loop on a copy of the world (`dry_run`). It would also show each lease and brake, in
the order of time, but costs a second where this costs milliseconds, and the report asks about every domain.
"""

import enum
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.core.placement import placement, preempt
from holdfast.core.plan.draft import Draft
from holdfast.core.plan.request import ask_for
from holdfast.core.workloads import gang
from holdfast.model.place import Level
from holdfast.model.replica import LIVE, Replica, Role, State
from holdfast.model.units import Instant, many
from holdfast.model.workload import Service, Training, Workload
from holdfast.model.world import World

PREEMPT_MAX = 64  # seats of one loss for which victims are looked for: each costs a look at the fleet
NAMES_SHOWN = 4


class Broken(enum.StrEnum):
    NOT = ""
    AT_ONCE = "until copies have started elsewhere"
    LASTING = "for as long as it is gone"


class Hit(msgspec.Struct, frozen=True):
    """What the loss does to one workload: `lost` = promoted + placed + by_preemption + short."""

    workload: str
    priority: int
    lost: int  # active replicas there; if a gang must stop, those elsewhere too
    left: int  # ready replicas elsewhere
    promoted: int = 0  # warm replicas take over
    placed: int = 0  # started again on what is free
    by_preemption: int = 0  # started again in the place of lower priorities
    short: int = 0  # no room
    standbys: int = 0  # warm replicas lost
    availability: float = 0.0  # promised
    broken: Broken = Broken.NOT


class Loss(msgspec.Struct, frozen=True):
    level: Level
    domain: str
    nodes: int
    hits: tuple[Hit, ...]
    pushed_out: dict[str, int]  # by workload: replicas that more important ones would stop

    @property
    def short(self) -> int:
        return sum(hit.short for hit in self.hits)

    @property
    def lost(self) -> int:
        return sum(hit.lost for hit in self.hits)

    def broken(self, how: Broken) -> int:
        return sum(hit.broken is how for hit in self.hits)

    @property
    def harm(self) -> tuple[int, int, int, int]:
        return (self.broken(Broken.LASTING), self.short, self.broken(Broken.AT_ONCE), self.lost)


def domains(world: World, level: Level) -> list[str]:
    """Those in which there are nodes."""
    here = (world.nodes[name].place.domain(level) for name in world.room.row if name in world.nodes)
    return sorted(set(here))


def named(found: Iterable[str], name: str) -> list[str]:
    """Domains by their path ("aws/us-east-1/a") or its end ("a")."""
    return [domain for domain in found if domain == name or domain.endswith(f"/{name}")]


def worst(losses: Iterable[Loss]) -> Loss | None:
    """The one that would hurt most: promises broken for long, then seats without room, then the rest."""
    return max(losses, key=lambda loss: loss.harm, default=None)


def if_lost(world: World, level: Level, domain: str, now: Instant) -> Loss:
    trial = Trial(world, level, domain, now)
    return Loss(level, domain, trial.nodes, tuple(trial.serve()), dict(trial.pushed_out))


class Trial:
    """A draft without the domain, in which what was lost is given a place."""

    def __init__(self, world: World, level: Level, domain: str, now: Instant) -> None:
        self.world, self.now = world, now
        self.draft = draft = Draft(world, now)
        self.lost: dict[str, list[Replica]] = {}
        self.pushed_out: Counter[str] = Counter()
        self.tries = PREEMPT_MAX
        names = [name for name in draft.room.row if world.nodes[name].place.domain(level) == domain]
        self.nodes = len(names)
        draft.room.open[[draft.room.row[name] for name in names]] = False
        for name in (name for node in names for name in world.on_node[node]):
            draft.ended[name] = None
            replica = world.replicas[name]
            if replica.state in LIVE and replica.workload in world.workloads and replica.slot in world.slots:
                self.lost.setdefault(replica.workload, []).append(replica)

    def serve(self) -> Iterator[Hit]:
        """The most important first."""
        workloads = [self.world.workloads[name] for name in self.lost]
        for workload in sorted(workloads, key=lambda each: (-each.priority, each.name)):
            yield self._hit(workload)

    def _hit(self, workload: Workload) -> Hit:
        replicas = self.lost[workload.name]
        active = [replica for replica in replicas if replica.role is Role.ACTIVE]
        left = self._ready_elsewhere(workload)
        warm = self.draft.standbys_of(workload.name)[: len(active)]
        for heir, old in zip(warm, active, strict=False):
            self.draft.ended[heir.id] = None
            self.draft.filled[old.slot] = heir.node
        rest = active[len(warm) :]
        placed = pushed = 0
        if rest and isinstance(workload.shape, Training):
            mended = self._mend(workload, rest)
            if mended is None:
                return self._whole_gang(workload, len(active), len(replicas) - len(active))
            placed = mended
        elif rest:
            placed = self._place(workload, rest)
            pushed = self._preempt(workload, rest[placed:])
        hit = Hit(
            workload=workload.name,
            priority=workload.priority,
            lost=len(active),
            left=left,
            promoted=len(warm),
            placed=placed,
            by_preemption=pushed,
            short=len(rest) - placed - pushed,
            standbys=len(replicas) - len(active),
        )
        return _with_promise(hit, workload)

    def _ready_elsewhere(self, workload: Workload) -> int:
        """Seats, not copies: in the middle of a move there are two in one."""
        world = self.world
        return sum(
            world.slots[slot].role is Role.ACTIVE
            and any(
                world.replicas[name].state is State.READY and name not in self.draft.ended
                for name in world.of_slot[slot]
            )
            for slot in world.of_workload.get(workload.name, ())
        )

    def _place(self, workload: Workload, seats: list[Replica]) -> int:
        ask = ask_for(self.draft, workload, len(seats), (), again=True, moves=True)
        spots = placement.place(self.draft.room, ask)
        for seat, spot in zip(seats, spots, strict=False):
            self.draft.filled[seat.slot] = spot.node
        return len(spots)

    def _mend(self, workload: Workload, seats: list[Replica]) -> int | None:
        """How many find a place; none: too few are left, and the gang cannot go on."""
        assert isinstance(workload.shape, Training)
        filled = self.draft.filled
        heirs = [filled[each.slot] for each in self.lost[workload.name] if each.slot in filled]
        nodes = [*(member.node for member in gang.live_members(self.draft, workload)), *heirs]
        least = max(1, workload.shape.nodes_min - len(nodes))
        ask = gang.ask_for(self.draft, workload, len(seats), least, nodes, again=True)
        spots = placement.place(self.draft.room, ask)
        return len(spots) if len(nodes) + len(spots) >= workload.shape.nodes_min else None

    def _whole_gang(self, workload: Workload, there: int, standbys: int) -> Hit:
        """Its members elsewhere stop too, and what they hold is free for others."""
        members = gang.live_members(self.draft, workload)
        for member in members:
            self._stop(member)
        lost = there + len(members)
        return Hit(workload.name, workload.priority, lost=lost, left=0, short=lost, standbys=standbys)

    def _preempt(self, workload: Workload, seats: list[Replica]) -> int:
        if not self.world.policy.replicas.preempt:
            return 0
        room, done = self.draft.room, 0
        for seat in seats[: self.tries]:
            self.tries -= 1
            ask = ask_for(self.draft, workload, 1, (), again=True, moves=True)
            ended = frozenset(self.draft.ended)
            victims = preempt.victims(self.world, room, ask, workload.priority, ended, self.now)
            for name in victims:
                self._stop(self.world.replicas[name])
                self.pushed_out[self.world.replicas[name].workload] += 1
            spots = placement.place(room, ask) if victims else []
            if not spots:
                break
            self.draft.filled[seat.slot] = spots[0].node
            done += 1
        return done

    def _stop(self, replica: Replica) -> None:
        self.draft.ended[replica.id] = None
        self.draft.room.give(self.draft.room.row[replica.node], replica.needs, replica.devices)


def _with_promise(hit: Hit, workload: Workload) -> Hit:
    shape = workload.shape
    if not isinstance(shape, Service) or not shape.availability:
        return hit
    if hit.left + hit.lost < shape.replicas:  # it is broken already
        return msgspec.structs.replace(hit, availability=shape.availability)
    up = hit.left + hit.promoted
    again = up + hit.placed + hit.by_preemption
    broken = Broken.NOT if up >= shape.replicas else Broken.AT_ONCE
    broken = broken if again >= shape.replicas else Broken.LASTING
    return msgspec.structs.replace(hit, availability=shape.availability, broken=broken)


# ---- in words


def tell(loss: Loss) -> str:
    """`without zone a (4 nodes): 7 replicas lost, 3 without room (web 2, db 1)`, and what else."""
    parts = [f"{many(loss.lost, 'replica')} lost"] if loss.lost else ["nothing runs there"]
    short = [f"{hit.workload} {hit.short}" for hit in loss.hits if hit.short]
    if short:
        parts[0] += f", {loss.short} without room ({_some(short)})"
    elif loss.lost:
        parts[0] += ", with a place elsewhere" if loss.lost == 1 else ", all of them with a place elsewhere"
    pushed = [f"{name} {count}" for name, count in loss.pushed_out.items()]
    if pushed:
        parts.append(f"to make room, lower priorities stop ({_some(pushed)})")
    for how in (Broken.LASTING, Broken.AT_ONCE):
        names = [hit.workload for hit in loss.hits if hit.broken is how]
        if names:
            parts.append(f"availability promised to {_some(names)} is broken {how}")
    return f"without {loss.level} {loss.domain} ({many(loss.nodes, 'node')}): {'; '.join(parts)}"


def tell_worst(losses: list[Loss]) -> str:
    """Which of them would hurt most; empty: there is none."""
    found = worst(losses)
    if found is None:
        return ""
    if len(losses) == 1:
        return tell(found)
    if not found.short and not any(hit.broken for hit in found.hits):
        return f"any one {found.level} could be lost: what runs there has a place elsewhere"
    return f"no loss of a {found.level} would hurt more than this: {tell(found)}"


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - NAMES_SHOWN} more" if len(texts) > NAMES_SHOWN else ""
    return f"{', '.join(texts[:NAMES_SHOWN])}{more}"
