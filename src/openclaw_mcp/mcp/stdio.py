"""MCP over stdin and stdout: one JSON message a line, both eras on one pipe."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..core.errors import ToolUnavailable
from ..core.model import LOCAL, Caller, Json
from ..wire import jsonrpc, mcp
from ..wire.jsonrpc import Id, Malformed, Notification, Request, RpcError
from ..wire.lines import Lines
from .exchange import Exchange, Peer
from .server import McpServer

LONGEST_LINE: Final = 32 << 20  # bytes; a surface that takes large files sets its own
MOST_AT_ONCE: Final = 4096  # requests being served on one pipe
MOST_UNREAD: Final = 64 << 20  # bytes of answers a client may leave unread before we stop taking requests
LAST_ANSWERS: Final = 5.0  # seconds that calls still running at the end of input get to finish
CHUNK: Final = 1 << 18


class Opened:
    """What happened on the pipe before this module was loaded: see `boot`."""

    __slots__ = ("initialize", "output", "pending")

    def __init__(self, output: int, pending: bytes = b"", initialize: Json | None = None) -> None:
        self.output = output
        """The wire's own descriptor; descriptor 1 points elsewhere."""
        self.pending = pending
        """Bytes read and not yet answered."""
        self.initialize = initialize
        """The parameters of an `initialize` that was answered."""


def claim_output() -> int:
    """Take the wire for ourselves: whatever else prints to stdout from now on goes to stderr."""
    wire = os.dup(1)
    os.dup2(2, 1)
    return wire


async def serve(
    server: McpServer,
    *,
    caller: Caller = LOCAL,
    opened: Opened | None = None,
    longest_line: int = LONGEST_LINE,
    last_answers: float = LAST_ANSWERS,
    introduced: Callable[[Json], None] | None = None,
) -> None:
    """Answer until end of input, then let running calls finish for `last_answers` seconds.

    `introduced` hears the parameters of each `initialize`.
    """
    opened = opened or Opened(claim_output())
    pipe = _Pipe(server, caller, longest_line, introduced)
    await pipe.open_output(opened.output)
    if opened.initialize is not None:
        pipe.introduce(opened.initialize)
    if opened.pending:
        pipe.data_received(opened.pending)
    try:
        await pipe.open_input()
        await pipe.ended
    finally:
        await pipe.close(last_answers)
        await server.aclose()


