"""Who did what somebody did, in the history."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("history", sa.Column("actor", sa.Text, nullable=False, server_default=""))
