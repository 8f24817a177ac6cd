"""What stores over SQL do beyond the contract: their schema, their files, pruning, and bad input."""

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from holdfast.adapters.stores import lane, sqlite
from holdfast.adapters.stores.codec import Unreadable
from holdfast.adapters.stores.migrate import STEPS, NewerDatabase
from holdfast.adapters.stores.open import open_database, open_store
from holdfast.adapters.stores.registry import SqlRegistry
from holdfast.adapters.stores.schema import REVISIONS, metadata
from holdfast.adapters.stores.sqlite import SqliteFile
from holdfast.adapters.stores.store import Pruned, SqlStore
from holdfast.control import session
from holdfast.model import event as ev
from holdfast.model.finding import Finding, Severity
from holdfast.model.units import HOUR, SECOND
from holdfast.ports.errors import Denied, Throttled, Unreachable, Unwritable
from holdfast.ports.registry import Identity
from holdfast.ports.store import Leadership, Snapshot, Tail
from holdfast.wire.messages import Found
from tests.journal_writers import entry
from tests.planes import World, until, within
from tests.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.fresh()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqlStore]:
    store, _ = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def led(store: SqlStore) -> int:
    return (await store.lead("cp-1", "", HOUR)).generation


async def execute(store: SqlStore, statement: str) -> None:
    await store.database.write(lambda connection: connection.execute(text(statement)))


# the schema


async def test_the_migrations_lead_to_the_schema_that_the_code_uses(url: str) -> None:
    async with opened(url) as store:
        differences = await store.database.write(
            lambda connection: compare_metadata(MigrationContext.configure(connection), metadata)
        )
    assert differences == []


def test_every_migration_is_known_by_its_number() -> None:
    steps = ScriptDirectory(str(STEPS)).walk_revisions()
    assert tuple(reversed([step.revision for step in steps])) == REVISIONS


BEFORE_AUDIT = (
    "DROP TABLE audit",
    "ALTER TABLE tokens DROP COLUMN first_used",
    "DROP INDEX history_of_project",
    "ALTER TABLE history DROP COLUMN project",
)


async def test_a_database_from_before_projects_keeps_its_history(url: str) -> None:
    line = "1, 0, 5, 'user', 'web', 'applied', '', 'web', ''"
    async with opened(url) as store:
        for statement in (
            *BEFORE_AUDIT,
            "INSERT INTO history (seq, line, at, kind, subject, text, node, workload, actor)"
            f" VALUES ({line})",
            "UPDATE alembic_version SET version_num = '0006'",
        ):
            await execute(store, statement)
    async with opened(url) as store:
        assert [told.subject for told in await store.history(project="default")] == ["web"]
        assert await store.history(project="vision") == ()


async def test_tokens_from_before_uses_were_counted_keep_what_was_used_of_them(url: str) -> None:
    columns = "id, hash, role, note, pool, node, created_at, expires_at, used_by"
    async with opened(url) as store:
        for statement in (
            "ALTER TABLE tails DROP COLUMN ended",
            "DROP INDEX history_by_age",
            *BEFORE_AUDIT,
            "ALTER TABLE tokens DROP COLUMN project",
            "ALTER TABLE tokens DROP COLUMN used",
            "ALTER TABLE tokens DROP COLUMN uses",
            f"INSERT INTO tokens ({columns}) VALUES ('a', 'x', 'join', '', '', '', 0, 0, 'n1')",
            f"INSERT INTO tokens ({columns}) VALUES ('b', 'y', 'join', '', '', '', 1, 0, '')",
            "UPDATE alembic_version SET version_num = '0003'",
        ):
            await execute(store, statement)
    database = await open_database(url)
    try:
        tokens = await SqlRegistry(database).tokens()
    finally:
        await database.close()
    assert [(token.id, token.uses, token.used, token.left) for token in tokens] == [
        ("a", 1, 1, 0),
        ("b", 1, 0, 1),
    ]
    assert [token.project for token in tokens] == ["", ""]


