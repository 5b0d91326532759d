"""Connections: how SQLite and PostgreSQL are opened so that what is committed stays."""

import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.pool import QueuePool

BUSY_WAIT: Final = 30.0  # seconds a write waits for another process's; a commit takes milliseconds
BUSY_POLL: Final = 0.01  # seconds between attempts while another process switches a new database to WAL
READERS: Final = 4  # readers never block; more than this only contend for the interpreter
WAL_SIZE_LIMIT: Final = 64 * 1024 * 1024  # a burst may grow the log; it shrinks back to this
CACHE_KIB: Final = 16 * 1024


def is_url(location: str) -> bool:
    return "://" in location


def redact_location(location: str) -> str:
    """`location` for logs and answers: a path, or host and database alone, since a URL has passwords in many places."""
    if not is_url(location):
        return location
    url = make_url(location)
    hosts = url.query.get("host", "")
    host = url.host or (hosts if isinstance(hosts, str) else ",".join(hosts))
    return f"{url.get_backend_name()}://{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def create_engines(location: str) -> tuple[Engine, Engine]:
    """The writer's engine (one connection) and the readers'."""
    if is_url(location):
        return _create_postgresql_engines(location)
    return _create_sqlite_engine(
        location, begin="BEGIN IMMEDIATE", size=1, pragmas=("query_only=OFF",)
    ), _create_sqlite_engine(location, begin="BEGIN", size=READERS, pragmas=("query_only=ON",))


def _create_postgresql_engines(location: str) -> tuple[Engine, Engine]:
    url = make_url(location)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    # pre_ping: a connection the server dropped while idle is replaced before it is used.
    writer = create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True, hide_parameters=True)
    return writer, create_engine(url, pool_size=READERS, max_overflow=0, pool_pre_ping=True, hide_parameters=True)


def _create_sqlite_engine(path: str, *, begin: str, size: int, pragmas: tuple[str, ...]) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=0,
        hide_parameters=True,  # errors are logged, and parameters are what people wrote
        connect_args={"timeout": BUSY_WAIT, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself: see below
        _enable_wal(connection)
        # FULL: each commit waits for its fsync. Acknowledged means on disk, through a power cut too.
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY",
                       f"journal_size_limit={WAL_SIZE_LIMIT}", f"cache_size=-{CACHE_KIB}", *pragmas):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: a writer waits for others at the start, where waiting is safe, not halfway, where it would fail.
        connection.exec_driver_sql(begin)

    return engine


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Write-ahead logging, also when two processes open a new database at once: here SQLite does not wait by itself."""
    end = time.monotonic() + BUSY_WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(BUSY_POLL)
        else:
            return


def create_database_file(path: Path) -> None:
    """The database holds conversations and secrets: only its owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600, exist_ok=True)
