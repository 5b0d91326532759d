-- A database of revision 0005, as the version before wrote it: rows in every table. (pg_dump, without its settings.)
CREATE TABLE acquaintances (
    channel character varying(64) NOT NULL,
    account character varying(64) NOT NULL,
    sender character varying(512) NOT NULL,
    name character varying(512),
    code character varying(32) NOT NULL,
    at bigint NOT NULL,
    approved boolean NOT NULL
);
CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE answers (
    scope character varying(64) NOT NULL,
    key character varying(256) NOT NULL,
    at bigint NOT NULL,
    answer text NOT NULL
);
CREATE TABLE audit (
    id bigint NOT NULL,
    at bigint NOT NULL,
    actor character varying(256) NOT NULL,
    action character varying(128) NOT NULL,
    target text,
    outcome character varying(64) NOT NULL,
    detail text,
    session character varying(512),
    door character varying(16),
    source character varying(256),
    digest character varying(64),
    step character varying(32),
    rule text,
    ms double precision
);
CREATE SEQUENCE audit_id_seq;
ALTER SEQUENCE audit_id_seq OWNED BY audit.id;
CREATE TABLE blobs (
    session bigint NOT NULL,
    sha256 character varying(64) NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE config_history (
    id bigint NOT NULL,
    at bigint NOT NULL,
    hash character varying(128) NOT NULL,
    actor character varying(256) NOT NULL,
    method character varying(64) NOT NULL,
    note text,
    paths text NOT NULL,
    raw text NOT NULL
);
CREATE SEQUENCE config_history_id_seq;
ALTER SEQUENCE config_history_id_seq OWNED BY config_history.id;
CREATE TABLE cron_jobs (
    id character varying(64) NOT NULL,
    name text NOT NULL,
    enabled boolean NOT NULL,
    kind character varying(16) NOT NULL,
    agent_id character varying(64),
    session_key character varying(512),
    origin character varying(512),
    declaration_key character varying(200),
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    next_at bigint,
    running character varying(256),
    running_at bigint,
    last_status character varying(16),
    words text NOT NULL,
    spec text NOT NULL,
    state text NOT NULL
);
CREATE TABLE cron_runs (
    id bigint NOT NULL,
    run_id character varying(256) NOT NULL,
    job_id character varying(64) NOT NULL,
    agent_id character varying(64),
    status character varying(16) NOT NULL,
    manual boolean NOT NULL,
    begun boolean DEFAULT false NOT NULL,
    owner character varying(64),
    due_at bigint NOT NULL,
    at bigint NOT NULL,
    ended_at bigint,
    note text,
    job text,
    delivery_status character varying(16),
    words text,
    entry text,
    session_key character varying(512),
    reap_at bigint
);
CREATE SEQUENCE cron_runs_id_seq;
ALTER SEQUENCE cron_runs_id_seq OWNED BY cron_runs.id;
CREATE TABLE devices (
    device_id character varying(128) NOT NULL,
    updated_at bigint NOT NULL,
    record text NOT NULL
);
CREATE TABLE inbox (
    id bigint NOT NULL,
    channel character varying(64) NOT NULL,
    account character varying(64) NOT NULL,
    message character varying(512) NOT NULL,
    status character varying(16) NOT NULL,
    at bigint NOT NULL,
    run_id character varying(256),
    session character varying(512),
    heard text
);
CREATE SEQUENCE inbox_id_seq;
ALTER SEQUENCE inbox_id_seq OWNED BY inbox.id;
CREATE TABLE local_files (
    message bigint NOT NULL,
    n integer NOT NULL,
    mime_type character varying(256) NOT NULL,
    name character varying(512),
    url text,
    data bytea
);
CREATE TABLE local_messages (
    id bigint NOT NULL,
    account character varying(64) NOT NULL,
    conversation character varying(512) NOT NULL,
    uid character varying(64) NOT NULL,
    key character varying(512) NOT NULL,
    thread character varying(256),
    at bigint NOT NULL,
    body text NOT NULL
);
CREATE SEQUENCE local_messages_id_seq;
ALTER SEQUENCE local_messages_id_seq OWNED BY local_messages.id;
CREATE TABLE messages (
    id bigint NOT NULL,
    session bigint NOT NULL,
    epoch integer NOT NULL,
    seq integer NOT NULL,
    uid character varying(64) NOT NULL,
    role character varying(16) NOT NULL,
    at bigint NOT NULL,
    run_id character varying(256),
    idempotency_key character varying(300),
    body text NOT NULL,
    text text NOT NULL,
    words tsvector GENERATED ALWAYS AS (to_tsvector('simple'::regconfig, "left"(text, 200000))) STORED
);
CREATE SEQUENCE messages_id_seq;
ALTER SEQUENCE messages_id_seq OWNED BY messages.id;
CREATE TABLE nodes (
    node_id character varying(128) NOT NULL,
    updated_at bigint NOT NULL,
    record text NOT NULL
);
CREATE TABLE outbox (
    id bigint NOT NULL,
    uid character varying(64) NOT NULL,
    key character varying(512) NOT NULL,
    channel character varying(64) NOT NULL,
    account character varying(64) NOT NULL,
    "to" character varying(512) NOT NULL,
    thread character varying(256),
    letters text NOT NULL,
    poll text,
    origin character varying(16) NOT NULL,
    session character varying(512),
    owner character varying(64) NOT NULL,
    status character varying(16) NOT NULL,
    tries integer NOT NULL,
    due_at bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    receipts text NOT NULL,
    error text
);
CREATE SEQUENCE outbox_id_seq;
ALTER SEQUENCE outbox_id_seq OWNED BY outbox.id;
CREATE TABLE runs (
    id bigint NOT NULL,
    run_id character varying(256) NOT NULL,
    session bigint NOT NULL,
    status character varying(16) NOT NULL,
    mode character varying(16) NOT NULL,
    message text NOT NULL,
    options text NOT NULL,
    attachments text NOT NULL,
    timeout_ms bigint,
    owner character varying(64),
    stop_asked boolean DEFAULT false NOT NULL,
    accepted_at bigint NOT NULL,
    started_at bigint,
    ended_at bigint,
    stop_reason character varying(32),
    error text,
    result text,
    merged_into character varying(256)
);
CREATE SEQUENCE runs_id_seq;
ALTER SEQUENCE runs_id_seq OWNED BY runs.id;
CREATE TABLE session_counts (
    agent_id character varying(64) NOT NULL,
    archived boolean NOT NULL,
    n bigint NOT NULL
);
CREATE TABLE sessions (
    id bigint NOT NULL,
    key character varying(512) NOT NULL,
    agent_id character varying(64) NOT NULL,
    session_id character varying(64) NOT NULL,
    epoch integer DEFAULT 1 NOT NULL,
    revision character varying(64) NOT NULL,
    classification character varying(32) NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    last_interaction_at bigint,
    label character varying(512),
    display_name character varying(512),
    title text,
    preview text,
    archived boolean DEFAULT false NOT NULL,
    pinned boolean DEFAULT false NOT NULL,
    unread boolean DEFAULT false NOT NULL,
    status character varying(16),
    last_run_id character varying(256),
    run_started_at bigint,
    run_ended_at bigint,
    parent_key character varying(512),
    spawned_by character varying(512),
    spawn_depth integer,
    message_count integer DEFAULT 0 NOT NULL,
    input_tokens bigint DEFAULT 0 NOT NULL,
    output_tokens bigint DEFAULT 0 NOT NULL,
    model_provider character varying(128),
    model character varying(256),
    entry text DEFAULT '{}'::text NOT NULL
);
CREATE SEQUENCE sessions_id_seq;
ALTER SEQUENCE sessions_id_seq OWNED BY sessions.id;
CREATE TABLE subagents (
    id bigint NOT NULL,
    child_key character varying(512) NOT NULL,
    run_id character varying(256) NOT NULL,
    requester_key character varying(512) NOT NULL,
    "grant" text NOT NULL,
    task text NOT NULL,
    label character varying(512),
    model character varying(256),
    mode character varying(16) NOT NULL,
    cleanup character varying(16) NOT NULL,
    timeout_ms bigint NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint,
    outcome character varying(16),
    error text,
    delivery character varying(16) NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    archived boolean DEFAULT false NOT NULL
);
CREATE SEQUENCE subagents_id_seq;
ALTER SEQUENCE subagents_id_seq OWNED BY subagents.id;
CREATE TABLE system_events (
    id bigint NOT NULL,
    session_key character varying(512) NOT NULL,
    key character varying(256) NOT NULL,
    at bigint NOT NULL,
    text text NOT NULL
);
CREATE SEQUENCE system_events_id_seq;
ALTER SEQUENCE system_events_id_seq OWNED BY system_events.id;
ALTER TABLE audit ALTER COLUMN id SET DEFAULT nextval('audit_id_seq'::regclass);
ALTER TABLE config_history ALTER COLUMN id SET DEFAULT nextval('config_history_id_seq'::regclass);
ALTER TABLE cron_runs ALTER COLUMN id SET DEFAULT nextval('cron_runs_id_seq'::regclass);
ALTER TABLE inbox ALTER COLUMN id SET DEFAULT nextval('inbox_id_seq'::regclass);
ALTER TABLE local_messages ALTER COLUMN id SET DEFAULT nextval('local_messages_id_seq'::regclass);
ALTER TABLE messages ALTER COLUMN id SET DEFAULT nextval('messages_id_seq'::regclass);
ALTER TABLE outbox ALTER COLUMN id SET DEFAULT nextval('outbox_id_seq'::regclass);
ALTER TABLE runs ALTER COLUMN id SET DEFAULT nextval('runs_id_seq'::regclass);
ALTER TABLE sessions ALTER COLUMN id SET DEFAULT nextval('sessions_id_seq'::regclass);
ALTER TABLE subagents ALTER COLUMN id SET DEFAULT nextval('subagents_id_seq'::regclass);
ALTER TABLE system_events ALTER COLUMN id SET DEFAULT nextval('system_events_id_seq'::regclass);
INSERT INTO acquaintances (channel, account, sender, name, code, at, approved) VALUES ('telegram', 'default', '8', 'Bob', 'ABC', 10, false);
INSERT INTO alembic_version (version_num) VALUES ('0005');
INSERT INTO answers (scope, key, at, answer) VALUES ('sessions.create', 'k1', 1794944247179, '{"ok":true}');
INSERT INTO audit (id, at, actor, action, target, outcome, detail, session, door, source, digest, step, rule, ms) VALUES (1, 1794944247191, 'agent main', 'tool', 'read', 'ok', NULL, 'agent:main:telegram:direct:7', 'mcp', 'files', 'd', 'allow', 'tools.allow', 1.5);
INSERT INTO audit (id, at, actor, action, target, outcome, detail, session, door, source, digest, step, rule, ms) VALUES (2, 1794944247195, 'me', 'config.set', 'x', 'ok', '{"n":1}', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO blobs (session, sha256, data) VALUES (1, '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824', '\x68656c6c6f');
INSERT INTO config_history (id, at, hash, actor, method, note, paths, raw) VALUES (1, 1, 'h', 'me', 'config.set', 'first', '["gateway.port"]', '{}');
INSERT INTO cron_jobs (id, name, enabled, kind, agent_id, session_key, origin, declaration_key, created_at, updated_at, next_at, running, running_at, last_status, words, spec, state) VALUES ('j3', 'tick j3', true, 'every', NULL, NULL, 'agent:main:telegram:direct:7', 'd-j3', 1, 1, 99999999999999, NULL, NULL, 'ok', 'tick j3
tick', '{"name":"tick j3","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j3"}', '{"lastRunStatus":"ok"}');
INSERT INTO cron_jobs (id, name, enabled, kind, agent_id, session_key, origin, declaration_key, created_at, updated_at, next_at, running, running_at, last_status, words, spec, state) VALUES ('j2', 'tick j2', true, 'every', NULL, NULL, 'agent:main:telegram:direct:7', 'd-j2', 1, 1, 100000000000004, 'cron:j2:2:5d91c1b2-4a99-40da-b1aa-35775ccc85e2', 5, 'ok', 'tick j2
tick', '{"name":"tick j2","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j2"}', '{"lastRunStatus":"ok"}');
INSERT INTO cron_jobs (id, name, enabled, kind, agent_id, session_key, origin, declaration_key, created_at, updated_at, next_at, running, running_at, last_status, words, spec, state) VALUES ('j1', 'tick j1', true, 'every', NULL, NULL, 'agent:main:telegram:direct:7', 'd-j1', 1, 1, 100000000000004, NULL, NULL, 'ok', 'tick j1
tick', '{"name":"tick j1","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j1"}', '{"lastRunStatus":"ok"}');
INSERT INTO cron_runs (id, run_id, job_id, agent_id, status, manual, begun, owner, due_at, at, ended_at, note, job, delivery_status, words, entry, session_key, reap_at) VALUES (1, 'cron:j1:1:5d91c1b2-4a99-40da-b1aa-35775ccc85e2', 'j1', NULL, 'ok', false, false, '33f78f3f850c48ae', 1, 5, 5, NULL, NULL, 'delivered', 'tick
ticked
', '{"ts":5,"jobId":"j1","jobName":"tick","status":"ok","summary":"Ticked","sessionKey":"agent:main:telegram:direct:7","deliveryStatus":"delivered","nextRunAtMs":100000000000004}', 'agent:main:telegram:direct:7', 100000000000000);
INSERT INTO cron_runs (id, run_id, job_id, agent_id, status, manual, begun, owner, due_at, at, ended_at, note, job, delivery_status, words, entry, session_key, reap_at) VALUES (2, 'cron:j2:2:5d91c1b2-4a99-40da-b1aa-35775ccc85e2', 'j2', NULL, 'running', false, true, '33f78f3f850c48ae', 2, 5, NULL, NULL, '{"id":"j2","spec":{"name":"tick j2","enabled":true,"schedule":{"kind":"every","everyMs":1000},"sessionTarget":"main","wakeMode":"now","payload":{"kind":"systemEvent","text":"tick"},"declarationKey":"d-j2"},"state":{"nextRunAtMs":2,"lastRunStatus":"ok"},"created":1,"updated":1,"origin":"agent:main:telegram:direct:7"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO devices (device_id, updated_at, record) VALUES ('device-1', 1794944247183, '{"name":"phone"}');
INSERT INTO inbox (id, channel, account, message, status, at, run_id, session, heard) VALUES (1, 'telegram', 'default', 'm1', 'asked', 1794944247205, 'run-1', 'agent:main:telegram:direct:7', '{"id":"m1","address":{"channel":"telegram","account":"default","to":"7","thread":"t"},"chat":"direct","sender":{"id":"7","username":"ann","name":"Ann"},"text":"hello there","at":9,"attachments":[{"mime_type":"image/png","name":"p.png","data":"cG5n","url":null}],"files":[{"id":"f"}],"reply_to":"4","mentioned":true,"title":"T","space":"S","vouched":true}');
INSERT INTO inbox (id, channel, account, message, status, at, run_id, session, heard) VALUES (2, 'telegram', 'default', 'm2', 'done', 1794944247208, NULL, NULL, NULL);
INSERT INTO local_files (message, n, mime_type, name, url, data) VALUES (1, 0, 'text/plain', 'f.txt', NULL, '\x66696c65');
INSERT INTO local_messages (id, account, conversation, uid, key, thread, at, body) VALUES (1, 'default', 'c', '43072454-d581-401d-bb24-3a011d842eb6', 'n1', NULL, 1794944247215, '{"id":"43072454-d581-401d-bb24-3a011d842eb6","sender":{"id":"7","username":"ann","name":"Ann"},"text":"local hello","at":1794944247215,"mine":false,"thread":null,"reply_to":null,"attachments":[{"name":"f.txt","mimeType":"text/plain","size":4}],"reactions":[],"pinned":false,"edited":false,"extra":{"b":2}}');
INSERT INTO messages (id, session, epoch, seq, uid, role, at, run_id, idempotency_key, body, text) VALUES (1, 1, 1, 1, '03ef66cb-37fa-4aa5-ba8a-3399e235b83a', 'user', 1794944247155, 'run-1', 'run-1:user', '{"role":"user","content":"What is a quokka?","provenance":{"kind":"external_user"},"attachments":[{"sha256":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824","mimeType":"text/plain","sizeBytes":5,"fileName":"note.txt"}]}', 'What is a quokka?');
INSERT INTO messages (id, session, epoch, seq, uid, role, at, run_id, idempotency_key, body, text) VALUES (2, 1, 1, 2, 'b2d9ceeb-6723-4c91-a9c2-8ec2d233a607', 'assistant', 1794944247164, 'run-1', 'run-1:answer', '{"role":"assistant","content":[{"type":"text","text":"A small kangaroo."}]}', 'A small kangaroo.');
INSERT INTO messages (id, session, epoch, seq, uid, role, at, run_id, idempotency_key, body, text) VALUES (3, 2, 1, 1, '44dc8914-0542-4a57-aad1-6be75840702f', 'user', 1794944247169, 'run-0', 'run-0:user', '{"role":"user","content":"fail","forOperators":true}', 'fail');
INSERT INTO nodes (node_id, updated_at, record) VALUES ('node-1', 1794944247185, '{"name":"laptop"}');
INSERT INTO outbox (id, uid, key, channel, account, "to", thread, letters, poll, origin, session, owner, status, tries, due_at, created_at, updated_at, receipts, error) VALUES (1, 'b16b7c84-24a9-4adc-8762-82412839cf5e', 'k1', 'telegram', 'default', '7', 't', '[{"text":"Hi","attachments":[{"mime_type":"text/plain","name":"a.txt","data":"YWJj","url":null}],"reply_to":"5","effect":null,"silent":true,"extra":{"a":1}}]', NULL, 'reply', 'agent:main:telegram:direct:7', '33f78f3f850c48ae', 'queued', 0, 1794944247200, 1794944247200, 1794944247200, '[]', NULL);
INSERT INTO outbox (id, uid, key, channel, account, "to", thread, letters, poll, origin, session, owner, status, tries, due_at, created_at, updated_at, receipts, error) VALUES (2, 'e8f8331c-96e7-4ac0-8546-ae01de7e5815', 'k2', 'telegram', 'default', '7', 't', '[]', '{"question":"?","options":["a","b"],"many":false}', 'tool', 'agent:main:telegram:direct:7', '33f78f3f850c48ae', 'sent', 1, 1794944247202, 1794944247202, 1794944247203, '[{"message_id":"77","at":5,"extra":{}}]', NULL);
INSERT INTO runs (id, run_id, session, status, mode, message, options, attachments, timeout_ms, owner, stop_asked, accepted_at, started_at, ended_at, stop_reason, error, result, merged_into) VALUES (2, 'run-2', 1, 'queued', 'followup', 'And a wombat?', '{"sender":"cli","grant":{}}', '[]', NULL, NULL, false, 1794944247161, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO runs (id, run_id, session, status, mode, message, options, attachments, timeout_ms, owner, stop_asked, accepted_at, started_at, ended_at, stop_reason, error, result, merged_into) VALUES (1, 'run-1', 1, 'ok', 'steer', 'What is a quokka?', '{"grant":{"channel":"telegram","account":"default","to":"7","sender":{"id":"7","username":"ann","name":"Ann"},"owner":true,"depth":1,"led_by":["@main"],"delivers_to":["telegram","default","7"],"tools":["read"]},"origin":{"channel":"telegram","accountId":"default","to":"7","chatType":"direct","sender":{"id":"7","name":"Ann"}},"sender":"telegram:7","answersThere":true,"thinking":"low","model":"m/one","provider":"m","cwd":"/tmp","extraSystemPrompt":"Be brief.","inputProvenance":{"kind":"external_user"},"lane":"main","toolsAllow":["read"],"cron":{"jobId":"j1"}}', '[{"sha256":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824","mimeType":"text/plain","sizeBytes":5,"fileName":"note.txt"}]', 5000, '33f78f3f850c48ae', false, 1794944247152, 1794944247152, 1794944247163, 'stop', NULL, '{"usage":{"input":3,"output":4,"totalTokens":7,"cacheRead":0,"cacheWrite":0,"cost":{"total":0.5}},"tools":["read"],"provider":"m","model":"one","text":"A small kangaroo.","media":[{"type":"image","mimeType":"image/png","sizeBytes":3,"sha256":"00"}],"effects":{"sent":[{"tool":"message","provider":"telegram","account":null,"to":"7","text":"x","media_url":null,"thread":null,"ts":5}],"unsure":[],"cron_added":[],"skipped":0}}', NULL);
INSERT INTO runs (id, run_id, session, status, mode, message, options, attachments, timeout_ms, owner, stop_asked, accepted_at, started_at, ended_at, stop_reason, error, result, merged_into) VALUES (3, 'run-0', 2, 'error', 'steer', 'fail', '{}', '[]', NULL, '33f78f3f850c48ae', false, 1794944247168, 1794944247168, 1794944247171, 'error', 'no key', '{"usage":{"input":3,"output":4,"totalTokens":7,"cacheRead":0,"cacheWrite":0,"cost":{"total":0.5}},"tools":[],"failure":{"kind":"auth","detail":{"provider":"m"}}}', NULL);
INSERT INTO session_counts (agent_id, archived, n) VALUES ('main', false, 2);
INSERT INTO session_counts (agent_id, archived, n) VALUES ('main', true, 1);
INSERT INTO sessions (id, key, agent_id, session_id, epoch, revision, classification, created_at, updated_at, last_interaction_at, label, display_name, title, preview, archived, pinned, unread, status, last_run_id, run_started_at, run_ended_at, parent_key, spawned_by, spawn_depth, message_count, input_tokens, output_tokens, model_provider, model, entry) VALUES (1, 'agent:main:telegram:direct:7', 'main', '95244aea-c7dc-4d18-b879-b5d18eaffeb4', 1, '3ea534c4-9bef-4b64-8f38-dc60f135a1b3', 'direct', 1794944247148, 1794944247164, 1794944247155, 'Earlier', NULL, 'What is a quokka?', 'A small kangaroo.', false, false, false, 'done', 'run-1', 1794944247152, 1794944247163, NULL, NULL, NULL, 2, 3, 4, 'm', 'one', '{"lastChannel":"telegram","resume":"cli-1"}');
INSERT INTO sessions (id, key, agent_id, session_id, epoch, revision, classification, created_at, updated_at, last_interaction_at, label, display_name, title, preview, archived, pinned, unread, status, last_run_id, run_started_at, run_ended_at, parent_key, spawned_by, spawn_depth, message_count, input_tokens, output_tokens, model_provider, model, entry) VALUES (2, 'agent:main:main', 'main', 'b17b13d5-b916-47b2-8bf6-abc6913774d9', 1, 'd13db47b-41d9-4ba1-8e3c-5a2a53bf23da', 'main', 1794944247167, 1794944247172, 1794944247169, NULL, NULL, 'fail', 'fail', false, false, false, 'failed', 'run-0', 1794944247168, 1794944247171, NULL, NULL, NULL, 1, 0, 0, NULL, NULL, '{}');
INSERT INTO sessions (id, key, agent_id, session_id, epoch, revision, classification, created_at, updated_at, last_interaction_at, label, display_name, title, preview, archived, pinned, unread, status, last_run_id, run_started_at, run_ended_at, parent_key, spawned_by, spawn_depth, message_count, input_tokens, output_tokens, model_provider, model, entry) VALUES (3, 'agent:main:archived', 'main', '88d1ae54-e303-45df-9e62-39557ae98849', 1, 'e2ca611e-cecf-404c-820d-4407f4c25819', 'custom', 1794944247174, 1794944247176, NULL, NULL, NULL, NULL, NULL, true, false, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, '{"thinkingLevel":"high","archivedAt":1794944247176}');
INSERT INTO subagents (id, child_key, run_id, requester_key, "grant", task, label, model, mode, cleanup, timeout_ms, created_at, started_at, ended_at, outcome, error, delivery, tries, archived) VALUES (1, 'agent:main:subagent:1', 'run-9', 'agent:main:telegram:direct:7', '{"channel":"telegram","account":"default","to":"7","sender":{"id":"7","username":"ann","name":"Ann"},"owner":true,"depth":1,"led_by":["@main"],"delivers_to":["telegram","default","7"],"tools":["read"]}', 'count', 'l', NULL, 'run', 'keep', 0, 1, 2, NULL, NULL, NULL, 'pending', 0, false);
INSERT INTO system_events (id, session_key, key, at, text) VALUES (1, 'agent:main:archived', 'e1', 6, 'tick came');
SELECT setval('audit_id_seq', 2, true);
SELECT setval('config_history_id_seq', 1, true);
SELECT setval('cron_runs_id_seq', 2, true);
SELECT setval('inbox_id_seq', 2, true);
SELECT setval('local_messages_id_seq', 1, true);
SELECT setval('messages_id_seq', 3, true);
SELECT setval('outbox_id_seq', 2, true);
SELECT setval('runs_id_seq', 3, true);
SELECT setval('sessions_id_seq', 3, true);
SELECT setval('subagents_id_seq', 1, true);
SELECT setval('system_events_id_seq', 1, true);
ALTER TABLE alembic_version ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE acquaintances ADD CONSTRAINT pk_acquaintances PRIMARY KEY (channel, account, sender);
ALTER TABLE answers ADD CONSTRAINT pk_answers PRIMARY KEY (scope, key);
ALTER TABLE audit ADD CONSTRAINT pk_audit PRIMARY KEY (id);
ALTER TABLE blobs ADD CONSTRAINT pk_blobs PRIMARY KEY (session, sha256);
ALTER TABLE config_history ADD CONSTRAINT pk_config_history PRIMARY KEY (id);
ALTER TABLE cron_jobs ADD CONSTRAINT pk_cron_jobs PRIMARY KEY (id);
ALTER TABLE cron_runs ADD CONSTRAINT pk_cron_runs PRIMARY KEY (id);
ALTER TABLE devices ADD CONSTRAINT pk_devices PRIMARY KEY (device_id);
ALTER TABLE inbox ADD CONSTRAINT pk_inbox PRIMARY KEY (id);
ALTER TABLE local_files ADD CONSTRAINT pk_local_files PRIMARY KEY (message, n);
ALTER TABLE local_messages ADD CONSTRAINT pk_local_messages PRIMARY KEY (id);
ALTER TABLE messages ADD CONSTRAINT pk_messages PRIMARY KEY (id);
ALTER TABLE nodes ADD CONSTRAINT pk_nodes PRIMARY KEY (node_id);
ALTER TABLE outbox ADD CONSTRAINT pk_outbox PRIMARY KEY (id);
ALTER TABLE runs ADD CONSTRAINT pk_runs PRIMARY KEY (id);
ALTER TABLE session_counts ADD CONSTRAINT pk_session_counts PRIMARY KEY (agent_id, archived);
ALTER TABLE sessions ADD CONSTRAINT pk_sessions PRIMARY KEY (id);
ALTER TABLE subagents ADD CONSTRAINT pk_subagents PRIMARY KEY (id);
ALTER TABLE system_events ADD CONSTRAINT pk_system_events PRIMARY KEY (id);
ALTER TABLE cron_jobs ADD CONSTRAINT uq_cron_jobs_declaration_key UNIQUE (declaration_key);
ALTER TABLE cron_runs ADD CONSTRAINT uq_cron_runs_run_id UNIQUE (run_id);
ALTER TABLE inbox ADD CONSTRAINT uq_inbox_channel_account_message UNIQUE (channel, account, message);
ALTER TABLE local_messages ADD CONSTRAINT uq_local_messages_account_conversation_key UNIQUE (account, conversation, key);
ALTER TABLE messages ADD CONSTRAINT uq_messages_session_epoch_seq UNIQUE (session, epoch, seq);
ALTER TABLE messages ADD CONSTRAINT uq_messages_session_idempotency_key UNIQUE (session, idempotency_key);
ALTER TABLE outbox ADD CONSTRAINT uq_outbox_key UNIQUE (key);
ALTER TABLE outbox ADD CONSTRAINT uq_outbox_uid UNIQUE (uid);
ALTER TABLE runs ADD CONSTRAINT uq_runs_run_id UNIQUE (run_id);
ALTER TABLE sessions ADD CONSTRAINT uq_sessions_agent_id_label UNIQUE (agent_id, label);
ALTER TABLE sessions ADD CONSTRAINT uq_sessions_key UNIQUE (key);
ALTER TABLE subagents ADD CONSTRAINT uq_subagents_child_key UNIQUE (child_key);
ALTER TABLE system_events ADD CONSTRAINT uq_system_events_key UNIQUE (key);
CREATE INDEX ix_answers_at ON answers USING btree (at);
CREATE INDEX ix_audit_at ON audit USING btree (at);
CREATE INDEX ix_audit_of_session ON audit USING btree (session, id);
CREATE INDEX ix_cron_jobs_due ON cron_jobs USING btree (next_at) WHERE ((running IS NULL) AND (next_at IS NOT NULL));
CREATE INDEX ix_cron_jobs_origin ON cron_jobs USING btree (origin, created_at);
CREATE INDEX ix_cron_jobs_updated_at ON cron_jobs USING btree (updated_at);
CREATE INDEX ix_cron_runs_ended ON cron_runs USING btree (ended_at);
CREATE INDEX ix_cron_runs_going ON cron_runs USING btree (owner) WHERE ((status)::text = 'running'::text);
CREATE INDEX ix_cron_runs_of_job ON cron_runs USING btree (job_id, id);
CREATE INDEX ix_cron_runs_reap ON cron_runs USING btree (reap_at) WHERE (reap_at IS NOT NULL);
CREATE INDEX ix_inbox_owed ON inbox USING btree (id) WHERE ((status)::text <> 'done'::text);
CREATE INDEX ix_local_messages_conversation ON local_messages USING btree (account, conversation, id);
CREATE INDEX ix_local_messages_uid ON local_messages USING btree (uid);
CREATE INDEX ix_messages_uid ON messages USING btree (uid);
CREATE INDEX ix_messages_words ON messages USING gin (words);
CREATE INDEX ix_outbox_session_created_at ON outbox USING btree (session, created_at);
CREATE INDEX ix_outbox_status_id ON outbox USING btree (status, id);
CREATE INDEX ix_runs_open ON runs USING btree (session, id) WHERE status IN ('queued', 'running');
CREATE INDEX ix_sessions_children ON sessions USING btree (spawned_by, archived, updated_at, id);
CREATE INDEX ix_sessions_interaction ON sessions USING btree (archived, last_interaction_at, id);
CREATE INDEX ix_sessions_of_agent ON sessions USING btree (agent_id, archived, updated_at, id);
CREATE INDEX ix_sessions_recent ON sessions USING btree (archived, updated_at, id);
CREATE INDEX ix_sessions_session_id ON sessions USING btree (session_id);
CREATE INDEX ix_subagents_requester_key ON subagents USING btree (requester_key);
CREATE INDEX ix_subagents_run_id ON subagents USING btree (run_id);
CREATE INDEX ix_system_events_of_session ON system_events USING btree (session_key, id);
CREATE UNIQUE INDEX uq_runs_one_per_session ON runs USING btree (session) WHERE ((status)::text = 'running'::text);
ALTER TABLE blobs ADD CONSTRAINT fk_blobs_session FOREIGN KEY (session) REFERENCES sessions(id) ON DELETE CASCADE;
ALTER TABLE local_files ADD CONSTRAINT fk_local_files_message FOREIGN KEY (message) REFERENCES local_messages(id) ON DELETE CASCADE;
ALTER TABLE messages ADD CONSTRAINT fk_messages_session FOREIGN KEY (session) REFERENCES sessions(id) ON DELETE CASCADE;
ALTER TABLE runs ADD CONSTRAINT fk_runs_session FOREIGN KEY (session) REFERENCES sessions(id) ON DELETE CASCADE;
