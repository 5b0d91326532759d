"""A server as a child process: one JSON message a line over its stdin and stdout."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from ...core.errors import ToolBusy, ToolUnavailable
from ...core.model import Json
from ...net.orphan_reaper import Watchman
from ...protocol import jsonrpc
from ...protocol.jsonrpc import Notification, Request, Response, RpcError
from ...protocol.lines import Lines
from .entry import Program
from .transport import Ear, Outgoing, result_of

logger = logging.getLogger(__name__)

LONGEST_LINE: Final = 64 << 20  # bytes; a picture or a file in base64 fits, a runaway server does not fill our memory
MOST_UNSENT: Final = 64 << 20  # bytes waiting for a server that does not read
MOST_QUESTIONS: Final = 64  # requests of the server's being answered at once
TAIL: Final = 4096  # bytes of what a server last complained of
TAIL_LINES: Final = 5  # lines of it that an error repeats
EOF_GRACE: Final = 2.0  # seconds a server may take to end after its input does
TERM_GRACE: Final = 2.0  # seconds its process group gets between SIGTERM and SIGKILL
KILL_GRACE: Final = 1.0  # seconds to see a killed group empty; its dead may stay uncounted where nobody collects them
KILL_WAIT: Final = 5.0  # seconds for the kernel to end a killed process; one stuck in a dead disk must not hold us
LAST_WORD: Final = 1.0  # seconds for the exit status of a server that has closed a pipe; most are ending then
GROUP_LOOK: Final = 0.02  # seconds between two looks whether the group is empty
ENDS: Final = {0: "input", 1: "output"}  # the pipes without which there is no talk, by file descriptor


class Pipe:
    """A `Transport`. The child leads a process group of its own, which is gone when `aclose` returns."""

    def __init__(
        self,
        name: str,
        program: Program,
        watchman: Watchman,
        *,
        masked: Callable[[str], str] = lambda text: text,
        lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`masked` takes secrets out of what the child said; `lost` is told once why it is gone."""
        self.gone: str | None = "it is not started"
        self._name = name
        self._program = program
        self._watchman = watchman
        self._masked = masked
        self._lost = lost
        self._lines = Lines(limit=LONGEST_LINE)
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._waiting: dict[int, tuple[asyncio.Future[Json], Ear]] = {}
        self._answering: dict[Any, asyncio.Task[None]] = {}
        self._ear: Ear | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self, ear: Ear) -> None:
        self._ear = ear
        program = self._program
        path = shutil.which(program.command, path=program.env.get("PATH", os.defpath))
        if path is None:
            raise ToolUnavailable(f"{self._name}: there is no program {program.command!r} to start")
        self._watchman.prepare()
        try:
            self._transport, _ = await self._loop.subprocess_exec(
                lambda: _Child(self),
                path,
                *program.args,
                env=dict(program.env),
                cwd=program.cwd,
                start_new_session=True,
            )
        except OSError as exc:
            raise ToolUnavailable(f"{self._name} can't be started: {exc.strerror}") from exc
        self.gone = None
        self._watchman.watch(self._transport.get_pid())

    # ---- Transport ----

    async def request(self, out: Outgoing, ear: Ear) -> Json:
        answer: asyncio.Future[Json] = self._loop.create_future()
        self._send(jsonrpc.request(out.id, out.method, out.params))
        self._waiting[out.id] = (answer, ear)
        try:
            return await answer
        except asyncio.CancelledError:
            # Nobody waits any more. `initialize` alone may not be cancelled.
            if self.gone is None and out.method != "initialize":
                with contextlib.suppress(ToolUnavailable, ToolBusy):
                    self._send(jsonrpc.notification("notifications/cancelled", {"requestId": out.id}))
            raise
        finally:
            del self._waiting[out.id]

    async def notify(self, method: str, params: Json) -> None:
        self._send(jsonrpc.notification(method, params))

    async def introduced(self, version: str) -> None:
        return

    async def listen(self, ear: Ear, opened: Callable[[], None]) -> bool:
        return False  # news comes over the pipe by itself

    async def aclose(self) -> None:
        self._lose("it was stopped")
        for task in list(self._answering.values()):
            task.cancel()
        self._begin_end()
        if self._ending is not None:
            # Shielded, and bounded by the graces: whoever cancels us, no process may be left behind.
            await asyncio.shield(self._ending)

    def _begin_end(self) -> None:
        if self._transport is not None and self._ending is None:
            self._ending = asyncio.ensure_future(self._end(self._transport))

    async def _end(self, transport: asyncio.SubprocessTransport) -> None:
        group = transport.get_pid()
        stdin = transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EOF_GRACE):
                await self._exited.wait()
        if _signal(group, signal.SIGTERM) and not await self._empties(group, TERM_GRACE):
            _signal(group, signal.SIGKILL)
            await self._empties(group, KILL_GRACE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_WAIT):
                await self._exited.wait()
        self._watchman.forget(group)
        transport.close()

    async def _empties(self, group: int, seconds: float) -> bool:
        end = self._loop.time() + seconds
        while _signal(group, 0):  # a group has no event to wait for
            if self._loop.time() > end:
                return False
            await asyncio.sleep(GROUP_LOOK)
        return True

    # ---- what the child says ----

    def take(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line is None:
                self._fail(f"{self._name} sent a message longer than {LONGEST_LINE >> 20} MiB, which was dropped")
            elif line and not line.isspace():
                self._take(line)

    def complain(self, data: bytes) -> None:
        """Keep the end of what comes on stderr."""
        self._tail.append(data[-TAIL:])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) >= TAIL:
            self._tail_size -= len(self._tail.popleft())

    def exited(self, status: int | None) -> None:
        self._exited.set()
        self._lose(_ending(status))
        self._begin_end()  # what it started may still run

    def hung_up(self, end: str) -> None:
        """The child has closed its input or output: it can't be asked or can't answer any more, running or not."""
        self._lose(f"it closed its {end}")

    def _take(self, line: bytes | bytearray) -> None:
        match jsonrpc.decode(line):
            case Response(id=id) as response:
                self._settle(id, response)
            case Notification(method=method, params=params):
                self._hear(method, params)
            case Request() as request:
                self._begin(request)
            case _:
                # Not a message: many servers print a banner before they learn not to.
                self.complain(b"stdout: " + line[:200] + b"\n")

    def _settle(self, id: Any, response: Response) -> None:
        waiting = self._waiting.get(id) if type(id) is int else None
        if waiting is None or waiting[0].done():
            return
        try:
            waiting[0].set_result(result_of(response))
        except RpcError as exc:
            waiting[0].set_exception(exc)

    def _hear(self, method: str, params: Json) -> None:
        assert self._ear is not None
        if method == "notifications/cancelled":
            id = params.get("requestId")
            task = self._answering.get(id) if isinstance(id, str | int) else None
            if task is not None:
                task.cancel()
            return
        token = params.get("progressToken")
        waiting = self._waiting.get(token) if type(token) is int else None
        (waiting[1] if waiting is not None else self._ear).hear(method, params)

    def _begin(self, request: Request) -> None:
        if len(self._answering) >= MOST_QUESTIONS or request.id in self._answering:
            self._reply(jsonrpc.error(request.id, RpcError(jsonrpc.INTERNAL_ERROR, "too many questions at once")))
            return
        task = self._answering[request.id] = asyncio.ensure_future(self._answer(request))
        task.add_done_callback(lambda _: self._answering.pop(request.id, None))

    async def _answer(self, request: Request) -> None:
        assert self._ear is not None
        try:
            self._reply(jsonrpc.result(request.id, await self._ear.answer(request.method, request.params)))
        except RpcError as exc:
            self._reply(jsonrpc.error(request.id, exc))

    # ---- bytes out, and the end ----

    def _reply(self, message: bytes) -> None:
        with contextlib.suppress(ToolUnavailable, ToolBusy):
            self._send(message)

    def _send(self, message: bytes) -> None:
        if self.gone is not None or self._transport is None:
            raise ToolUnavailable(f"{self._name} is gone: {self.gone}")
        stdin: Any = self._transport.get_pipe_transport(0)
        if stdin is None or stdin.is_closing():
            # Whoever waits for an answer hears why there is none: from the exit, if it comes in time.
            self._loop.call_later(LAST_WORD, self.hung_up, ENDS[0])
            return
        if stdin.get_write_buffer_size() > MOST_UNSENT:
            raise ToolBusy(f"{self._name} does not read what it is sent; try again later")
        try:
            stdin.write(message + b"\n")
        except (RuntimeError, OSError) as exc:  # uvloop raises when the reader went away a moment ago
            raise ToolUnavailable(f"{self._name} closed its input") from exc

    def _lose(self, reason: str) -> None:
        if self.gone is None:
            self.gone = reason + self._last_words()
            self._fail(f"{self._name} is gone: {self.gone}")
            self._lost(self.gone)

    def _fail(self, reason: str) -> None:
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(ToolUnavailable(reason))

    def _last_words(self) -> str:
        text = b"".join(self._tail)[-TAIL:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]
        printable = "".join(char if char.isprintable() else " " for char in " | ".join(lines))
        return f"; it last said: {self._masked(printable)}" if lines else ""


class _Child(asyncio.SubprocessProtocol):
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._pipe.take(data)
        else:
            self._pipe.complain(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in ENDS:
            # The exit, if that is what happened, says more: it comes within a turn or two, on a busy machine later.
            asyncio.get_running_loop().call_later(LAST_WORD, self._pipe.hung_up, ENDS[fd])

    def process_exited(self) -> None:
        status = self._transport.get_returncode() if self._transport is not None else None
        # What it last wrote may still be on its way to us.
        asyncio.get_running_loop().call_later(GROUP_LOOK / 2, self._pipe.exited, status)


def _signal(group: int, number: int) -> bool:
    """Whether there was a group to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"it was ended by signal {signal.Signals(-status).name}"
    return f"it ended with status {status}"
