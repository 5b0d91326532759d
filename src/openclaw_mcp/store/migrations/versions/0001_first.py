"""The first tables: sessions, transcripts with their full-text index, runs, and the smaller books."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

SQLITE_SEARCH = (
    """CREATE VIRTUAL TABLE message_words USING fts5(
        text, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2')""",
    """CREATE TRIGGER message_words_added AFTER INSERT ON messages WHEN new.text <> '' BEGIN
        INSERT INTO message_words(rowid, text) VALUES (new.id, new.text); END""",
    """CREATE TRIGGER message_words_removed AFTER DELETE ON messages WHEN old.text <> '' BEGIN
        INSERT INTO message_words(message_words, rowid, text) VALUES ('delete', old.id, old.text); END""",
)
# A tsvector holds at most one megabyte: a long text is found by its beginning.
POSTGRESQL_SEARCH = (
    """ALTER TABLE messages ADD COLUMN words tsvector
        GENERATED ALWAYS AS (to_tsvector('simple', left(text, 200000))) STORED""",
    "CREATE INDEX ix_messages_words ON messages USING gin (words)",
)


def upgrade() -> None:
    _sessions()
    _messages()
    _runs()
    _books()
    dialect = op.get_context().dialect.name
    for statement in POSTGRESQL_SEARCH if dialect == "postgresql" else SQLITE_SEARCH:
        op.execute(statement)


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("agent_id", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("revision", sa.String(length=64), nullable=False),
        sa.Column("classification", sa.String(length=32), nullable=False),
        sa.Column("created_at", Big, nullable=False),
        sa.Column("updated_at", Big, nullable=False),
        sa.Column("last_interaction_at", Big, nullable=True),
        sa.Column("label", sa.String(length=512), nullable=True),
        sa.Column("display_name", sa.String(length=512), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("preview", sa.Text(), nullable=True),
        sa.Column("archived", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("unread", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=True),
        sa.Column("last_run_id", sa.String(length=256), nullable=True),
        sa.Column("run_started_at", Big, nullable=True),
        sa.Column("run_ended_at", Big, nullable=True),
        sa.Column("parent_key", sa.String(length=512), nullable=True),
        sa.Column("spawned_by", sa.String(length=512), nullable=True),
        sa.Column("spawn_depth", sa.Integer(), nullable=True),
        sa.Column("message_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("input_tokens", Big, server_default=sa.text("0"), nullable=False),
        sa.Column("output_tokens", Big, server_default=sa.text("0"), nullable=False),
        sa.Column("model_provider", sa.String(length=128), nullable=True),
        sa.Column("model", sa.String(length=256), nullable=True),
        sa.Column("entry", sa.Text(), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("agent_id", "label", name=op.f("uq_sessions_agent_id_label")),
        sa.UniqueConstraint("key", name=op.f("uq_sessions_key")),
    )
    op.create_index("ix_sessions_children", "sessions", ["spawned_by", "archived", "updated_at", "id"], unique=False)
    op.create_index("ix_sessions_interaction", "sessions", ["archived", "last_interaction_at", "id"], unique=False)
    op.create_index("ix_sessions_of_agent", "sessions", ["agent_id", "archived", "updated_at", "id"], unique=False)
    op.create_index("ix_sessions_recent", "sessions", ["archived", "updated_at", "id"], unique=False)
    op.create_index(op.f("ix_sessions_session_id"), "sessions", ["session_id"], unique=False)
    op.create_table(
        "session_counts",
        sa.Column("agent_id", sa.String(length=64), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("n", Big, nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "archived", name=op.f("pk_session_counts")),
    )


def _messages() -> None:
    op.create_table(
        "messages",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("session", Big, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("run_id", sa.String(length=256), nullable=True),
        sa.Column("idempotency_key", sa.String(length=300), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=op.f("fk_messages_session"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
        sa.UniqueConstraint("session", "epoch", "seq", name=op.f("uq_messages_session_epoch_seq")),
        sa.UniqueConstraint("session", "idempotency_key", name=op.f("uq_messages_session_idempotency_key")),
    )
    op.create_index(op.f("ix_messages_uid"), "messages", ["uid"], unique=False)
    op.create_table(
        "blobs",
        sa.Column("session", Big, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=op.f("fk_blobs_session"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session", "sha256", name=op.f("pk_blobs")),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=256), nullable=False),
        sa.Column("session", Big, nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("attachments", sa.Text(), nullable=False),
        sa.Column("timeout_ms", Big, nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("stop_asked", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("accepted_at", Big, nullable=False),
        sa.Column("started_at", Big, nullable=True),
        sa.Column("ended_at", Big, nullable=True),
        sa.Column("stop_reason", sa.String(length=32), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("merged_into", sa.String(length=256), nullable=True),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=op.f("fk_runs_session"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("run_id", name=op.f("uq_runs_run_id")),
    )
    op.create_index(
        "ix_runs_open",
        "runs",
        ["session", "id"],
        unique=False,
        sqlite_where=sa.text("status IN ('queued', 'running')"),
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_index(
        "uq_runs_one_per_session",
        "runs",
        ["session"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )


def _books() -> None:
    op.create_table(
        "answers",
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=256), nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_answers")),
    )
    op.create_index(op.f("ix_answers_at"), "answers", ["at"], unique=False)
    op.create_table(
        "devices",
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("updated_at", Big, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_devices")),
    )
    op.create_table(
        "config_history",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("hash", sa.String(length=128), nullable=False),
        sa.Column("actor", sa.String(length=256), nullable=False),
        sa.Column("method", sa.String(length=64), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("paths", sa.Text(), nullable=False),
        sa.Column("raw", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_config_history")),
    )
    op.create_table(
        "audit",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("actor", sa.String(length=256), nullable=False),
        sa.Column("action", sa.String(length=128), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("outcome", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
