"""The world as bytes, so that nobody has to fold a journal from its first entry.

The question: what must be kept so that a world read back decides as the one that was written? The entries,
and what they cannot tell: in which order things came about (a seat that was emptied first is filled first),
which row a node has (of equals the lowest is chosen), and the times that were noted. Everything else is
derived, and is derived again here by the writers in `index` that made it, so an index cannot come back wrong,
and one that is added later is right in the worlds of older snapshots too. Refused: writing the indexes and
columns as they are. It would load in less than half the time, and believe whatever it reads.

A snapshot is a short cut, never the truth: one that cannot be read (`UnknownSnapshot`) costs its reader the
time to fold the whole journal, no more. A field that a model gains with a default needs no new version; a
change of what a field means does.

Whoever loads a world has not looked at it yet: everything in it is noted for a look.
"""

from collections.abc import Iterable
from zlib import crc32

import msgspec
from msgspec.structs import replace

from holdfast.core.state import index
from holdfast.model.course import Course
from holdfast.model.demand import Demand, Start
from holdfast.model.finding import Finding
from holdfast.model.gateway import Key, Limits, Tranche
from holdfast.model.market import Losses, OfferRecord
from holdfast.model.money import Account
from holdfast.model.node import COMING, Node, NodeState
from holdfast.model.outcomes import Outcomes
from holdfast.model.place import Level
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer, Pool, PoolState
from holdfast.model.project import Project
from holdfast.model.replica import Replica, Slot
from holdfast.model.room import FIRST_ROWS, Interned, Room
from holdfast.model.units import Instant, Millis
from holdfast.model.workload import Version, Workload
from holdfast.model.world import Brake, Gang, Leader, Names, World, Zone

VERSION = 1

ROWLESS = COMING | {NodeState.TERMINATING}  # no row is given to a node in these states; it keeps one it has

# Indexes whose order is history. That of the others follows from the order of the entries.
LINES = ("lost", "stopping", "outdated", "draining", "cordoned", "doubtful")
LINES_BY_NAME = ("waiting", "held", "of_slot", "struck", "warm", "closed")

Numbered = list[tuple[str, tuple[str, ...]]]  # what an `Interned` holds, from number 0 on


