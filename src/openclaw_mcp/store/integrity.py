"""Is this database whole? Asked before anything else, so that damage stops us instead of spreading."""

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..core.errors import StoreError
from .db_errors import damaged, translated

logger = logging.getLogger(__name__)

LOOK_FOR: Final = 0.5  # seconds the start may spend; a larger database is read to its end in the background
HEADER: Final = b"SQLite format 3\x00"
STEPS: Final = 20_000  # virtual machine steps between two looks at the clock


def look(path: Path, *, seconds: float | None = LOOK_FOR, stop: Callable[[], bool] = lambda: False) -> bool:
    """Whether the whole file was read within `seconds` (None = as long as it takes) and found sound.

    Raises StoreDamaged at the first thing wrong.
    """
    if path.stat().st_size == 0:
        return True
    _read_header(path)
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        connection = sqlite3.connect(path, timeout=30.0)
        try:
            late = _hurry(connection, deadline, stop)
            row = connection.execute("PRAGMA quick_check(1)").fetchone()
            if row is None or row[0] != "ok":
                raise damaged(str(path), row[0] if row else "no verdict")
            return True
        finally:
            connection.close()
    except sqlite3.OperationalError as exc:
        if late():
            return False
        raise _named(exc, path) from exc
    except sqlite3.Error as exc:
        raise _named(exc, path) from exc


def _read_header(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(HEADER)) != HEADER:
            raise damaged(str(path), "it does not begin as a SQLite database does")


def _hurry(connection: sqlite3.Connection, deadline: float | None, stop: Callable[[], bool]) -> Callable[[], bool]:
    expired = False

    def out_of_time() -> int:
        nonlocal expired
        expired = stop() or (deadline is not None and time.monotonic() > deadline)
        return int(expired)

    connection.set_progress_handler(out_of_time, STEPS)
    return lambda: expired


def _named(exc: sqlite3.Error, path: Path) -> Exception:
    return translated(exc, str(path)) or StoreError(f"{path} can't be opened: {exc}")
