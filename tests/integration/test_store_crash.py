"""What the journal keeps when processes, servers and disks fail under it. Real ones."""

import asyncio
import contextlib
import random
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event

from holdfast.adapters.stores import lane
from holdfast.adapters.stores.open import open_store
from holdfast.adapters.stores.store import SqlStore
from holdfast.core.explain.history import lines
from holdfast.model import event as ev
from holdfast.ports.errors import Full, OutcomeUnknown, Unreachable
from holdfast.ports.store import Snapshot
from tests.journal_writers import append_for_ever, entry, open_and_close, race, stop_in_a_commit, writer
from tests.postgres import Postgres, private

ROUNDS = 22
WAIT_S = 60
MIB = 1024 * 1024


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.fresh()


@pytest.fixture(scope="module")
def victim() -> Iterator[Postgres]:
    with private() as own:
        yield own


@pytest.fixture
def server(victim: Postgres) -> Postgres:
    """One to stop and kill."""
    if not victim.running:
        victim.start()
    return victim


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqlStore]:
    store, _ = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await ready():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.05)


# processes


async def test_no_acknowledged_entry_is_lost_when_the_writer_is_killed(url: str) -> None:
    """Again and again, at moments of chance, the first time while the tables are made."""
    chance = random.Random(7)
    with writer(append_for_ever, url) as process:
        await asyncio.sleep(chance.uniform(0.02, 0.2))
        process.kill()
        acknowledged, length = max([0, *process.said]), 0
    async with opened(url) as store:
        for _ in range(ROUNDS):
            with writer(append_for_ever, url) as process:
                process.hear(chance.randint(1, 25))
                await asyncio.sleep(chance.uniform(0, 0.02))
                process.kill()
                acknowledged = max(acknowledged, *process.said)
            found = await store.read(length)
            told = await store.history(since=length, before=length + len(found) + 1, limit=0)
            assert found == tuple(entry(one) for one in range(length + 1, length + 1 + len(found)))
            assert list(told) == [line for one in found for line in lines(one.at, one)]
            length += len(found)
            assert length >= acknowledged
    assert acknowledged > ROUNDS


async def test_of_two_that_race_only_one_writes_under_each_generation(url: str) -> None:
    async with opened(url):
        pass
    with writer(race, url, "cp-1") as one, writer(race, url, "cp-2") as two:
        both = (one, two)
        for process in both:
            process.hear(20)
        for process in both:
            process.kill()
        said = [process.said for process in both]
    async with opened(url) as store:
        journal = await store.read()
    marks = [(mark.generation, mark.leader) for mark in journal if isinstance(mark, ev.LeaderChanged)]
    assert len(marks) == len(journal)
    assert [mark.at for mark in journal] == list(range(1, len(journal) + 1))
    assert marks == sorted(marks), "an older generation wrote after a newer one"
    assert len({generation for generation, _ in marks}) == len(set(marks)), "two wrote under one generation"
    for name, words in zip(("cp-1", "cp-2"), said, strict=True):
        kept = [(generation, length) for generation, length in words if length]
        assert kept
        assert all(marks[length - 1] == (generation, name) for generation, length in kept)


def test_many_may_open_a_new_database_at_once(url: str) -> None:
    begin_at = time.time() + 0.5
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(writer(open_and_close, url, begin_at)) for _ in range(6)]
        for process in processes:
            process.hear(1)
        assert [process.said for process in processes] == [["fine"]] * 6


# a server that goes away


async def test_a_server_that_was_stopped_is_used_again_when_it_is_back(server: Postgres) -> None:
    async with opened(server.fresh()) as store:
        generation = (await store.lead("cp-1", "", 600_000)).generation
        assert await store.append(generation, 0, (entry(1),)) == 1
        assert len(await store.read()) == 1
        server.stop()
        with pytest.raises(Unreachable, match="PostgreSQL at"):
            await store.append(generation, 1, (entry(2),))
        with pytest.raises(Unreachable):
            await store.read()
        server.start()
        assert await store.read() == (entry(1),)
        assert await store.append(generation, 1, (entry(2),)) == 2


async def test_a_server_that_was_restarted_while_nobody_asked_is_no_news(server: Postgres) -> None:
    async with opened(server.fresh()) as store:
        generation = (await store.lead("cp-1", "", 600_000)).generation
        await store.append(generation, 0, (entry(1),))
        await store.read()
        server.stop()
        server.start()
        assert await store.append(generation, 1, (entry(2),)) == 2
        assert len(await store.read()) == 2


async def test_a_killed_server_has_every_acknowledged_entry(server: Postgres) -> None:
    url = server.fresh()
    for number in range(3):
        with writer(append_for_ever, url) as process:
            process.hear(20)
            server.kill()
            process.process.join(WAIT_S)  # it ends with the error
            process.hear_out()
            server.start()
            async with opened(url) as store:
                found = await store.read()
            assert found == tuple(entry(one) for one in range(1, len(found) + 1))
            assert len(found) >= max(process.said), f"in round {number}"


