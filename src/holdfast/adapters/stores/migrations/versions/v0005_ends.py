"""Tails of replicas that were running when they were last heard of."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("tails", sa.Column("ended", sa.SmallInteger, nullable=False, server_default="1"))
