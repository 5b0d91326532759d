"""Rows and values: how each is made of the other, and the few statements every book needs."""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, Table, bindparam, delete, select, update
from sqlalchemy.dialects import sqlite

from ..core.ids import new_id
from ..core.sessions import Draft, Message, NewSession, Run, Session, Stored, now_ms
from .prepared_statements import Prepared
from .tables import messages, runs, session_counts, sessions

encode = msgspec.json.Encoder().encode
_json = msgspec.json.Decoder().decode
_stored = msgspec.json.Decoder(tuple[Stored, ...]).decode

_NAMES = ["position" if column.name == "id" else column.name for column in sessions.c]
LONGEST_KEY = 256  # characters; PostgreSQL refuses what its column can't hold
PREVIEW = 200  # characters of a message kept beside its session, for lists


def to_json(value: Any) -> str:
    return encode(value).decode()


def from_json(text: str) -> Any:
    return _json(text)


def upsert(connection: Connection, table: Table) -> Any:
    """An INSERT that knows ON CONFLICT, in the words of this database."""
    return upsert_for(connection.dialect.name, table)


def upsert_for(dialect: str, table: Table) -> Any:
    if dialect == "postgresql":
        # Here for start-up: an eighth of the store's import, for those who use SQLite.
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return sqlite.insert(table)


def short(key: str) -> str:
    """A key that fits its column: a long one keeps its beginning, and a digest stands for the rest."""
    return key if len(key) <= LONGEST_KEY else f"{key[:100]}#{hashlib.sha256(key.encode()).hexdigest()}"


def session_of(row: Row[Any]) -> Session:
    """Of a row that holds every column of `sessions`, in their order."""
    fields: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    return Session(**fields | {"entry": from_json(fields["entry"])})


def message_of(row: Row[Any], key: str) -> Message:
    return Message(
        uid=row.uid,
        session_key=key,
        epoch=row.epoch,
        seq=row.seq,
        role=row.role,
        body=from_json(row.body),
        at=row.at,
        run_id=row.run_id,
        idempotency_key=row.idempotency_key,
    )


RUN = select(runs, sessions.c.key, sessions.c.session_id, sessions.c.agent_id).join(
    sessions, sessions.c.id == runs.c.session
)


def run_of(row: Row[Any]) -> Run:
    return Run(
        run_id=row.run_id,
        session_key=row.key,
        session_id=row.session_id,
        agent_id=row.agent_id,
        status=row.status,
        mode=row.mode,
        message=row.message,
        accepted_at=row.accepted_at,
        options=from_json(row.options),
        attachments=_stored(row.attachments),
        timeout_ms=row.timeout_ms,
        owner=row.owner,
        started_at=row.started_at,
        ended_at=row.ended_at,
        stop_reason=row.stop_reason,
        error=row.error,
        result=None if row.result is None else from_json(row.result),
        merged_into=row.merged_into,
    )


_RUN_BY_ID = Prepared(RUN.where(runs.c.run_id == bindparam("wanted")))


def find_run(connection: Connection, run_id: str) -> Run | None:
    row = _RUN_BY_ID.first(connection, {"wanted": run_id})
    return None if row is None else run_of(row)


def runs_where(connection: Connection, statement: Select[Any]) -> list[Run]:
    return [run_of(row) for row in connection.execute(statement)]


# ---- sessions --------------------------------------------------------------------------------------------------


# Built once: making a statement costs more than running it.
_BY_KEY = select(sessions).where(sessions.c.key == bindparam("wanted"))
_FIND, _FIND_LOCKED = Prepared(_BY_KEY), Prepared(_BY_KEY.with_for_update())
_SET = Prepared(update(sessions).where(sessions.c.id == bindparam("position")).returning(*sessions.c))


def find_session(connection: Connection, key: str, *, lock: bool = False) -> Session | None:
    """`lock`: nobody else changes it until this transaction ends. (SQLite's writer is alone anyway.)"""
    row = (_FIND_LOCKED if lock else _FIND).first(connection, {"wanted": key})
    return None if row is None else session_of(row)


