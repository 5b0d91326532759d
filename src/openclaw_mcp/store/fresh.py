"""The tables of a new SQLite database, as the migrations make them. Written by scripts/fresh_store.py."""

from typing import Final

STATEMENTS: Final = (
    """CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)""",
    """CREATE TABLE sessions (
	id INTEGER NOT NULL,
	"key" VARCHAR(512) NOT NULL,
	agent_id VARCHAR(64) NOT NULL,
	session_id VARCHAR(64) NOT NULL,
	epoch INTEGER DEFAULT 1 NOT NULL,
	revision VARCHAR(64) NOT NULL,
	classification VARCHAR(32) NOT NULL,
	created_at INTEGER NOT NULL,
	updated_at INTEGER NOT NULL,
	last_interaction_at INTEGER,
	label VARCHAR(512),
	display_name VARCHAR(512),
	title TEXT,
	preview TEXT,
	archived BOOLEAN DEFAULT false NOT NULL,
	pinned BOOLEAN DEFAULT false NOT NULL,
	unread BOOLEAN DEFAULT false NOT NULL,
	status VARCHAR(16),
	last_run_id VARCHAR(256),
	run_started_at INTEGER,
	run_ended_at INTEGER,
	parent_key VARCHAR(512),
	spawned_by VARCHAR(512),
	spawn_depth INTEGER,
	message_count INTEGER DEFAULT 0 NOT NULL,
	input_tokens INTEGER DEFAULT 0 NOT NULL,
	output_tokens INTEGER DEFAULT 0 NOT NULL,
	model_provider VARCHAR(128),
	model VARCHAR(256),
	entry TEXT DEFAULT '{}' NOT NULL,
	CONSTRAINT pk_sessions PRIMARY KEY (id),
	CONSTRAINT uq_sessions_agent_id_label UNIQUE (agent_id, label),
	CONSTRAINT uq_sessions_key UNIQUE ("key")
)""",
    """CREATE INDEX ix_sessions_children ON sessions (spawned_by, archived, updated_at, id)""",
    """CREATE INDEX ix_sessions_interaction ON sessions (archived, last_interaction_at, id)""",
    """CREATE INDEX ix_sessions_of_agent ON sessions (agent_id, archived, updated_at, id)""",
    """CREATE INDEX ix_sessions_recent ON sessions (archived, updated_at, id)""",
    """CREATE INDEX ix_sessions_session_id ON sessions (session_id)""",
    """CREATE TABLE session_counts (
	agent_id VARCHAR(64) NOT NULL,
	archived BOOLEAN NOT NULL,
	n INTEGER NOT NULL,
	CONSTRAINT pk_session_counts PRIMARY KEY (agent_id, archived)
)""",
    """CREATE TABLE messages (
	id INTEGER NOT NULL,
	session INTEGER NOT NULL,
	epoch INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	uid VARCHAR(64) NOT NULL,
	role VARCHAR(16) NOT NULL,
	at INTEGER NOT NULL,
	run_id VARCHAR(256),
	idempotency_key VARCHAR(300),
	body TEXT NOT NULL,
	text TEXT NOT NULL,
	CONSTRAINT pk_messages PRIMARY KEY (id),
	CONSTRAINT fk_messages_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE,
	CONSTRAINT uq_messages_session_epoch_seq UNIQUE (session, epoch, seq),
	CONSTRAINT uq_messages_session_idempotency_key UNIQUE (session, idempotency_key)
)""",
    """CREATE INDEX ix_messages_uid ON messages (uid)""",
    """CREATE TABLE blobs (
	session INTEGER NOT NULL,
	sha256 VARCHAR(64) NOT NULL,
	data BLOB NOT NULL,
	CONSTRAINT pk_blobs PRIMARY KEY (session, sha256),
	CONSTRAINT fk_blobs_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE
)""",
    """CREATE TABLE runs (
	id INTEGER NOT NULL,
	run_id VARCHAR(256) NOT NULL,
	session INTEGER NOT NULL,
	status VARCHAR(16) NOT NULL,
	mode VARCHAR(16) NOT NULL,
	message TEXT NOT NULL,
	options TEXT NOT NULL,
	attachments TEXT NOT NULL,
	timeout_ms INTEGER,
	owner VARCHAR(64),
	stop_asked BOOLEAN DEFAULT false NOT NULL,
	accepted_at INTEGER NOT NULL,
	started_at INTEGER,
	ended_at INTEGER,
	stop_reason VARCHAR(32),
	error TEXT,
	result TEXT,
	merged_into VARCHAR(256),
	CONSTRAINT pk_runs PRIMARY KEY (id),
	CONSTRAINT fk_runs_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE,
	CONSTRAINT uq_runs_run_id UNIQUE (run_id)
)""",
    """CREATE INDEX ix_runs_open ON runs (session, id) WHERE status IN ('queued', 'running')""",
    """CREATE UNIQUE INDEX uq_runs_one_per_session ON runs (session) WHERE status = 'running'""",
    """CREATE TABLE answers (
	scope VARCHAR(64) NOT NULL,
	"key" VARCHAR(256) NOT NULL,
	at INTEGER NOT NULL,
	answer TEXT NOT NULL,
	CONSTRAINT pk_answers PRIMARY KEY (scope, "key")
)""",
    """CREATE INDEX ix_answers_at ON answers (at)""",
    """CREATE TABLE devices (
	device_id VARCHAR(128) NOT NULL,
	updated_at INTEGER NOT NULL,
	record TEXT NOT NULL,
	CONSTRAINT pk_devices PRIMARY KEY (device_id)
)""",
    """CREATE TABLE config_history (
	id INTEGER NOT NULL,
	at INTEGER NOT NULL,
	hash VARCHAR(128) NOT NULL,
	actor VARCHAR(256) NOT NULL,
	method VARCHAR(64) NOT NULL,
	note TEXT,
	paths TEXT NOT NULL,
	raw TEXT NOT NULL,
	CONSTRAINT pk_config_history PRIMARY KEY (id)
)""",
    """CREATE TABLE audit (
	id INTEGER NOT NULL,
	at INTEGER NOT NULL,
	actor VARCHAR(256) NOT NULL,
	action VARCHAR(128) NOT NULL,
	target TEXT,
	outcome VARCHAR(64) NOT NULL,
	detail TEXT,
	CONSTRAINT pk_audit PRIMARY KEY (id)
)""",
    """CREATE INDEX ix_audit_at ON audit (at)""",
    """CREATE VIRTUAL TABLE message_words USING fts5(
        text, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2')""",
    """CREATE TRIGGER message_words_added AFTER INSERT ON messages WHEN new.text <> '' BEGIN
        INSERT INTO message_words(rowid, text) VALUES (new.id, new.text); END""",
    """CREATE TRIGGER message_words_removed AFTER DELETE ON messages WHEN old.text <> '' BEGIN
        INSERT INTO message_words(message_words, rowid, text) VALUES ('delete', old.id, old.text); END""",
)
