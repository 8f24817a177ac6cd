"""A database with a lane for writing and one for reading, and its failures as errors of our ports.

A write is one transaction. Before its COMMIT was sent, whatever goes wrong had no effect: a stale connection
(the server was restarted while we said nothing) is replaced and the transaction begun again, once; else the
answer is Unreachable. From the COMMIT on, a broken connection means OutcomeUnknown, and nothing is repeated.

What differs between databases is a `Backend`: `sqlite` and `postgres` next door.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, NoResultFound

from holdfast.adapters.stores.lane import Lane
from holdfast.model.units import Instant
from holdfast.ports.errors import Denied, PortError

T = TypeVar("T")

EMPTIED = "its tables were emptied while it was in use: restore a copy, then start again"
WRITERS_MAX = 32  # of a crowd, waiting at a time: the leader's renewal waits behind them
READERS_MAX = 224


class Backend(Protocol):
    """What one kind of database does in its own way."""

    def unverified(self) -> str:
        """Its servers that are reached over a network, and of which nothing proves who they are."""

    def engine(self, *, write: bool) -> Engine:
        """Of one connection. With `write`, a transaction takes the right to write when it begins."""

    def check(self) -> None:
        """Denied: what was opened is not there any more."""

    def now(self, connection: Connection) -> tuple[str, Instant]:
        """The database's clock, and its era: readings of different eras cannot be compared."""

    def lock_opening(self, connection: Connection) -> None:
        """One opener at a time, until the transaction ends."""

    def be_patient(self, connection: Connection) -> None:
        """What this transaction does may take long."""

    def lock_registry(self, connection: Connection) -> None:
        """One writer of the registry at a time, until the transaction ends."""

    def failure(self, error: DBAPIError, committing: bool) -> PortError | None:
        """What the error means to the caller; None: it is a bug of ours."""

    def interrupt(self, raw: Any) -> None:
        """End what the driver's connection is doing. Called from another thread."""


class Database:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.writing, self.reading = backend.engine(write=True), backend.engine(write=False)
        self._writer = self._lane("holdfast-store-write", self.writing, WRITERS_MAX)
        self._reader = self._lane("holdfast-store-read", self.reading, READERS_MAX)

    def _lane(self, name: str, engine: Engine, crowd_max: int) -> Lane:
        latest: list[Any] = []
        event.listen(engine, "connect", lambda raw, _: latest.__setitem__(slice(None), [raw]))

        def interrupt() -> None:
            for raw in latest:
                self.backend.interrupt(raw)

        return Lane(name, interrupt, crowd_max)

    async def write(
        self, job: Callable[[Connection], T], timeout_s: float = 0.0, *, crowd: bool = False
    ) -> T:
        """One transaction; what `job` raises rolls it back. `crowd`: many may ask for it at once."""
        return await self._writer.call(partial(self._transaction, job), timeout_s, crowd=crowd)

    async def make_and_write(
        self, make: Callable[[], Callable[[Connection], T]], timeout_s: float = 0.0
    ) -> T:
        """What `make` returns is the transaction; it is made on the same thread, before that begins."""
        return await self._writer.call(lambda: self._transaction(make()), timeout_s)

    async def read(self, job: Callable[[Connection], T], *, crowd: bool = False) -> T:
        """Every statement sees the newest state by itself."""
        return await self._reader.call(partial(self._look, job), crowd=crowd)

    async def close(self) -> None:
        try:
            await self._reader.close(self.reading.dispose)
        finally:
            await self._writer.close(self.writing.dispose)

    def _transaction(self, job: Callable[[Connection], T], again: bool = True) -> T:
        committing = False
        self.backend.check()
        try:
            with self.writing.begin() as connection:
                result = job(connection)
                committing = True
            return result
        except NoResultFound:
            raise Denied(EMPTIED) from None
        except DBAPIError as error:
            if error.connection_invalidated and again and not committing:
                return self._transaction(job, again=False)
            raise self._meant(error, committing) from error

    def _look(self, job: Callable[[Connection], T], again: bool = True) -> T:
        self.backend.check()
        try:
            with self.reading.connect() as connection:
                return job(connection)
        except NoResultFound:
            raise Denied(EMPTIED) from None
        except DBAPIError as error:
            if error.connection_invalidated and again:
                return self._look(job, again=False)
            raise self._meant(error, committing=False) from error

    def _meant(self, error: DBAPIError, committing: bool) -> BaseException:
        return self.backend.failure(error, committing) or error


def refused(what: str, error: DBAPIError) -> Denied:
    """A person must look at it."""
    return Denied(f"{what}: {first_line(error)}")


def first_line(error: DBAPIError) -> str:
    return (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
