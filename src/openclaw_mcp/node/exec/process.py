"""One program run to its end: its whole process group ends with it, its output is bounded, its time is bounded."""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...core.errors import ToolError
from ...core.numbers import parse_whole_number
from ...core.ports import ProcessGuard

KEPT_HEAD: Final = 512 << 10  # bytes of the beginning of each stream
KEPT_TAIL: Final = 512 << 10  # and of its end, where errors stand
DRAIN_WAIT: Final = (
    0.5  # seconds for what is in the pipes after the program has ended; an orphan may hold them for ever
)
PROGRESS_EVERY: Final = 1.0  # seconds between signs of life to the caller
LONGEST_LAST_LINE: Final = 200  # characters of output a sign of life carries
CHUNK: Final = 1 << 16

ProgressReporter = Callable[[float, str], Awaitable[None]]
"""Seconds since the start, and the last line of output so far."""


class ProcessResult(Struct, frozen=True, kw_only=True):
    stdout: str
    stderr: str
    exit_code: int
    """-1 when the time was up; minus the signal's number when a signal ended it."""
    timed_out: bool
    truncated: bool
    seconds: float


class _Output(asyncio.Protocol):
    """Keeps the head and the tail of a stream."""

    def __init__(self, descriptor: int) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.dropped_bytes = 0
        self.last_chunk = b""
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._file = os.fdopen(descriptor, "rb", 0)
        self._transport: asyncio.ReadTransport | None = None

    async def open(self) -> None:
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, self._file)

    def data_received(self, data: bytes) -> None:
        self.last_chunk = data[-CHUNK:]
        room = KEPT_HEAD - len(self._head)
        self._head += data[:room] if room > 0 else b""
        rest = data[room:] if room > 0 else data
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            while self._tail_size > KEPT_TAIL:
                oldest = self._tail.popleft()
                self._tail_size -= len(oldest)
                excess = KEPT_TAIL - self._tail_size
                if excess > 0:  # keep the part of it that still fits
                    self._tail.appendleft(oldest[-excess:])
                    self._tail_size += min(excess, len(oldest))
                    self.dropped_bytes += max(0, len(oldest) - excess)
                    break
                self.dropped_bytes += len(oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        else:
            self._file.close()

    def text(self) -> str:
        head, tail = bytes(self._head), b"".join(self._tail)
        if not self.dropped_bytes:
            return (head + tail).decode(errors="replace")
        gap = f"\n[... {self.dropped_bytes} bytes left out ...]\n"
        return head.decode(errors="replace") + gap + tail.decode(errors="replace")


async def run_process(
    argv: Sequence[str],
    *,
    executable: str,
    cwd: Path | None,
    env: Mapping[str, str],
    seconds: float,
    report: ProgressReporter | None = None,
    guard: ProcessGuard | None = None,
) -> ProcessResult:
    """Run until it ends, its time is up, or this task is cancelled. Nothing of its process group is left then; `guard`
    sees to that should we be killed."""
    began = time.monotonic()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    out, err = _Output(out_read), _Output(err_read)
    try:
        try:
            if guard is not None:
                guard.prepare()
            process = _start_process(argv, executable, cwd, env, out_write, err_write)
        finally:
            os.close(out_write)
            os.close(err_write)
        if guard is not None:
            guard.watch(process.pid)
        try:
            return await _supervise(process, out, err, started_at=began, seconds=seconds, report=report)
        finally:
            if guard is not None:
                guard.unwatch(process.pid)
    except OSError as exc:
        raise ToolError(f"The program could not be started: {exc.strerror or 'unknown reason'}") from exc
    except ValueError as exc:
        raise ToolError("The program could not be started: an argument holds a NUL character") from exc
    finally:
        out.close()
        err.close()


def _start_process(
    argv: Sequence[str], executable: str, cwd: Path | None, env: Mapping[str, str], out: int, err: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(argv),
        executable=executable,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


async def _supervise(
    process: subprocess.Popen[bytes],
    out: _Output,
    err: _Output,
    *,
    started_at: float,
    seconds: float,
    report: ProgressReporter | None,
) -> ProcessResult:
    ended = _watch_exit(process)
    timed_out = False
    try:
        await out.open()
        await err.open()
        try:
            async with asyncio.timeout(seconds):
                await _wait_for_exit(ended, started_at, out, err, report)
        except TimeoutError:
            timed_out = True
    finally:
        kill_group(process.pid, include_strays=not ended.done())
        await asyncio.shield(ended)
    await asyncio.wait((out.closed, err.closed), timeout=DRAIN_WAIT)
    return ProcessResult(
        stdout=out.text(),
        stderr=err.text(),
        exit_code=-1 if timed_out else process.returncode,
        timed_out=timed_out,
        truncated=bool(out.dropped_bytes or err.dropped_bytes),
        seconds=time.monotonic() - started_at,
    )


async def _wait_for_exit(
    exited: "asyncio.Future[None]", started_at: float, out: _Output, err: _Output, report: ProgressReporter | None
) -> None:
    while not exited.done():
        await asyncio.wait((exited,), timeout=PROGRESS_EVERY)
        if report is not None and not exited.done():
            lines = (out.last_chunk or err.last_chunk).decode(errors="replace").strip().splitlines()
            await report(time.monotonic() - started_at, lines[-1][:LONGEST_LAST_LINE] if lines else "")


def _watch_exit(process: subprocess.Popen[bytes]) -> "asyncio.Future[None]":
    """Done when the program has ended, whoever still holds its pipes."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    def wait() -> None:
        process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=wait, name=f"wait-{process.pid}", daemon=True).start()
    return ended


def kill_group(leader: int, *, include_strays: bool) -> None:
    """End every process of the group at once, those that outlived their leader included.

    `strayed` looks for descendants that left it too; once the leader has ended they can't be told from others.
    """
    if os.name == "nt":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(leader)], check=False, capture_output=True)
        return
    for member in _find_strays(leader) if include_strays else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _find_strays(leader: int) -> list[int]:
    """Descendants that have left the group, as setsid does; found while their parents still live."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if (number := parse_whole_number(entry.name)) is not None:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    children.setdefault(int(fields[1]), []).append(number)
    found: list[int] = []
    waiting = [leader]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
