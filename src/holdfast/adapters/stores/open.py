"""From a URL to an open store.

`sqlite:////var/lib/holdfast/journal.db` (four slashes: the path begins with one) or
`postgresql://user:password@host/database`.
"""

from contextlib import AsyncExitStack
from pathlib import Path

from sqlalchemy import URL, Connection, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from holdfast.adapters.stores.database import Backend, Database
from holdfast.adapters.stores.migrate import migrate
from holdfast.adapters.stores.registry import SqlRegistry
from holdfast.adapters.stores.schema import journal
from holdfast.adapters.stores.sqlite import SqliteFile
from holdfast.adapters.stores.store import SqlStore
from holdfast.ports.errors import Denied

OPEN_S = 90.0  # for a migration of a large database, and to wait for another that does it
EXAMPLES = "sqlite:////path/to/journal.db or postgresql://user@host/database"


async def open_store(url: str) -> tuple[SqlStore, SqlRegistry]:
    """Closing the store closes both."""
    database = await open_database(url)
    return SqlStore(database), SqlRegistry(database)


async def read_store(url: str) -> SqlStore:
    """For whoever only reads: its tables are left as they are, also those of another version."""
    backend = backend_of(url)
    if isinstance(backend, SqliteFile) and not backend.path.exists():
        raise Denied(f"{backend.path} is not there")
    database = Database(backend)
    async with AsyncExitStack() as failing:
        failing.push_async_callback(database.close)
        if not await database.read(lambda connection: inspect(connection).has_table(journal.name)):
            raise Denied("there is no journal in it")
        failing.pop_all()
    return SqlStore(database)


async def open_database(where: str | Backend) -> Database:
    """Makes or upgrades the tables if need be; several processes may do it at once."""
    backend = backend_of(where) if isinstance(where, str) else where
    database = Database(backend)

    def prepare(connection: Connection) -> None:
        backend.lock_opening(connection)
        migrate(connection)

    async with AsyncExitStack() as failing:
        failing.push_async_callback(database.close)
        await database.write(prepare, OPEN_S)
        failing.pop_all()
    return database


def backend_of(text: str) -> Backend:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise Denied(f"the store's URL cannot be read; it looks like {EXAMPLES}") from None
    match url.get_backend_name():
        case "sqlite":
            return _sqlite(url)
        case "postgresql" | "postgres":
            from holdfast.adapters.stores.postgres import PostgresServer

            return PostgresServer(url)
        case other:
            raise Denied(f"there is no store over {other}; the URL looks like {EXAMPLES}")


def sqlite_path(text: str) -> Path | None:
    """The file, if it is one."""
    backend = backend_of(text)
    return backend.path if isinstance(backend, SqliteFile) else None


def unverified(text: str) -> str:
    """Servers that are reached over a network, and could be somebody else: nothing proves who they are."""
    return backend_of(text).unverified()


def _sqlite(url: URL) -> Backend:
    if url.database in (None, "", ":memory:"):
        raise Denied("a journal in memory would be lost: name a file, sqlite:////path/to/journal.db")
    return SqliteFile(Path(url.database))
