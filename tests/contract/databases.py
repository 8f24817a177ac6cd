"""Databases that can be made to fail, for the suites that hold stores and registries to their contracts.

PostgreSQL fails for real: a gate in front of it shuts, or drops a COMMIT or its answer. SQLite has no
connection to lose; there the disk fails, at the same moments, with the error that SQLite gives for it.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from holdfast.adapters.stores.database import Database
from holdfast.adapters.stores.open import open_database
from holdfast.adapters.stores.schema import head, metadata
from holdfast.adapters.stores.sqlite import SqliteFile, boot_clock
from holdfast.model.units import Instant, Millis
from tests.contract.conftest import Run
from tests.postgres import Gate, Postgres


@dataclass
class Failing:
    """A fresh database and the ways to make it fail."""

    database: Database
    wait: Callable[[Millis], None]  # its clock goes on
    go_down: Callable[[], None]
    come_back: Callable[[], None]
    lose_next_write: Callable[[], None]  # the next commit has no effect and is answered with an error
    lose_next_answer: Callable[[], None]  # the next commit takes effect and is answered with an error


class Disk:
    """Fails when told to."""

    def __init__(self) -> None:
        self.down = False
        self.lose = ""
        self.offset = 0

    def clock(self) -> tuple[str, Instant]:
        era, now = boot_clock()
        return era, now + self.offset

    def before_statement(self, *_: object) -> None:
        if self.down:
            raise self._broken("SELECT")

    def before_commit(self, connection: Connection) -> None:
        lose, self.lose = self.lose, ""
        raw: Any = connection.connection.dbapi_connection
        if lose == "write":
            raw.rollback()
        elif lose == "answer":
            raw.commit()
        if lose:
            raise self._broken("COMMIT")

    @staticmethod
    def _broken(statement: str) -> OperationalError:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        return OperationalError(statement, None, error)


_made: list[bytes] = []  # an empty database: making its tables anew for each test would take most of the time
_places: dict[int, str] = {}  # the same on a server, by its port


@contextmanager
def sqlite_database(run: Run, folder: Path) -> Iterator[Failing]:
    disk = Disk()
    file = folder / "journal.db"
    if _made:
        file.write_bytes(_made[0])
    database = run(open_database(SqliteFile(file, disk.clock)))
    if not _made:
        run(database.close())
        _made.append(file.read_bytes())
        database = run(open_database(SqliteFile(file, disk.clock)))
    for engine in (database.writing, database.reading):
        event.listen(engine, "before_cursor_execute", disk.before_statement)
    event.listen(database.writing, "commit", disk.before_commit)
    yield Failing(
        database,
        wait=lambda ms: setattr(disk, "offset", disk.offset + ms),
        go_down=lambda: setattr(disk, "down", True),
        come_back=lambda: setattr(disk, "down", False),
        lose_next_write=lambda: setattr(disk, "lose", "write"),
        lose_next_answer=lambda: setattr(disk, "lose", "answer"),
    )
    run(database.close())


@contextmanager
def postgres_database(run: Run, server: Postgres) -> Iterator[Failing]:
    if server.port in _places:
        empty(_places[server.port])
    else:
        _places[server.port] = server.fresh()
    url = _places[server.port]
    gate = Gate(url)

    def wait(ms: Millis) -> None:
        """Nobody can set the server's clock; what was granted can be moved towards it."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE head SET until_ms = until_ms - %s", [ms])
            connection.execute("UPDATE planes SET seen_ms = seen_ms - %s", [ms])

    try:
        database = run(open_database(gate.url))
        yield Failing(database, wait, gate.close, gate.open, gate.lose_next_write, gate.lose_next_answer)
        run(database.close())
    finally:
        gate.close()


def empty(url: str) -> None:
    """As after the migrations."""
    tables = [table.name for table in metadata.sorted_tables if table is not head]
    with psycopg.connect(url) as connection:
        for name in tables:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
        connection.execute(
            "UPDATE head SET leader = '', address = '', generation = 0, era = '', until_ms = 0, length = 0"
        )