async def test_a_database_of_a_newer_holdfast_is_refused(url: str) -> None:
    async with opened(url) as store:
        await execute(store, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(NewerDatabase, match=r"schema 9999.*Upgrade this one"):
        await open_store(url)


async def test_what_was_written_is_there_when_the_store_is_opened_again(url: str) -> None:
    async with opened(url) as store:
        await store.append(await led(store), 0, (entry(1),))
        await store.save(1, Snapshot(1, b"body"))
        await store.keep_tails((Tail("web/0.1", "n1", b"bye\n", 4, 1),))
    async with opened(url) as store:
        assert await store.read() == (entry(1),)
        assert await store.latest() == Snapshot(1, b"body")
        assert await store.tail("web/0.1") == Tail("web/0.1", "n1", b"bye\n", 4, 1)
        assert (await store.leader()).leader == "cp-1"


# pruning


async def with_journal(store: SqlStore, length: int, *snapshots: int) -> int:
    generation = await led(store)
    await store.append(generation, 0, tuple(entry(number) for number in range(1, length + 1)))
    for covered in snapshots:
        await store.save(generation, Snapshot(covered, b"world"))
    return generation


@pytest.mark.parametrize(
    ("snapshots", "before", "kept_from"),
    [
        ((), 999, 1),  # nothing to recover from but the journal
        ((80,), 999, 1),  # the only snapshot might be damaged
        ((40, 80), 999, 40),  # what the older one does not cover stays, and the last entry that it does
        ((40, 80), 21, 21),  # not old enough
        ((40, 80), 0, 1),
        ((20, 40, 80), 999, 40),  # the last two count
    ],
)
async def test_only_what_is_old_and_not_needed_to_recover_is_pruned(
    url: str, snapshots: tuple[int, ...], before: int, kept_from: int
) -> None:
    async with opened(url) as store:
        generation = await with_journal(store, 100, *snapshots)
        assert await store.prune(before) == kept_from - 1
        assert await store.prune(before) == 0
        kept = tuple(entry(number) for number in range(kept_from, 101))
        assert await store.read(kept_from - 1) == kept
        assert [line.seq for line in await store.history(limit=0)] == [one.at for one in kept]
        assert await store.append(generation, 100, (entry(101),)) == 101


async def test_to_read_what_was_pruned_is_an_error_that_says_so(url: str) -> None:
    async with opened(url) as store:
        await with_journal(store, 30, 10, 20)
        await store.prune(999)
        with pytest.raises(Pruned, match="entries 1 to 9 were pruned: begin with the latest snapshot"):
            await store.read()
        with pytest.raises(Pruned):
            await store.read(3, 2)
        assert await store.read(9, 1) == (entry(10),)


async def test_a_long_journal_is_pruned_while_others_write(url: str) -> None:
    async with opened(url) as store:
        generation = await with_journal(store, 5_000, 4_500, 4_900)
        pruned, length = await asyncio.gather(
            store.prune(99_999), store.append(generation, 5_000, (entry(5_001),))
        )
        assert (pruned, length) == (4_499, 5_001)
        assert len(await store.read(4_499)) == 502


# bad input


async def test_a_damaged_entry_is_an_error_that_says_where(url: str) -> None:
    async with opened(url) as store:
        await with_journal(store, 3)
        await execute(store, """UPDATE journal SET body = '{"type":"NotOurs"}' WHERE seq = 2""")
        with pytest.raises(Unreadable, match="entry 2 of the journal"):
            await store.read()
        assert await store.read(2) == (entry(3),)


@pytest.mark.parametrize(
    ("gone", "since", "why"),
    [
        ("seq = 20", 0, "entry 20 is missing"),
        ("seq IN (20, 21)", 0, "entries 20 to 21 are missing"),
        ("seq = 20", 19, "entry 20 is missing"),
        ("seq > 28", 0, "entries 29 to 30 are missing"),
        ("seq > 28", 28, "entries 29 to 30 are missing"),
    ],
)
async def test_a_hole_in_the_journal_is_an_error_that_says_where(
    url: str, gone: str, since: int, why: str
) -> None:
    async with opened(url) as store:
        await with_journal(store, 30, 10, 15)
        await execute(store, f"DELETE FROM journal WHERE {gone}")
        with pytest.raises(Unreadable, match=f"{why} in the journal: restore a copy"):
            await store.read(since)
        assert await store.read(0, 19) == tuple(entry(number) for number in range(1, 20))


async def test_a_control_plane_does_not_lead_with_a_hole_in_its_journal(url: str) -> None:
    async with opened(url) as store:
        await with_journal(store, 30)
        await execute(store, "DELETE FROM journal WHERE seq = 20")
        await store.resign("cp-1", 1)
        async with World(store).plane() as plane:
            await until(lambda: "entry 20 is missing in the journal" in plane.trouble)
            assert not plane.leading


@pytest.mark.parametrize("confidence", [float("nan"), float("inf")])
async def test_a_number_that_could_not_be_read_again_is_refused_and_nothing_is_written(
    url: str, confidence: float
) -> None:
    async with opened(url) as store:
        generation = await led(store)
        finding = Finding("x", "n1", Severity.NOTE, confidence, "e", 0)
        with pytest.raises(Unwritable, match="FindingRaised could not be read again"):
            await store.append(generation, 0, (entry(1), ev.FindingRaised(at=1, finding=finding)))
        assert await store.append(generation, 0, (entry(1),)) == 1
        assert await store.read() == (entry(1),)


async def test_what_cannot_be_written_is_left_out_and_the_term_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever we overlook: it is for its sender, and not for the leadership."""
    monkeypatch.setattr(session, "_check", lambda message: None)
    async with opened(url) as store:
        world = World(store)
        async with world.plane() as plane:
            rogue, honest = await world.joined(plane, "n1", "n2")
            rogue.send(Found(Finding("x", "n1", Severity.NOTE, float("nan"), "e", 0)))
            honest.send(Found(Finding("y", "n2", Severity.NOTE, 1.0, "e", 0)))
            await until(lambda: ("n2", "y") in plane.world.findings)
            await within(rogue.ended.wait())
            assert ("n1", "x") not in plane.world.findings
            assert plane.world.leader.generation == 1
            assert plane.metrics.get_sample_value("holdfast_unfoldable_events_total") == 1


async def test_text_that_is_no_unicode_is_refused_and_nothing_is_written(url: str) -> None:
    async with opened(url) as store:
        generation = await led(store)
        with pytest.raises(Denied, match="LinkClosed has text that is not Unicode"):
            await store.append(generation, 0, (ev.LinkClosed(at=1, node="\ud800"),))
        assert await store.append(generation, 0, (entry(1),)) == 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("journal.db", "looks like sqlite:////path"),
        ("", "looks like sqlite:////path"),
        ("mysql://localhost/x", "no store over mysql"),
        ("sqlite://", "would be lost"),
        ("sqlite:///:memory:", "would be lost"),
    ],
)
async def test_a_wrong_url_is_answered_with_a_right_one(wrong: str, why: str) -> None:
    with pytest.raises(Denied, match=why):
        await open_store(wrong)


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"nowhere/journal\.db.*Is its folder there"):
        await open_store(f"sqlite:///{tmp_path / 'nowhere' / 'journal.db'}")


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "letter.txt"
    other.write_text("Dear all, " * 1_000)
    with pytest.raises(Denied, match="not a database"):
        await open_store(f"sqlite:///{other}")
    assert other.read_text() == "Dear all, " * 1_000


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(Unreachable, match=r"PostgreSQL at 127\.0\.0\.1/holdfast"):
        await open_store("postgresql://holdfast@127.0.0.1:1/holdfast")


# the file


async def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'journal.db'}") as store:
        await with_journal(store, 3)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert len(list(tmp_path.iterdir())) == 3, "the file, its log and the log's index"
    assert modes == {0o600}


async def test_an_append_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'journal.db'}") as store:
        found = await store.database.write(
            lambda c: [c.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]
        )
    assert found == ["wal", 2]


async def test_a_leadership_from_before_a_reboot_is_void(tmp_path: Path) -> None:
    boot = ("first", 5_000)

    async def opened_on_boot() -> SqlStore:
        return SqlStore(await open_database(SqliteFile(tmp_path / "j.db", lambda: boot)))

    store = await opened_on_boot()
    first = await store.lead("cp-1", "", HOUR)
    await store.close()
    boot = ("second", 10)
    store = await opened_on_boot()
    assert await store.leader() == Leadership("cp-1", first.generation, 0)
    assert await store.lead("cp-2", "", HOUR) == Leadership("cp-2", first.generation + 1, HOUR, granted=True)
    await store.close()


async def test_a_database_that_another_program_keeps_locked_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
    async with opened(f"sqlite:///{tmp_path / 'journal.db'}") as store:
        generation = await with_journal(store, 1)
        with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unreachable, match="Another process has been writing"):
                await store.append(generation, 1, (entry(2),))
            assert await store.read() == (entry(1),), "who reads does not wait for who writes"
            other.execute("ROLLBACK")
        assert await store.append(generation, 1, (entry(2),)) == 2


# threads


async def test_blocking_calls_are_made_on_two_threads_of_their_own(tmp_path: Path) -> None:
    before = threading.active_count()
    async with opened(f"sqlite:///{tmp_path / 'journal.db'}") as store:
        await asyncio.gather(*(store.leader() for _ in range(20)), *(led(store) for _ in range(20)))
        names = {thread.name for thread in threading.enumerate() if "holdfast-store" in thread.name}
        assert names == {"holdfast-store-write_0", "holdfast-store-read_0"}
    for thread in threading.enumerate():
        if "holdfast-store" in thread.name:
            thread.join(10)
    assert threading.active_count() <= before


async def test_a_closed_store_leaves_no_file_open_and_says_that_it_is_closed(tmp_path: Path) -> None:
    store, _ = await open_store(f"sqlite:///{tmp_path / 'journal.db'}")
    await store.leader()
    await store.close()
    await store.close()
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd_is_there(fd)]
    assert not [path for path in held if str(tmp_path) in path]
    with pytest.raises(Unreachable, match="closed"):
        await store.read()


def fd_is_there(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


async def test_too_many_calls_at_once_are_refused_and_the_others_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "WAITING_MAX", 10)
    async with opened(f"sqlite:///{tmp_path / 'journal.db'}") as store:
        answers = await asyncio.gather(*(store.leader() for _ in range(30)), return_exceptions=True)
        assert sum(isinstance(answer, Throttled) for answer in answers) == 20
        assert sum(isinstance(answer, Leadership) for answer in answers) == 10
        assert (await store.leader()).leader == ""


async def test_a_call_that_never_began_did_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(f"sqlite:///{tmp_path / 'journal.db'}") as store:
        generation = await led(store)
        go_on = threading.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(store.database.write(lambda connection: go_on.wait(30)))
            await asyncio.sleep(0)
            monkeypatch.setattr(lane, "CALL_S", 0.1)
            with pytest.raises(Unreachable, match="busy"):
                await store.append(generation, 0, (entry(1),))
            monkeypatch.undo()
            go_on.set()
        assert await store.read() == ()


async def test_whoever_is_cancelled_leaves_the_store_in_order(url: str) -> None:
    async with opened(url) as store:
        generation = await led(store)
        for _ in range(5):
            length = len(await store.read())
            task = asyncio.ensure_future(store.append(generation, length, (entry(1), entry(2))))
            await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await led(store)  # after it, on the same thread
        length = len(await store.read())
        assert length % 2 == 0, "all of an append or nothing"
        assert await store.append(generation, length, (entry(9),)) == length + 1


async def test_a_crowd_that_joins_or_reads_does_not_keep_the_leader_from_writing(tmp_path: Path) -> None:
    store, registry = await open_store(f"sqlite:///{tmp_path / 'journal.db'}")
    try:
        generation = await led(store)
        joining = [registry.enrol(Identity(f"n{number}", b"key", "fleet", 0), None) for number in range(300)]
        asking = [store.history(limit=1) for _ in range(300)]
        crowd = [asyncio.ensure_future(one) for one in (*joining, *asking)]
        await asyncio.sleep(0)
        assert await store.append(generation, 0, (entry(1),)) == 1
        assert (await store.leader()).generation == generation
        assert await store.read() == (entry(1),)
        answers = await asyncio.gather(*crowd, return_exceptions=True)
        assert {type(answer) for answer in answers} == {str, tuple, Throttled}
    finally:
        await store.close()


# clocks


async def test_a_clock_that_was_set_back_keeps_nobody_from_leading(tmp_path: Path) -> None:
    """A server's clock is its own; SQLite's is read here as if it could be set."""
    now = 2 * HOUR
    store = SqlStore(await open_database(SqliteFile(tmp_path / "j.db", lambda: ("", now))))
    try:
        first = await store.lead("cp-1", "", 3 * SECOND)
        now -= HOUR
        assert (await store.lead("cp-2", "", 3 * SECOND)).leader == "cp-1", "it may lead yet"
        assert 3 * SECOND <= (await store.leader()).left_ms <= 30 * SECOND, "no less than it was granted"
        now += 30 * SECOND
        assert await store.lead("cp-2", "", 3 * SECOND) == Leadership(
            "cp-2", first.generation + 1, 3 * SECOND, granted=True
        )
    finally:
        await store.close()


async def test_two_that_have_one_name_may_announce_themselves_at_once(url: str) -> None:
    async with opened(url) as one, opened(url) as other:
        for _ in range(10):
            await asyncio.gather(one.announce("cp", "http://a"), other.announce("cp", "http://b"))
        assert len(await one.announce("cp", "http://a")) == 1
