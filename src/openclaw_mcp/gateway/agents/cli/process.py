"""A program that talks in lines: fed once, listened to, and ended with everything it started."""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, cast

import psutil
from msgspec import Struct

from ....core.errors import OpenClawError
from ....core.ports import ProcessGuard

MAX_LINE_LENGTH: Final = 64 << 20  # bytes; a picture in base64 fits, a runaway program does not fill our memory
MOST_BUFFERED_LINES: Final = 1000  # lines read and not yet taken; beyond that the program waits for us
STDERR_TAIL: Final = 16 << 10  # bytes of what a program last complained of
DRAIN_SECONDS: Final = (
    0.3  # seconds for what is in the pipe after the program has ended; an orphan may hold it for ever
)
TERM_GRACE: Final = 1.5  # seconds a group gets between SIGTERM and SIGKILL; a run's owner waits five in all
KILL_WAIT: Final = 2.0  # seconds for the kernel to end a killed process; one stuck in a dead disk must not hold us
GROUP_POLL_SECONDS: Final = 0.02  # seconds between two looks whether the group is empty: it has no event to wait for


class CliStartError(OpenClawError):
    """The program is not there, or the system refuses to run it. The text is the system's reason."""

    code = "cannot_start"


class CliSilentError(OpenClawError):
    """The program said nothing for too long."""

    code = "silent"

    def __init__(self, when: Literal["start", "later"], seconds: float) -> None:
        super().__init__(f"no output within {seconds:g} s")
        self.when = when
        self.seconds = seconds


RUN_MARK_VARIABLE: Final = "OPENCLAW_RUN"
"""The variable by which processes of a run are known that left its group and lost their parent."""


class CliCommand(Struct, frozen=True, kw_only=True):
    argv: Sequence[str]
    env: Mapping[str, str]
    """With MARK in it, whatever inherits it ends with the program."""
    cwd: str
    stdin: bytes = b""


class CliTimeouts(Struct, frozen=True, kw_only=True):
    startup: float = 300.0
    """Seconds until the first line: a cold CLI, its servers and a slow model's first word."""
    idle: float = 600.0
    """Seconds between two lines: two of the four say nothing while a tool works or the model thinks."""


