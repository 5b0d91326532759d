"""The clock: jobs, what came of them, and events that wait for an agent's next prompt."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _jobs()
    _runs()
    op.create_table(
        "system_events",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("session_key", sa.String(length=512), nullable=False),
        sa.Column("key", sa.String(length=256), nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_system_events")),
        sa.UniqueConstraint("key", name=op.f("uq_system_events_key")),
    )
    op.create_index("ix_system_events_of_session", "system_events", ["session_key", "id"], unique=False)


def _jobs() -> None:
    op.create_table(
        "cron_jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("agent_id", sa.String(length=64), nullable=True),
        sa.Column("session_key", sa.String(length=512), nullable=True),
        sa.Column("origin", sa.String(length=512), nullable=True),
        sa.Column("declaration_key", sa.String(length=200), nullable=True),
        sa.Column("created_at", Big, nullable=False),
        sa.Column("updated_at", Big, nullable=False),
        sa.Column("next_at", Big, nullable=True),
        sa.Column("running", sa.String(length=256), nullable=True),
        sa.Column("running_at", Big, nullable=True),
        sa.Column("last_status", sa.String(length=16), nullable=True),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cron_jobs")),
        sa.UniqueConstraint("declaration_key", name=op.f("uq_cron_jobs_declaration_key")),
    )
    op.create_index(op.f("ix_cron_jobs_updated_at"), "cron_jobs", ["updated_at"], unique=False)
    op.create_index("ix_cron_jobs_origin", "cron_jobs", ["origin", "created_at"], unique=False)
    due = sa.text("running IS NULL AND next_at IS NOT NULL")
    op.create_index("ix_cron_jobs_due", "cron_jobs", ["next_at"], unique=False, sqlite_where=due, postgresql_where=due)


def _runs() -> None:
    op.create_table(
        "cron_runs",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=256), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("agent_id", sa.String(length=64), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("manual", sa.Boolean(), nullable=False),
        sa.Column("begun", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("due_at", Big, nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("ended_at", Big, nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("job", sa.Text(), nullable=True),
        sa.Column("delivery_status", sa.String(length=16), nullable=True),
        sa.Column("words", sa.Text(), nullable=True),
        sa.Column("entry", sa.Text(), nullable=True),
        sa.Column("session_key", sa.String(length=512), nullable=True),
        sa.Column("reap_at", Big, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cron_runs")),
        sa.UniqueConstraint("run_id", name=op.f("uq_cron_runs_run_id")),
    )
    op.create_index("ix_cron_runs_of_job", "cron_runs", ["job_id", "id"], unique=False)
    op.create_index("ix_cron_runs_ended", "cron_runs", ["ended_at"], unique=False)
    going, to_reap = sa.text("status = 'running'"), sa.text("reap_at IS NOT NULL")
    op.create_index(
        "ix_cron_runs_going", "cron_runs", ["owner"], unique=False, sqlite_where=going, postgresql_where=going
    )
    op.create_index(
        "ix_cron_runs_reap", "cron_runs", ["reap_at"], unique=False, sqlite_where=to_reap, postgresql_where=to_reap
    )
