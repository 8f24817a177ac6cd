"""The project that a token is for."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("project", sa.Text, nullable=False, server_default=""))
