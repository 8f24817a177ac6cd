"""Join tokens for several nodes; and history by its time."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("uses", sa.BigInteger, nullable=False, server_default="1"))
    op.add_column("tokens", sa.Column("used", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE tokens SET used = 1 WHERE used_by <> ''")
    op.create_index("history_by_age", "history", ["at"])
