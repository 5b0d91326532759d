"""The tables, as both SQLite and PostgreSQL have them. Times are Unix milliseconds, JSON is text."""

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import CreateIndex, CreateTable, SchemaItem
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column declared INTEGER, which there holds 64 bits anyway.
Big = BigInteger().with_variant(Integer, "sqlite")
FALSE, ZERO = text("false"), text("0")


def _table(name: str, *items: SchemaItem) -> Table:
    return Table(name, metadata, *items)


def _columns(kind: TypeEngine[Any] | type[TypeEngine[Any]], *names: str, **options: Any) -> Iterator[Column[Any]]:
    """Columns that differ in nothing but their name."""
    return (Column(name, kind, **options) for name in names)


schema_revision = _table(
    # Named after Alembic, which made the first databases: earlier versions look here, and refuse a newer layout.
    "alembic_version",
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)

sessions = _table(
    "sessions",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("key", String(512), nullable=False, unique=True),
    Column("agent_id", String(64), nullable=False),
    Column("session_id", String(64), nullable=False, index=True),
    Column("epoch", Integer, nullable=False, server_default=text("1")),
    Column("revision", String(64), nullable=False),
    Column("classification", String(32), nullable=False),
    *_columns(Big, "created_at", "updated_at", nullable=False),
    Column("last_interaction_at", Big),
    *_columns(String(512), "label", "display_name"),
    *_columns(Text, "title", "preview"),
    *_columns(Boolean, "archived", "pinned", "unread", nullable=False, server_default=FALSE),
    Column("status", String(16)),
    Column("last_run_id", String(256)),
    *_columns(Big, "run_started_at", "run_ended_at"),
    *_columns(String(512), "parent_key", "spawned_by"),
    Column("spawn_depth", Integer),
    Column("message_count", Integer, nullable=False, server_default=ZERO),
    *_columns(Big, "input_tokens", "output_tokens", nullable=False, server_default=ZERO),
    Column("model_provider", String(128)),
    Column("model", String(256)),
    Column("entry", Text, nullable=False, server_default=text("'{}'")),
    UniqueConstraint("agent_id", "label"),
)
# Every list reads along one of these; `id` orders equal times, so that a page has one place to continue from.
Index("ix_sessions_recent", sessions.c.archived, sessions.c.updated_at, sessions.c.id)
Index("ix_sessions_of_agent", sessions.c.agent_id, sessions.c.archived, sessions.c.updated_at, sessions.c.id)
Index("ix_sessions_interaction", sessions.c.archived, sessions.c.last_interaction_at, sessions.c.id)
Index("ix_sessions_children", sessions.c.spawned_by, sessions.c.archived, sessions.c.updated_at, sessions.c.id)

session_counts = _table(
    # Counting a hundred thousand sessions for each page would make the page slower with each session.
    "session_counts",
    Column("agent_id", String(64), primary_key=True),
    Column("archived", Boolean, primary_key=True),
    Column("n", Big, nullable=False),
)

