"""SQLite: a file on a local disk, for control planes on one machine.

Write-ahead log with `synchronous=FULL`: an append is on the disk when it returns, and readers never wait for
it. A write takes the lock when it begins (BEGIN IMMEDIATE), so that it cannot fail half-way because another
process wrote first. What nobody can help: a process that is stopped in the middle of a write keeps the lock
until it goes on or is killed, and meanwhile no other leads.

Leadership is timed by CLOCK_BOOTTIME, which goes on while the machine sleeps and which nobody can set. Its
era is the boot id: a leadership from before a reboot is void. The wall clock was refused: set back,
it would keep everybody from leading for as long.

The file is made readable by its owner only: it holds the secret from which nodes' tokens are made.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from holdfast.adapters.clock import HostClock
from holdfast.adapters.stores.database import first_line, refused
from holdfast.model.units import Instant
from holdfast.ports.errors import Denied, Full, OutcomeUnknown, PortError, Unreachable

BUSY_S = 5.0
WAL_TRIES = 50
WAL_PAUSE_S = 0.1
PATH_MAX = 500  # bytes: SQLite takes 512, and its log and journal have longer names
ROOM_MIN = 64 * 1024  # bytes; with less, an input/output error is one of room

Clock = Callable[[], tuple[str, Instant]]


def boot_clock() -> tuple[str, Instant]:
    return HostClock().era(), HostClock().monotonic()


class SqliteFile:
    def __init__(self, path: Path, clock: Clock = boot_clock) -> None:
        if (length := len(os.fsencode(path.absolute()))) > PATH_MAX:
            raise Denied(f"the path of a database has at most {PATH_MAX} bytes, this one has {length:,}")
        self.path, self.clock = path, clock
        self._opened: tuple[int, int] | None = None  # the file that we have open, not what has its name now

    def unverified(self) -> str:
        """A file is no server."""
        return ""

    def engine(self, *, write: bool) -> Engine:
        engine = create_engine(
            URL.create("sqlite", database=str(self.path)),
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            hide_parameters=True,  # an error may end in a log, and they may be secret
            connect_args={"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None},
        )
        event.listen(engine, "do_connect", self._make)
        event.listen(engine, "connect", self._writer_opened if write else self._reader_opened)
        if write:
            event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine

    def _make(self, *_: object) -> None:
        """The log beside it gets the same permissions. Only a file that is not there yet is opened: closing
        one that is would give up every lock that this process holds on it, and another process that closes
        its own connection would then take itself for the last and delete the log under our feet."""
        with contextlib.suppress(OSError):  # it is there; or SQLite itself will say that it cannot open it
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _writer_opened(self, raw: sqlite3.Connection, _: object) -> None:
        mode = self._keep_a_log(raw)
        with contextlib.suppress(OSError):
            self._opened = self._opened or self._file()[:2]
        if mode != "wal":
            raise Denied(
                f"the file system of {self.path} cannot keep SQLite's log (journal mode {mode}): "
                "use a local disk, or PostgreSQL"
            )
        raw.execute("PRAGMA synchronous=FULL")

    def _keep_a_log(self, raw: sqlite3.Connection) -> str:
        """Changing the mode fails at once, without the usual patience, while another process does it."""
        for _ in range(WAL_TRIES):
            try:
                return str(raw.execute("PRAGMA journal_mode=WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                    raise
                time.sleep(WAL_PAUSE_S)
        return str(raw.execute("PRAGMA journal_mode=WAL").fetchone()[0])

    def _reader_opened(self, raw: sqlite3.Connection, _: object) -> None:
        raw.execute("PRAGMA query_only=ON")

    def _file(self) -> tuple[int, int, int]:
        found = os.stat(self.path)
        return found.st_dev, found.st_ino, found.st_size

    def check(self) -> None:
        """A file that was removed goes on as a ghost: what is written there is lost when we end."""
        if self._opened is None:
            return
        try:
            *file, size = self._file()
        except OSError:
            raise Denied(
                f"{self.path} was removed while it was in use: restore a copy, then start again"
            ) from None
        if tuple(file) != self._opened:
            raise Denied(f"{self.path} was replaced while it was in use: start again to use the new one")
        if not size:
            raise Denied(f"{self.path} was emptied while it was in use: restore a copy, then start again")

    def now(self, connection: Connection) -> tuple[str, Instant]:
        return self.clock()

    def lock_opening(self, connection: Connection) -> None:
        """Whoever writes is alone."""

    def lock_registry(self, connection: Connection) -> None:
        """Whoever writes is alone."""

    def be_patient(self, connection: Connection) -> None:
        """Nothing here is timed but waiting for others."""

    def interrupt(self, raw: Any) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            raw.interrupt()

    def failure(self, error: DBAPIError, committing: bool) -> PortError | None:
        code = getattr(error.orig, "sqlite_errorname", "")
        why = f"{self.path}: {first_line(error)}"
        if "no such table" in why:
            return Denied(f"{why}. Its tables were removed: restore a copy, then start again")
        match code.split("_")[1:]:
            case ["FULL", *_]:
                return Full(f"{why}. Make room on its disk; nothing was lost")
            case ["IOERR", *_] if not committing and self._without_room():
                return Full(f"{why}, and its disk is full. Make room; nothing was lost")
            case ["BUSY" | "LOCKED", *_]:
                return Unreachable(f"{why}. Another process has been writing for {BUSY_S:.0f} s")
            case ["CANTOPEN", *_]:
                return Unreachable(f"{why}. Is its folder there, and may we write in it?")
            case ["READONLY" | "PERM" | "AUTH" | "CORRUPT" | "NOTADB" | "MISMATCH" | "TOOBIG", *_]:
                return refused(str(self.path), error)
            case ["IOERR" | "PROTOCOL" | "INTERRUPT" | "NOMEM", *_]:
                return OutcomeUnknown(why) if committing else Unreachable(why)
        return None

    def _without_room(self) -> bool:
        try:
            disk = os.statvfs(self.path.parent)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < ROOM_MIN
