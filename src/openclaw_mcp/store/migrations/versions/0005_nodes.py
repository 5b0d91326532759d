"""Nodes: what a person approved of each."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.String(128), primary_key=True),
        sa.Column("updated_at", Big, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
    )