messages = _table(
    "messages",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("session", Big, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    *_columns(Integer, "epoch", "seq", nullable=False),
    Column("uid", String(64), nullable=False, index=True),
    Column("role", String(16), nullable=False),
    Column("at", Big, nullable=False),
    Column("run_id", String(256)),
    Column("idempotency_key", String(300)),
    *_columns(Text, "body", "text", nullable=False),
    UniqueConstraint("session", "epoch", "seq"),
    UniqueConstraint("session", "idempotency_key"),
)
SEARCH_STATEMENTS: Final = {
    "sqlite": (
        """CREATE VIRTUAL TABLE message_words USING fts5(
        text, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2')""",
        """CREATE TRIGGER message_words_added AFTER INSERT ON messages WHEN new.text <> '' BEGIN
        INSERT INTO message_words(rowid, text) VALUES (new.id, new.text); END""",
        """CREATE TRIGGER message_words_removed AFTER DELETE ON messages WHEN old.text <> '' BEGIN
        INSERT INTO message_words(message_words, rowid, text) VALUES ('delete', old.id, old.text); END""",
    ),
    "postgresql": (
        # A tsvector holds at most one megabyte: a long text is found by its beginning.
        """ALTER TABLE messages ADD COLUMN words tsvector
        GENERATED ALWAYS AS (to_tsvector('simple', left(text, 200000))) STORED""",
        "CREATE INDEX ix_messages_words ON messages USING gin (words)",
    ),
}
"""What `search` needs beside the table, in each database's own language."""

runs = _table(
    "runs",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("run_id", String(256), nullable=False, unique=True),
    Column("session", Big, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    *_columns(String(16), "status", "mode", nullable=False),
    *_columns(Text, "message", "options", "attachments", nullable=False),
    Column("timeout_ms", Big),
    Column("owner", String(64)),
    Column("stop_asked", Boolean, nullable=False, server_default=FALSE),
    Column("accepted_at", Big, nullable=False),
    *_columns(Big, "started_at", "ended_at"),
    Column("stop_reason", String(32)),
    *_columns(Text, "error", "result"),
    Column("merged_into", String(256)),
)
# This index is the lock: a session with a running run can't get a second one, from any process.
Index("uq_runs_one_per_session", runs.c.session, unique=True, sqlite_where=text("status = 'running'"))
Index("ix_runs_open", runs.c.session, runs.c.id, sqlite_where=text("status IN ('queued', 'running')"))

blobs = _table(
    "blobs",
    Column("session", Big, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

answers = _table(
    "answers",
    Column("scope", String(64), primary_key=True),
    Column("key", String(256), primary_key=True),
    Column("at", Big, nullable=False, index=True),
    Column("answer", Text, nullable=False),
)

devices, nodes = (
    _table(
        name,
        Column(id, String(128), primary_key=True),
        Column("updated_at", Big, nullable=False),
        Column("record", Text, nullable=False),
    )
    for name, id in (("devices", "device_id"), ("nodes", "node_id"))
)

config_history = _table(
    "config_history",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("at", Big, nullable=False),
    Column("hash", String(128), nullable=False),
    Column("actor", String(256), nullable=False),
    Column("method", String(64), nullable=False),
    Column("note", Text),
    *_columns(Text, "paths", "raw", nullable=False),
)

audit = _table(
    "audit",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("at", Big, nullable=False, index=True),
    Column("actor", String(256), nullable=False),
    Column("action", String(128), nullable=False),
    Column("target", Text),
    Column("outcome", String(64), nullable=False),
    Column("detail", Text),
    Column("session", String(512)),
    Column("door", String(16)),
    Column("source", String(256)),
    Column("digest", String(64)),
    Column("step", String(32)),
    Column("rule", Text),
    Column("ms", Float),
)
# A query for one session's calls must not read those of all.
Index("ix_audit_of_session", audit.c.session, audit.c.id)

subagents = _table(
    "subagents",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("child_key", String(512), nullable=False, unique=True),
    Column("run_id", String(256), nullable=False, index=True),
    Column("requester_key", String(512), nullable=False, index=True),
    *_columns(Text, "grant", "task", nullable=False),
    Column("label", String(512)),
    Column("model", String(256)),
    *_columns(String(16), "mode", "cleanup", nullable=False),
    *_columns(Big, "timeout_ms", "created_at", "started_at", nullable=False),
    Column("ended_at", Big),
    Column("outcome", String(16)),
    Column("error", Text),
    Column("delivery", String(16), nullable=False),
    Column("tries", Integer, nullable=False, server_default=ZERO),
    Column("archived", Boolean, nullable=False, server_default=FALSE),
)

outbox = _table(
    "outbox",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("uid", String(64), nullable=False, unique=True),
    Column("key", String(512), nullable=False, unique=True),
    *_columns(String(64), "channel", "account", nullable=False),
    Column("to", String(512), nullable=False),
    Column("thread", String(256)),
    Column("letters", Text, nullable=False),
    Column("poll", Text),
    Column("origin", String(16), nullable=False),
    Column("session", String(512)),
    Column("owner", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("tries", Integer, nullable=False),
    *_columns(Big, "due_at", "created_at", "updated_at", nullable=False),
    Column("receipts", Text, nullable=False),
    Column("error", Text),
    Index("ix_outbox_session_created_at", "session", "created_at"),
    Index("ix_outbox_status_id", "status", "id"),
)

inbox = _table(
    "inbox",
    Column("id", Big, primary_key=True, autoincrement=True),
    *_columns(String(64), "channel", "account", nullable=False),
    Column("message", String(512), nullable=False),
    Column("status", String(16), nullable=False),
    Column("at", Big, nullable=False),
    Column("run_id", String(256)),
    Column("session", String(512)),
    Column("heard", Text),
    UniqueConstraint("channel", "account", "message"),
)
Index("ix_inbox_owed", inbox.c.id, sqlite_where=text("status <> 'done'"))

acquaintances = _table(
    "acquaintances",
    *_columns(String(64), "channel", "account", primary_key=True),
    Column("sender", String(512), primary_key=True),
    Column("name", String(512)),
    Column("code", String(32), nullable=False),
    Column("at", Big, nullable=False),
    Column("approved", Boolean, nullable=False),
)

local_messages = _table(
    "local_messages",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("account", String(64), nullable=False),
    Column("conversation", String(512), nullable=False),
    Column("uid", String(64), nullable=False),
    Column("key", String(512), nullable=False),
    Column("thread", String(256)),
    Column("at", Big, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("account", "conversation", "key"),
    Index("ix_local_messages_conversation", "account", "conversation", "id"),
    Index("ix_local_messages_uid", "uid"),
)

local_files = _table(
    "local_files",
    Column("message", Big, ForeignKey("local_messages.id", ondelete="CASCADE"), primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("mime_type", String(256), nullable=False),
    Column("name", String(512)),
    Column("url", Text),
    Column("data", LargeBinary),
)

cron_jobs = _table(
    "cron_jobs",
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("agent_id", String(64)),
    *_columns(String(512), "session_key", "origin"),
    Column("declaration_key", String(200), unique=True),
    Column("created_at", Big, nullable=False),
    Column("updated_at", Big, nullable=False, index=True),
    Column("next_at", Big),
    Column("running", String(256)),
    Column("running_at", Big),
    Column("last_status", String(16)),
    *_columns(Text, "words", "spec", "state", nullable=False),
)
# What the scheduler reads: the next job due that is not running. Ten thousand others cost nothing.
Index("ix_cron_jobs_due", cron_jobs.c.next_at, sqlite_where=text("running IS NULL AND next_at IS NOT NULL"))
Index("ix_cron_jobs_origin", cron_jobs.c.origin, cron_jobs.c.created_at)

cron_runs = _table(
    # A job's history outlives the job: no foreign key.
    "cron_runs",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("run_id", String(256), nullable=False, unique=True),
    Column("job_id", String(64), nullable=False),
    Column("agent_id", String(64)),
    Column("status", String(16), nullable=False),
    Column("manual", Boolean, nullable=False),
    Column("begun", Boolean, nullable=False, server_default=FALSE),
    Column("owner", String(64)),
    *_columns(Big, "due_at", "at", nullable=False),
    Column("ended_at", Big),
    *_columns(Text, "note", "job"),
    Column("delivery_status", String(16)),
    *_columns(Text, "words", "entry"),
    Column("session_key", String(512)),
    Column("reap_at", Big),
)
Index("ix_cron_runs_of_job", cron_runs.c.job_id, cron_runs.c.id)
Index("ix_cron_runs_going", cron_runs.c.owner, sqlite_where=text("status = 'running'"))
Index("ix_cron_runs_ended", cron_runs.c.ended_at)
Index("ix_cron_runs_reap", cron_runs.c.reap_at, sqlite_where=text("reap_at IS NOT NULL"))

system_events = _table(
    "system_events",
    Column("id", Big, primary_key=True, autoincrement=True),
    Column("session_key", String(512), nullable=False),
    Column("key", String(256), nullable=False, unique=True),
    Column("at", Big, nullable=False),
    Column("text", Text, nullable=False),
)
Index("ix_system_events_of_session", system_events.c.session_key, system_events.c.id)


def create_statements(dialect: Dialect) -> Iterator[str]:
    """What makes all tables of a new database, with their indexes and the search objects."""
    for table in metadata.sorted_tables:
        yield str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            # To name the condition at the index (`postgresql_where`) would load that dialect at every start.
            if dialect.name == "postgresql" and (condition := index.dialect_options["sqlite"]["where"]) is not None:
                index.dialect_kwargs["postgresql_where"] = condition
            yield str(CreateIndex(index).compile(dialect=dialect))
    yield from SEARCH_STATEMENTS[dialect.name]
