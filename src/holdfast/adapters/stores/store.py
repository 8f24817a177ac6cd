"""The journal, its snapshots and its history in a database, and who may write them.

One implementation for every database: see `schema` for how an append is fenced, `database` for what a failure
means. The rows are made before the transaction begins, so that it is as short as it can be.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, delete, func, insert, select, update

from holdfast.adapters.stores.codec import Row, Unreadable, entries_of, rows_of, storable
from holdfast.adapters.stores.database import Database
from holdfast.adapters.stores.schema import head, history, journal, planes, snapshots
from holdfast.adapters.stores.tails import find_tail, forget_tails, keep_tails
from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.told import VERDICT, Told
from holdfast.model.units import NEVER, Instant, Millis
from holdfast.model.workload import DEFAULT_PROJECT
from holdfast.ports.errors import Fenced, NotFound
from holdfast.ports.store import ABSENT_MS, NOTHING, Leadership, Snapshot, Tail

Condition = ColumnElement[bool]

READ_BATCH = 4_000  # entries: others that read get their turn in between
PRUNE_BATCH = 2_000  # entries: appends get theirs
SNAPSHOTS_KEPT = 2
ENTRIES_A_SECOND = 500  # at the very least: a huge append gets the time it needs
SAVE_S = 60.0
TERMS_AHEAD = 10  # a leadership that lasts longer than so many grants: the database's clock was set back

LOOK = select(head)
LOCK = select(head).with_for_update()
GRANT = update(head).values(
    leader=bindparam("by"),
    address=bindparam("at"),
    generation=bindparam("new"),
    era=bindparam("in_era"),
    until_ms=bindparam("to"),
)
RESIGN = (
    update(head)
    .where(head.c.leader == bindparam("by"), head.c.generation == bindparam("mine"))
    .values(until_ms=0)
)
ADVANCE = (
    update(head)
    .where(head.c.generation == bindparam("mine"), head.c.length == bindparam("expected"))
    .values(length=bindparam("reached"))
)
SHORTEN = update(head).values(until_ms=bindparam("to"))
WRITE, TELL = insert(journal), insert(history)
READ = (
    select(journal.c.seq, journal.c.body)
    .where(journal.c.seq > bindparam("since"))
    .order_by(journal.c.seq)
    .limit(bindparam("count"))
)
EARLIER = select(journal.c.seq).where(journal.c.seq <= bindparam("since")).limit(1)
LENGTH = select(head.c.length)
LATEST = (
    select(snapshots)
    .where(snapshots.c.length < bindparam("before"))
    .order_by(snapshots.c.length.desc())
    .limit(1)
)


class Pruned(NotFound):
    """These entries are no longer kept: begin with the latest snapshot."""


class SqlStore:
    def __init__(self, database: Database) -> None:
        self.database = database

    async def close(self) -> None:
        await self.database.close()

    # leadership

    async def lead(
        self, name: str, address: str, ttl_ms: Millis, above: int = 0, mine: int = 0
    ) -> Leadership:
        return await self.database.write(partial(self._lead, name, address, ttl_ms, above, mine))

    def _lead(
        self, name: str, address: str, ttl_ms: Millis, above: int, mine: int, connection: Connection
    ) -> Leadership:
        row = connection.execute(LOCK).mappings().one()  # and only then the time: we may have waited for it
        era, now = self.database.backend.now(connection)
        held = _leadership(row, era, now)
        if held.left_ms and (held.leader, held.generation) != (name, mine):
            longest = TERMS_AHEAD * ttl_ms
            if held.left_ms > longest:
                connection.execute(SHORTEN, {"to": now + longest})
            return replace(held, left_ms=min(held.left_ms, longest))
        goes_on = held.left_ms > 0 and held.generation > above
        generation = held.generation if goes_on else max(held.generation, above) + 1
        granted = {"by": name, "at": address, "new": generation, "in_era": era, "to": now + ttl_ms}
        connection.execute(GRANT, granted)
        return Leadership(name, generation, ttl_ms, address, granted=True)

    async def resign(self, name: str, generation: int) -> None:
        own = {"by": name, "mine": generation}
        await self.database.write(lambda connection: connection.execute(RESIGN, own).close())

    async def leader(self) -> Leadership:
        def look(connection: Connection) -> Leadership:
            row = connection.execute(LOOK).mappings().one()
            return _leadership(row, *self.database.backend.now(connection))

        return await self.database.read(look)

    async def announce(self, name: str, address: str) -> tuple[str, ...]:
        return await self.database.write(partial(self._announce, name, address))

    def _announce(self, name: str, address: str, connection: Connection) -> tuple[str, ...]:
        self.database.backend.lock_registry(connection)
        era, now = self.database.backend.now(connection)
        gone = (planes.c.seen_ms < now - ABSENT_MS) | (planes.c.era != era) | (planes.c.name == name)
        connection.execute(delete(planes).where(gone))
        seen = {"name": storable(name), "address": storable(address), "era": era, "seen_ms": now}
        connection.execute(insert(planes).values(seen))
        return tuple(connection.execute(select(planes.c.address).order_by(planes.c.name)).scalars())

    # the journal

    async def append(
        self,
        generation: int,
        expected: int,
        entries: tuple[Event | Plan, ...],
        project_of: Mapping[str, str] = NOTHING,
    ) -> int:
        def make() -> Callable[[Connection], int]:
            return partial(_append, generation, expected, *rows_of(expected, entries, project_of))

        return await self.database.make_and_write(make, len(entries) / ENTRIES_A_SECOND)

    async def read(self, since: int = 0, limit: int = 0) -> tuple[Event | Plan, ...]:
        found: list[Event | Plan] = []
        while True:
            count = min(READ_BATCH, limit - len(found)) if limit else READ_BATCH
            batch = await self.database.read(partial(_read, since + len(found), count))
            found.extend(batch)
            if len(batch) < count or len(found) == limit:
                return tuple(found)

    async def length(self) -> int:
        """How many entries the journal has, pruned ones too."""
        return await self.database.read(lambda connection: connection.execute(LENGTH).scalar_one())

    # snapshots

    async def save(self, generation: int, snapshot: Snapshot) -> None:
        await self.database.write(partial(self._save, generation, snapshot), SAVE_S)

    def _save(self, generation: int, snapshot: Snapshot, connection: Connection) -> None:
        """The row that everybody needs is locked last: the body may be large."""
        self.database.backend.be_patient(connection)
        connection.execute(delete(snapshots).where(snapshots.c.length == snapshot.length))
        connection.execute(insert(snapshots), {"length": snapshot.length, "body": snapshot.body})
        kept = select(snapshots.c.length).order_by(snapshots.c.length.desc()).limit(SNAPSHOTS_KEPT)
        connection.execute(delete(snapshots).where(snapshots.c.length.not_in(kept)))
        row = connection.execute(LOCK).mappings().one()
        if row["generation"] != generation or row["length"] < snapshot.length:
            raise _fenced(connection, generation, snapshot.length)

    async def latest(self, before: int = 0) -> Snapshot | None:
        asked = {"before": before or NEVER}
        row = await self.database.read(lambda connection: connection.execute(LATEST, asked).one_or_none())
        return Snapshot(row.length, row.body) if row is not None else None

    async def prune(self, before: Instant) -> int:
        """Drops what is older than `before` and not needed to recover, even from the older snapshot: from
        the journal and from the history. Answers how many entries went. Anybody may ask for it."""
        await self.database.write(partial(forget_tails, before))
        first, keep_from = await self.database.read(partial(_prunable, before))
        for last in range(first + PRUNE_BATCH - 1, keep_from + PRUNE_BATCH - 1, PRUNE_BATCH):
            await self.database.write(partial(_prune, min(last, keep_from - 1)))
        return max(0, keep_from - first)

    # the last words of replicas

    async def keep_tails(self, tails: tuple[Tail, ...]) -> None:
        await self.database.write(partial(keep_tails, tails))

    async def tail(self, replica: str) -> Tail | None:
        return await self.database.read(partial(find_tail, replica), crowd=True)

    # history

    async def history(
        self,
        *,
        node: str = "",
        workload: str = "",
        project: str = "",
        since: int = 0,
        before: int = 0,
        since_at: Instant = 0,
        until_at: Instant = 0,
        limit: int = 100,
    ) -> tuple[Told, ...]:
        if since_at or until_at:
            first, last = await self.database.read(partial(_numbers, since_at, until_at), crowd=True)
            since, before = max(since, first - 1), min(before or NEVER, last)
        about: list[Condition] = []
        if node:
            about.append(history.c.node == storable(node))
        if workload:
            about.append(history.c.workload == storable(workload))
        if project:
            about.append(_of_project(project))
        about += _between(about, since, before, limit)
        asked = select(history).where(*about).order_by(history.c.seq, history.c.line)
        rows = await self.database.read(lambda connection: connection.execute(asked).all(), crowd=True)
        return tuple(_told(row) for row in rows)


def _told(row: Any) -> Told:
    about = row.node, row.workload, row.actor, row.project
    return Told(row.seq, row.at, row.kind, row.subject, row.text, *about)


def _of_project(project: str) -> Condition:
    """Lines of its workloads, and verdicts on nodes."""
    kept = "" if project == DEFAULT_PROJECT else storable(project)
    own = (history.c.project == kept) & (history.c.workload != "")
    return own | ((history.c.workload == "") & (history.c.kind == VERDICT))


def _numbers(since_at: Instant, until_at: Instant, connection: Connection) -> tuple[int, int]:
    """The numbers of the first entries from these instants on: time never goes back in the journal."""
    return _first(since_at, connection) if since_at else 1, _first(until_at or NEVER, connection)


def _first(at: Instant, connection: Connection) -> int:
    asked = select(history.c.seq).where(history.c.at >= at).order_by(history.c.at, history.c.seq).limit(1)
    found: int | None = connection.execute(asked).scalar()
    return NEVER if found is None else found


def _leadership(row: RowMapping, era: str, now: Instant) -> Leadership:
    left_ms = max(0, row["until_ms"] - now) if row["era"] == era else 0
    return Leadership(row["leader"], row["generation"], left_ms, row["address"])


def _append(
    generation: int, expected: int, written: Sequence[Row], told: Sequence[Row], connection: Connection
) -> int:
    reached = expected + len(written)
    moved = connection.execute(ADVANCE, {"mine": generation, "expected": expected, "reached": reached})
    if moved.rowcount != 1:
        raise _fenced(connection, generation, expected)
    if written:
        connection.execute(WRITE, written)
    if told:
        connection.execute(TELL, told)
    return reached


def _fenced(connection: Connection, generation: int, expected: int) -> Fenced:
    row = connection.execute(LOOK).mappings().one()
    if row["generation"] != generation:
        return Fenced(f"generation {row['generation']} leads, not {generation}")
    return Fenced(f"the journal has {row['length']} entries, not {expected}")


def _read(since: int, count: int, connection: Connection) -> tuple[Event | Plan, ...]:
    """Pruning takes entries from the beginning only. Any other hole is damage: what was folded past it would
    be a world that never was, and whoever led with it would act on that."""
    length = connection.execute(LENGTH).scalar_one()  # first: what is written meanwhile is no hole
    rows = connection.execute(READ, {"since": since, "count": count}).all()
    numbers = [row.seq for row in rows]
    first = numbers[0] if numbers else length + 1
    if first > since + 1:
        if connection.execute(EARLIER, {"since": since}).scalar() is not None:
            raise _missing(since + 1, first - 1)
        raise Pruned(f"entries {since + 1} to {first - 1} were pruned: begin with the latest snapshot")
    if numbers and numbers[-1] != since + len(numbers):
        raise _missing(*_hole(numbers))
    if numbers and len(numbers) < count and numbers[-1] < length:
        raise _missing(numbers[-1] + 1, length)
    return entries_of(since + 1, [row.body for row in rows])


def _hole(numbers: Sequence[int]) -> tuple[int, int]:
    """The first entry that is missing between these, and the last one beside it."""
    return next((one + 1, other - 1) for one, other in pairwise(numbers) if other > one + 1)


def _missing(first: int, last: int) -> Unreadable:
    what = f"entries {first} to {last} are" if last > first else f"entry {first} is"
    return Unreadable(f"{what} missing in the journal: restore a copy of the database")


def _prunable(before: Instant, connection: Connection) -> tuple[int, int]:
    """The first entry that is there, and the first that must stay. The last entry of a snapshot stays too:
    its instant is where the snapshot's clock goes on."""
    first = connection.execute(select(func.min(journal.c.seq))).scalar()
    covered = connection.execute(select(func.min(snapshots.c.length), func.count(snapshots.c.length))).one()
    if first is None or covered[1] < SNAPSHOTS_KEPT:
        return 0, 0
    recent = select(journal.c.seq).where(journal.c.at >= before).order_by(journal.c.seq).limit(1)
    keep_from = connection.execute(recent).scalar() or covered[0]
    return first, max(first, min(keep_from, covered[0]))


def _prune(last: int, connection: Connection) -> None:
    connection.execute(delete(history).where(history.c.seq <= last))
    connection.execute(delete(journal).where(journal.c.seq <= last))


def _between(about: list[Condition], since: int, before: int, limit: int) -> list[Condition]:
    """The oldest or the newest `limit` lines, and the rest of the entry at their end. One bound a side: of
    two, SQLite would take the first for its index and walk through all the rest."""
    first, last = history.c.seq > since, history.c.seq < (before or NEVER)
    if not limit:
        return [first, last]
    forward = since > 0 and not before
    order = history.c.seq.asc() if forward else history.c.seq.desc()
    lines = select(history.c.seq).where(*about, first, last).order_by(order).limit(limit).subquery()
    if forward:
        return [first, history.c.seq <= select(func.max(lines.c.seq)).scalar_subquery()]
    return [history.c.seq >= select(func.min(lines.c.seq)).scalar_subquery(), last]
