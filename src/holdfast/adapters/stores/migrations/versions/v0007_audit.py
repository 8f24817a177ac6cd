"""The audit log, when a token was first used, and the project that a line of history belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("plane", sa.Text, nullable=False),
    )
    op.add_column("tokens", sa.Column("first_used", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("history", sa.Column("project", sa.Text, nullable=False, server_default=""))
    op.create_index("history_of_project", "history", ["project", "seq"])
