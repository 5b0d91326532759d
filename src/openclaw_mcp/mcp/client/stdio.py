"""An MCP server as a child process: one JSON message a line over its stdin and stdout."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from typing import Any, Final

from ...core.errors import ToolBusy, ToolUnavailable
from ...core.ports import ProcessGuard
from ...net.process_streams import Input, KeptOutput, Output
from ...net.processes import Ending, Process, ProcessStartError, start_process
from ...net.tasks import Tasks
from ...protocol import jsonrpc
from ...protocol.jsonrpc import JsonRpcError, JsonRpcNotification, JsonRpcRequest, JsonRpcResponse
from ...protocol.lines import LineSplitter
from .entry import ServerProgram
from .transport import OutgoingRequest, ServerMessageHandler, encode_answer

MAX_LINE_LENGTH: Final = 64 << 20  # bytes; a file in base64 fits, a runaway server does not fill our memory
MAX_UNSENT: Final = 64 << 20  # bytes waiting for a server that does not read
MAX_QUESTIONS: Final = 64  # requests of the server's being answered at once
STDERR_TAIL: Final = 4096  # bytes of the end of a server's stderr
STDERR_TAIL_LINES: Final = 5  # lines of it that an error repeats
EXIT_STATUS_WAIT: Final = 1.0  # seconds for the exit status of a server that has closed a pipe; most are ending then
ENDING: Final = Ending(eof_grace=2.0, term_grace=2.0, kill_grace=1.0, kill_wait=5.0, drain=0.01)


class McpStdioTransport:
    """A `McpTransport`. The child leads a process group of its own, which is gone when `aclose` returns."""

    def __init__(
        self,
        name: str,
        program: ServerProgram,
        guard: ProcessGuard,
        *,
        redact: Callable[[str], str] = lambda text: text,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`redact` takes secrets out of the child's stderr; `on_lost` is called once, with the reason."""
        self.close_reason: str | None = "it is not started"
        self._name = name
        self._program = program
        self._guard = guard
        self._redact = redact
        self._on_lost = on_lost
        self._lines = LineSplitter(limit=MAX_LINE_LENGTH)
        self._stdin = Input(lambda: self._close_later("input"))
        self._stderr = KeptOutput(tail=STDERR_TAIL)
        self._pending: dict[int, tuple[asyncio.Future[JsonRpcResponse], ServerMessageHandler]] = {}
        self._answer_tasks: dict[Any, asyncio.Task[None]] = {}
        self._process: Process | None = None
        self._tasks = Tasks(f"mcp server {name}")
        self._loop = asyncio.get_running_loop()

    async def open(self, handler: ServerMessageHandler) -> None:
        program = self._program
        path = shutil.which(program.command, path=program.env.get("PATH", os.defpath))
        if path is None:
            raise ToolUnavailable(f"{self._name}: there is no program {program.command!r} to start")
        stdout = Output(lambda data: self._feed_stdout(data, handler), lambda: self._close_later("output"))
        try:
            self._process = process = await start_process(
                [path, *program.args], env=program.env, cwd=program.cwd, stdin=self._stdin, stdout=stdout,
                stderr=self._stderr, guard=self._guard, ending=ENDING,
            )  # fmt: skip
        except ProcessStartError as exc:
            raise ToolUnavailable(f"{self._name} can't be started: {exc}") from exc
        self.close_reason = None
        self._tasks.spawn(self._watch_exit(process), name="exit")

    # ---- McpTransport ----

    async def request(self, request: OutgoingRequest, handler: ServerMessageHandler) -> JsonRpcResponse:
        answer: asyncio.Future[JsonRpcResponse] = self._loop.create_future()
        self._send(jsonrpc.encode_request(request.id, request.method, request.params))
        self._pending[request.id] = (answer, handler)
        try:
            return await answer
        except asyncio.CancelledError:
            # `initialize` alone may not be cancelled.
            if self.close_reason is None and request.method != "initialize":
                with contextlib.suppress(ToolUnavailable, ToolBusy):
                    self._send(jsonrpc.encode_notification("notifications/cancelled", {"requestId": request.id}))
            raise
        finally:
            del self._pending[request.id]

    async def notify(self, notification: JsonRpcNotification) -> None:
        self._send(jsonrpc.encode_notification(notification.method, notification.params))

    async def set_protocol_version(self, version: str) -> None:
        return

    async def listen(self, handler: ServerMessageHandler, on_open: Callable[[], None]) -> bool:
        return False  # notifications come over the pipe by themselves

    async def aclose(self) -> None:
        self._close_with_reason("it was stopped")
        for task in list(self._answer_tasks.values()):
            task.cancel()
        if self._process is not None:
            await self._process.aclose()
        await self._tasks.aclose()

    async def _watch_exit(self, process: Process) -> None:
        status = await process.wait_finished()
        self._close_with_reason(_format_exit(status))
        await process.aclose()  # what it started may still run

    # ---- messages of the child ----

    def _feed_stdout(self, data: bytes, handler: ServerMessageHandler) -> None:
        for line in self._lines.feed(data):
            if line is None:
                self._fail_requests(
                    f"{self._name} sent a message longer than {MAX_LINE_LENGTH >> 20} MiB, which was dropped"
                )
            elif line and not line.isspace():
                self._handle_line(line, handler)

    def _close_later(self, pipe_name: str) -> None:
        """The child has closed its input or output: it can't be asked or can't answer any more, running or not. The
        exit, if that is what happened, says more: it comes within a turn or two, on a busy machine later."""
        self._loop.call_later(EXIT_STATUS_WAIT, self._close_with_reason, f"it closed its {pipe_name}")

    def _handle_line(self, line: bytes | bytearray, handler: ServerMessageHandler) -> None:
        match jsonrpc.decode_message(line):
            case JsonRpcResponse(id=id) as response:
                waiting = self._pending.get(id) if type(id) is int else None
                if waiting is not None and not waiting[0].done():
                    waiting[0].set_result(response)
            case JsonRpcNotification() as notification:
                self._handle_notification(notification, handler)
            case JsonRpcRequest() as request:
                self._start_answer(request, handler)
            case _:
                # Not a message: many servers print a banner before they learn not to.
                self._stderr.data_received(b"stdout: " + line[:200] + b"\n")

    def _handle_notification(self, notification: JsonRpcNotification, handler: ServerMessageHandler) -> None:
        if notification.method == "notifications/cancelled":
            id = notification.params.get("requestId")
            if isinstance(id, str | int) and (task := self._answer_tasks.get(id)) is not None:
                task.cancel()
            return
        token = notification.params.get("progressToken")
        waiting = self._pending.get(token) if type(token) is int else None
        (waiting[1] if waiting is not None else handler).on_notification(notification)

    def _start_answer(self, request: JsonRpcRequest, handler: ServerMessageHandler) -> None:
        if len(self._answer_tasks) >= MAX_QUESTIONS or request.id in self._answer_tasks:
            refusal = JsonRpcError(jsonrpc.INTERNAL_ERROR, "too many questions at once")
            self._reply(jsonrpc.encode_error(request.id, refusal))
            return
        task = self._tasks.spawn(self._answer(request, handler), name=f"answer to {request.method}")
        self._answer_tasks[request.id] = task
        task.add_done_callback(lambda _: self._answer_tasks.pop(request.id, None))

    async def _answer(self, request: JsonRpcRequest, handler: ServerMessageHandler) -> None:
        self._reply(await encode_answer(handler, request))

    # ---- bytes out, and the end ----

    def _reply(self, message: bytes) -> None:
        with contextlib.suppress(ToolUnavailable, ToolBusy):
            self._send(message)

    def _send(self, message: bytes) -> None:
        if self.close_reason is not None:
            raise ToolUnavailable(f"{self._name} is gone: {self.close_reason}")
        if not self._stdin.is_open:
            self._close_later("input")  # the caller gets the reason from there, or from the exit if that comes in time
            return
        if self._stdin.unsent_bytes > MAX_UNSENT:
            raise ToolBusy(f"{self._name} does not read what it is sent; try again later")
        try:
            self._stdin.write(message + b"\n")
        except BrokenPipeError as exc:
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
        lines = self._stderr.lines()[-STDERR_TAIL_LINES:]
        printable = "".join(char if char.isprintable() else " " for char in " | ".join(lines))
        return f"; its last output was: {self._redact(printable)}" if lines else ""


def _format_exit(status: int | None) -> str:
    if status is not None and status < 0:
        return f"it was ended by signal {signal.Signals(-status).name}"
    return f"it ended with status {status}"