def ensure_session(connection: Connection, new: NewSession) -> tuple[Session, bool]:
    """The session of that key, locked, and whether it was made just now."""
    found = find_session(connection, new.key, lock=True)
    if found is not None:
        return found, False
    at = now_ms()
    values = {
        **{name: getattr(new, name) for name in ("key", "agent_id", "classification", "label", "display_name")},
        **{name: getattr(new, name) for name in ("parent_key", "spawned_by", "spawn_depth")},
        "session_id": new_id(),
        "revision": new_id(),
        "created_at": at,
        "updated_at": at,
        "entry": to_json(new.entry),
    }
    row = _making(connection.dialect.name).first(connection, values)
    if row is not None:
        count(connection, new.agent_id, archived=False, by=1)
        return session_of(row), True
    session = find_session(connection, new.key, lock=True)  # another process was quicker
    assert session is not None
    return session, False


@cache
def _making(dialect: str) -> Prepared:
    return Prepared(upsert_for(dialect, sessions).on_conflict_do_nothing(index_elements=["key"]).returning(*sessions.c))


def count(connection: Connection, agent_id: str, *, archived: bool, by: int) -> None:
    _counting(connection.dialect.name).run(connection, {"agent_id": agent_id, "archived": archived, "n": by})


@cache
def _counting(dialect: str) -> Prepared:
    statement = upsert_for(dialect, session_counts)
    added = {"n": session_counts.c.n + statement.excluded.n}
    return Prepared(statement.on_conflict_do_update(index_elements=["agent_id", "archived"], set_=added))


def set_session(connection: Connection, position: int, **values: Any) -> Session:
    """`updated_at` never goes back, whatever the clock does."""
    return session_of(_SET.first(connection, {**values, "position": position}))


def later(session: Session) -> int:
    return max(now_ms(), session.updated_at + 1)


def forget_session(connection: Connection, session: Session) -> None:
    connection.execute(delete(sessions).where(sessions.c.id == session.position))
    count(connection, session.agent_id, archived=session.archived, by=-1)


# ---- messages --------------------------------------------------------------------------------------------------


def append(
    connection: Connection, session: Session, drafts: Sequence[Draft], **changes: Any
) -> tuple[Session, tuple[Message, ...]]:
    """Add to the transcript; a draft whose idempotency key is there already is left out.

    `changes` are other columns of the session, written with what its row tells of the transcript.
    """
    drafts = [draft for draft in drafts if not _known(connection, session, draft)]
    if not drafts and not changes:
        return session, ()
    at = later(session)
    rows = [_row(session, draft, index, at) for index, draft in enumerate(drafts)]
    for row in rows:
        _ADD.run(connection, row)
    session = set_session(connection, session.position, **changes, **_told(session, drafts, at))
    added = tuple(
        Message(
            session_key=session.key,
            body=draft.body,
            **{name: row[name] for name in ("uid", "epoch", "seq", "role", "at", "run_id", "idempotency_key")},
        )
        for row, draft in zip(rows, drafts, strict=True)
    )
    return session, added


def _row(session: Session, draft: Draft, index: int, at: int) -> dict[str, Any]:
    return {
        "session": session.position,
        "epoch": session.epoch,
        "seq": session.message_count + 1 + index,
        "uid": new_id(),
        "role": draft.role,
        "at": at,
        "run_id": draft.run_id,
        "idempotency_key": draft.idempotency_key,
        "body": to_json(draft.body),
        "text": draft.text.replace("\0", ""),  # PostgreSQL's text has no room for it
    }


_ADD = Prepared(messages.insert())
_BY_IDEMPOTENCY = Prepared(
    select(messages.c.id).where(
        messages.c.session == bindparam("within"), messages.c.idempotency_key == bindparam("wanted")
    )
)


def _known(connection: Connection, session: Session, draft: Draft) -> bool:
    if draft.idempotency_key is None:
        return False
    place = {"within": session.position, "wanted": draft.idempotency_key}
    return _BY_IDEMPOTENCY.first(connection, place) is not None


def _told(session: Session, drafts: Sequence[Draft], at: int) -> dict[str, Any]:
    """What the session's own row says about its transcript now."""
    spoken = [d.text for d in drafts if d.text and d.role != "toolResult"]
    asked = next((d.text for d in drafts if d.role == "user" and d.text), None)
    values: dict[str, Any] = {"message_count": session.message_count + len(drafts), "updated_at": at}
    if spoken:
        values["preview"] = spoken[-1].replace("\0", "")[:PREVIEW]
    if asked is not None:
        values["last_interaction_at"] = at
        if session.title is None:
            values["title"] = asked.replace("\0", "")[:PREVIEW]
    return values
