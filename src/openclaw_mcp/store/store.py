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
from .db_errors import translated
from .engine import READERS, engines, is_url, prepare_place, shown
from .integrity import look
from .migrate import up_to_date
from .process_lock import AdvisoryPulse, FilePulse, Pulse
from .writer import Writer

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Store:
    """Where everything is remembered. Made by `opened`."""

    def __init__(self, where: str) -> None:
        self.instance = secrets.token_hex(8)
        self.where = shown(where)
        self._path = None if is_url(where) else Path(where)
        whole = True
        if self._path is not None:
            prepare_place(self._path)
            whole = look(self._path)
        self._write_engine, self._read_engine = engines(where)
        self.pulse: Pulse = (
            FilePulse(self._path, self.instance) if self._path else AdvisoryPulse(self._read_engine, self.instance)
        )
        try:
            self._begin()
        except BaseException:
            _dispose(self._read_engine, self._write_engine)
            raise
        self._writer = Writer(self._write_engine, where=self.where)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._closing = threading.Event()
        self._looking = None if whole or self._path is None else self._look_on(self._path)

    def _begin(self) -> None:
        try:
            with self._write_engine.begin() as connection:
                up_to_date(connection)
            self.pulse.beat()
        except DBAPIError as exc:
            known = translated(exc, self.where)
            raise known or StoreError(f"{self.where} can't be opened: {exc.orig}") from exc

    def _look_on(self, path: Path) -> threading.Thread:
        """Read a large database to its end while it serves; damage found late stops all writing."""

        def read() -> None:
            try:
                look(path, seconds=None, stop=self._closing.is_set)
            except StoreDamaged as exc:
                logger.critical("store: %s", exc)
                self._writer.broken = exc

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
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._look, work)

    def _look(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._read_engine.begin() as connection:
                return work(connection)
        except (DBAPIError, sqlite3.Error) as exc:
            raise translated(exc, self.where) or exc from exc

    def close(self) -> None:
        self._closing.set()
        self._writer.close()
        self._readers.shutdown()
        if self._looking is not None:
            self._looking.join()
        self.pulse.stop()
        _dispose(self._read_engine, self._write_engine)


@asynccontextmanager
async def opened(where: str) -> AsyncIterator[Store]:
    """Open the store at a path or a PostgreSQL URL. Raises StoreDamaged rather than begin anew on broken ground."""
    store = await asyncio.to_thread(Store, where)
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


def _dispose(*engines: Engine) -> None:
    for engine in engines:
        engine.dispose()
