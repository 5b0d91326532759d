"""Stores sessions and transcripts; a page costs the same however many there are."""

import sqlite3
from collections.abc import Awaitable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Select, and_, bindparam, false, func, or_, select, text, true, tuple_
from sqlalchemy.exc import IntegrityError

from ..core.ids import new_id
from ..core.json_values import drop_none
from ..core.model import Json
from ..core.rpc import RpcError
from ..core.sessions import (
    HistoryPage,
    MessageDraft,
    NewSession,
    Run,
    SearchHit,
    Session,
    SessionPage,
    SessionQuery,
    TranscriptMessage,
)
from . import search
from .prepared_statements import PreparedStatement
from .rows import (
    SELECT_RUN,
    adjust_session_count,
    append_to_transcript,
    delete_session,
    ensure_session,
    find_session,
    from_json,
    message_from_row,
    next_update_time,
    run_from_row,
    session_from_row,
    to_json,
    update_session,
)
from .store import SqlRepository
from .tables import blobs, messages, runs, session_counts, sessions

T = TypeVar("T")

STATEMENT_CACHE_SIZE: Final = 64  # kinds of pages, by what they are filtered with
COUNTED_BY: Final = frozenset({"most", "skipped", "after_time", "after_id", "agent_id", "archived"})
"""Parameters of a page whose total is kept in `session_counts`."""
RUN_FIELDS: Final = frozenset({"resume", "lastRunError"})
"""What runs leave in a session's entry: a reset drops it."""
MOST_CANDIDATES: Final = 10  # when a label or id is not unique: enough to choose from

_IS_OPEN = text("runs.status IN ('queued', 'running')")  # as the index of open runs has it

# Built once: making a statement costs more than running it.
_SELECT_BODIES = PreparedStatement(
    select(messages.c.body)
    .join(sessions, sessions.c.id == messages.c.session)
    .where(
        sessions.c.key == bindparam("wanted"),
        messages.c.epoch == sessions.c.epoch,
        messages.c.seq <= sessions.c.message_count - bindparam("skipped"),
    )
    .order_by(messages.c.seq.desc())
    .limit(bindparam("most"))
)


