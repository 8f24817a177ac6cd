"""PostgreSQL: for control planes on several machines.

Leadership is timed by the server's clock, the only one that all of them share. Every wait ends: connecting
after 2 s, a statement after 5 s by the server; a server that says nothing at all is noticed by keep-alives or
by the lane that waits for it, which shuts the connection. A control plane that is stopped in the middle of a
transaction would keep the leadership's row locked: the server ends it after 5 s, so that others may lead.
"""

import os
import socket
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import QueuePool

from holdfast.adapters.stores.database import first_line, refused
from holdfast.model.units import Instant
from holdfast.ports.errors import Denied, Full, OutcomeUnknown, PortError, Unreachable
from holdfast.wire.address import is_loopback

STATEMENT_MS = 5_000
LOCK_MS = 4_000
PATIENT_MS = 60_000
CONNECT = {  # unless the URL says otherwise
    "connect_timeout": 2,
    "application_name": "holdfast",
    "target_session_attrs": "read-write",  # of several hosts, the one that is no standby
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}
OPENING, REGISTRY = 0x484F4C44, 0x46415354  # keys of advisory locks

NOW = text("SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)")
LOCK = text("SELECT pg_advisory_xact_lock(:key)")

VERIFIED = "verify-full"

PERSON_NEEDED = ("28", "3D", "3F", "42501")  # who we are, which database, what we may do there
NO_EFFECT = ("53", "55P03", "57014", "40", "25006")  # too busy, waited too long, beaten by others, a standby
GONE = ("08", "57P", "58", "XX")  # the connection or the server broke down


class PostgresServer:
    def __init__(self, url: URL) -> None:
        self.url = url.set(drivername="postgresql+psycopg")
        self.name = f"{url.host or 'the local server'}/{url.database or ''}"
        try:
            import psycopg
        except ImportError:
            raise Denied(
                "PostgreSQL needs a driver that is not installed: pip install 'holdfast[postgres]'"
            ) from None
        self._driver_error = psycopg.Error

    def unverified(self) -> str:
        """Hosts beyond this machine whose certificate is not looked at, or not for their name; empty: none.
        What the URL leaves out libpq takes from the environment and its service file, so it is asked."""
        from psycopg import pq

        default = {each.keyword.decode(): (each.val or b"").decode() for each in pq.Conninfo.get_defaults()}
        asked = {name: _joined(value) for name, value in self.url.query.items()}
        if self.url.host:
            asked.setdefault("host", self.url.host)
        wanted = {**default, **asked}
        if wanted.get("sslmode") == VERIFIED:
            return ""
        hosts = (wanted.get("hostaddr") or wanted.get("host") or "").split(",")
        return ", ".join(host for host in hosts if not _stays_here(host))

    def engine(self, *, write: bool) -> Engine:
        settings = {
            "statement_timeout": STATEMENT_MS,
            "lock_timeout": LOCK_MS,
            "idle_in_transaction_session_timeout": STATEMENT_MS,
            "synchronous_commit": "on",
        }
        theirs = str(self.url.query.get("options", ""))
        options = " ".join([theirs, *(f"-c {name}={value}" for name, value in settings.items())]).strip()
        ours = {name: value for name, value in CONNECT.items() if name not in self.url.query}
        return create_engine(
            self.url.difference_update_query(["options"]),
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            hide_parameters=True,  # an error may end in a log, and they may be secret
            isolation_level="READ COMMITTED" if write else "AUTOCOMMIT",
            connect_args={**ours, "options": options},
        )

    def check(self) -> None:
        """A server would tell."""

    def now(self, connection: Connection) -> tuple[str, Instant]:
        return "", int(connection.execute(NOW).scalar_one())

    def lock_opening(self, connection: Connection) -> None:
        self.be_patient(connection)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {PATIENT_MS}")
        connection.execute(LOCK, {"key": OPENING})

    def be_patient(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {PATIENT_MS}")

    def lock_registry(self, connection: Connection) -> None:
        connection.execute(LOCK, {"key": REGISTRY})

    def interrupt(self, raw: Any) -> None:
        """A server that does not answer would not hear a request to cancel: shut our end."""
        try:
            with socket.socket(fileno=os.dup(raw.pgconn.socket)) as ours:
                ours.shutdown(socket.SHUT_RDWR)
        except (self._driver_error, OSError):
            return  # it is closed already

    def failure(self, error: DBAPIError, committing: bool) -> PortError | None:
        state = getattr(error.orig, "sqlstate", None) or ""
        why = f"PostgreSQL at {self.name}: {first_line(error)}"
        if state == "53100":
            return Full(f"{why}. Make room on its disk; nothing was lost")
        if state.startswith(PERSON_NEEDED) or isinstance(error, DataError):
            return refused(f"PostgreSQL at {self.name}", error)
        if state.startswith(NO_EFFECT):
            return Unreachable(why)
        broken = not state and isinstance(error, OperationalError | InterfaceError)
        if error.connection_invalidated or broken or state.startswith(GONE):
            return OutcomeUnknown(why) if committing else Unreachable(why)
        return None


def _joined(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _stays_here(host: str) -> bool:
    """Nothing, or a path, is a Unix socket; so is what begins with @."""
    name = host.rpartition(":")[0] if host.count(":") == 1 else host
    return not name or name.startswith(("/", "@")) or is_loopback(name)