class CliProcess:
    """`async with Program(command, …) as program: async for line in program.lines(): …`. The program leads a process
    group of its own; on leaving, the group is gone, and so are the descendants that had left it."""

    def __init__(self, command: CliCommand, timeouts: CliTimeouts, guard: ProcessGuard | None = None) -> None:
        self.status: int | None = None
        """Its exit status once it has ended; minus the signal's number when a signal ended it."""
        self._command = command
        self._timeouts = timeouts
        self._guard = guard
        self._lines: deque[bytes | None] = deque()
        self._splitter = _LineSplitter(self._lines.append)
        self._lines_changed = asyncio.Event()
        self._closed = False
        self._paused = False
        self._stderr_tail = bytearray()
        self._exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        """Raises CannotStart."""
        command = self._command
        if self._guard is not None:
            self._guard.prepare()
        try:
            self._transport, _ = await self._loop.subprocess_exec(
                lambda: _ProcessProtocol(self),
                *command.argv,
                env=dict(command.env),
                cwd=command.cwd,
                start_new_session=True,
            )
        except OSError as exc:
            raise CliStartError(exc.strerror or "unknown reason") from exc
        except ValueError as exc:
            raise CliStartError("an argument holds a NUL character") from exc
        if self._guard is not None:
            self._guard.watch(self._transport.get_pid())
        stdin: Any = self._transport.get_pipe_transport(0)
        stdin.write(command.stdin)
        stdin.write_eof()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        # Shielded, and bounded by the graces: whoever cancels us, no process may be left behind.
        ending = asyncio.ensure_future(self._end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise

    async def lines(self) -> AsyncGenerator[bytes | None]:
        """Each line; None for one that was dropped for its length. Raises Silent."""
        when: Literal["start", "later"] = "start"
        while True:
            seconds = self._timeouts.startup if when == "start" else self._timeouts.idle
            while not self._lines:
                if self._closed:
                    return
                self._lines_changed.clear()
                try:
                    async with asyncio.timeout(seconds):
                        await self._lines_changed.wait()
                except TimeoutError:
                    raise CliSilentError(when, seconds) from None
            when = "later"
            yield self._lines.popleft()
            self._resume_output()

    async def wait_exit(self) -> None:
        """Wait for the exit of a program that has closed its output. Raises Silent."""
        try:
            async with asyncio.timeout(self._timeouts.idle):
                await self._exited.wait()
        except TimeoutError:
            raise CliSilentError("later", self._timeouts.idle) from None

    @property
    def stderr(self) -> str:
        """The end of what it complained of."""
        return self._stderr_tail.decode(errors="replace")

    # ---- what the program says -----------------------------------------------------------------------------------

    def feed_stdout(self, data: bytes) -> None:
        self._splitter.feed(data)
        self._lines_changed.set()
        if len(self._lines) > MOST_BUFFERED_LINES and not self._paused:
            self._paused = True
            self._stdout().pause_reading()

    def _resume_output(self) -> None:
        if self._paused and len(self._lines) < MOST_BUFFERED_LINES // 2:
            self._paused = False
            self._stdout().resume_reading()

    def _stdout(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))

    def feed_stderr(self, data: bytes) -> None:
        self._stderr_tail += data
        del self._stderr_tail[:-STDERR_TAIL]

    def end_output(self) -> None:
        """No more lines will come."""
        if not self._closed:
            self._closed = True
            self._splitter.finish()
            self._lines_changed.set()

    def on_exit(self, status: int | None) -> None:
        self.status = status
        self._exited.set()
        self._loop.call_later(DRAIN_SECONDS, self._finish_drain)

    def _finish_drain(self) -> None:
        if self._paused:  # what is still in the pipe waits for us, not we for it
            self._loop.call_later(DRAIN_SECONDS, self._finish_drain)
        else:
            self.end_output()

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        transport = self._transport
        if transport is None:
            return
        group = transport.get_pid()
        strays = [] if self._exited.is_set() else await asyncio.to_thread(_descendants, group)
        if _signal_group(group, signal.SIGTERM) and not await self._wait_group_empty(group, TERM_GRACE):
            _signal_group(group, signal.SIGKILL)
        strays += await asyncio.to_thread(_processes_with_mark, self._command.env.get(RUN_MARK_VARIABLE))
        for stray in strays:  # psutil knows a process by its start as well: a number used again is not hit
            with contextlib.suppress(psutil.Error):
                stray.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_WAIT):
                await self._exited.wait()
        if self._guard is not None:
            self._guard.unwatch(group)
        transport.close()

    async def _wait_group_empty(self, group: int, seconds: float) -> bool:
        end = self._loop.time() + seconds
        while _signal_group(group, 0):
            if self._loop.time() > end:
                return False
            await asyncio.sleep(GROUP_POLL_SECONDS)
        return True


class _ProcessProtocol(asyncio.SubprocessProtocol):
    def __init__(self, program: CliProcess) -> None:
        self._program = program
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._program.feed_stdout(data)
        else:
            self._program.feed_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._program.end_output()

    def process_exited(self) -> None:
        self._program.on_exit(self._transport.get_returncode() if self._transport is not None else None)


class _LineSplitter:
    """Bytes into lines; one over the limit is skipped to its end and told of as None."""

    def __init__(self, on_line: Callable[[bytes | None], None]) -> None:
        self._on_line = on_line
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._append(end)
            self.finish()
        self._append(rest)

    def finish(self) -> None:
        if self._size:
            self._on_line(b"".join(self._pieces) if self._size <= MAX_LINE_LENGTH else None)
        self._pieces.clear()
        self._size = 0

    def _append(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= MAX_LINE_LENGTH:
            self._pieces.append(piece)
        else:
            self._pieces.clear()


def _descendants(leader: int) -> list[psutil.Process]:
    """Found while their parents live: some leave the group, as shells started for a tool do."""
    try:
        return psutil.Process(leader).children(recursive=True)
    except psutil.Error:
        return []


def _processes_with_mark(mark: str | None) -> list[psutil.Process]:
    """Found when their parents are gone: a CLI that was killed leaves servers it had given groups of their own."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter() if mark else ():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_MARK_VARIABLE) == mark:
                found.append(process)
    return found


def _signal_group(group: int, number: int) -> bool:
    """Whether there was a group to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