class SqlSessionRepository(SqlRepository):
    """A `SessionRepository` over the store."""

    async def get(self, key: str) -> Session | None:
        return await self._store.read(lambda connection: find_session(connection, key))

    async def find(
        self, *, session_id: str | None = None, label: str | None = None, agent_id: str | None = None
    ) -> Sequence[Session]:
        statement = select(sessions).order_by(sessions.c.updated_at.desc()).limit(MOST_CANDIDATES)
        for column, value in (("session_id", session_id), ("label", label), ("agent_id", agent_id)):
            if value is not None:
                statement = statement.where(sessions.c[column] == value)
        return await self._store.read(lambda c: [session_from_row(row) for row in c.execute(statement)])

    async def page(self, query: SessionQuery) -> SessionPage:
        return await self._store.read(lambda connection: _select_page(connection, query))

    async def create(self, new: NewSession) -> tuple[Session, bool]:
        def work(connection: Connection) -> tuple[Session, bool]:
            _require_free_label(connection, new.agent_id, new.label, except_key=new.key)
            return ensure_session(connection, new)

        return await self._translate_label_conflict(self._store.write(work))

    async def patch(self, key: str, columns: Mapping[str, Any], entry: Mapping[str, Any]) -> Session | None:
        def work(connection: Connection) -> Session | None:
            session = find_session(connection, key, lock=True)
            if session is None:
                return None
            _require_free_label(connection, session.agent_id, columns.get("label"), except_key=key)
            merged = {**session.entry, **entry}
            archived, now = columns.get("archived", session.archived), next_update_time(session)
            if archived != session.archived:
                merged["archivedAt"] = now if archived else None
                adjust_session_count(connection, session.agent_id, archived=session.archived, delta=-1)
                adjust_session_count(connection, session.agent_id, archived=archived, delta=1)
            merged = {name: value for name, value in merged.items() if value is not None}
            return update_session(connection, session.position, **columns, entry=to_json(merged), updated_at=now)

        return await self._translate_label_conflict(self._store.write(work))

    async def _translate_label_conflict(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except (IntegrityError, sqlite3.IntegrityError) as exc:  # taken between the check and the write
            raise RpcError("label already in use; choose another") from exc

    async def reset(self, key: str) -> Session | None:
        def work(connection: Connection) -> Session | None:
            session = find_session(connection, key, lock=True)
            if session is None:
                return None
            kept = {name: value for name, value in session.entry.items() if name not in RUN_FIELDS}
            return update_session(
                connection, session.position, epoch=session.epoch + 1, revision=new_id(), entry=to_json(kept),
                updated_at=next_update_time(session), message_count=0, input_tokens=0, output_tokens=0, title=None,
                preview=None, status=None, last_run_id=None, run_started_at=None, run_ended_at=None,
            )  # fmt: skip

        return await self._store.write(work)

    async def delete(self, key: str, *, transcript: bool) -> bool:
        def work(connection: Connection) -> bool:
            session = find_session(connection, key, lock=True)
            if session is None:
                return False
            if transcript:
                delete_session(connection, session)
            else:
                _archive_transcript(connection, session)
            return True

        return await self._store.write(work)

    async def append(
        self, key: str, drafts: Sequence[MessageDraft]
    ) -> tuple[Session, Sequence[TranscriptMessage]] | None:
        def work(connection: Connection) -> tuple[Session, Sequence[TranscriptMessage]] | None:
            session = find_session(connection, key, lock=True)
            return None if session is None else append_to_transcript(connection, session, drafts)

        return await self._store.write(work)

    async def history(
        self, key: str, *, limit: int, offset: int = 0, after: tuple[int, int] | None = None
    ) -> HistoryPage:
        return await self._store.read(lambda c: select_history(c, key, limit=limit, offset=offset, after=after))

    async def message_bodies(self, key: str, *, limit: int, offset: int) -> tuple[Json, ...]:
        bounds = {"wanted": key, "most": limit, "skipped": offset}
        found = await self._store.read(lambda connection: [row.body for row in _SELECT_BODIES.all(connection, bounds)])
        return tuple(from_json(f"[{','.join(reversed(found))}]"))

    async def message(self, key: str, uid: str) -> TranscriptMessage | None:
        statement = select(messages).join(sessions).where(sessions.c.key == key, messages.c.uid == uid)
        row = await self._store.fetch_first(statement)
        return None if row is None else message_from_row(row, key)

    async def search(
        self, text: str, *, keys: Sequence[str] | None, agent_id: str | None, limit: int
    ) -> Sequence[SearchHit]:
        return await self._store.read(
            lambda c: search.search_messages(c, text, keys=keys, agent_id=agent_id, limit=limit)
        )

    async def active_runs(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        return await self._store.read(lambda connection: _select_active(connection, _SELECT_ACTIVE_BY_KEY, list(keys)))

    async def pending_runs(self, key: str) -> Sequence[Run]:
        statement = SELECT_RUN.where(sessions.c.key == key, runs.c.status == "queued").order_by(runs.c.id)
        return await self._store.read(lambda c: [run_from_row(row) for row in c.execute(statement)])

    async def blob(self, key: str, sha256: str) -> bytes | None:
        statement = select(blobs.c.data).join(sessions).where(sessions.c.key == key, blobs.c.sha256 == sha256)
        return await self._store.read(lambda connection: connection.execute(statement).scalar())


def _require_free_label(connection: Connection, agent_id: str, label: str | None, *, except_key: str) -> None:
    if label is None:
        return
    where = and_(sessions.c.agent_id == agent_id, sessions.c.label == label, sessions.c.key != except_key)
    if connection.execute(select(sessions.c.id).where(where)).first() is not None:
        raise RpcError(f"label already in use: {label}")


def _archive_transcript(connection: Connection, session: Session) -> None:
    """Archive it under another key, with its transcript."""
    adjust_session_count(connection, session.agent_id, archived=session.archived, delta=-1)
    adjust_session_count(connection, session.agent_id, archived=True, delta=1)
    away = f"agent:{session.agent_id}:deleted:{session.session_id}"
    update_session(
        connection, session.position, key=away, archived=True, label=None, updated_at=next_update_time(session)
    )


# ---- pages -------------------------------------------------------------------------------------------------------


def _select_page(connection: Connection, query: SessionQuery) -> SessionPage:
    values = _page_values(query)
    rows = _page_statement(query.sort, query.active_only, tuple(values)).tuples(connection, values)
    found = tuple(map(session_from_row, rows))
    active = [session.position for session, row in zip(found, rows, strict=True) if row[-1]]
    if rows:
        total = rows[0][-2]
    else:  # behind the last page
        total = _total_statement(query.sort, query.active_only, tuple(values)).tuples(connection, values)[0][0]
    return SessionPage(
        sessions=found,
        total=int(total),
        active=_select_active(connection, _SELECT_ACTIVE_BY_ID, active) if active else {},
    )


def _page_values(query: SessionQuery) -> dict[str, Any]:
    """The parameters of the statement. Their names decide its conditions, so it is the same for every page."""
    after_time, after_id = query.after or (None, None)
    search = None
    if query.search:
        escaped = "".join(f"/{letter}" if letter in "/%_" else letter for letter in query.search.lower())
        search = f"%{escaped}%"
    filters = ("agent_id", "label", "spawned_by", "archived", "pinned", "active_since")
    values = {
        "most": query.limit,
        "skipped": query.offset,
        "after_time": after_time,
        "after_id": after_id,
        **{name: getattr(query, name) for name in filters},
        **{f"exclude_{index}": name for index, name in enumerate(query.exclude)},
        "search": search,
    }
    return drop_none(values)


@lru_cache(STATEMENT_CACHE_SIZE)
def _page_statement(sort: str, active_only: bool, names: tuple[str, ...]) -> PreparedStatement:
    """Rows of a page; behind the session's columns, the number of sessions in all, and whether it has open runs."""
    order = (sessions.c[sort].desc(), sessions.c.id.desc())
    ids = select(sessions.c.id).where(*_conditions(sort, active_only, names))
    if "after_time" in names:
        ids = ids.where(
            tuple_(sessions.c[sort], sessions.c.id) < tuple_(bindparam("after_time"), bindparam("after_id"))
        )
    # The index alone finds the page, skipped rows included; only the rows shown are read.
    page = ids.order_by(*order).limit(bindparam("most")).offset(bindparam("skipped"))
    total = _total(sort, active_only, names).correlate(None).scalar_subquery()
    is_active = sessions.c.id.in_(select(runs.c.session).where(_IS_OPEN))
    shown = select(sessions, total.label("total"), is_active.label("is_active"))
    return PreparedStatement(shown.where(sessions.c.id.in_(page)).order_by(*order))


@lru_cache(STATEMENT_CACHE_SIZE)
def _total_statement(sort: str, active_only: bool, names: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(_total(sort, active_only, names))


def _total(sort: str, active_only: bool, names: tuple[str, ...]) -> Select[Any]:
    if sort == "updated_at" and not active_only and COUNTED_BY.issuperset(names):
        kept: Select[Any] = select(func.coalesce(func.sum(session_counts.c.n), 0))
        return kept.where(*(session_counts.c[name] == bindparam(name) for name in names if name in session_counts.c))
    return select(func.count()).select_from(sessions).where(*_conditions(sort, active_only, names))


def _conditions(sort: str, active_only: bool, names: tuple[str, ...]) -> list[Any]:
    conditions = [sessions.c[name] == bindparam(name) for name in names if name in sessions.c]
    if "archived" not in names:  # both, written so that the index serves
        conditions.append(or_(sessions.c.archived == false(), sessions.c.archived == true()))
    if sort == "last_interaction_at":
        conditions.append(sessions.c.last_interaction_at.is_not(None))
    if "active_since" in names:
        conditions.append(sessions.c.updated_at >= bindparam("active_since"))
    if active_only:
        conditions.append(sessions.c.id.in_(select(runs.c.session).where(_IS_OPEN)))
    conditions += [sessions.c.classification != bindparam(name) for name in names if name.startswith("exclude_")]
    if "search" in names:
        columns = (sessions.c[name] for name in ("display_name", "label", "title", "session_id", "key"))
        conditions.append(or_(*(func.lower(column).like(bindparam("search"), escape="/") for column in columns)))
    return conditions


_SELECT_ACTIVE = select(sessions.c.key, runs.c.run_id).join(sessions).where(_IS_OPEN).order_by(runs.c.id)
_SELECT_ACTIVE_BY_ID = _SELECT_ACTIVE.where(sessions.c.id.in_(bindparam("wanted", expanding=True)))
_SELECT_ACTIVE_BY_KEY = _SELECT_ACTIVE.where(sessions.c.key.in_(bindparam("wanted", expanding=True)))


def _select_active(connection: Connection, statement: Select[Any], wanted: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for key, run_id in connection.execute(statement, {"wanted": wanted}):
        found[key] = (*found.get(key, ()), run_id)
    return found


def select_history(
    connection: Connection, key: str, *, limit: int, offset: int, after: tuple[int, int] | None
) -> HistoryPage:
    session = find_session(connection, key)
    if session is None:
        return HistoryPage(session=None, messages=(), total=0, has_more=False)
    mine = select(messages).where(messages.c.session == session.position, messages.c.epoch == session.epoch)
    if after is not None:
        epoch, seq = after
        fresh = epoch == session.epoch
        rows = (
            connection.execute(mine.where(messages.c.seq > seq).order_by(messages.c.seq).limit(limit)) if fresh else ()
        )
        found = tuple(message_from_row(row, key) for row in rows)
        return HistoryPage(session=session, messages=found, total=session.message_count, has_more=not fresh)
    last = session.message_count - offset  # no gaps in seq: the page is found by arithmetic, not by skipping
    rows = connection.execute(mine.where(messages.c.seq <= last).order_by(messages.c.seq.desc()).limit(limit))
    found = tuple(message_from_row(row, key) for row in rows)[::-1]
    more = bool(found) and found[0].seq > 1
    return HistoryPage(session=session, messages=found, total=session.message_count, has_more=more)
