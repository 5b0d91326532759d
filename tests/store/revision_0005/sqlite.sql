-- A database of revision 0005, as the version before wrote it: rows in every table.
CREATE TABLE alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE sessions (
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
);
CREATE INDEX ix_sessions_children ON sessions (spawned_by, archived, updated_at, id);
CREATE INDEX ix_sessions_interaction ON sessions (archived, last_interaction_at, id);
CREATE INDEX ix_sessions_of_agent ON sessions (agent_id, archived, updated_at, id);
CREATE INDEX ix_sessions_recent ON sessions (archived, updated_at, id);
CREATE INDEX ix_sessions_session_id ON sessions (session_id);
CREATE TABLE session_counts (
  agent_id VARCHAR(64) NOT NULL,
  archived BOOLEAN NOT NULL,
  n INTEGER NOT NULL,
  CONSTRAINT pk_session_counts PRIMARY KEY (agent_id, archived)
);
CREATE TABLE messages (
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
);
CREATE INDEX ix_messages_uid ON messages (uid);
CREATE TABLE blobs (
  session INTEGER NOT NULL,
  sha256 VARCHAR(64) NOT NULL,
  data BLOB NOT NULL,
  CONSTRAINT pk_blobs PRIMARY KEY (session, sha256),
  CONSTRAINT fk_blobs_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE runs (
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
);
CREATE INDEX ix_runs_open ON runs (session, id) WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX uq_runs_one_per_session ON runs (session) WHERE status = 'running';
CREATE TABLE answers (
  scope VARCHAR(64) NOT NULL,
  "key" VARCHAR(256) NOT NULL,
  at INTEGER NOT NULL,
  answer TEXT NOT NULL,
  CONSTRAINT pk_answers PRIMARY KEY (scope, "key")
);
CREATE INDEX ix_answers_at ON answers (at);
CREATE TABLE devices (
  device_id VARCHAR(128) NOT NULL,
  updated_at INTEGER NOT NULL,
  record TEXT NOT NULL,
  CONSTRAINT pk_devices PRIMARY KEY (device_id)
);
CREATE TABLE config_history (
  id INTEGER NOT NULL,
  at INTEGER NOT NULL,
  hash VARCHAR(128) NOT NULL,
  actor VARCHAR(256) NOT NULL,
  method VARCHAR(64) NOT NULL,
  note TEXT,
  paths TEXT NOT NULL,
  raw TEXT NOT NULL,
  CONSTRAINT pk_config_history PRIMARY KEY (id)
);
CREATE TABLE audit (
  id INTEGER NOT NULL,
  at INTEGER NOT NULL,
  actor VARCHAR(256) NOT NULL,
  action VARCHAR(128) NOT NULL,
  target TEXT,
  outcome VARCHAR(64) NOT NULL,
  detail TEXT, session VARCHAR(512), door VARCHAR(16), source VARCHAR(256), digest VARCHAR(64), step VARCHAR(32), rule TEXT, ms FLOAT,
  CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE INDEX ix_audit_at ON audit (at);
CREATE VIRTUAL TABLE message_words USING fts5(
        text, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2');
CREATE TRIGGER message_words_added AFTER INSERT ON messages WHEN new.text <> '' BEGIN
        INSERT INTO message_words(rowid, text) VALUES (new.id, new.text); END;
CREATE TRIGGER message_words_removed AFTER DELETE ON messages WHEN old.text <> '' BEGIN
        INSERT INTO message_words(message_words, rowid, text) VALUES ('delete', old.id, old.text); END;
CREATE TABLE outbox (
  id INTEGER NOT NULL,
  uid VARCHAR(64) NOT NULL,
  "key" VARCHAR(512) NOT NULL,
  channel VARCHAR(64) NOT NULL,
  account VARCHAR(64) NOT NULL,
  "to" VARCHAR(512) NOT NULL,
  thread VARCHAR(256),
  letters TEXT NOT NULL,
  poll TEXT,
  origin VARCHAR(16) NOT NULL,
  session VARCHAR(512),
  owner VARCHAR(64) NOT NULL,
  status VARCHAR(16) NOT NULL,
  tries INTEGER NOT NULL,
  due_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  receipts TEXT NOT NULL,
  error TEXT,
  CONSTRAINT pk_outbox PRIMARY KEY (id),
  CONSTRAINT uq_outbox_uid UNIQUE (uid),
  CONSTRAINT uq_outbox_key UNIQUE ("key")
);
CREATE INDEX ix_outbox_session_created_at ON outbox (session, created_at);
CREATE INDEX ix_outbox_status_id ON outbox (status, id);
CREATE TABLE inbox (
  id INTEGER NOT NULL,
  channel VARCHAR(64) NOT NULL,
  account VARCHAR(64) NOT NULL,
  message VARCHAR(512) NOT NULL,
  status VARCHAR(16) NOT NULL,
  at INTEGER NOT NULL,
  run_id VARCHAR(256),
  session VARCHAR(512),
  heard TEXT,
  CONSTRAINT pk_inbox PRIMARY KEY (id),
  CONSTRAINT uq_inbox_channel_account_message UNIQUE (channel, account, message)
);
CREATE INDEX ix_inbox_owed ON inbox (id) WHERE status <> 'done';
CREATE TABLE acquaintances (
  channel VARCHAR(64) NOT NULL,
  account VARCHAR(64) NOT NULL,
  sender VARCHAR(512) NOT NULL,
  name VARCHAR(512),
  code VARCHAR(32) NOT NULL,
  at INTEGER NOT NULL,
  approved BOOLEAN NOT NULL,
  CONSTRAINT pk_acquaintances PRIMARY KEY (channel, account, sender)
);
CREATE TABLE local_messages (
  id INTEGER NOT NULL,
  account VARCHAR(64) NOT NULL,
  conversation VARCHAR(512) NOT NULL,
  uid VARCHAR(64) NOT NULL,
  "key" VARCHAR(512) NOT NULL,
  thread VARCHAR(256),
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  CONSTRAINT pk_local_messages PRIMARY KEY (id),
  CONSTRAINT uq_local_messages_account_conversation_key UNIQUE (account, conversation, "key")
);
CREATE INDEX ix_local_messages_conversation ON local_messages (account, conversation, id);
CREATE INDEX ix_local_messages_uid ON local_messages (uid);
CREATE TABLE local_files (
  message INTEGER NOT NULL,
  n INTEGER NOT NULL,
  mime_type VARCHAR(256) NOT NULL,
  name VARCHAR(512),
  url TEXT,
  data BLOB,
  CONSTRAINT pk_local_files PRIMARY KEY (message, n),
  CONSTRAINT fk_local_files_message FOREIGN KEY(message) REFERENCES local_messages (id) ON DELETE CASCADE
);
CREATE TABLE cron_jobs (
  id VARCHAR(64) NOT NULL,
  name TEXT NOT NULL,
  enabled BOOLEAN NOT NULL,
  kind VARCHAR(16) NOT NULL,
  agent_id VARCHAR(64),
  session_key VARCHAR(512),
  origin VARCHAR(512),
  declaration_key VARCHAR(200),
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  next_at INTEGER,
  running VARCHAR(256),
  running_at INTEGER,
  last_status VARCHAR(16),
  words TEXT NOT NULL,
  spec TEXT NOT NULL,
  state TEXT NOT NULL,
  CONSTRAINT pk_cron_jobs PRIMARY KEY (id),
  CONSTRAINT uq_cron_jobs_declaration_key UNIQUE (declaration_key)
);
CREATE INDEX ix_cron_jobs_updated_at ON cron_jobs (updated_at);
CREATE INDEX ix_cron_jobs_origin ON cron_jobs (origin, created_at);
CREATE INDEX ix_cron_jobs_due ON cron_jobs (next_at) WHERE running IS NULL AND next_at IS NOT NULL;
CREATE TABLE cron_runs (
  id INTEGER NOT NULL,
  run_id VARCHAR(256) NOT NULL,
  job_id VARCHAR(64) NOT NULL,
  agent_id VARCHAR(64),
  status VARCHAR(16) NOT NULL,
  manual BOOLEAN NOT NULL,
  begun BOOLEAN DEFAULT false NOT NULL,
  owner VARCHAR(64),
  due_at INTEGER NOT NULL,
  at INTEGER NOT NULL,
  ended_at INTEGER,
  note TEXT,
  job TEXT,
  delivery_status VARCHAR(16),
  words TEXT,
  entry TEXT,
  session_key VARCHAR(512),
  reap_at INTEGER,
  CONSTRAINT pk_cron_runs PRIMARY KEY (id),
  CONSTRAINT uq_cron_runs_run_id UNIQUE (run_id)
);
CREATE INDEX ix_cron_runs_of_job ON cron_runs (job_id, id);
CREATE INDEX ix_cron_runs_ended ON cron_runs (ended_at);
CREATE INDEX ix_cron_runs_going ON cron_runs (owner) WHERE status = 'running';
CREATE INDEX ix_cron_runs_reap ON cron_runs (reap_at) WHERE reap_at IS NOT NULL;
CREATE TABLE system_events (
  id INTEGER NOT NULL,
  session_key VARCHAR(512) NOT NULL,
  "key" VARCHAR(256) NOT NULL,
  at INTEGER NOT NULL,
  text TEXT NOT NULL,
  CONSTRAINT pk_system_events PRIMARY KEY (id),
  CONSTRAINT uq_system_events_key UNIQUE ("key")
);
CREATE INDEX ix_system_events_of_session ON system_events (session_key, id);
CREATE INDEX ix_audit_of_session ON audit (session, id);
CREATE TABLE subagents (
  id INTEGER NOT NULL,
  child_key VARCHAR(512) NOT NULL,
  run_id VARCHAR(256) NOT NULL,
  requester_key VARCHAR(512) NOT NULL,
  grant TEXT NOT NULL,
  task TEXT NOT NULL,
  label VARCHAR(512),
  model VARCHAR(256),
  mode VARCHAR(16) NOT NULL,
  cleanup VARCHAR(16) NOT NULL,
  timeout_ms INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at INTEGER,
  outcome VARCHAR(16),
  error TEXT,
  delivery VARCHAR(16) NOT NULL,
  tries INTEGER DEFAULT 0 NOT NULL,
  archived BOOLEAN DEFAULT false NOT NULL,
  CONSTRAINT pk_subagents PRIMARY KEY (id),
  CONSTRAINT uq_subagents_child_key UNIQUE (child_key)
);
CREATE INDEX ix_subagents_run_id ON subagents (run_id);
CREATE INDEX ix_subagents_requester_key ON subagents (requester_key);
CREATE TABLE nodes (
  node_id VARCHAR(128) NOT NULL,
  updated_at INTEGER NOT NULL,
  record TEXT NOT NULL,
  CONSTRAINT pk_nodes PRIMARY KEY (node_id)
);
INSERT INTO alembic_version ("version_num") VALUES ('0005');
INSERT INTO sessions ("id", "key", "agent_id", "session_id", "epoch", "revision", "classification", "created_at", "updated_at", "last_interaction_at", "label", "display_name", "title", "preview", "archived", "pinned", "unread", "status", "last_run_id", "run_started_at", "run_ended_at", "parent_key", "spawned_by", "spawn_depth", "message_count", "input_tokens", "output_tokens", "model_provider", "model", "entry") VALUES (1, 'agent:main:telegram:direct:7', 'main', '27193e0b-fbf3-4972-9686-5290bf8323cf', 1, '6677ada4-d13b-4ab4-93d7-6735ac95df37', 'direct', 1794944244918, 1794944244925, 1794944244921, 'Earlier', NULL, 'What is a quokka?', 'A small kangaroo.', 0, 0, 0, 'done', 'run-1', 1794944244920, 1794944244925, NULL, NULL, NULL, 2, 3, 4, 'm', 'one', '{"lastChannel":"telegram","resume":"cli-1"}');
INSERT INTO sessions ("id", "key", "agent_id", "session_id", "epoch", "revision", "classification", "created_at", "updated_at", "last_interaction_at", "label", "display_name", "title", "preview", "archived", "pinned", "unread", "status", "last_run_id", "run_started_at", "run_ended_at", "parent_key", "spawned_by", "spawn_depth", "message_count", "input_tokens", "output_tokens", "model_provider", "model", "entry") VALUES (2, 'agent:main:main', 'main', '9145af36-9397-4f6d-93f2-d9121a0b50e6', 1, 'a0dfdfe6-f4fe-4689-b42a-a41260faa80f', 'main', 1794944244927, 1794944244929, 1794944244928, NULL, NULL, 'fail', 'fail', 0, 0, 0, 'failed', 'run-0', 1794944244927, 1794944244927, NULL, NULL, NULL, 1, 0, 0, NULL, NULL, '{}');
INSERT INTO sessions ("id", "key", "agent_id", "session_id", "epoch", "revision", "classification", "created_at", "updated_at", "last_interaction_at", "label", "display_name", "title", "preview", "archived", "pinned", "unread", "status", "last_run_id", "run_started_at", "run_ended_at", "parent_key", "spawned_by", "spawn_depth", "message_count", "input_tokens", "output_tokens", "model_provider", "model", "entry") VALUES (3, 'agent:main:archived', 'main', 'b94046a5-2967-47d5-84e8-a7250946324d', 1, 'f939a13e-b65e-4fb9-91bd-74ee8cf96948', 'custom', 1794944244929, 1794944244930, NULL, NULL, NULL, NULL, NULL, 1, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, '{"thinkingLevel":"high","archivedAt":1794944244930}');
INSERT INTO session_counts ("agent_id", "archived", "n") VALUES ('main', 0, 2);
INSERT INTO session_counts ("agent_id", "archived", "n") VALUES ('main', 1, 1);
INSERT INTO messages ("id", "session", "epoch", "seq", "uid", "role", "at", "run_id", "idempotency_key", "body", "text") VALUES (1, 1, 1, 1, 'e7c3ad9f-3d53-4d66-be31-6bb2aac76976', 'user', 1794944244921, 'run-1', 'run-1:user', '{"role":"user","content":"What is a quokka?","provenance":{"kind":"external_user"},"attachments":[{"sha256":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824","mimeType":"text/plain","sizeBytes":5,"fileName":"note.txt"}]}', 'What is a quokka?');
INSERT INTO messages ("id", "session", "epoch", "seq", "uid", "role", "at", "run_id", "idempotency_key", "body", "text") VALUES (2, 1, 1, 2, '38afbe0e-607b-4dba-8b2a-67c5e7a6e056', 'assistant', 1794944244925, 'run-1', 'run-1:answer', '{"role":"assistant","content":[{"type":"text","text":"A small kangaroo."}]}', 'A small kangaroo.');
INSERT INTO messages ("id", "session", "epoch", "seq", "uid", "role", "at", "run_id", "idempotency_key", "body", "text") VALUES (3, 2, 1, 1, 'f8cf5946-fd9f-4f91-8698-6d8c7cf2ef3e', 'user', 1794944244928, 'run-0', 'run-0:user', '{"role":"user","content":"fail","forOperators":true}', 'fail');
INSERT INTO blobs ("session", "sha256", "data") VALUES (1, '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824', X'68656c6c6f');
INSERT INTO runs ("id", "run_id", "session", "status", "mode", "message", "options", "attachments", "timeout_ms", "owner", "stop_asked", "accepted_at", "started_at", "ended_at", "stop_reason", "error", "result", "merged_into") VALUES (1, 'run-1', 1, 'ok', 'steer', 'What is a quokka?', '{"grant":{"channel":"telegram","account":"default","to":"7","sender":{"id":"7","username":"ann","name":"Ann"},"owner":true,"depth":1,"led_by":["@main"],"delivers_to":["telegram","default","7"],"tools":["read"]},"origin":{"channel":"telegram","accountId":"default","to":"7","chatType":"direct","sender":{"id":"7","name":"Ann"}},"sender":"telegram:7","answersThere":true,"thinking":"low","model":"m/one","provider":"m","cwd":"/tmp","extraSystemPrompt":"Be brief.","inputProvenance":{"kind":"external_user"},"lane":"main","toolsAllow":["read"],"cron":{"jobId":"j1"}}', '[{"sha256":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824","mimeType":"text/plain","sizeBytes":5,"fileName":"note.txt"}]', 5000, '72681c3c63b33f6b', 0, 1794944244920, 1794944244920, 1794944244925, 'stop', NULL, '{"usage":{"input":3,"output":4,"totalTokens":7,"cacheRead":0,"cacheWrite":0,"cost":{"total":0.5}},"tools":["read"],"provider":"m","model":"one","text":"A small kangaroo.","media":[{"type":"image","mimeType":"image/png","sizeBytes":3,"sha256":"00"}],"effects":{"sent":[{"tool":"message","provider":"telegram","account":null,"to":"7","text":"x","media_url":null,"thread":null,"ts":5}],"unsure":[],"cron_added":[],"skipped":0}}', NULL);
INSERT INTO runs ("id", "run_id", "session", "status", "mode", "message", "options", "attachments", "timeout_ms", "owner", "stop_asked", "accepted_at", "started_at", "ended_at", "stop_reason", "error", "result", "merged_into") VALUES (2, 'run-2', 1, 'queued', 'followup', 'And a wombat?', '{"sender":"cli","grant":{}}', '[]', NULL, NULL, 0, 1794944244924, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO runs ("id", "run_id", "session", "status", "mode", "message", "options", "attachments", "timeout_ms", "owner", "stop_asked", "accepted_at", "started_at", "ended_at", "stop_reason", "error", "result", "merged_into") VALUES (3, 'run-0', 2, 'error', 'steer', 'fail', '{}', '[]', NULL, '72681c3c63b33f6b', 0, 1794944244927, 1794944244927, 1794944244927, 'error', 'no key', '{"usage":{"input":3,"output":4,"totalTokens":7,"cacheRead":0,"cacheWrite":0,"cost":{"total":0.5}},"tools":[],"failure":{"kind":"auth","detail":{"provider":"m"}}}', NULL);
INSERT INTO answers ("scope", "key", "at", "answer") VALUES ('sessions.create', 'k1', 1794944244931, '{"ok":true}');
INSERT INTO devices ("device_id", "updated_at", "record") VALUES ('device-1', 1794944244932, '{"name":"phone"}');
INSERT INTO config_history ("id", "at", "hash", "actor", "method", "note", "paths", "raw") VALUES (1, 1, 'h', 'me', 'config.set', 'first', '["gateway.port"]', '{}');
INSERT INTO audit ("id", "at", "actor", "action", "target", "outcome", "detail", "session", "door", "source", "digest", "step", "rule", "ms") VALUES (1, 1794944244936, 'agent main', 'tool', 'read', 'ok', NULL, 'agent:main:telegram:direct:7', 'mcp', 'files', 'd', 'allow', 'tools.allow', 1.5);
INSERT INTO audit ("id", "at", "actor", "action", "target", "outcome", "detail", "session", "door", "source", "digest", "step", "rule", "ms") VALUES (2, 1794944244937, 'me', 'config.set', 'x', 'ok', '{"n":1}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox ("id", "uid", "key", "channel", "account", "to", "thread", "letters", "poll", "origin", "session", "owner", "status", "tries", "due_at", "created_at", "updated_at", "receipts", "error") VALUES (1, 'ac22b9e8-6c7b-4421-84af-abedcc9c0f98', 'k1', 'telegram', 'default', '7', 't', '[{"text":"Hi","attachments":[{"mime_type":"text/plain","name":"a.txt","data":"YWJj","url":null}],"reply_to":"5","effect":null,"silent":true,"extra":{"a":1}}]', NULL, 'reply', 'agent:main:telegram:direct:7', '72681c3c63b33f6b', 'queued', 0, 1794944244940, 1794944244940, 1794944244940, '[]', NULL);
INSERT INTO outbox ("id", "uid", "key", "channel", "account", "to", "thread", "letters", "poll", "origin", "session", "owner", "status", "tries", "due_at", "created_at", "updated_at", "receipts", "error") VALUES (2, '8c8ebbb5-12e3-4a5d-ab64-d8958d530527', 'k2', 'telegram', 'default', '7', 't', '[]', '{"question":"?","options":["a","b"],"many":false}', 'tool', 'agent:main:telegram:direct:7', '72681c3c63b33f6b', 'sent', 1, 1794944244941, 1794944244941, 1794944244942, '[{"message_id":"77","at":5,"extra":{}}]', NULL);
INSERT INTO inbox ("id", "channel", "account", "message", "status", "at", "run_id", "session", "heard") VALUES (1, 'telegram', 'default', 'm1', 'asked', 1794944244943, 'run-1', 'agent:main:telegram:direct:7', '{"id":"m1","address":{"channel":"telegram","account":"default","to":"7","thread":"t"},"chat":"direct","sender":{"id":"7","username":"ann","name":"Ann"},"text":"hello there","at":9,"attachments":[{"mime_type":"image/png","name":"p.png","data":"cG5n","url":null}],"files":[{"id":"f"}],"reply_to":"4","mentioned":true,"title":"T","space":"S","vouched":true}');
INSERT INTO inbox ("id", "channel", "account", "message", "status", "at", "run_id", "session", "heard") VALUES (2, 'telegram', 'default', 'm2', 'done', 1794944244944, NULL, NULL, NULL);
INSERT INTO acquaintances ("channel", "account", "sender", "name", "code", "at", "approved") VALUES ('telegram', 'default', '8', 'Bob', 'ABC', 10, 0);
INSERT INTO local_messages ("id", "account", "conversation", "uid", "key", "thread", "at", "body") VALUES (1, 'default', 'c', '857e09bd-197c-459f-be18-e29f414ef080', 'n1', NULL, 1794944244948, '{"id":"857e09bd-197c-459f-be18-e29f414ef080","sender":{"id":"7","username":"ann","name":"Ann"},"text":"local hello","at":1794944244948,"mine":false,"thread":null,"reply_to":null,"attachments":[{"name":"f.txt","mimeType":"text/plain","size":4}],"reactions":[],"pinned":false,"edited":false,"extra":{"b":2}}');
INSERT INTO local_files ("message", "n", "mime_type", "name", "url", "data") VALUES (1, 0, 'text/plain', 'f.txt', NULL, X'66696c65');
INSERT INTO cron_jobs ("id", "name", "enabled", "kind", "agent_id", "session_key", "origin", "declaration_key", "created_at", "updated_at", "next_at", "running", "running_at", "last_status", "words", "spec", "state") VALUES ('j1', 'tick j1', 1, 'every', NULL, NULL, 'agent:main:telegram:direct:7', 'd-j1', 1, 1, 100000000000004, NULL, NULL, 'ok', 'tick j1


tick', '{"name":"tick j1","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j1"}', '{"lastRunStatus":"ok"}');
INSERT INTO cron_jobs ("id", "name", "enabled", "kind", "agent_id", "session_key", "origin", "declaration_key", "created_at", "updated_at", "next_at", "running", "running_at", "last_status", "words", "spec", "state") VALUES ('j2', 'tick j2', 1, 'every', NULL, NULL, 'agent:main:telegram:direct:7', 'd-j2', 1, 1, 100000000000004, 'cron:j2:2:abf52de7-f318-4f5e-8910-721f4ae3b47f', 5, 'ok', 'tick j2


tick', '{"name":"tick j2","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j2"}', '{"lastRunStatus":"ok"}');
INSERT INTO cron_jobs ("id", "name", "enabled", "kind", "agent_id", "session_key", "origin", "declaration_key", "created_at", "updated_at", "next_at", "running", "running_at", "last_status", "words", "spec", "state") VALUES ('j3', 'tick j3', 1, 'every', NULL, NULL, 'agent:main:telegram:direct:7', 'd-j3', 1, 1, 99999999999999, NULL, NULL, 'ok', 'tick j3


tick', '{"name":"tick j3","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j3"}', '{"lastRunStatus":"ok"}');
INSERT INTO cron_runs ("id", "run_id", "job_id", "agent_id", "status", "manual", "begun", "owner", "due_at", "at", "ended_at", "note", "job", "delivery_status", "words", "entry", "session_key", "reap_at") VALUES (1, 'cron:j1:1:abf52de7-f318-4f5e-8910-721f4ae3b47f', 'j1', NULL, 'ok', 0, 0, '72681c3c63b33f6b', 1, 5, 5, NULL, NULL, 'delivered', 'tick
ticked
', '{"ts":5,"jobId":"j1","jobName":"tick","status":"ok","summary":"Ticked","sessionKey":"agent:main:telegram:direct:7","deliveryStatus":"delivered","nextRunAtMs":100000000000004}', 'agent:main:telegram:direct:7', 100000000000000);
INSERT INTO cron_runs ("id", "run_id", "job_id", "agent_id", "status", "manual", "begun", "owner", "due_at", "at", "ended_at", "note", "job", "delivery_status", "words", "entry", "session_key", "reap_at") VALUES (2, 'cron:j2:2:abf52de7-f318-4f5e-8910-721f4ae3b47f', 'j2', NULL, 'running', 0, 1, '72681c3c63b33f6b', 2, 5, NULL, NULL, '{"id":"j2","spec":{"name":"tick j2","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j2"},"state":{"nextRunAtMs":2,"lastRunStatus":"ok"},"created":1,"updated":1,"origin":"agent:main:telegram:direct:7"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO system_events ("id", "session_key", "key", "at", "text") VALUES (1, 'agent:main:archived', 'e1', 6, 'tick came');
INSERT INTO subagents ("id", "child_key", "run_id", "requester_key", "grant", "task", "label", "model", "mode", "cleanup", "timeout_ms", "created_at", "started_at", "ended_at", "outcome", "error", "delivery", "tries", "archived") VALUES (1, 'agent:main:subagent:1', 'run-9', 'agent:main:telegram:direct:7', '{"channel":"telegram","account":"default","to":"7","sender":{"id":"7","username":"ann","name":"Ann"},"owner":true,"depth":1,"led_by":["@main"],"delivers_to":["telegram","default","7"],"tools":["read"]}', 'count', 'l', NULL, 'run', 'keep', 0, 1, 2, NULL, NULL, NULL, 'pending', 0, 0);
INSERT INTO nodes ("node_id", "updated_at", "record") VALUES ('node-1', 1794944244933, '{"name":"laptop"}');
