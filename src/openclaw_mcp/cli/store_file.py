"""Reading sessions, their messages and jobs directly from a store, without a gateway and without changing anything."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from ..core.errors import OpenClawError
from ..core.json_values import drop_none
from ..core.model import Json
from ..core.sessions import HistoryPage, SearchHit
from ..store.engine import create_engines, is_url, redact_location
from ..store.search import search_messages
from ..store.sessions import select_history

BUSY_WAIT: Final = 5.0  # seconds; a reader waits only while the file is recovered after a crash
MAX_SESSIONS: Final = 10_000  # sessions of one list
COLUMNS: Final = {
    "key": "key", "agentId": "agent_id", "sessionId": "session_id", "createdAt": "created_at",
    "updatedAt": "updated_at", "messageCount": "message_count", "status": "status", "label": "label",
    "derivedTitle": "title", "totalTokens": "COALESCE(input_tokens, 0) + COALESCE(output_tokens, 0)",
    "model": "model", "archived": "archived",
}  # fmt: skip
"""The fields of `sessions.list`, and where they are stored."""
SESSIONS_QUERY: Final = (
    f"SELECT {', '.join(COLUMNS.values())} FROM sessions ORDER BY updated_at DESC, id DESC LIMIT {MAX_SESSIONS}"  # noqa: S608 - constants
)
WAITING_JOBS_QUERY: Final = "SELECT id FROM cron_jobs WHERE next_at IS NOT NULL"


class NoStore(OpenClawError):
    """There is no store, or it is not one of ours."""

    code = "no_store"


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Read-only, also in a folder where nothing may be written."""
    with closing(_connect_read_only(path)) as connection:
        yield connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.resolve()))}"
    # In a read-only folder SQLite can't create the index of its log; without a log there is no writer either.
    is_static = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    mode = "immutable=1" if is_static else "mode=ro"
    return sqlite3.connect(f"{uri}?{mode}", uri=True, timeout=BUSY_WAIT)


def read_sessions(location: str) -> list[Json]:
    """Every session of a store, the last used first. Raises NoStore."""
    rows = _read_rows(location, SESSIONS_QUERY)
    sessions = [drop_none(dict(zip(COLUMNS, row, strict=True))) for row in rows]
    return [session | {"archived": True} if session.pop("archived", False) else session for session in sessions]


def count_waiting_jobs(location: str) -> int:
    """The jobs of a store that are to fire. Raises NoStore."""
    return len(_read_rows(location, WAITING_JOBS_QUERY))


def _read_rows(location: str, query: str) -> list[tuple[object, ...]]:
    return _rows_from_server(location, query) if is_url(location) else _rows_from_file(Path(location), query)


def _rows_from_file(path: Path, query: str) -> list[tuple[object, ...]]:
    if not path.is_file():
        raise NoStore(f"there is no store at {path}")
    try:
        with open_read_only(path) as connection:
            return list(connection.execute(query))
    except sqlite3.Error as exc:
        raise NoStore(f"{path} can't be read as a store of ours: {exc}") from exc


def _rows_from_server(location: str, query: str) -> list[tuple[object, ...]]:
    try:
        _, reader = create_engines(location)
        with reader.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]
    except (SQLAlchemyError, ImportError) as exc:
        raise NoStore(f"{redact_location(location)} can't be read ({type(exc).__name__}); is it running?") from exc


@contextmanager
def _open_connection(location: str) -> Iterator[Connection]:
    """A connection through which nothing can be changed. Raises NoStore."""
    if not is_url(location) and not Path(location).is_file():
        raise NoStore(f"there is no store at {location}")
    try:
        if is_url(location):
            engine = create_engines(location)[1]
        else:
            engine = create_engine("sqlite://", creator=lambda: _connect_read_only(Path(location)), poolclass=NullPool)
        with engine.connect() as connection:
            yield connection
    except (SQLAlchemyError, ImportError) as exc:
        raise NoStore(f"{redact_location(location)} can't be read as a store of ours: {type(exc).__name__}") from exc


def read_transcript(location: str, key: str, *, limit: int) -> HistoryPage:
    """The newest messages of a session, by its key or the end of it. Raises NoStore."""
    with _open_connection(location) as connection:
        page = select_history(connection, key, limit=limit, offset=0, after=None)
        if page.session is not None:
            return page
        found = [row["key"] for row in read_sessions(location) if str(row["key"]).endswith(f":{key.lower()}")]
        return select_history(connection, found[0], limit=limit, offset=0, after=None) if len(found) == 1 else page


def search_transcripts(location: str, words: str, *, limit: int) -> list[SearchHit]:
    """Messages that hold every word. Raises NoStore."""
    with _open_connection(location) as connection:
        return search_messages(connection, words, keys=None, agent_id=None, limit=limit)
