"""One writer per process, with group commit: the writes that arrive during one commit share the next one's fsync."""

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from ..core.errors import OpenClawError, StoreBusy
from .db_errors import translate_error

logger = logging.getLogger(__name__)
T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_PER_COMMIT: Final = 256  # bounds how long a write waits for the others, and what one failure undoes
MAX_PER_BATCH: Final = 256  # items of a `BatchedWrite`; bounds what waits for a slow one
MOST_PENDING: Final = 10_000  # beyond this the disk can't keep up; refusing is better than growing
CLOSE_GRACE: Final = 30.0  # seconds the accepted writes have to be written at the end


class _PendingWrite:
    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(self, work: Callable[[Connection], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():  # the caller was cancelled; the write is done all the same
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """Runs functions of a connection, each whole or not at all, in the order of their arrival."""

    def __init__(self, engine: Engine, *, location: str, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises StoreError when nothing that is written now would be found again."""
        self._engine = engine
        self._check = check
        self._location = location
        self._pending: deque[_PendingWrite] = deque()
        self._condition = threading.Condition()
        self._closing = False
        self.fatal_error: OpenClawError | None = None
        """When set, every write is refused with it."""
        self.commits = 0
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self.submit(work)

    def submit(self, work: Callable[[Connection], T]) -> "asyncio.Future[T]":
        """What `work` returns, once it is on disk. `work` may run again only if its first try left nothing."""
        job = _PendingWrite(work, asyncio.get_running_loop())
        with self._condition:
            if self._closing:
                raise StoreBusy("The store is closing.")
            if self.fatal_error is not None:
                raise self.fatal_error
            if len(self._pending) >= MOST_PENDING:
                raise StoreBusy("Too many writes are waiting for the disk; try again shortly.")
            self._pending.append(job)
            self._condition.notify()
        return job.future

    def close(self) -> None:
        """Write what waits, then stop. Blocks; call it in a thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(CLOSE_GRACE)
        if self._thread.is_alive():
            logger.error("store: writes still wait for the disk after %g s, they are lost", CLOSE_GRACE)

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not self._pending and not self._closing:
                    self._condition.wait()
                if not self._pending:
                    return
                batch = [self._pending.popleft() for _ in range(min(len(self._pending), MAX_PER_COMMIT))]
            self._commit(batch)
            self._settle(batch)

    def _commit(self, batch: list[_PendingWrite]) -> None:
        try:
            self._check()
            try:
                self._run_batch(batch, savepoints=False)
            except Exception as exc:
                if len(batch) == 1 or _is_database_failure(exc):
                    raise
                # Nothing of it is on disk. Again, each behind a savepoint, so that one failure undoes that write alone.
                # To set a savepoint for each write every time would cost more than most writes do.
                self._run_batch(batch, savepoints=True)
        except Exception as exc:  # noqa: BLE001  (its callers must get any failure)
            # Nothing of this batch is on disk, so none of its callers may get a result.
            error = self._translate(exc)
            for job in batch:
                job.error = job.error or error

    def _run_batch(self, batch: list[_PendingWrite], *, savepoints: bool) -> None:
        with self._engine.begin() as connection:
            for job in batch:
                if savepoints:
                    self._run_in_savepoint(connection, job)
                else:
                    job.result = job.work(connection)
        self.commits += 1

    def _run_in_savepoint(self, connection: Connection, job: _PendingWrite) -> None:
        try:
            with connection.begin_nested():
                job.result = job.work(connection)
        except Exception as exc:
            if _is_database_failure(exc):
                raise
            job.error = self._translate(exc)  # the other writes of the batch stay

    def _translate(self, exc: Exception) -> Exception:
        if isinstance(exc, DBAPIError | sqlite3.Error):
            known = translate_error(exc, self._location)
            if known is not None:
                logger.error("store: %s", known)
                return known
        if not isinstance(exc, OpenClawError):
            logger.error("store: a write failed", exc_info=exc)
        return exc

    def _settle(self, batch: list[_PendingWrite]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_PendingWrite]] = {}
        for job in batch:
            by_loop.setdefault(job.loop, []).append(job)
        for loop, jobs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle_all, jobs)
            except RuntimeError:  # that loop has closed: no caller waits any more
                logger.debug("store: %d writes done after their loop closed", len(jobs))


def _is_database_failure(exc: Exception) -> bool:
    """Whether the database itself failed, and with it the batch."""
    return isinstance(exc, DBAPIError | sqlite3.Error) and not isinstance(exc, IntegrityError | sqlite3.IntegrityError)


def _settle_all(jobs: list[_PendingWrite]) -> None:
    for job in jobs:
        job.settle()


class BatchedWrite(Generic[Item, Result]):
    """Many small writes as one job: the items that arrive before the writer begins a batch join it.

    `work` gets several items and returns as many results; when it fails, all of them fail. It saves the writer a
    savepoint for each item, which costs more than the insert itself.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[Connection], Sequence[Result]]], "asyncio.Future[Sequence[Result]]"],
        work: Callable[[Connection, Sequence[Item]], Sequence[Result]],
    ) -> None:
        self._submit = submit
        self._work = work
        self._lock = threading.Lock()  # the loop adds items, the writer's thread closes the batch
        self._open: list[tuple[Item, asyncio.Future[Result]]] | None = None

    async def __call__(self, item: Item) -> Result:
        """The item's result, once it is on disk."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._open is None or len(self._open) >= MAX_PER_BATCH:
                self._open = self._start_batch()
            self._open.append((item, future))
        return await future

    def _start_batch(self) -> list[tuple[Item, "asyncio.Future[Result]"]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []

        def run(connection: Connection) -> Sequence[Result]:
            with self._lock:
                if self._open is batch:
                    self._open = None
            return self._work(connection, [item for item, _ in batch])

        def settle(done: "asyncio.Future[Sequence[Result]]") -> None:
            error = done.exception()
            results = [None] * len(batch) if error else done.result()
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():  # the caller was cancelled; the write is done all the same
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)  # type: ignore[arg-type]  # None only together with an error

        self._submit(run).add_done_callback(settle)
        return batch
