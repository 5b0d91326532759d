"""Conversions between rows and values, and the few statements that several repositories need."""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, Table, bindparam, delete, select, update
from sqlalchemy.dialects import sqlite

from ..core.ids import new_id
from ..core.json_values import drop_none
from ..core.model import Json
from ..core.numbers import read_count
from ..core.sessions import (
    MessageDraft,
    NewSession,
    Run,
    RunOptions,
    RunResult,
    Session,
    StoredAttachment,
    TranscriptMessage,
    now_ms,
)
from .prepared_statements import PreparedStatement
from .tables import messages, runs, session_counts, sessions

encode = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_decode_options = msgspec.json.Decoder(RunOptions).decode
_decode_result = msgspec.json.Decoder(RunResult).decode
_decode_attachments = msgspec.json.Decoder(tuple[StoredAttachment, ...]).decode

_COLUMNS = [column.name for column in sessions.c]
assert ["id", *Session.__struct_fields__] == [*_COLUMNS, "position"], "`session_from_row` makes one of the other"
_BOOLEANS = slice(_COLUMNS.index("archived"), _COLUMNS.index("unread") + 1)
_ENTRY = _COLUMNS.index("entry")
MAX_KEY_LENGTH = 256  # characters; PostgreSQL refuses what its column can't hold
PREVIEW_LENGTH = 200  # characters of a message stored in its session's row, for lists


def to_json(value: Any) -> str:
    return encode(value).decode()


def from_json(text: str) -> Any:
    return _decode_json(text)


def upsert(connection: Connection, table: Table) -> Any:
    """An INSERT with ON CONFLICT, in the dialect of this database."""
    return upsert_for(connection.dialect.name, table)


def upsert_for(dialect: str, table: Table) -> Any:
    if dialect == "postgresql":
        # Here for start-up: an eighth of the store's import, which SQLite does not need.
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return sqlite.insert(table)


def shorten_key(key: str) -> str:
    """A key that fits its column: a long one keeps its beginning and gets a digest for the rest."""
    return key if len(key) <= MAX_KEY_LENGTH else f"{key[:100]}#{hashlib.sha256(key.encode()).hexdigest()}"


def session_from_row(row: Sequence[Any]) -> Session:
    """Of a row that begins with every column of `sessions`, in their order."""
    archived, pinned, unread = row[_BOOLEANS]  # SQLite has none: 0 and 1
    entry = row[_ENTRY]
    values = (
        *row[1 : _BOOLEANS.start], archived == 1, pinned == 1, unread == 1, *row[_BOOLEANS.stop : _ENTRY],
        {} if entry == "{}" else from_json(entry), row[0],
    )  # fmt: skip
    return Session(*values)


def message_from_row(row: Row[Any], key: str) -> TranscriptMessage:
    return TranscriptMessage(
        uid=row.uid, session_key=key, epoch=row.epoch, seq=row.seq, role=row.role, body=from_json(row.body),
        at=row.at, run_id=row.run_id, idempotency_key=row.idempotency_key,
    )  # fmt: skip


SELECT_RUN = select(runs, sessions.c.key, sessions.c.session_id, sessions.c.agent_id).join(
    sessions, sessions.c.id == runs.c.session
)


_SAME_RUN_COLUMNS = (
    "run_id", "session_id", "agent_id", "status", "mode", "message", "accepted_at", "timeout_ms", "owner", "started_at",
    "ended_at", "stop_reason", "error", "merged_into",
)  # fmt: skip
"""Columns of `SELECT_RUN` that a run has as they are."""


def _read_result(text: str) -> RunResult:
    try:
        return _decode_result(text)
    except msgspec.ValidationError:
        # The version before stored token counts as a provider reported them: with fractions, too.
        result = _decode_json(text)
        usage: Json = result.get("usage") or {}
        cost: Json = usage.pop("cost", None) or {}
        counts: Json = {name: read_count(value) for name, value in usage.items()}
        if cost and all(isinstance(value, int | float) for value in cost.values()):
            counts["cost"] = cost
        return msgspec.convert({**result, "usage": counts}, RunResult)


def run_from_row(row: Row[Any]) -> Run:
    return Run(
        **{name: getattr(row, name) for name in _SAME_RUN_COLUMNS},
        session_key=row.key,
        options=_decode_options(row.options),
        attachments=_decode_attachments(row.attachments),
        result=_read_result(row.result or "{}"),
    )


_SELECT_RUN_BY_ID = PreparedStatement(SELECT_RUN.where(runs.c.run_id == bindparam("wanted")))


def find_run(connection: Connection, run_id: str) -> Run | None:
    row = _SELECT_RUN_BY_ID.first(connection, {"wanted": run_id})
    return None if row is None else run_from_row(row)


def select_runs(connection: Connection, statement: Select[Any]) -> list[Run]:
    return [run_from_row(row) for row in connection.execute(statement)]


# ---- sessions --------------------------------------------------------------------------------------------------


# Built once: making a statement costs more than running it.
_SESSION_BY_KEY = select(sessions).where(sessions.c.key == bindparam("wanted"))
_SELECT_SESSION, _SELECT_SESSION_LOCKED = (
    PreparedStatement(_SESSION_BY_KEY),
    PreparedStatement(_SESSION_BY_KEY.with_for_update()),
)
_UPDATE_SESSION = PreparedStatement(
    update(sessions).where(sessions.c.id == bindparam("position")).returning(*sessions.c)
)


