"""MCP over stdin and stdout: one JSON message a line, both eras on one pipe."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from ...core.errors import ToolUnavailable
from ...core.model import LOCAL_CALLER, Caller, Json
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcId, JsonRpcNotification, JsonRpcRequest, MalformedMessage
from ...protocol.lines import LineSplitter
from .exchange import Exchange, Peer
from .pipe_io import DescriptorWriter, StdinReader
from .server import McpServer

MAX_LINE_LENGTH: Final = 32 << 20  # bytes; a surface that takes large files sets its own
MAX_CONCURRENT: Final = 4096  # requests being served on one pipe
POLL_INTERVAL: Final = 0.2  # seconds between two looks whether a client that has closed its end still reads
SHUTDOWN_GRACE: Final = 5.0  # seconds that calls still running at the end of input get to finish

if sys.platform == "win32":
    SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
else:
    SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OnInitialize = Callable[[mcp.InitializeParams], None]


class StdioHandover:
    """The state of the pipe before this module was loaded: see `boot`."""

    __slots__ = ("initialize", "output", "pending")

    def __init__(self, output: int, pending: bytes = b"", initialize: Json | None = None) -> None:
        self.output = output
        """The wire's own descriptor; descriptor 1 points elsewhere."""
        self.pending = pending
        """Bytes read and not yet answered."""
        self.initialize = initialize
        """The parameters of an `initialize` that was answered."""


def claim_output() -> int:
    """Take stdout for ourselves: everything else that is printed there from now on is sent to stderr."""
    wire = os.dup(1)
    os.dup2(2, 1)
    return wire


async def serve(
    server: McpServer,
    *,
    caller: Caller = LOCAL_CALLER,
    handover: StdioHandover | None = None,
    longest_line: int = MAX_LINE_LENGTH,
    shutdown_grace: float = SHUTDOWN_GRACE,
    on_initialize: OnInitialize | None = None,
) -> None:
    """Answer until end of input, then let calls finish for `shutdown_grace` seconds; a signal ends them at once.

    `on_initialize` gets the parameters of each `initialize`.
    """
    handover = handover or StdioHandover(claim_output())
    pipe = _StdioConnection(server, caller, longest_line, handover.output, on_initialize)
    if handover.initialize is not None:
        pipe.apply_initialize(mcp.read_initialize(handover.initialize))
    with _handle_signals(pipe.interrupt) as attach_handlers:
        try:
            if handover.pending:
                pipe.feed(handover.pending)
                await asyncio.sleep(0)  # a first answer goes out before asyncio loads `inspect` for the handlers
            attach_handlers()
            pipe.open_input()
            await pipe.end_of_input
        finally:
            await pipe.close(shutdown_grace)
            await server.aclose()