class _Pipe(asyncio.Protocol):
    def __init__(
        self, server: McpServer, caller: Caller, longest_line: int, introduced: Callable[[Json], None] | None
    ) -> None:
        self._introduced = introduced
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._caller = caller
        self._peer = Peer(version=mcp.NEWEST_HANDSHAKE, answers_us=True)
        self._lines = Lines(limit=longest_line)
        self._longest_line = longest_line
        self._running: dict[Id, asyncio.Task[None]] = {}
        self._outgoing: list[bytes] = []
        self._output: _Output
        self._input: asyncio.ReadTransport | None = None
        self._disconnect: Callable[[], None] | None = None

    # ---- bytes in ----

    async def open_input(self) -> None:
        try:
            stdin = os.fdopen(os.dup(0), "rb", 0)
            transport, _ = await self._loop.connect_read_pipe(lambda: self, stdin)
            self._input = transport
        except (ValueError, OSError, NotImplementedError):  # a regular file, or a platform without such pipes
            threading.Thread(target=self._read_forever, daemon=True).start()

    def _read_forever(self) -> None:
        while data := os.read(0, CHUNK):
            self._loop.call_soon_threadsafe(self.data_received, data)
        self._loop.call_soon_threadsafe(self.connection_lost, None)

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._take(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._take(self._lines.rest())  # a last line without its newline still counts
        self.end()

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    # ---- messages ----

    def _take(self, line: bytes | None) -> None:
        if line is None:
            reason = f"Parse error: the line is longer than {self._longest_line} bytes"
            self.put(jsonrpc.error(None, RpcError(jsonrpc.PARSE_ERROR, reason)))
            return
        if not line or line.isspace():
            return
        match jsonrpc.decode(line):
            case Request() as request:
                self._begin(request)
            case Notification(method="notifications/cancelled", params=params):
                self._cancel(params.get("requestId"))
            case Notification():
                pass
            case Malformed(id=id, error=error):
                self.put(jsonrpc.error(id, error))
            case response:
                self._peer.hear(response)

    def _begin(self, request: Request) -> None:
        try:
            exchange = self._exchange(request)
        except RpcError as exc:
            self.put(jsonrpc.error(request.id, exc))
            return
        task = _start(self._answer(exchange, request), self._loop)
        if not task.done():
            self._running[request.id] = task

    def _exchange(self, request: Request) -> Exchange:
        if request.id in self._running:
            raise RpcError(jsonrpc.INVALID_REQUEST, "Invalid request: this `id` is still being served")
        if len(self._running) >= MOST_AT_ONCE:
            raise RpcError(jsonrpc.INTERNAL_ERROR, f"Too many requests at once; at most {MOST_AT_ONCE} are served")
        params = request.params
        if mcp.is_stateless(request.method, params):
            envelope = mcp.stateless_envelope(params)
        else:
            if request.method == "initialize":
                self.introduce(params)
            peer = self._peer
            envelope = mcp.handshake_envelope(params, version=peer.version, capabilities=peer.capabilities)
        return Exchange(request.id, envelope, self._caller, peer=self._peer, write=self._write)

    def introduce(self, params: Json) -> None:
        """A handshake-era client has said who it is: it hears of changes from now on."""
        self._peer.introduce(params)
        if self._introduced is not None:
            self._introduced(params)
        if self._disconnect is None:
            self._disconnect = self._server.subscriptions.connect(self._peer, self.put)

    async def _answer(self, exchange: Exchange, request: Request) -> None:
        try:
            try:
                result = await self._server.answer(exchange, request.method, request.params)
            except RpcError as exc:
                self.put(jsonrpc.error(request.id, exc))
            else:
                self.put(jsonrpc.result(request.id, result))
        finally:
            self._running.pop(request.id, None)

    def _cancel(self, id: Any) -> None:
        task = self._running.get(id) if isinstance(id, str | int) else None
        if task is not None:
            task.cancel()

    # ---- bytes out ----

    async def open_output(self, descriptor: int) -> None:
        self._output = _Output(self)
        await self._output.open(descriptor)

    async def _write(self, message: bytes) -> None:
        if self._output.closed:
            raise ToolUnavailable("the client has closed the pipe")
        self.put(message)

    def put(self, message: bytes) -> None:
        """Queue one message; all that is queued in one turn of the loop goes out in one write."""
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.append(message)
        self._outgoing.append(b"\n")

    def flush(self) -> None:
        if self._outgoing:
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            self._output.write(data)

    def pause(self) -> None:
        if self._input is not None:
            self._input.pause_reading()

    def resume(self) -> None:
        if self._input is not None:
            self._input.resume_reading()

    async def close(self, last_answers: float) -> None:
        if self._input is not None:
            self._input.close()
        if self._disconnect is not None:
            self._disconnect()
        running = list(self._running.values())
        if running and not self._output.closed:
            await asyncio.wait(running, timeout=last_answers)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self.flush()
        await self._output.close(last_answers)


class _Output(asyncio.BaseProtocol):
    """The writing end: never blocks the loop on a pipe; stops the reading end when far too much is unread."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self._transport: asyncio.WriteTransport | None = None
        self._descriptor = -1
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            stream = os.fdopen(descriptor, "wb", 0, closefd=False)
            transport, _ = await loop.connect_write_pipe(lambda: self, stream)
            self._transport = transport
            transport.set_write_buffer_limits(high=MOST_UNREAD)
        except (ValueError, OSError, NotImplementedError):  # a regular file: writing to it does not block
            self._descriptor = descriptor

    @property
    def closed(self) -> bool:
        return self._gone.done()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def pause_writing(self) -> None:
        self._pipe.pause()

    def resume_writing(self) -> None:
        self._pipe.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        self._pipe.end()

    async def close(self, seconds: float) -> None:
        """Wait for what is queued to leave, as long as somebody might still read it."""
        if self._transport is None:
            return
        self._transport.close()
        await asyncio.wait((self._gone,), timeout=seconds)


if sys.version_info >= (3, 12):

    def _start(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Run at once as far as it goes: most answers need no turn of the loop."""
        return asyncio.Task(work, loop=loop, eager_start=True)

else:

    def _start(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop)
