"""Audit lines: one JSON object a call, to a file or to stderr, written beside the calls without delaying them."""

import asyncio
import logging
import os
import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from ..core.errors import BadRequest
from ..net.files import StateBroken, open_to_append
from ..net.tasks import Tasks, finish
from ..tools.audit import AuditRecord
from .engine.app_session import session_digest

MAX_LINES: Final = 20_000  # lines waiting for a slow disk; more are dropped, and a line says how many
BATCH_WINDOW: Final = 0.05  # seconds of lines that are written together: a thread for each costs more than its call
STDERR: Final = 2

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class ProxyAuditLog:
    """`write` queues; a thread writes whole batches. Its life is an `async with`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._records: list[AuditRecord] = []
        self._dropped = 0
        self._has_records = asyncio.Event()
        self._tasks = Tasks("proxy audit")
        self._descriptor = STDERR

    async def __aenter__(self) -> Self:
        if self._target not in ("off", "stderr"):
            try:
                self._descriptor = open_to_append(Path(self._target))
            except (StateBroken, OSError) as exc:
                why = exc.strerror if isinstance(exc, OSError) else exc
                raise BadRequest(f"the audit file can't be written: {why}; choose another") from None
        if self._target != "off":
            self._tasks.loop(self._write_batch, name="writing the audit log", on_failure="restart")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        self._write_bytes(self._take_lines())
        if self._descriptor != STDERR:
            os.close(self._descriptor)

    def write(self, record: AuditRecord) -> None:
        if self._target == "off":
            return
        if len(self._records) >= MAX_LINES:
            self._dropped += 1
            return
        self._records.append(record)
        if len(self._records) == 1:
            self._has_records.set()

    async def _write_batch(self) -> None:
        await self._has_records.wait()
        await asyncio.sleep(BATCH_WINDOW)
        self._has_records.clear()
        await finish(asyncio.to_thread(self._write_bytes, self._take_lines()))

    def _take_lines(self) -> bytes:
        records, self._records = self._records, []
        lines = []
        for record in records:
            try:
                lines.append(_format_record(record))
            except Exception:  # one record must not cost the others
                logger.exception(
                    "proxy audit: a record of tool %r could not be written, it is dropped", record.tool[:200]
                )
                self._dropped += 1
        if self._dropped:
            lines.append(_encode(_DroppedLine(_format_time(time.time()), self._dropped)))
            self._dropped = 0
        return b"".join(line + b"\n" for line in lines)

    def _write_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:  # a full disk or a closed pipe must not stop the calls; the lines are lost
            self._dropped += data.count(b"\n")


class _AuditLine(Struct, frozen=True):
    """A call as its line has it."""

    time: str
    session: str | None
    tool: str
    caller: str
    outcome: str
    milliseconds: float
    sent: int | None
    received: int | None


class _DroppedLine(Struct, frozen=True):
    """Says how many lines are missing before it."""

    time: str
    dropped: int


def _format_record(record: AuditRecord) -> bytes:
    traffic = record.traffic
    return _encode(
        _AuditLine(
            time=_format_time(record.at + record.milliseconds / 1000),
            session=None if record.session is None else _cached_digest(record.session),
            tool=record.tool[:200],
            caller=record.caller,
            outcome=record.outcome,
            milliseconds=round(record.milliseconds, 3),
            sent=traffic.sent if traffic else None,
            received=traffic.received if traffic else None,
        )
    )


_cached_digest = lru_cache(maxsize=1024)(session_digest)


def _format_time(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{_format_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=8)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
