"""The tables, as they are after the last migration.

`head` has one row, and it is the whole safety argument: who leads, under which generation, and how long the
journal is. An append moves `length` on in one guarded update, which locks the row; so appends queue up behind
one another, and one of an old generation, or of a leader that has not read everything, finds nothing to
update. The length is kept, not counted, because the beginning of the journal may be pruned.

Entries are JSON text, not msgpack: the journal is the audit trail, and a person with `sqlite3` or `psql` can
read it. Decoding costs the same, about 1 us an entry, and the text is a third longer. History lines are
written with the entry they tell of, so that nobody who asks for history makes us read the journal.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)

REVISIONS: Final = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
)  # every migration there is, the oldest first

metadata = MetaData()

head = Table(
    "head",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("leader", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("era", Text, nullable=False),  # the clock that `until_ms` was read from: a boot of the machine
    Column("until_ms", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="head_is_one_row"),
)

journal = Table(
    "journal",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)

history = Table(
    "history",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("line", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("actor", Text, nullable=False, server_default=""),
    Column("project", Text, nullable=False, server_default=""),  # empty: the default one
    sqlite_with_rowid=False,
)
Index("history_of_node", history.c.node, history.c.seq)
Index("history_of_workload", history.c.workload, history.c.seq)
Index("history_of_project", history.c.project, history.c.seq)
Index("history_by_age", history.c.at)

snapshots = Table(
    "snapshots",
    metadata,
    Column("length", BigInteger, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

tails = Table(  # the end of what replicas wrote
    "tails",
    metadata,
    Column("replica", Text, primary_key=True),
    Column("node", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),  # what it counts
    Column("written", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("ended", SmallInteger, nullable=False, server_default="1"),
)
Index("tails_by_age", tails.c.at, tails.c.size)

planes = Table(  # control planes that were here lately
    "planes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("address", Text, nullable=False),
    Column("era", Text, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
)

secrets = Table(
    "secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_by", Text, nullable=False),
    Column("uses", BigInteger, nullable=False, server_default="1"),
    Column("used", BigInteger, nullable=False, server_default="0"),
    Column("project", Text, nullable=False, server_default=""),
    Column("first_used", BigInteger, nullable=False, server_default="0"),
)

audit = Table(  # who came in, who was refused, and who changed what
    "audit",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("plane", Text, nullable=False),
)

identities = Table(
    "identities",
    metadata,
    Column("node", Text, primary_key=True),
    Column("key", LargeBinary, nullable=False),
    Column("pool", Text, nullable=False),
    Column("enrolled_at", BigInteger, nullable=False),
)
