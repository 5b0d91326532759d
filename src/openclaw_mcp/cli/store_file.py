"""Reading sessions directly from a store, without a gateway and without changing anything."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ..core.errors import OpenClawError
from ..core.json_values import drop_none
from ..core.model import Json
from ..store.engine import create_engines, is_url, redact_location

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


class NoStore(OpenClawError):
    """There is no store, or it is not one of ours."""

    code = "no_store"


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Read-only, also in a folder where nothing may be written."""
    uri = f"file:{quote(str(path.resolve()))}"
    # In a read-only folder SQLite can't create the index of its log; without a log there is no writer either.
    is_static = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    mode = "immutable=1" if is_static else "mode=ro"
    with closing(sqlite3.connect(f"{uri}?{mode}", uri=True, timeout=BUSY_WAIT)) as connection:
        yield connection


def read_sessions(location: str) -> list[Json]:
    """Every session of a store, the last used first. Raises NoStore."""
    rows = _rows_from_server(location) if is_url(location) else _rows_from_file(Path(location))
    sessions = [drop_none(dict(zip(COLUMNS, row, strict=True))) for row in rows]
    return [session | {"archived": True} if session.pop("archived", False) else session for session in sessions]


def _rows_from_file(path: Path) -> list[tuple[object, ...]]:
    if not path.is_file():
        raise NoStore(f"there is no store at {path}")
    try:
        with open_read_only(path) as connection:
            return list(connection.execute(SESSIONS_QUERY))
    except sqlite3.Error as exc:
        raise NoStore(f"{path} can't be read as a store of ours: {exc}") from exc


def _rows_from_server(location: str) -> list[tuple[object, ...]]:
    # Here for start-up: most stores are a file.
    from sqlalchemy.exc import SQLAlchemyError

    try:
        _, reader = create_engines(location)
        with reader.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(SESSIONS_QUERY)]
    except (SQLAlchemyError, ImportError) as exc:
        raise NoStore(f"{redact_location(location)} can't be read ({type(exc).__name__}); is it running?") from exc
