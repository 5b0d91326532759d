"""The sessions of a proxy that runs alone, in a SQLite file: what was registered survives the process.

It is read once, at the start, and written when a session is registered, changed or ended: never by a call. All of it
happens in one thread, in the order it was asked for.
"""

import asyncio
import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec
from msgspec import Struct

from ...net.files import FileIdentity, StateBroken, make_private_folder, open_private
from .app_session import AppRegistration, StoreDown

REVISION: Final = 1  # of the tables; a file of a later one is left alone
LOCK_WAIT: Final = 5.0  # seconds a proxy that stops may still hold the file when the next one starts

_TABLES: Final = """
CREATE TABLE tool_lists (digest BLOB PRIMARY KEY, tools BLOB NOT NULL);
CREATE TABLE sessions (id TEXT PRIMARY KEY, registration BLOB NOT NULL, digest BLOB NOT NULL);
CREATE INDEX sessions_by_digest ON sessions (digest);
"""
_DROP_UNUSED_TOOLS: Final = """
DELETE FROM tool_lists WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.digest = ?)
"""

ResultT = TypeVar("ResultT")

logger = logging.getLogger(__name__)

_decode_registration = msgspec.json.Decoder(AppRegistration).decode


class KeptSession(Struct, frozen=True):
    registration: AppRegistration
    tools: bytes


_REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "make room for that file",
    sqlite3.SQLITE_CORRUPT: "move that file away and restart the proxy",
    sqlite3.SQLITE_NOTADB: "move that file away and restart the proxy",
    sqlite3.SQLITE_READONLY: "make that file writable",
}


class SessionFile:
    """Its life is an `async with`; a second process that opens the same file is refused.

    What is asked for is done in that order also when the caller does not wait. Equal lists of tools are stored once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="proxy-sessions")
        self._ended: set[str] = set()
        """Ended, but still in the file: there was no room to write that. Changed in the thread alone."""

    async def __aenter__(self) -> Self:
        """Raises StateBroken."""
        try:
            self._database = await self._run(self._open)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def read_all(self) -> Sequence[KeptSession]:
        """The newest first. Raises StateBroken."""
        return await self._run(self._read_all)

    async def put(self, registration: AppRegistration, tools: bytes) -> None:
        """Once this returns, the session is there after a crash too. Raises StoreDown."""
        await self._run(lambda: self._put(registration, tools))

    async def remove(self, id: str) -> None:
        """Raises StoreDown; it is tried again by `remove_ended`."""
        await self._run(lambda: self._remove(id))

    def remove_later(self, *ids: str) -> None:
        self._thread.submit(self._remove, *ids).add_done_callback(_log_failure)

    def has_ended(self, id: str) -> bool:
        """Whether a session could not be removed when it ended."""
        return id in self._ended

    def remove_ended(self) -> None:
        """Try again what could not be removed."""
        if self._ended:
            self.remove_later()

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        # Shielded: a client that disconnects must not leave the file behind what is in memory.
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(work)))

    # ---- in the thread ----

    def _open(self) -> sqlite3.Connection:
        try:
            make_private_folder(self._path.parent)
            os.close(open_private(self._path, os.O_RDWR | os.O_CREAT))
        except StateBroken as exc:
            raise StateBroken(
                f"{exc}; the proxy keeps its sessions there, unless OPENCLAW_PROXY_SESSIONS_FILE says otherwise"
            ) from None
        database = sqlite3.connect(self._path, timeout=LOCK_WAIT, isolation_level=None)
        try:
            # Held until the process ends, however it ends: two proxies would each serve what the other has ended.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            # Survives a killed process; a power cut may cost the last registrations, never the file.
            database.execute("PRAGMA synchronous = NORMAL")
            revision: int = database.execute("PRAGMA user_version").fetchone()[0]
            if revision > REVISION:
                database.close()
                raise self._broken(f"it was written by a later version (revision {revision})")
            create = f"{_TABLES} PRAGMA user_version = {REVISION};" if revision < REVISION else ""
            database.executescript(f"BEGIN EXCLUSIVE; {create} COMMIT;")  # the first transaction takes the lock
        except sqlite3.Error as exc:
            database.close()
            if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise StateBroken(
                    f"another proxy keeps its sessions in {self._path}; "
                    "stop it, or give this one another file with OPENCLAW_PROXY_SESSIONS_FILE"
                ) from None
            if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
                raise StateBroken(
                    f"the disk of the proxy's sessions in {self._path} is full; make room there"
                ) from None
            raise self._broken(str(exc)) from None
        self._file = FileIdentity(self._path)
        return database

    def _close(self) -> None:
        try:
            self._database.close()
        except sqlite3.Error as exc:
            logger.warning("proxy sessions: %s could not be closed properly (%s)", self._path, exc)

    def _read_all(self) -> Sequence[KeptSession]:
        try:
            # Each list once, not for each of its sessions: thousands may share one of megabytes.
            tools = dict(self._database.execute("SELECT digest, tools FROM tool_lists"))
            rows = self._database.execute("SELECT registration, digest FROM sessions")
            kept = [KeptSession(_decode_registration(row), tools[digest]) for row, digest in rows if digest in tools]
            if not all(type(session.tools) is bytes for session in kept):
                raise ValueError("a list of tools in it is no text")
        except (sqlite3.Error, ValueError, TypeError) as exc:
            raise self._broken(str(exc)) from None
        return sorted(kept, key=lambda session: session.registration.created, reverse=True)

    def _broken(self, reason: str) -> StateBroken:
        return StateBroken(
            f"the proxy's sessions in {self._path} can't be used: {reason}; move that file away, and apps register "
            "again, or name another with OPENCLAW_PROXY_SESSIONS_FILE"
        )

    def _put(self, registration: AppRegistration, tools: bytes) -> None:
        digest = hashlib.sha256(tools).digest()

        def write(database: sqlite3.Connection) -> None:
            before = database.execute("SELECT digest FROM sessions WHERE id = ?", (registration.id,)).fetchone()
            database.execute("INSERT OR IGNORE INTO tool_lists VALUES (?, ?)", (digest, tools))
            row = (registration.id, msgspec.json.encode(registration), digest)
            database.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", row)
            if before is not None:
                database.execute(_DROP_UNUSED_TOOLS, (before[0], before[0]))

        self._write(write)
        self._ended.discard(registration.id)

    def _remove(self, *ids: str) -> None:
        self._ended.update(ids)

        def write(database: sqlite3.Connection) -> None:
            for each in self._ended:
                found = database.execute("DELETE FROM sessions WHERE id = ? RETURNING digest", (each,)).fetchall()
                for (digest,) in found:
                    database.execute(_DROP_UNUSED_TOOLS, (digest, digest))

        self._write(write)
        self._ended.clear()

    def _write(self, write: Callable[[sqlite3.Connection], None]) -> None:
        """One transaction. Raises StoreDown."""
        if not self._file.is_there():
            raise StoreDown(
                f"{self._path.name}, where the proxy keeps its sessions, was moved away or removed during its use; "
                "have its operator restart the proxy"
            )
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                write(self._database)
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
        except sqlite3.Error as exc:
            remedy = _REMEDIES.get(exc.sqlite_errorcode & 0xFF, "see to that file and its disk")
            raise StoreDown(
                f"the proxy can't keep its sessions in {self._path.name} ({exc}); have its operator {remedy}"
            ) from None


def _log_failure(done: Future[None]) -> None:
    if not done.cancelled() and (failure := done.exception()) is not None:
        logger.warning("proxy sessions: one that has ended is still in the file (%s), it is removed later", failure)
