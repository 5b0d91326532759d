"""The open store: checked, with its tables, one writer, several readers."""

import asyncio
import logging
import secrets
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row
from sqlalchemy.exc import DBAPIError

from ..core.errors import StoreDamaged, StoreError
from ..net.files import FileIdentity
from .db_errors import file_errors, translate_error
from .engine import READERS, create_database_file, create_engines, is_url, redact_location
from .integrity import check_integrity
from .process_lock import AdvisoryProcessLock, FileProcessLock, ProcessLock
from .schema import prepare_schema
from .writer import BatchedWrite, Writer

logger = logging.getLogger(__name__)
T = TypeVar("T")
Item = TypeVar("Item")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class SqlStore:
    """The database. Opened by `open_store`."""

    def __init__(self, location: str) -> None:
        self.instance = secrets.token_hex(8)
        self.location = redact_location(location)
        self._path = None if is_url(location) else Path(location)
        checked = True
        if self._path is not None:
            with file_errors(self._path):
                create_database_file(self._path)
                checked = check_integrity(self._path)
        self._write_engine, self._read_engine = create_engines(location)
        self.process_lock: ProcessLock = (
            FileProcessLock(self._path, self.instance)
            if self._path
            else AdvisoryProcessLock(self._read_engine, self.instance)
        )
        try:
            self._prepare_and_lock()
        except BaseException:
            _dispose(self._read_engine, self._write_engine)
            raise
        self._file = None if self._path is None else FileIdentity(self._path)
        self._writer = Writer(self._write_engine, location=self.location, check=self._require_file)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._closing = threading.Event()
        self._check_thread = None if checked or self._path is None else self._check_in_background(self._path)

    def _prepare_and_lock(self) -> None:
        try:
            with self._write_engine.begin() as connection:
                prepare_schema(connection)
            self.process_lock.acquire()
        except DBAPIError as exc:
            raise translate_error(exc, self.location) or StoreError(
                f"{self.location} can't be opened: {exc.orig}"
            ) from exc

    def _require_file(self) -> None:
        """Raises StoreError when the database was removed or replaced: what is written to the open one is lost."""
        if self._file is not None and not self._file.is_there():
            problem = StoreError(
                f"{self.location} was moved away or removed while it was in use, so nothing more can be stored: "
                "put it back, or restart the gateway to begin with what is there now."
            )
            logger.error("store: %s", problem)
            raise problem

    def _check_in_background(self, path: Path) -> threading.Thread:
        """Read a large database to its end while it is in use; damage found late stops all writing."""

        def check() -> None:
            try:
                check_integrity(path, seconds=None, stop=self._closing.is_set)
            except StoreDamaged as exc:
                logger.critical("store: %s", exc)
                self._writer.fatal_error = exc
            except Exception:  # a thread has no caller that would get it
                logger.exception("store: the check of %s failed, its end was not read", self.location)

        thread = threading.Thread(target=check, name="store-check", daemon=True)
        thread.start()
        return thread

    @property
    def commits(self) -> int:
        """How many transactions were written to disk."""
        return self._writer.commits

    async def write(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, once it is on disk."""
        return await self._writer.write(work)

    def batch(self, work: Callable[[Connection, Sequence[Item]], Sequence[T]]) -> BatchedWrite[Item, T]:
        """A function that writes one item, together with those that other callers write at the same time."""
        return BatchedWrite(self._writer.submit, work)

    async def execute(self, statement: Executable, parameters: Parameters = None) -> int:
        """Run one statement that writes; how many rows it changed."""
        return await self.write(lambda connection: connection.execute(statement, parameters).rowcount)

    async def fetch(self, statement: Executable, parameters: Parameters = None) -> Sequence[Row[Any]]:
        """The rows of one statement that reads."""
        return await self.read(lambda connection: connection.execute(statement, parameters).all())

    async def fetch_first(self, statement: Executable, parameters: Parameters = None) -> Row[Any] | None:
        return await self.read(lambda connection: connection.execute(statement, parameters).first())

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What `work` reads: one state of the database, however long it takes."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._read_engine.begin() as connection:
                return work(connection)
        except (DBAPIError, sqlite3.Error) as exc:
            raise translate_error(exc, self.location) or exc from exc

    def close(self) -> None:
        self._closing.set()
        self._writer.close()
        self._readers.shutdown()
        if self._check_thread is not None:
            self._check_thread.join()
        self.process_lock.release()
        _dispose(self._read_engine, self._write_engine)


class SqlRepository:
    """What every repository over the store has."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    @property
    def instance(self) -> str:
        """This process, as the owner of what it claims."""
        return self._store.instance


@asynccontextmanager
async def open_store(location: str) -> AsyncIterator[SqlStore]:
    """Open the store at a path or a PostgreSQL URL. Raises StoreDamaged rather than replace a broken database."""
    store = await asyncio.to_thread(SqlStore, location)
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


def _dispose(*engines: Engine) -> None:
    for engine in engines:
        engine.dispose()