class UnknownSnapshot(ValueError):
    """It cannot be read: fold the journal from its beginning."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    ids: list[str]  # by row; empty: nobody has it
    unused: list[int]  # the last is the next to be given out
    kinds: Numbered
    label_sets: Numbered
    taint_sets: Numbered
    domains: dict[Level, Numbered]


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy
    leader: Leader
    plans: int
    nodes: list[Node]
    pools: list[Pool]
    pool_states: list[PoolState]
    workloads: list[Workload]
    slots: list[Slot]
    replicas: list[Replica]
    gangs: dict[str, Gang]
    findings: list[Finding]
    brakes: list[Brake]
    brake_released_at: Instant
    zones: dict[str, Zone]
    lease_before: tuple[Instant, Millis]
    epoch_floor: dict[str, int]
    launched: int
    orphans: dict[str, str]
    lines: dict[str, list[str]]
    lines_by_name: dict[str, dict[str, list[str]]]
    rows: Rows
    due: list[tuple[Instant, str, str]]
    offers: dict[str, tuple[Offer, ...]] = {}  # of pools whose provider lists them
    records: list[OfferRecord] = []
    losses: dict[str, Losses] = {}
    accounts: list[Account] = []
    courses: list[Course] = []
    demands: list[Demand] = []
    starts: dict[str, Start] = {}
    outcomes: list[Outcomes] = []
    behind_at: Instant = 0
    epoch_least: int = 0
    keys: list[Key] = []
    limits: dict[str, Limits] = {}
    drawn: dict[str, int] = {}
    versions: dict[str, tuple[Version, ...]] = {}
    fleet: list[str] = []  # noted of the fleet as a whole; all single entries are looked at anew
    tranches: dict[str, Tranche] = {}
    tranches_of: int = 0
    project_of: dict[str, str] = {}
    projects: list[Project] = []


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    version: int
    body: msgspec.Raw
    sum: int = 0  # of the body, which may be damaged and still readable; 0: nobody wrote one


_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(Envelope).decode
_read = msgspec.msgpack.Decoder(Saved).decode


def dump(world: World) -> bytes:
    saved = Saved(
        policy=world.policy,
        leader=world.leader,
        plans=world.plans,
        nodes=list(world.nodes.values()),
        pools=list(world.pools.values()),
        pool_states=list(world.pool_states.values()),
        workloads=list(world.workloads.values()),
        slots=list(world.slots.values()),
        replicas=list(world.replicas.values()),
        gangs=world.gangs,
        findings=list(world.findings.values()),
        brakes=list(world.brakes.values()),
        brake_released_at=world.brake_released_at,
        zones=world.zones,
        lease_before=world.lease_before,
        epoch_floor=world.epoch_floor,
        launched=world.launched,
        orphans=world.orphans,
        offers={name: world.offers[name] for name, pool in world.pools.items() if pool.lists_offers},
        records=list(world.records.values()),
        losses=world.losses,
        accounts=list(world.accounts.values()),
        courses=list(world.courses.values()),
        demands=list(world.demands.values()),
        starts=world.starts,
        behind_at=world.behind_at,
        epoch_least=world.epoch_least,
        outcomes=list(world.outcomes.values()),
        keys=list(world.keys.values()),
        limits=world.limits,
        drawn=world.drawn,
        versions=world.versions,
        tranches=world.tranches,
        tranches_of=world.tranches_of,
        project_of=world.project_of,
        projects=list(world.projects.values()),
        lines={name: list(getattr(world, name)) for name in LINES},
        lines_by_name={name: _long(getattr(world, name)) for name in LINES_BY_NAME},
        rows=_rows(world.room),
        due=world.agenda.due,
        fleet=list(world.agenda.changed["fleet"]),
    )
    body = _encode(saved)
    return _encode(Envelope(VERSION, msgspec.Raw(body), crc32(body)))


def load(body: bytes) -> World:
    try:
        envelope = _open(body)
        if envelope.version != VERSION:
            raise UnknownSnapshot(f"a snapshot of version {envelope.version}; this is made for {VERSION}")
        if envelope.sum not in (0, crc32(envelope.body)):
            raise UnknownSnapshot("a snapshot that was damaged: its sum is wrong")
        return _rebuilt(_read(envelope.body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownSnapshot(f"not a snapshot: {error}") from error


def _long(names: dict[str, Names]) -> dict[str, list[str]]:
    """Only of two or more can the order be wrong. Whose they are has no order, and gets one here, so that
    equal worlds are equal bytes."""
    return dict(sorted((name, list(line)) for name, line in names.items() if len(line) > 1))


def _rows(room: Room) -> Rows:
    return Rows(
        ids=room.ids,
        unused=room.unused,
        kinds=_numbered(room.kinds),
        label_sets=_numbered(room.label_sets),
        taint_sets=_numbered(room.taint_sets),
        domains={level: _numbered(domain) for level, domain in room.domains.items()},
    )


def _numbered(interned: Interned) -> Numbered:
    return list(zip(interned.number, interned.value, strict=True))


def _rebuilt(saved: Saved) -> World:
    """In the order in which writers ask: rules before nodes, nodes before what is on them."""
    world = World(saved.policy)
    world.leader, world.lease_before = saved.leader, saved.lease_before
    world.plans, world.launched = saved.plans, saved.launched
    world.pools = {pool.name: pool for pool in saved.pools}
    world.pool_states = {state.name: state for state in saved.pool_states}
    world.offers = {pool.name: pool.offers for pool in saved.pools} | saved.offers
    world.in_pool = {pool.name: {} for pool in saved.pools}
    world.gangs, world.zones, world.epoch_floor = saved.gangs, saved.zones, saved.epoch_floor
    world.findings = {(finding.node, finding.name): finding for finding in saved.findings}
    world.brakes = {brake.scope: brake for brake in saved.brakes}
    world.brake_released_at, world.orphans = saved.brake_released_at, saved.orphans
    world.records = {record.key: record for record in saved.records}
    world.losses = saved.losses
    world.accounts = {account.pool: account for account in saved.accounts}
    world.courses = {course.workload: course for course in saved.courses}
    world.demands = {demand.workload: demand for demand in saved.demands}
    world.starts = saved.starts
    world.behind_at, world.epoch_least = saved.behind_at, saved.epoch_least
    world.outcomes = {known.workload: known for known in saved.outcomes}
    world.keys = {key.id: key for key in saved.keys}
    world.limits, world.drawn = saved.limits, saved.drawn
    world.versions, world.project_of = saved.versions, saved.project_of
    world.projects = {project.name: project for project in saved.projects}
    world.tranches, world.tranches_of = saved.tranches, saved.tranches_of
    for workload in saved.workloads:
        index.put_workload(world, workload)
    _put_nodes(world, saved)
    for replica in saved.replicas:  # before their slots, which then see at once whether they are filled
        index.put_replica(world, replica)
    for slot in saved.slots:
        index.put_slot(world, slot)
    _line_up(world, saved)
    for pool in saved.pools:
        world.agenda.note("pool", pool.name)
    world.agenda.due, world.agenda.room_freed = saved.due, True
    world.agenda.changed["fleet"] = dict.fromkeys(saved.fleet)
    return world


def _put_nodes(world: World, saved: Saved) -> None:
    """Each gets the row it had. A node that is leaving, or boots again, may have one though it would not be
    given one now: it is put twice, first as it was."""
    rows = saved.rows
    world.room = room = Room(max(FIRST_ROWS, len(rows.ids)))
    _number(room, rows)
    row_of = {name: row for row, name in enumerate(rows.ids) if name}
    room.unused = [row_of[node.id] for node in reversed(saved.nodes) if node.id in row_of]
    for node in saved.nodes:
        if node.id in row_of and node.state in ROWLESS:
            index.put_node(world, replace(node, state=NodeState.CORDONED))
        index.put_node(world, node)
    room.unused = rows.unused


def _number(room: Room, rows: Rows) -> None:
    """Labels, taints and domains get the numbers they had: of equal domains the lowest is chosen."""
    numbered = [(room.kinds, rows.kinds), (room.label_sets, rows.label_sets)]
    numbered += [(room.taint_sets, rows.taint_sets)]
    numbered += [(room.domains[level], names) for level, names in rows.domains.items()]
    for interned, names in numbered:
        for key, value in names:
            interned.of(key, value)


def _line_up(world: World, saved: Saved) -> None:
    for name in LINES:
        setattr(world, name, _in_line(getattr(world, name), saved.lines.get(name, ())))
    for name in LINES_BY_NAME:
        groups = getattr(world, name)
        for group, before in saved.lines_by_name.get(name, {}).items():
            groups[group] = _in_line(groups.get(group, {}), before)


def _in_line(names: Names, before: Iterable[str]) -> Names:
    """The same names, in the order they were in."""
    return {name: None for name in before if name in names} | names
