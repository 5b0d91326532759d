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
from ..tools.audit import Record

MOST_LINES: Final = 20_000  # lines waiting for a slow disk; more are dropped, and a line says how many
GATHER: Final = 0.05  # seconds of lines that are written together: a thread for each would cost more than its call
STDERR: Final = 2

_encode = msgspec.json.Encoder().encode


class Book:
    """`write` queues; a thread puts whole batches where they belong. Its life is an `async with`."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lines: list[Record] = []
        self._told = False
        self._dropped = 0
        self._news = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._descriptor = STDERR

    async def __aenter__(self) -> Self:
        if self._where not in ("off", "stderr"):
            try:
                self._descriptor = open_to_append(Path(self._where))
            except (StateBroken, OSError) as exc:
                why = exc.strerror if isinstance(exc, OSError) else exc
                raise BadRequest(f"the audit file can't be written: {why}; choose another") from None
        if self._where != "off":
            self._writer = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait((self._writer,))
            self._put(self._take())
        if self._descriptor != STDERR:
            os.close(self._descriptor)

    def write(self, record: Record) -> None:
        if self._writer is None:
            return
        if len(self._lines) >= MOST_LINES:
            self._dropped += 1
            return
        self._lines.append(record)
        if not self._told:
            self._told = True
            self._news.set()

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER)
            self._news.clear()
            self._told = False
            await asyncio.shield(asyncio.to_thread(self._put, self._take()))

    def _take(self) -> bytes:
        records, self._lines = self._lines, []
        lines = [_line(record) for record in records]
        if self._dropped:
            note: dict[str, Any] = {"time": _written(time.time()), "dropped": self._dropped}
            lines.append(_encode(note))
            self._dropped = 0
        return b"".join(line + b"\n" for line in lines)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:  # a full disk or a closed pipe must not stop the calls; the lines are lost
            self._dropped += data.count(b"\n")


def _line(record: Record) -> bytes:
    traffic = record.traffic
    return _encode(
        {
            "time": _written(record.at + record.milliseconds / 1000),
            "session": None if record.session is None else digest(record.session),
            "tool": record.tool[:200],
            "caller": record.caller,
            "outcome": record.outcome,
            "milliseconds": round(record.milliseconds, 3),
            "sent": traffic.sent if traffic else None,
            "received": traffic.received if traffic else None,
        }
    )


def digest(session: str) -> str:
    """A session as the audit names it: its id is the key to it."""
    return hashlib.sha256(session.encode()).hexdigest()[:12]


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
