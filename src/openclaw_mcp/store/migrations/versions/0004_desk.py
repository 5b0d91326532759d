"""Sub-agents, and what the audit says of a tool call."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

AUDIT = (
    ("session", sa.String(length=512)),
    ("door", sa.String(length=16)),
    ("source", sa.String(length=256)),
    ("digest", sa.String(length=64)),
    ("step", sa.String(length=32)),
    ("rule", sa.Text()),
    ("ms", sa.Float()),
)


def upgrade() -> None:
    for name, kind in AUDIT:
        op.add_column("audit", sa.Column(name, kind, nullable=True))
    op.create_index("ix_audit_of_session", "audit", ["session", "id"])
    op.create_table(
        "subagents",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("child_key", sa.String(length=512), nullable=False),
        sa.Column("run_id", sa.String(length=256), nullable=False),
        sa.Column("requester_key", sa.String(length=512), nullable=False),
        sa.Column("grant", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("label", sa.String(length=512), nullable=True),
        sa.Column("model", sa.String(length=256), nullable=True),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("cleanup", sa.String(length=16), nullable=False),
        sa.Column("timeout_ms", Big, nullable=False),
        sa.Column("created_at", Big, nullable=False),
        sa.Column("started_at", Big, nullable=False),
        sa.Column("ended_at", Big, nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("delivery", sa.String(length=16), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("archived", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_subagents"),
        sa.UniqueConstraint("child_key", name="uq_subagents_child_key"),
    )
    op.create_index("ix_subagents_run_id", "subagents", ["run_id"])
    op.create_index("ix_subagents_requester_key", "subagents", ["requester_key"])


def downgrade() -> None:
    op.drop_table("subagents")
    op.drop_index("ix_audit_of_session", "audit")
    for name, _ in AUDIT:
        op.drop_column("audit", name)
