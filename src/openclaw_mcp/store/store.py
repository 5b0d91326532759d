"""The store, opened: checked, up to date, one writer, several readers."""

import asyncio
import logging
import secrets
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..core.errors import StoreDamaged, StoreError
from .db_errors import translate_error
from .engine import READERS, create_database_file, create_engines, is_url, redact_location
from .integrity import check_integrity
from .process_lock import AdvisoryProcessLock, FileProcessLock, ProcessLock
from .schema import prepare_schema
from .writer import Writer

logger = logging.getLogger(__name__)
T = TypeVar("T")


class SqlStore:
    """Where everything is remembered. Made by `opened`."""

    def __init__(self, location: str) -> None:
        self.instance = secrets.token_hex(8)
        self.location = redact_location(location)
        self._path = None if is_url(location) else Path(location)
        whole = True
        if self._path is not None:
            create_database_file(self._path)
            whole = check_integrity(self._path)
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
        self._writer = Writer(self._write_engine, location=self.location)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._closing = threading.Event()
        self._check_thread = None if whole or self._path is None else self._check_in_background(self._path)

    def _prepare_and_lock(self) -> None:
        try:
            with self._write_engine.begin() as connection:
                prepare_schema(connection)
            self.process_lock.acquire()
        except DBAPIError as exc:
            known = translate_error(exc, self.location)
            raise known or StoreError(f"{self.location} can't be opened: {exc.orig}") from exc

    def _check_in_background(self, path: Path) -> threading.Thread:
        """Read a large database to its end while it serves; damage found late stops all writing."""

        def read() -> None:
            try:
                check_integrity(path, seconds=None, stop=self._closing.is_set)
            except StoreDamaged as exc:
                logger.critical("store: %s", exc)
                self._writer.fatal_error = exc

        thread = threading.Thread(target=read, name="store-check", daemon=True)
        thread.start()
        return thread

    @property
    def commits(self) -> int:
        """How often the disk was waited for."""
        return self._writer.commits

    async def write(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, once it is on disk."""
        return await self._writer.write(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What `work` sees: one moment of the database, however long it looks."""
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


@asynccontextmanager
async def open_store(location: str) -> AsyncIterator[SqlStore]:
    """Open the store at a path or a PostgreSQL URL. Raises StoreDamaged rather than begin anew on broken ground."""
    store = await asyncio.to_thread(SqlStore, location)
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


def _dispose(*engines: Engine) -> None:
    for engine in engines:
        engine.dispose()
