"""Brings a database to the schema of this holdfast, or refuses.

Runs in the one write transaction that opens the store, under a lock that every opener takes: of several
control planes that start at once, one makes the tables and the others find them made. A database that a newer
holdfast has changed is refused: we would write what it can no longer read.
"""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from holdfast.adapters.stores.schema import REVISIONS
from holdfast.ports.errors import Denied

STEPS = Path(__file__).parent / "migrations"


class NewerDatabase(Denied):
    """A newer holdfast has changed this database: upgrade this one."""


def migrate(connection: Connection) -> None:
    """The caller holds the lock, and commits."""
    found = revision_of(connection)
    if found == REVISIONS[-1]:
        return
    if found and found not in REVISIONS:
        raise NewerDatabase(
            f"the database has schema {found}, this holdfast knows those up to {REVISIONS[-1]}: "
            "a newer holdfast has been here. Upgrade this one, or give it a database of its own"
        )
    _upgrade(connection)


def revision_of(connection: Connection) -> str:
    """Empty: there is nothing yet."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def _upgrade(connection: Connection) -> None:
    # Only here: it takes a fifth of a second to import, and most starts find the schema as it should be.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(STEPS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
