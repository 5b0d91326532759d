"""Many small writes as one job: whatever is asked for while the last one goes shares the next."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from sqlalchemy import Connection

from .store import SqlStore

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_PER_BATCH: Final = 256  # bounds what waits for one item that is slow, and what one failure undoes


class BatchedWrite(Generic[Item, Result]):
    """Call it with an item. `work` gets several and returns as many results; for what fails, all of them fail.

    It saves the writer a savepoint for each, which costs more than the insert itself.
    """

    def __init__(self, store: SqlStore, work: Callable[[Connection, Sequence[Item]], Sequence[Result]]) -> None:
        self._store = store
        self._work = work
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """The item's result, once it is on disk."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._write())
        return await future

    async def _write(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_PER_BATCH))]
            items = [item for item, _ in batch]
            try:
                results = await self._store.write(lambda connection, items=items: self._work(connection, items))  # type: ignore[misc]  # mypy can't type a lambda's default
            except Exception as exc:  # noqa: BLE001  (whatever it is, those who wait must hear of it)
                for _, future in batch:
                    if not future.done():
                        future.set_exception(exc)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():  # the one who asked has left; what they asked for is done all the same
                    future.set_result(result)