def find_session(connection: Connection, key: str, *, lock: bool = False) -> Session | None:
    """`lock`: no other process changes it until this transaction ends. (SQLite has only one writer anyway.)"""
    rows = (_SELECT_SESSION_LOCKED if lock else _SELECT_SESSION).tuples(connection, {"wanted": key})
    return session_from_row(rows[0]) if rows else None


def ensure_session(connection: Connection, new: NewSession) -> tuple[Session, bool]:
    """The session of that key, locked, and whether it is new."""
    found = find_session(connection, new.key, lock=True)
    if found is not None:
        return found, False
    at = now_ms()
    own = {"session_id": new.session_id or new_id(), "revision": new_id(), "created_at": at, "updated_at": at}
    values = {**msgspec.structs.asdict(new), **own, "entry": to_json(new.entry)}
    rows = _insert_session(connection.dialect.name).tuples(connection, values)
    if rows:
        adjust_session_count(connection, new.agent_id, archived=False, delta=1)
        return session_from_row(rows[0]), True
    session = find_session(connection, new.key, lock=True)  # another process created it first
    assert session is not None
    return session, False


@cache
def _insert_session(dialect: str) -> PreparedStatement:
    return PreparedStatement(
        upsert_for(dialect, sessions).on_conflict_do_nothing(index_elements=["key"]).returning(*sessions.c)
    )


def adjust_session_count(connection: Connection, agent_id: str, *, archived: bool, delta: int) -> None:
    _count_upsert(connection.dialect.name).run(connection, {"agent_id": agent_id, "archived": archived, "n": delta})


@cache
def _count_upsert(dialect: str) -> PreparedStatement:
    statement = upsert_for(dialect, session_counts)
    added = {"n": session_counts.c.n + statement.excluded.n}
    return PreparedStatement(statement.on_conflict_do_update(index_elements=["agent_id", "archived"], set_=added))


def update_session(connection: Connection, position: int, **values: Any) -> Session:
    """Set columns; the changed session."""
    return session_from_row(_UPDATE_SESSION.tuples(connection, {**values, "position": position})[0])


def next_update_time(session: Session) -> int:
    """`updated_at` never decreases, whatever the clock does."""
    return max(now_ms(), session.updated_at + 1)


def delete_session(connection: Connection, session: Session) -> None:
    connection.execute(delete(sessions).where(sessions.c.id == session.position))
    adjust_session_count(connection, session.agent_id, archived=session.archived, delta=-1)


# ---- messages --------------------------------------------------------------------------------------------------


def append_to_transcript(
    connection: Connection, session: Session, drafts: Sequence[MessageDraft], **changes: Any
) -> tuple[Session, tuple[TranscriptMessage, ...]]:
    """Add to the transcript; a draft whose idempotency key is there already is left out.

    `changes` are other columns of the session, written together with those that describe the transcript.
    """
    drafts = [draft for draft in drafts if not _is_duplicate(connection, session, draft)]
    if not drafts and not changes:
        return session, ()
    at = next_update_time(session)
    added = tuple(
        TranscriptMessage(
            uid=new_id(), session_key=session.key, epoch=session.epoch, seq=session.message_count + 1 + index,
            role=draft.role, body=draft.body, at=at, run_id=draft.run_id, idempotency_key=draft.idempotency_key,
        )
        for index, draft in enumerate(drafts)
    )  # fmt: skip
    for message, draft in zip(added, drafts, strict=True):
        row = {name: getattr(message, name) for name in _MESSAGE_COLUMNS}
        text = draft.text.replace("\0", "")  # PostgreSQL's text can't hold it
        _INSERT_MESSAGE.run(connection, {**row, "session": session.position, "body": to_json(draft.body), "text": text})
    columns = {**changes, **_transcript_columns(session, drafts, at)}
    return update_session(connection, session.position, **columns), added


_MESSAGE_COLUMNS = ("uid", "epoch", "seq", "role", "at", "run_id", "idempotency_key")
_INSERT_MESSAGE = PreparedStatement(messages.insert())
_SELECT_BY_IDEMPOTENCY = PreparedStatement(
    select(messages.c.id).where(
        messages.c.session == bindparam("within"), messages.c.idempotency_key == bindparam("wanted")
    )
)


def _is_duplicate(connection: Connection, session: Session, draft: MessageDraft) -> bool:
    if draft.idempotency_key is None:
        return False
    place = {"within": session.position, "wanted": draft.idempotency_key}
    return _SELECT_BY_IDEMPOTENCY.first(connection, place) is not None


def _transcript_columns(session: Session, drafts: Sequence[MessageDraft], at: int) -> dict[str, Any]:
    """The columns of the session that describe its transcript."""
    shown = [d.text for d in drafts if d.text and d.role != "toolResult"]
    first = next((d.text for d in drafts if d.role == "user" and d.text), None)
    titled = first is None or session.title is not None or first.startswith("/")  # a command says nothing of the topic
    title = None if titled or first is None else first.replace("\0", "")[:PREVIEW_LENGTH]
    values = {
        "message_count": session.message_count + len(drafts),
        "updated_at": at,
        "preview": shown[-1].replace("\0", "")[:PREVIEW_LENGTH] if shown else None,
        "last_interaction_at": None if first is None else at,
        "title": title,
    }
    return drop_none(values)
