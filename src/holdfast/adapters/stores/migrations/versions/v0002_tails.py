"""The end of what replicas wrote, for when their node is gone."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "tails",
        sa.Column("replica", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("written", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index("tails_by_age", "tails", ["at", "size"])