async def test_nobody_waits_for_ever_for_a_server_that_hangs(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.fresh()) as store:
        generation = (await store.lead("cp-1", "", 600_000)).generation
        await store.read()
        monkeypatch.setattr(lane, "CALL_S", 1.0)
        server.pause()
        try:
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await store.append(generation, 0, (entry(1),))
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await store.read()
        finally:
            server.resume()
        monkeypatch.undo()

        async def answers() -> bool:
            with contextlib.suppress(Unreachable, OutcomeUnknown):
                return len(await store.read()) <= 1
            return False

        await until(answers)
        length = len(await store.read())
        assert await store.append(generation, length, (entry(9),)) == length + 1


async def test_a_writer_that_stands_still_in_its_commit_does_not_keep_others_from_leading(
    postgres: Postgres,
) -> None:
    url = postgres.fresh()
    with writer(stop_in_a_commit, url) as stopped:
        stopped.hear(1)
        async with opened(url) as store:

            async def leads() -> bool:
                with contextlib.suppress(Unreachable):
                    return (await store.lead("cp-2", "", 600_000)).leader == "cp-2"
                return False

            await until(leads)
            held = await store.leader()
            assert await store.append(held.generation, 0, (entry(2),)) == 1
            assert await store.read() == (entry(2),)


# a full disk


class SmallDisk:
    """A disk with little room. Without the right to mount one, the database itself is kept small."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(folder)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self, keep: int) -> None:
        """Leaves so many bytes."""
        disk = subprocess.run(
            ["df", "--output=avail", "-B1", str(self.folder)], capture_output=True, check=True
        )
        free = int(disk.stdout.split()[-1])
        (self.folder / "ballast").write_bytes(bytes(max(0, free - keep)))

    def make_room(self) -> None:
        (self.folder / "ballast").unlink()

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    folder.mkdir()
    disk = SmallDisk(folder, 24 * MIB)
    try:
        yield disk
    finally:
        disk.close()


def long_entry(number: int) -> ev.Event:
    words = random.Random(number).randbytes(20_000).hex()  # that no database can make smaller
    return ev.ReplicaEnded(at=number, replica="job/0.1", node="n", how=ev.Ended.FAILED, why=words)


async def fill_up(store: SqlStore, generation: int, length: int) -> int:
    """Appends until there is no room; the journal's length."""
    for number in range(length + 1, length + 2_000):
        try:
            assert await store.append(generation, number - 1, (long_entry(number),)) == number
        except Full:
            return number - 1
    raise AssertionError("the disk never was full")


async def check_full_and_room(store: SqlStore, make_room: Callable[[], None]) -> None:
    generation = (await store.lead("cp-1", "", 600_000)).generation
    length = await fill_up(store, generation, 0)
    assert length
    for _ in range(3):
        with pytest.raises(Full, match="Make room"):
            await store.append(generation, length, tuple(long_entry(length + n) for n in range(1, 200)))
    assert await store.read() == tuple(long_entry(number) for number in range(1, length + 1))
    with pytest.raises(Full):
        await store.save(generation, Snapshot(length, random.Random(0).randbytes(4 * MIB)))
    make_room()
    assert await store.append(generation, length, (long_entry(length + 1), entry(0))) == length + 2
    assert len(await store.read()) == length + 2
    assert len(await store.history(limit=0)) == length + 2


async def test_a_full_disk_loses_nothing_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with opened(f"sqlite:///{disk.folder / 'journal.db'}") as store:
            if disk.mounted:
                disk.fill(keep=MIB)
                await check_full_and_room(store, disk.make_room)
            else:
                pages = [500]
                event.listen(store.database.writing, "begin", lambda connection: limit(connection, pages[0]))
                await check_full_and_room(store, lambda: pages.__setitem__(0, 100_000))
        async with opened(f"sqlite:///{disk.folder / 'journal.db'}") as store:
            assert len(await store.read()) > 2


def limit(connection: object, pages: int) -> None:
    connection.connection.dbapi_connection.execute(f"PRAGMA max_page_count={pages}")  # type: ignore[attr-defined]


async def test_a_full_disk_of_a_server_loses_nothing() -> None:
    """Only the tables are on the small disk: a server whose log has no room does not run at all."""
    with (
        private() as server,
        small_disk(disk_folder := server.folder / "disk") as disk,
        psycopg.connect(server.url("postgres"), autocommit=True) as admin,
    ):
        if disk.mounted:
            tables = disk_folder / "tables"
            tables.mkdir()
            server.give(tables)
            admin.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")
            admin.execute("ALTER ROLE holdfast SET default_tablespace = 'small'")
        async with opened(server.fresh()) as store:
            if disk.mounted:
                disk.fill(keep=MIB)
                await check_full_and_room(store, disk.make_room)
                server.stop()
            else:
                await check_refusal(store, admin)


async def check_refusal(store: SqlStore, admin: psycopg.Connection) -> None:
    """As if the disk were full: the server gives the same answer."""
    (schema,) = admin.execute("SELECT max(schemaname) FROM pg_tables WHERE tablename = 'journal'").fetchall()[
        0
    ]
    admin.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$"
    )
    admin.execute(f"CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.journal EXECUTE FUNCTION full_disk()")
    generation = (await store.lead("cp-1", "", 600_000)).generation
    with pytest.raises(Full, match="Make room"):
        await store.append(generation, 0, (entry(1),))
    admin.execute(f"DROP TRIGGER full_disk ON {schema}.journal")
    assert await store.append(generation, 0, (entry(1),)) == 1
