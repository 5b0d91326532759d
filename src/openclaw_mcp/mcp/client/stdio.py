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
from ...net.orphan_reaper import OrphanReaper
from ...protocol import jsonrpc
from ...protocol.jsonrpc import JsonRpcError, JsonRpcNotification, JsonRpcRequest, JsonRpcResponse
from ...protocol.lines import LineSplitter
from .entry import ServerProgram
from .transport import OutgoingRequest, ServerMessageHandler, result_or_raise

logger = logging.getLogger(__name__)

MAX_LINE_LENGTH: Final = (
    64 << 20
)  # bytes; a picture or a file in base64 fits, a runaway server does not fill our memory
MAX_UNSENT: Final = 64 << 20  # bytes waiting for a server that does not read
MAX_QUESTIONS: Final = 64  # requests of the server's being answered at once
STDERR_TAIL: Final = 4096  # bytes of what a server last complained of
STDERR_TAIL_LINES: Final = 5  # lines of it that an error repeats
EOF_GRACE: Final = 2.0  # seconds a server may take to end after its input does
TERM_GRACE: Final = 2.0  # seconds its process group gets between SIGTERM and SIGKILL
KILL_GRACE: Final = 1.0  # seconds to see a killed group empty; its dead may stay uncounted where nobody collects them
KILL_WAIT: Final = 5.0  # seconds for the kernel to end a killed process; one stuck in a dead disk must not hold us
EXIT_STATUS_WAIT: Final = 1.0  # seconds for the exit status of a server that has closed a pipe; most are ending then
GROUP_POLL: Final = 0.02  # seconds between two looks whether the group is empty
PIPE_NAMES: Final = {0: "input", 1: "output"}  # the pipes without which there is no talk, by file descriptor


