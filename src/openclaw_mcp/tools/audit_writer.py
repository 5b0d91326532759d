"""Audit records on their way to the store: collected and written together, beside the calls and never in their way."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated, Final, Self

from msgspec import Meta, Struct, structs

from ..core.errors import StoreError
from ..core.model import CallRecord, Json
from ..core.repositories import AuditTrail
from ..core.rpc import ADMIN, READ, SAFE_INTEGER, RpcCall, RpcMethod, make_method, read_params
from ..core.sessions import AuditQuery
from ..net.tasks import Tasks, finish
from .audit_activity import ActivityPage, ActivityParams, activity_query, make_activity

logger = logging.getLogger(__name__)

BATCH_WINDOW: Final = 0.1  # seconds of records that share a commit: all that a `kill -9` can take
MOST_PENDING: Final = 20_000  # records while the disk refuses; more are dropped, and the log says how many
CLOSE_TIMEOUT: Final = 5.0  # seconds the last records get when the gateway closes


class AuditQueue:
    """Takes records from its beginning on; a writer empties it once there is a store."""

    def __init__(self) -> None:
        self.pending: list[CallRecord] = []
        self.has_records = asyncio.Event()
        self.dropped = 0

    def write(self, record: CallRecord) -> None:
        if len(self.pending) >= MOST_PENDING:
            self.dropped += 1
            return
        self.pending.append(record)
        self.has_records.set()


class AuditWriter:
    """Writes a queue's records to the store while its block lasts, and lists them. An `RpcModule`.

    A record is on disk `BATCH_WINDOW` seconds and one commit after its call ended; leaving the block writes the rest.
    """

    def __init__(self, queue: AuditQueue, trail: AuditTrail) -> None:
        self._queue = queue
        self._trail = trail
        self._tasks = Tasks("audit")

    async def __aenter__(self) -> Self:
        self._tasks.loop(self._write_batch, name="writing records", on_failure="restart")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._flush()
        except (StoreError, TimeoutError):
            logger.exception("audit: %d records could not be written before closing", len(self._queue.pending))

    async def _write_batch(self) -> None:
        await self._queue.has_records.wait()
        await asyncio.sleep(BATCH_WINDOW)
        await self._flush()

    async def _flush(self) -> None:
        queue = self._queue
        if queue.dropped:
            logger.error("audit: %d records were dropped (the disk did not keep up)", queue.dropped)
            queue.dropped = 0
        if queue.pending:
            await finish(self._write(queue.pending[:]))  # to its end: a write that was begun must not be made twice

    async def _write(self, batch: Sequence[CallRecord]) -> None:
        await self._trail.add(batch)
        del self._queue.pending[: len(batch)]
        if not self._queue.pending:
            self._queue.has_records.clear()

    # ---- reading -------------------------------------------------------------------------------------------------

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("audit.list", ADMIN, self._list_records),
            make_method("audit.activity.list", READ, ActivityParams, self._list_activity),
        )

    async def _list_activity(self, call: RpcCall, asked: ActivityParams) -> ActivityPage:
        query = activity_query(asked)
        found = () if query is None else await self._trail.find(query)
        cursor = str(found[-1]["id"]) if len(found) == asked.limit else None
        return ActivityPage([make_activity(record) for record in found], cursor)

    async def _list_records(self, call: RpcCall) -> Json:
        params = read_params(call.params, _AuditListParams, call.method)
        fields = structs.asdict(params)
        found = await self._trail.find(AuditQuery(session=fields.pop("session_key"), **fields))
        more = {"nextBefore": found[-1]["id"]} if len(found) == params.limit else {}
        return {"records": list(found), "count": len(found), **more}


class _AuditListParams(Struct, frozen=True, rename="camel"):
    session_key: str | None = None
    tool: str | None = None
    outcome: str | None = None
    since: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)] | None = None
    before: Annotated[int, Meta(ge=1, le=SAFE_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
