"""The side-effects file: what an agent did to others while it ran, one JSON object a line. Writer and reader.

The server appends a line after an effect happened and before it answers the agent, so a reader finds there,
once the agent has ended, every effect the agent got an answer for. See docs/reference/side-effects.md.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ..core.clock import now_ms
from ..core.effects import CronAdded, RunEffects, SentMessage
from ..core.errors import OpenClawError

MAX_FILE_BYTES: Final = 64 << 20  # bytes a reader takes: what a run wrote beyond that is ignored
PRIVATE_MODE: Final = 0o600  # the lines hold messages

_encode = msgspec.json.Encoder().encode


class CannotRecord(OpenClawError):
    """The file can't be written; raised before anything is sent."""

    code = "cannot_record"


class _MessageLine(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The keys in the order in which the protocol names them."""

    type: str
    tool: str
    provider: str
    account_id: str | None = None
    to: str | None = None
    text: str
    media_url: str | None
    ts: int
    thread_id: str | None = None


class _CronLine(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", tag="cron_added"
):
    job_id: str | None = None
    ts: int


class EffectsFile:
    """Appends to one file; several servers may share it. Nothing is ever rewritten or truncated."""

    def __init__(self, path: Path | str, *, provider: str = "", account: str = "") -> None:
        self._path = Path(path)
        self._provider = provider
        self._account = account
        self._descriptor: int | None = None

    def ensure_open(self) -> int:
        """The descriptor. Call before an effect: afterwards it would be too late to find out. Raises CannotRecord."""
        if self._descriptor is not None:
            return self._descriptor
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            self._descriptor = os.open(self._path, flags, PRIVATE_MODE)
        except OSError as exc:
            reason = f"{self._path} can't be written ({exc.strerror}), so nothing that must be recorded there is done"
            raise CannotRecord(reason) from exc
        return self._descriptor

    def record_messages(self, messages: Sequence[SentMessage]) -> None:
        """Record messages that were sent, all in one write."""
        self._append([self._message_line("message_sent", sent) for sent in messages])

    def record_uncertain(self, messages: Sequence[SentMessage]) -> None:
        """Record messages that may have been sent: the connection broke before the answer came."""
        self._append([self._message_line("message_unconfirmed", sent) for sent in messages])

    def record_cron_job(self, job_id: str | None) -> None:
        self._append([_CronLine(job_id=job_id or None, ts=now_ms())])

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _message_line(self, kind: str, message: SentMessage) -> _MessageLine:
        return _MessageLine(
            type=kind,
            tool=message.tool,
            provider=message.provider or self._provider,
            account_id=message.account or self._account or None,
            to=message.to or None,
            text=message.text,
            media_url=message.media_url,
            ts=message.ts or now_ms(),
            thread_id=message.thread or None,
        )

    def _append(self, lines: Sequence[_MessageLine | _CronLine]) -> None:
        """One write on a descriptor opened for appending: lines of several servers never mix."""
        descriptor = self.ensure_open()
        data = b"".join(_encode(line) + b"\n" for line in lines)
        try:
            if not _is_at_line_start(descriptor):
                data = b"\n" + data  # another server died in the middle of a line: that one is lost, ours is not
            view = memoryview(data)
            while view:  # a second round only when the disk was full for a moment
                view = view[os.write(descriptor, view) :]
        except OSError as exc:
            raise CannotRecord(f"{self._path} can't be written: {exc.strerror}") from exc


def _is_at_line_start(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    if size == 0:
        return True
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1) in (b"\n", b"")


def read_effects(path: Path | str) -> RunEffects:
    """The effects in the file. Lines that can't be used are skipped one by one; no file means no effects."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError:
        return RunEffects()
    sent: list[SentMessage] = []
    unsure: list[SentMessage] = []
    cron_added: list[CronAdded] = []
    skipped = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        match _read_line(line):
            case "message_sent", SentMessage() as message:
                sent.append(message)
            case "message_unconfirmed", SentMessage() as message:
                unsure.append(message)
            case _, CronAdded() as job:
                cron_added.append(job)
            case None:
                skipped += 1
    return RunEffects(sent=tuple(sent), unsure=tuple(unsure), cron_added=tuple(cron_added), skipped=skipped)


class _EffectLine(Struct, frozen=True, rename="camel"):
    """A line of any kind. A field of another type makes it unusable."""

    type: str
    tool: str = ""
    provider: str | None = ""
    account_id: str | None = None
    to: str | None = None
    thread_id: str | None = None
    text: str | None = ""
    media_url: str | None = None
    job_id: str | None = None
    ts: float = 0


_decode = msgspec.json.Decoder(_EffectLine).decode


def _read_line(line: bytes) -> tuple[str, SentMessage | CronAdded] | None:
    try:
        read = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    ts = int(read.ts) if abs(read.ts) < 1 << 53 else 0
    if read.type == "cron_added":
        return read.type, CronAdded(job_id=read.job_id, ts=ts)
    if read.type not in ("message_sent", "message_unconfirmed"):
        return None
    return read.type, SentMessage(
        tool=read.tool,
        provider=read.provider or "",
        account=read.account_id,
        to=read.to,
        thread=read.thread_id,
        text=read.text or "",
        media_url=read.media_url,
        ts=ts,
    )
