"""Checks that a database is whole, before anything else: damage stops the start instead of spreading."""

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..core.errors import StoreError
from .db_errors import damage_error, translate_error

logger = logging.getLogger(__name__)

STARTUP_CHECK_SECONDS: Final = 0.5  # that the start may take; a larger database is checked in the background
SQLITE_HEADER: Final = b"SQLite format 3\x00"
PROGRESS_STEPS: Final = 20_000  # virtual machine steps between two checks of the deadline


def check_integrity(
    path: Path, *, seconds: float | None = STARTUP_CHECK_SECONDS, stop: Callable[[], bool] = lambda: False
) -> bool:
    """Whether the whole file was read within `seconds` (None: as long as it takes).

    Raises StoreDamaged at the first damage found.
    """
    if path.stat().st_size == 0:
        return True
    _read_header(path)
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        connection = sqlite3.connect(path, timeout=30.0)
        try:
            late = _set_deadline(connection, deadline, stop)
            row = connection.execute("PRAGMA quick_check(1)").fetchone()
            if row is None or row[0] != "ok":
                raise damage_error(str(path), row[0] if row else "no result of the check")
            return True
        finally:
            connection.close()
    except sqlite3.OperationalError as exc:
        if late():
            return False
        raise _open_error(exc, path) from exc
    except sqlite3.Error as exc:
        raise _open_error(exc, path) from exc


def _read_header(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(SQLITE_HEADER)) != SQLITE_HEADER:
            raise damage_error(str(path), "it does not begin as a SQLite database does")


def _set_deadline(
    connection: sqlite3.Connection, deadline: float | None, stop: Callable[[], bool]
) -> Callable[[], bool]:
    expired = False

    def out_of_time() -> int:
        nonlocal expired
        expired = stop() or (deadline is not None and time.monotonic() > deadline)
        return int(expired)

    connection.set_progress_handler(out_of_time, PROGRESS_STEPS)
    return lambda: expired


def _open_error(exc: sqlite3.Error, path: Path) -> Exception:
    return translate_error(exc, str(path)) or StoreError(f"{path} can't be opened: {exc}")
