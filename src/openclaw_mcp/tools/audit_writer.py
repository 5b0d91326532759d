"""The audit's way to the store: records are gathered and written together, beside the calls and never in their way."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated, Final, Self

from msgspec import Meta, Struct

from ..core.errors import StoreError
from ..core.model import CallRecord, Json
from ..core.repositories import AuditTrail
from ..core.rpc import ADMIN, SAFE_INTEGER, Method, RpcCall, read_params
from ..core.sessions import AuditQuery

logger = logging.getLogger(__name__)

GATHER: Final = 0.1  # seconds of records that share a commit: all that a `kill -9` can take
MOST_WAITING: Final = 20_000  # records while the disk refuses; more are dropped, and the log says how many
TRY_AGAIN: Final = 1.0  # seconds, when the disk refuses
LAST_WAIT: Final = 5.0  # seconds the last records get when the house closes


class _Wanted(Struct, frozen=True, rename="camel"):
    session_key: str | None = None
    tool: str | None = None
    outcome: str | None = None
    since: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)] | None = None
    before: Annotated[int, Meta(ge=1, le=SAFE_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Ledger:
    """Give `write` to a desk; `keep` while there is a book. A `Room`.

    A record is on disk `GATHER` seconds and one commit after its call ended; leaving `keep` writes all there are.
    """

    def __init__(self) -> None:
        self._waiting: list[CallRecord] = []
        self._dropped = 0
        self._news = asyncio.Event()
        self._book: AuditTrail | None = None
        self._writer: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None

    def write(self, record: CallRecord) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        self._waiting.append(record)
        self._news.set()

    def keep(self, book: AuditTrail) -> Self:
        self._book = book
        return self

    async def __aenter__(self) -> Self:
        self._writer = asyncio.get_running_loop().create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        self._writer.cancel()
        await asyncio.wait((self._writer,))
        try:
            async with asyncio.timeout(LAST_WAIT):
                await self._flush()
        except (StoreError, TimeoutError):
            logger.exception("%d audit records could not be written", len(self._waiting))

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER)
            self._news.clear()
            try:
                await self._flush()
            except StoreError as exc:
                logger.warning("the audit can't be written, trying again: %s", exc)
                self._news.set()
                await asyncio.sleep(TRY_AGAIN)

    async def _flush(self) -> None:
        assert self._book is not None
        if self._dropped:
            logger.error("%d audit records were dropped: the disk did not keep up", self._dropped)
            self._dropped = 0
        if self._writing is not None:
            await asyncio.wait((self._writing,))  # the flush before was cancelled while its write went on
        batch = self._waiting[:]
        if batch:
            # Shielded: a write that was handed over is made, and must not be made twice.
            self._writing = asyncio.ensure_future(self._book.add(batch))
            self._writing.add_done_callback(lambda done: self._settle(done, len(batch)))
            await asyncio.shield(self._writing)

    def _settle(self, done: "asyncio.Future[None]", count: int) -> None:
        self._writing = None
        if not done.cancelled() and done.exception() is None:
            del self._waiting[:count]

    # ---- reading -------------------------------------------------------------------------------------------------

    def methods(self) -> Sequence[Method]:
        return (Method("audit.list", ADMIN, self._list),)

    async def _list(self, call: RpcCall) -> Json:
        asked = read_params(call.params, _Wanted, call.method)
        assert self._book is not None
        query = AuditQuery(
            session=asked.session_key,
            tool=asked.tool,
            outcome=asked.outcome,
            since=asked.since,
            before=asked.before,
            limit=asked.limit,
        )
        found = await self._book.find(query)
        more = {"nextBefore": found[-1]["id"]} if len(found) == asked.limit else {}
        return {"records": list(found), "count": len(found), **more}
