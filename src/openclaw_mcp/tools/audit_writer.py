"""The audit's way to the store: records are gathered and written together, beside the calls and never in their way."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated, Final, Self

from msgspec import Meta, Struct

from ..core.errors import StoreError
from ..core.model import CallRecord, Json
from ..core.repositories import AuditTrail
from ..core.rpc import ADMIN, SAFE_INTEGER, RpcCall, RpcMethod, read_params
from ..core.sessions import AuditQuery

logger = logging.getLogger(__name__)

BATCH_WINDOW: Final = 0.1  # seconds of records that share a commit: all that a `kill -9` can take
MOST_PENDING: Final = 20_000  # records while the disk refuses; more are dropped, and the log says how many
RETRY_PAUSE: Final = 1.0  # seconds, when the disk refuses
CLOSE_TIMEOUT: Final = 5.0  # seconds the last records get when the house closes


class _AuditListParams(Struct, frozen=True, rename="camel"):
    session_key: str | None = None
    tool: str | None = None
    outcome: str | None = None
    since: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)] | None = None
    before: Annotated[int, Meta(ge=1, le=SAFE_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class AuditWriter:
    """Give `write` to a desk; `keep` while there is a book. A `Room`.

    A record is on disk `GATHER` seconds and one commit after its call ended; leaving `keep` writes all there are.
    """

    def __init__(self) -> None:
        self._pending: list[CallRecord] = []
        self._dropped = 0
        self._wakeup = asyncio.Event()
        self._trail: AuditTrail | None = None
        self._writer_task: asyncio.Task[None] | None = None
        self._write_future: asyncio.Future[None] | None = None

    def write(self, record: CallRecord) -> None:
        if len(self._pending) >= MOST_PENDING:
            self._dropped += 1
            return
        self._pending.append(record)
        self._wakeup.set()

    def attach(self, trail: AuditTrail) -> Self:
        self._trail = trail
        return self

    async def __aenter__(self) -> Self:
        self._writer_task = asyncio.get_running_loop().create_task(self._write_batches())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer_task is not None
        self._writer_task.cancel()
        await asyncio.wait((self._writer_task,))
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._flush()
        except (StoreError, TimeoutError):
            logger.exception("%d audit records could not be written", len(self._pending))

    async def _write_batches(self) -> None:
        while True:
            await self._wakeup.wait()
            await asyncio.sleep(BATCH_WINDOW)
            self._wakeup.clear()
            try:
                await self._flush()
            except StoreError as exc:
                logger.warning("the audit can't be written, trying again: %s", exc)
                self._wakeup.set()
                await asyncio.sleep(RETRY_PAUSE)

    async def _flush(self) -> None:
        assert self._trail is not None
        if self._dropped:
            logger.error("%d audit records were dropped: the disk did not keep up", self._dropped)
            self._dropped = 0
        if self._write_future is not None:
            await asyncio.wait((self._write_future,))  # the flush before was cancelled while its write went on
        batch = self._pending[:]
        if batch:
            # Shielded: a write that was handed over is made, and must not be made twice.
            self._write_future = asyncio.ensure_future(self._trail.add(batch))
            self._write_future.add_done_callback(lambda done: self._finish_flush(done, len(batch)))
            await asyncio.shield(self._write_future)

    def _finish_flush(self, future: "asyncio.Future[None]", count: int) -> None:
        self._write_future = None
        if not future.cancelled() and future.exception() is None:
            del self._pending[:count]

    # ---- reading -------------------------------------------------------------------------------------------------

    def methods(self) -> Sequence[RpcMethod]:
        return (RpcMethod("audit.list", ADMIN, self._list_records),)

    async def _list_records(self, call: RpcCall) -> Json:
        asked = read_params(call.params, _AuditListParams, call.method)
        assert self._trail is not None
        query = AuditQuery(
            session=asked.session_key,
            tool=asked.tool,
            outcome=asked.outcome,
            since=asked.since,
            before=asked.before,
            limit=asked.limit,
        )
        found = await self._trail.find(query)
        more = {"nextBefore": found[-1]["id"]} if len(found) == asked.limit else {}
        return {"records": list(found), "count": len(found), **more}
