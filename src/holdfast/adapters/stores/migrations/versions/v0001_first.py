"""The first schema: journal, history, snapshots, leadership, and who may speak to us."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _journal()
    _registry()


def _journal() -> None:
    head = op.create_table(
        "head",
        sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("leader", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("era", sa.Text, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.CheckConstraint("id = 1", name="head_is_one_row"),
    )
    nobody = {"leader": "", "address": "", "generation": 0, "era": "", "until_ms": 0}
    op.bulk_insert(head, [{"id": 1, **nobody, "length": 0}])
    op.create_table(
        "journal",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "history",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("workload", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("history_of_node", "history", ["node", "seq"])
    op.create_index("history_of_workload", "history", ["workload", "seq"])
    op.create_table(
        "snapshots",
        sa.Column("length", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "planes",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("era", sa.Text, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False),
    )


def _registry() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("used_by", sa.Text, nullable=False),
    )
    op.create_table(
        "identities",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("enrolled_at", sa.BigInteger, nullable=False),
    )
