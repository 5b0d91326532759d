"""Database errors as store errors. The only module that reads driver error codes."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from ..core.errors import StoreBusy, StoreDamaged, StoreError, StoreFull

SQLITE_FULL = (
    "SQLITE_FULL",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_TRUNCATE",
)
SQLITE_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
SQLITE_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
# PostgreSQL: class 53 is want of resources (53100 disk full), XX001 and XX002 are broken pages and indexes.
PG_FULL, PG_DAMAGED = ("53100",), ("XX001", "XX002")
PG_BUSY = ("40001", "40P01", "55P03", "57P03", "53300")

RECOVERY = (
    "stop every process that uses it, keep a copy, then put back a backup or save what can be read with "
    "`sqlite3 OLD .recover | sqlite3 NEW`"
)


def damage_error(location: str, reason: str) -> StoreDamaged:
    return StoreDamaged(f"The database {location} is damaged ({reason}); it was left as it is. To recover: {RECOVERY}.")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What the system says of the database's file, as a StoreError."""
    try:
        yield
    except OSError as exc:
        raise StoreError(f"{path} can't be opened: {exc.strerror}; check the disk and its permissions.") from exc


def translate_error(exc: DBAPIError | sqlite3.Error, location: str) -> StoreError | None:
    """The error to raise in its place, or None for a mistake in this program."""
    original = exc.orig if isinstance(exc, DBAPIError) else exc
    name = getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None) or ""
    if name.startswith(SQLITE_FULL) or name in PG_FULL:
        return StoreFull(
            f"The disk that holds {location} is full: make room and try again; nothing stored before is lost."
        )
    if name.startswith(SQLITE_DAMAGED) or name in PG_DAMAGED:
        return damage_error(location, str(original))
    if name.startswith(SQLITE_BUSY) or name in PG_BUSY:
        return StoreBusy(f"Another process holds {location}; try again.")
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")):
        return StoreError(f"{location} can't be read or written ({name}); check the disk and its permissions.")
    if isinstance(exc, DBAPIError) and exc.connection_invalidated:
        return StoreBusy(f"The connection to {location} was lost; try again.")
    return None
