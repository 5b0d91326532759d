"""Which processes are alive: each holds a lock that is released when it dies, however it dies."""

import hashlib
import os
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, text

from ..net.files import lock_file, make_private_folder, open_private
from ..net.open_flags import NOT_INHERITED


class ProcessLock(Protocol):
    def acquire(self) -> None:
        """Take the lock, or take it again after it was lost."""

    def is_alive(self, connection: Connection, instance: str) -> bool: ...

    def release(self) -> None: ...


class FileProcessLock:
    """A locked file beside the SQLite database."""

    def __init__(self, database: Path, instance: str) -> None:
        self._folder = database.with_name(database.name + "-live")
        self._instance = instance
        self._descriptor: int | None = None

    def acquire(self) -> None:
        if self._descriptor is not None:
            return
        make_private_folder(self._folder)
        path = self._folder / self._instance
        while True:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
            lock_file(descriptor)
            # Another process may have removed the file between the two calls above: then the lock is on no file.
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                self._descriptor = descriptor
                return
            os.close(descriptor)

    def is_alive(self, connection: Connection, instance: str) -> bool:
        if instance == self._instance:
            return True
        path = self._folder / Path(instance).name
        try:
            descriptor = os.open(path, os.O_RDONLY | NOT_INHERITED)
        except FileNotFoundError:
            return False
        try:
            alive = not lock_file(descriptor, wait=False, shared=True)  # on Windows: one process per store
            if not alive:
                path.unlink(missing_ok=True)
            return alive
        finally:
            os.close(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            (self._folder / self._instance).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


class AdvisoryProcessLock:
    """A PostgreSQL advisory lock, held by a connection of its own."""

    def __init__(self, engine: Engine, instance: str) -> None:
        self._engine = engine
        self._instance = instance
        self._connection: Connection | None = None

    def acquire(self) -> None:
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT 1"))
                return
            except Exception:  # noqa: BLE001  (the connection is lost for any reason: take another)
                self._connection.invalidate()
                self._connection.close()
        self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.execute(text("SELECT pg_advisory_lock(:number)"), {"number": _lock_number(self._instance)})

    def is_alive(self, connection: Connection, instance: str) -> bool:
        if instance == self._instance:
            return True
        statement = text("SELECT pg_try_advisory_xact_lock(:number)")
        return not connection.execute(statement, {"number": _lock_number(instance)}).scalar()

    def release(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()  # not only returned to the pool: the lock belongs to the connection
            self._connection.close()
            self._connection = None


def _lock_number(instance: str) -> int:
    return int.from_bytes(hashlib.sha256(instance.encode()).digest()[:8], "big", signed=True)
