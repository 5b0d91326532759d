"""Audit lines: one JSON object a call, to a file or to stderr, written beside the calls and never in their way."""

import asyncio
import hashlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from ..core.errors import BadRequest
from ..net.files import StateBroken, open_to_append
from ..tools.audit import AuditRecord

MAX_LINES: Final = 20_000  # lines waiting for a slow disk; more are dropped, and a line says how many
BATCH_WINDOW: Final = (
    0.05  # seconds of lines that are written together: a thread for each would cost more than its call
)
STDERR: Final = 2

_encode = msgspec.json.Encoder().encode


class ProxyAuditLog:
    """`write` queues; a thread puts whole batches where they belong. Its life is an `async with`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lines: list[AuditRecord] = []
        self._wake_sent = False
        self._dropped = 0
        self._wake = asyncio.Event()
        self._writer_task: asyncio.Task[None] | None = None
        self._descriptor = STDERR

    async def __aenter__(self) -> Self:
        if self._target not in ("off", "stderr"):
            try:
                self._descriptor = open_to_append(Path(self._target))
            except (StateBroken, OSError) as exc:
                why = exc.strerror if isinstance(exc, OSError) else exc
                raise BadRequest(f"the audit file can't be written: {why}; choose another") from None
        if self._target != "off":
            self._writer_task = asyncio.create_task(self._run_writer())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer_task is not None:
            self._writer_task.cancel()
            await asyncio.wait((self._writer_task,))
            self._write_bytes(self._take_lines())
        if self._descriptor != STDERR:
            os.close(self._descriptor)

    def write(self, record: AuditRecord) -> None:
        if self._writer_task is None:
            return
        if len(self._lines) >= MAX_LINES:
            self._dropped += 1
            return
        self._lines.append(record)
        if not self._wake_sent:
            self._wake_sent = True
            self._wake.set()

    async def _run_writer(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(BATCH_WINDOW)
            self._wake.clear()
            self._wake_sent = False
            await asyncio.shield(asyncio.to_thread(self._write_bytes, self._take_lines()))

    def _take_lines(self) -> bytes:
        records, self._lines = self._lines, []
        lines = [_format_record(record) for record in records]
        if self._dropped:
            note: dict[str, Any] = {"time": _format_time(time.time()), "dropped": self._dropped}
            lines.append(_encode(note))
            self._dropped = 0
        return b"".join(line + b"\n" for line in lines)

    def _write_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:  # a full disk or a closed pipe must not stop the calls; the lines are lost
            self._dropped += data.count(b"\n")


def _format_record(record: AuditRecord) -> bytes:
    traffic = record.traffic
    return _encode(
        {
            "time": _format_time(record.at + record.milliseconds / 1000),
            "session": None if record.session is None else session_digest(record.session),
            "tool": record.tool[:200],
            "caller": record.caller,
            "outcome": record.outcome,
            "milliseconds": round(record.milliseconds, 3),
            "sent": traffic.sent if traffic else None,
            "received": traffic.received if traffic else None,
        }
    )


def session_digest(session_id: str) -> str:
    """A session as the audit names it: its id is the key to it."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:12]


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