class McpStdioTransport:
    """A `Transport`. The child leads a process group of its own, which is gone when `aclose` returns."""

    def __init__(
        self,
        name: str,
        program: ServerProgram,
        reaper: OrphanReaper,
        *,
        redact: Callable[[str], str] = lambda text: text,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`masked` takes secrets out of what the child said; `lost` is told once why it is gone."""
        self.close_reason: str | None = "it is not started"
        self._name = name
        self._program = program
        self._reaper = reaper
        self._redact = redact
        self._on_lost = on_lost
        self._lines = LineSplitter(limit=MAX_LINE_LENGTH)
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._pending: dict[int, tuple[asyncio.Future[Json], ServerMessageHandler]] = {}
        self._answer_tasks: dict[Any, asyncio.Task[None]] = {}
        self._handler: ServerMessageHandler | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()
        self._stop_task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self, handler: ServerMessageHandler) -> None:
        self._handler = handler
        program = self._program
        path = shutil.which(program.command, path=program.env.get("PATH", os.defpath))
        if path is None:
            raise ToolUnavailable(f"{self._name}: there is no program {program.command!r} to start")
        self._reaper.prepare()
        try:
            self._transport, _ = await self._loop.subprocess_exec(
                lambda: _ChildProtocol(self),
                path,
                *program.args,
                env=dict(program.env),
                cwd=program.cwd,
                start_new_session=True,
            )
        except OSError as exc:
            raise ToolUnavailable(f"{self._name} can't be started: {exc.strerror}") from exc
        self.close_reason = None
        self._reaper.watch(self._transport.get_pid())

    # ---- Transport ----

    async def request(self, request: OutgoingRequest, handler: ServerMessageHandler) -> Json:
        answer: asyncio.Future[Json] = self._loop.create_future()
        self._send(jsonrpc.encode_request(request.id, request.method, request.params))
        self._pending[request.id] = (answer, handler)
        try:
            return await answer
        except asyncio.CancelledError:
            # Nobody waits any more. `initialize` alone may not be cancelled.
            if self.close_reason is None and request.method != "initialize":
                with contextlib.suppress(ToolUnavailable, ToolBusy):
                    self._send(jsonrpc.encode_notification("notifications/cancelled", {"requestId": request.id}))
            raise
        finally:
            del self._pending[request.id]

    async def notify(self, method: str, params: Json) -> None:
        self._send(jsonrpc.encode_notification(method, params))

    async def set_protocol_version(self, version: str) -> None:
        return

    async def listen(self, handler: ServerMessageHandler, on_open: Callable[[], None]) -> bool:
        return False  # news comes over the pipe by itself

    async def aclose(self) -> None:
        self._close_with_reason("it was stopped")
        for task in list(self._answer_tasks.values()):
            task.cancel()
        self._schedule_stop()
        if self._stop_task is not None:
            # Shielded, and bounded by the graces: whoever cancels us, no process may be left behind.
            await asyncio.shield(self._stop_task)

    def _schedule_stop(self) -> None:
        if self._transport is not None and self._stop_task is None:
            self._stop_task = asyncio.ensure_future(self._stop_group(self._transport))

    async def _stop_group(self, transport: asyncio.SubprocessTransport) -> None:
        group = transport.get_pid()
        stdin = transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EOF_GRACE):
                await self._exited.wait()
        if _signal_group(group, signal.SIGTERM) and not await self._wait_group_empty(group, TERM_GRACE):
            _signal_group(group, signal.SIGKILL)
            await self._wait_group_empty(group, KILL_GRACE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_WAIT):
                await self._exited.wait()
        self._reaper.unwatch(group)
        transport.close()

    async def _wait_group_empty(self, group: int, seconds: float) -> bool:
        end = self._loop.time() + seconds
        while _signal_group(group, 0):  # a group has no event to wait for
            if self._loop.time() > end:
                return False
            await asyncio.sleep(GROUP_POLL)
        return True

    # ---- what the child says ----

    def feed_stdout(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line is None:
                self._fail_requests(
                    f"{self._name} sent a message longer than {MAX_LINE_LENGTH >> 20} MiB, which was dropped"
                )
            elif line and not line.isspace():
                self._handle_line(line)

    def feed_stderr(self, data: bytes) -> None:
        """Keep the end of what comes on stderr."""
        self._tail.append(data[-STDERR_TAIL:])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) >= STDERR_TAIL:
            self._tail_size -= len(self._tail.popleft())

    def handle_exit(self, status: int | None) -> None:
        self._exited.set()
        self._close_with_reason(_format_exit(status))
        self._schedule_stop()  # what it started may still run

    def handle_pipe_close(self, pipe_name: str) -> None:
        """The child has closed its input or output: it can't be asked or can't answer any more, running or not."""
        self._close_with_reason(f"it closed its {pipe_name}")

    def _handle_line(self, line: bytes | bytearray) -> None:
        match jsonrpc.decode_message(line):
            case JsonRpcResponse(id=id) as response:
                self._resolve_response(id, response)
            case JsonRpcNotification(method=method, params=params):
                self._handle_notification(method, params)
            case JsonRpcRequest() as request:
                self._start_answer(request)
            case _:
                # Not a message: many servers print a banner before they learn not to.
                self.feed_stderr(b"stdout: " + line[:200] + b"\n")

    def _resolve_response(self, id: Any, response: JsonRpcResponse) -> None:
        waiting = self._pending.get(id) if type(id) is int else None
        if waiting is None or waiting[0].done():
            return
        try:
            waiting[0].set_result(result_or_raise(response))
        except JsonRpcError as exc:
            waiting[0].set_exception(exc)

    def _handle_notification(self, method: str, params: Json) -> None:
        assert self._handler is not None
        if method == "notifications/cancelled":
            id = params.get("requestId")
            task = self._answer_tasks.get(id) if isinstance(id, str | int) else None
            if task is not None:
                task.cancel()
            return
        token = params.get("progressToken")
        waiting = self._pending.get(token) if type(token) is int else None
        (waiting[1] if waiting is not None else self._handler).on_notification(method, params)

    def _start_answer(self, request: JsonRpcRequest) -> None:
        if len(self._answer_tasks) >= MAX_QUESTIONS or request.id in self._answer_tasks:
            self._reply(
                jsonrpc.encode_error(request.id, JsonRpcError(jsonrpc.INTERNAL_ERROR, "too many questions at once"))
            )
            return
        task = self._answer_tasks[request.id] = asyncio.ensure_future(self._answer(request))
        task.add_done_callback(lambda _: self._answer_tasks.pop(request.id, None))

    async def _answer(self, request: JsonRpcRequest) -> None:
        assert self._handler is not None
        try:
            self._reply(
                jsonrpc.encode_result(request.id, await self._handler.on_request(request.method, request.params))
            )
        except JsonRpcError as exc:
            self._reply(jsonrpc.encode_error(request.id, exc))

    # ---- bytes out, and the end ----

    def _reply(self, message: bytes) -> None:
        with contextlib.suppress(ToolUnavailable, ToolBusy):
            self._send(message)

    def _send(self, message: bytes) -> None:
        if self.close_reason is not None or self._transport is None:
            raise ToolUnavailable(f"{self._name} is gone: {self.close_reason}")
        stdin: Any = self._transport.get_pipe_transport(0)
        if stdin is None or stdin.is_closing():
            # Whoever waits for an answer hears why there is none: from the exit, if it comes in time.
            self._loop.call_later(EXIT_STATUS_WAIT, self.handle_pipe_close, PIPE_NAMES[0])
            return
        if stdin.get_write_buffer_size() > MAX_UNSENT:
            raise ToolBusy(f"{self._name} does not read what it is sent; try again later")
        try:
            stdin.write(message + b"\n")
        except (RuntimeError, OSError) as exc:  # uvloop raises when the reader went away a moment ago
            raise ToolUnavailable(f"{self._name} closed its input") from exc

    def _close_with_reason(self, reason: str) -> None:
        if self.close_reason is None:
            self.close_reason = reason + self._stderr_excerpt()
            self._fail_requests(f"{self._name} is gone: {self.close_reason}")
            self._on_lost(self.close_reason)

    def _fail_requests(self, reason: str) -> None:
        for answer, _ in self._pending.values():
            if not answer.done():
                answer.set_exception(ToolUnavailable(reason))

    def _stderr_excerpt(self) -> str:
        text = b"".join(self._tail)[-STDERR_TAIL:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()][-STDERR_TAIL_LINES:]
        printable = "".join(char if char.isprintable() else " " for char in " | ".join(lines))
        return f"; it last said: {self._redact(printable)}" if lines else ""


class _ChildProtocol(asyncio.SubprocessProtocol):
    def __init__(self, owner: McpStdioTransport) -> None:
        self._owner = owner
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._owner.feed_stdout(data)
        else:
            self._owner.feed_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in PIPE_NAMES:
            # The exit, if that is what happened, says more: it comes within a turn or two, on a busy machine later.
            asyncio.get_running_loop().call_later(EXIT_STATUS_WAIT, self._owner.handle_pipe_close, PIPE_NAMES[fd])

    def process_exited(self) -> None:
        status = self._transport.get_returncode() if self._transport is not None else None
        # What it last wrote may still be on its way to us.
        asyncio.get_running_loop().call_later(GROUP_POLL / 2, self._owner.handle_exit, status)


def _signal_group(group: int, number: int) -> bool:
    """Whether there was a group to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _format_exit(status: int | None) -> str:
    if status is not None and status < 0:
        return f"it was ended by signal {signal.Signals(-status).name}"
    return f"it ended with status {status}"