@contextlib.contextmanager
def _handle_signals(stop: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """The first signal to end stops the server in order; the second ends the process. Ignored ones stay ignored.

    A signal that arrives before the yielded function is called takes effect then: a call may be running by that time,
    and what it started must be ended too.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    loop = asyncio.get_running_loop()
    early: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: early.append(number))
        for number in SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }

    def attach_handlers() -> None:
        for number in before:
            loop.add_signal_handler(number, on_signal)
        if early:
            on_signal()

    def remove_handlers() -> None:
        for number, handler in before.items():
            if not loop.remove_signal_handler(number):
                signal.signal(number, handler)
        before.clear()

    def on_signal() -> None:
        remove_handlers()
        stop()

    try:
        yield attach_handlers
    finally:
        remove_handlers()


class _StdioConnection:
    def __init__(
        self, server: McpServer, caller: Caller, longest_line: int, output: int, on_initialize: OnInitialize | None
    ) -> None:
        self._on_initialize = on_initialize
        self._loop = asyncio.get_running_loop()
        self.end_of_input: asyncio.Future[None] = self._loop.create_future()
        self._server = server
        self._caller = caller
        self._peer = Peer(version=mcp.NEWEST_HANDSHAKE, accepts_requests=True)
        self._lines = LineSplitter(limit=longest_line)
        self._longest_line = longest_line
        self._running: dict[JsonRpcId, asyncio.Task[None]] = {}
        self._outgoing: list[bytes] = []
        self._starting = 0
        """Requests taken whose work has not begun."""
        self._is_feeding = False
        self._flushing = False
        self._disconnect: Callable[[], None] | None = None
        self._interrupted: asyncio.Future[None] = self._loop.create_future()
        self._input = StdinReader(self.feed)
        self._output = DescriptorWriter(output, pause=self._input.pause, resume=self._input.resume, on_broken=self.end)

    def open_input(self) -> None:
        self._input.open()

    def feed(self, data: bytes) -> None:
        """Begin serving every request `data` completes; empty at end of input."""
        self._is_feeding = True
        lines = self._lines.feed(data) if data else [self._lines.take_rest()]
        lines.reverse()
        while lines:
            self._handle_line(lines.pop())  # nothing else holds it: a line may be hundreds of megabytes
        self._is_feeding = False
        if not self._starting:
            self.flush()
        if not data:
            self.end()

    def interrupt(self) -> None:
        """End now: no call is waited for."""
        if not self._interrupted.done():
            self._interrupted.set_result(None)
        self.end()

    def end(self) -> None:
        if not self.end_of_input.done():
            self.end_of_input.set_result(None)

    # ---- messages ----

    def _handle_line(self, line: bytes | bytearray | None) -> None:
        if line is None:
            reason = f"Parse error: the line is longer than {self._longest_line} bytes"
            self.queue_message(jsonrpc.encode_error(None, JsonRpcError(jsonrpc.PARSE_ERROR, reason)))
            return
        if not line or line.isspace():
            return
        message = jsonrpc.decode_message(line)
        del line  # before the work begins, which may hold as much again
        match message:
            case JsonRpcRequest() as request:
                self._start_request(request)
            case JsonRpcNotification(method="notifications/cancelled", params=params):
                self._cancel(params.get("requestId"))
            case JsonRpcNotification():
                pass
            case MalformedMessage(id=id, error=error):
                self.queue_message(jsonrpc.encode_error(id, error))
            case response:
                self._peer.handle_response(response)

    def _start_request(self, request: JsonRpcRequest) -> None:
        try:
            exchange = self._new_exchange(request)
        except JsonRpcError as exc:
            self.queue_message(jsonrpc.encode_error(request.id, exc))
            return
        self._starting += 1
        task = _start_task(self._answer(exchange, request), self._loop)
        if not task.done():
            self._running[request.id] = task

    def _new_exchange(self, request: JsonRpcRequest) -> Exchange:
        if request.id in self._running:
            raise JsonRpcError(jsonrpc.INVALID_REQUEST, "Invalid request: this `id` is still being served")
        if len(self._running) >= MAX_CONCURRENT:
            raise JsonRpcError(
                jsonrpc.INTERNAL_ERROR, f"Too many requests at once; at most {MAX_CONCURRENT} are served"
            )
        if mcp.is_stateless(request):
            envelope = mcp.stateless_envelope(request)
        else:
            if request.method == "initialize":
                self.apply_initialize(mcp.read_initialize(request.params))
            envelope = self._peer.envelope(request)
        return Exchange(request, envelope, self._caller, peer=self._peer, write=self._write)

    def apply_initialize(self, params: mcp.InitializeParams) -> None:
        """A handshake-era client has introduced itself: it is notified of changes from now on."""
        self._peer.apply_initialize(params)
        if self._on_initialize is not None:
            self._on_initialize(params)
        if self._disconnect is None:
            self._disconnect = self._server.subscriptions.connect(self._peer, self.queue_message)

    async def _answer(self, exchange: Exchange, request: JsonRpcRequest) -> None:
        self._starting -= 1
        try:
            result = await self._server.answer(exchange)
            self._outgoing += (jsonrpc.encode_result(request.id, result), b"\n")
        except JsonRpcError as exc:
            self._outgoing += (jsonrpc.encode_error(request.id, exc), b"\n")
        finally:
            self._running.pop(request.id, None)
            if self._starting:  # others read at the same time may have something to add to this write
                self._flush_soon()
            elif not self._is_feeding:
                self.flush()

    def _cancel(self, id: Any) -> None:
        if isinstance(id, str | int) and (task := self._running.get(id)) is not None:
            task.cancel()

    # ---- bytes out ----

    async def _write(self, message: bytes) -> None:
        if self._output.is_closed:
            raise ToolUnavailable("the client has closed the pipe")
        self.queue_message(message)

    def queue_message(self, message: bytes) -> None:
        """Queue one message; what is queued in one turn of the loop is sent in one write."""
        self._outgoing += (message, b"\n")
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._outgoing:
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            self._output.write(data)

    async def _wait_for_calls(self, running: set[asyncio.Task[None]], seconds: float) -> None:
        """Wait for them all, or until the server is interrupted or its client is gone."""
        end = self._loop.time() + seconds
        while (
            running
            and not (self._interrupted.done() or self._output.is_closed)
            and (left := end - self._loop.time()) > 0
        ):
            # A killed client closes both its ends, one a moment after the other; no event reports the second.
            waiting = {*running, self._interrupted}
            await asyncio.wait(waiting, timeout=min(POLL_INTERVAL, left), return_when=asyncio.FIRST_COMPLETED)
            running = {task for task in running if not task.done()}

    async def close(self, shutdown_grace: float) -> None:
        self._input.close()
        if self._disconnect is not None:
            self._disconnect()
        running = set(self._running.values())
        if running and not self._output.is_closed:
            await self._wait_for_calls(running, shutdown_grace)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self.flush()
        await self._output.close(0 if self._interrupted.done() else shutdown_grace)


if sys.version_info >= (3, 12):

    def _start_task(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Run at once until it first waits: most answers need no turn of the loop."""
        return asyncio.Task(work, loop=loop, eager_start=True)

else:

    def _start_task(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop)
