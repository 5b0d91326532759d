"""Handshake-era sessions over HTTP: a client's state, streams it can resume, calls that outlive a connection."""

import asyncio
import os
import time
from collections import deque
from typing import Any, Final

from ...core.errors import ToolBusy
from ...core.model import Caller
from ...core.numbers import parse_whole_number
from ...net.asgi import Receive, Send, send_status
from ...net.tasks import Tasks, run_all
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcId, JsonRpcRequest
from .exchange import Exchange, Peer
from .http_gate import HeaderMap, HttpRefusal
from .http_request import HttpReply
from .server import McpServer

IDLE: Final = 1800.0  # seconds without a request before a session is dropped
MAX_SESSIONS: Final = 10_000
MAX_STREAMS: Final = 64  # streams one session can resume
MAX_STORED: Final = 16 << 20  # bytes of answered requests one session can still resume; the newest stays in any case
MAX_EVENTS: Final = 512  # events a stream keeps for a client that lost its connection
RETRY_MS: Final = 500  # milliseconds we suggest before reconnecting
PRIMED_SINCE: Final = "2025-11-25"  # the revision whose clients expect a stream to open with an event id


class ResumableStream:
    """The messages of one stream, kept so that a client can resume where it lost the connection."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed_by_server = False
        """The server has ended the connection; the client is to reconnect for the rest."""
        self._events: deque[tuple[int, bytes]] = deque(maxlen=MAX_EVENTS)
        self.size = 0
        self._count = 0
        self.ended = False
        self.has_events = asyncio.Event()
        """Set once there is anything to send, or nothing will be."""

    def append(self, message: bytes) -> None:
        self._count += 1
        self.size += len(message)
        self._events.append((self._count, message))
        self.has_events.set()

    def end(self) -> None:
        self.ended = True
        self.has_events.set()

    def close_connection(self) -> None:
        self.closed_by_server = True
        self.has_events.set()

    def single_message(self) -> bytes | None:
        """The only message, if the stream ended with it."""
        return self._events[0][1] if self.ended and self._count == 1 else None

    @property
    def is_empty(self) -> bool:
        return self.ended and self._count == 0

    async def relay(self, reply: HttpReply, *, after: int) -> None:
        """Send everything after event `after`, as it comes, until the stream ends or its connection is closed."""
        while not self.closed_by_server:
            self.has_events.clear()
            for number, message in [event for event in self._events if event[0] > after]:
                after = number
                await reply.send_event(message, id=f"{self.name}_{number}")
            if self.ended:
                break
            await self.has_events.wait()
        await reply.send_raw(b"", more=False)


class McpSession:
    """One client's state. Its calls run on when a connection breaks; `notifications/cancelled` ends them."""

    def __init__(self, params: mcp.InitializeParams, caller: Caller, server: McpServer) -> None:
        self.id = os.urandom(16).hex()
        self.caller = caller
        self.peer = Peer(accepts_requests=True)
        self.peer.apply_initialize(params)
        self.last_used = time.monotonic()
        self._running: dict[JsonRpcId, asyncio.Task[None]] = {}
        self._tasks = Tasks("mcp session")
        self._streams: dict[str, ResumableStream] = {}
        self._listen_stream: ResumableStream | None = None
        self._sequence = 0
        self._disconnect = server.subscriptions.connect(self.peer, self._announce)

    async def serve(self, request: JsonRpcRequest, server: McpServer, reply: HttpReply) -> None:
        """Answer one request: as JSON if there is nothing but the result, else as a stream."""
        if request.id in self._running:
            raise JsonRpcError(jsonrpc.INVALID_REQUEST, "Invalid request: this `id` is still being served")
        stream = self._new_stream()
        work = self._tasks.spawn(self._run_request(request, server, stream), name=request.method)
        self._running[request.id] = work
        work.add_done_callback(lambda _: self._running.pop(request.id, None))
        if not await reply.run_until_disconnect(stream.has_events.wait()):
            return
        only = stream.single_message()
        if only is not None:
            self._streams.pop(stream.name, None)
            await reply.finish(only, 200)
        elif stream.is_empty:  # the client has cancelled it
            await reply.end_without_result()
        else:
            if self.peer.version >= PRIMED_SINCE:
                await reply.send_raw(f"id: {stream.name}_0\r\nretry: {RETRY_MS}\r\ndata: \r\n\r\n".encode())
            await reply.run_until_disconnect(stream.relay(reply, after=0))

    async def _run_request(self, request: JsonRpcRequest, server: McpServer, stream: ResumableStream) -> None:
        async def write(message: bytes) -> None:
            stream.append(message)

        async def close_stream() -> None:
            if self.peer.version >= PRIMED_SINCE:
                stream.close_connection()

        envelope = self.peer.envelope(request)
        exchange = Exchange(request, envelope, self.caller, peer=self.peer, write=write, close_stream=close_stream)
        try:
            stream.append(jsonrpc.encode_result(request.id, await server.answer(exchange)))
        except JsonRpcError as exc:
            stream.append(jsonrpc.encode_error(request.id, exc))
        finally:
            stream.end()

    def cancel(self, id: Any) -> None:
        if isinstance(id, str | int) and (task := self._running.get(id)) is not None:
            task.cancel()

    def resume(self, last_event_id: str) -> tuple[ResumableStream, int]:
        """The stream and position an event id names. Raises HttpRefusal."""
        name, _, digits = last_event_id.rpartition("_")
        stream, number = self._streams.get(name), parse_whole_number(digits)
        if stream is None or number is None:
            raise HttpRefusal(404, "that stream can't be resumed: Last-Event-ID is unknown here")
        stream.closed_by_server = False
        return stream, number

    def open_listen_stream(self) -> ResumableStream:
        """The stream for what belongs to no request; a new listener takes it over from an older one."""
        if self._listen_stream is not None:
            self._listen_stream.close_connection()
        self._listen_stream = self._new_stream()
        return self._listen_stream

    def _announce(self, message: bytes) -> None:
        if self._listen_stream is not None:
            self._listen_stream.append(message)

    def _new_stream(self) -> ResumableStream:
        while len(self._streams) >= MAX_STREAMS:
            self._streams.pop(next(iter(self._streams)))
        kept = 0
        for stream in reversed(list(self._streams.values())):
            if stream.ended and kept > MAX_STORED:
                del self._streams[stream.name]
            kept += stream.size
        self._sequence += 1
        stream = self._streams[str(self._sequence)] = ResumableStream(str(self._sequence))
        return stream

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def unsubscribe(self) -> None:
        """Receive no more changes, and close the listener's connection."""
        self._disconnect()
        if self._listen_stream is not None:
            self._listen_stream.close_connection()

    async def aclose(self) -> None:
        self.unsubscribe()
        await self._tasks.aclose()


class McpSessions:
    """Every session at one endpoint."""

    def __init__(self) -> None:
        self._sessions: dict[str, McpSession] = {}

    def create(self, params: mcp.InitializeParams, caller: Caller, server: McpServer) -> McpSession:
        self._drop_idle()
        if len(self._sessions) >= MAX_SESSIONS:
            raise ToolBusy(f"{MAX_SESSIONS} sessions are open already; close some or try later")
        session = McpSession(params, caller, server)
        self._sessions[session.id] = session
        return session

    def find(self, id: str, caller: Caller) -> McpSession:
        self._drop_idle()
        session = self._sessions.get(id)
        if session is None or session.caller != caller:
            raise HttpRefusal(404, "session not found; send initialize again")
        session.last_used = time.monotonic()
        self._sessions[id] = self._sessions.pop(id)  # the longest unused comes first
        return session

    async def serve(self, method: str, headers: HeaderMap, caller: Caller, receive: Receive, send: Send) -> None:
        """GET opens or resumes a stream; DELETE ends the session."""
        id = headers.get("mcp-session-id")
        if id is None:
            raise HttpRefusal(405, "POST only, or GET and DELETE with MCP-Session-Id", ((b"allow", b"POST"),))
        session = self.find(id, caller)
        if method == "DELETE":
            del self._sessions[id]
            await session.aclose()
            await send_status(send, 200)
            return
        last = headers.get("last-event-id")
        stream, after = session.resume(last) if last else (session.open_listen_stream(), 0)
        reply = HttpReply(receive, send, accepts_stream=True)
        await reply.send_raw(b":\r\n\r\n")
        await reply.run_until_disconnect(stream.relay(reply, after=after))

    async def aclose(self) -> None:
        await run_all(session.aclose() for session in self._sessions.values())
        self._sessions.clear()

    def _drop_idle(self) -> None:
        limit = time.monotonic() - IDLE
        idle: list[str] = []
        for id, session in self._sessions.items():
            if session.last_used >= limit:
                break
            if not session.is_busy:
                idle.append(id)
        for id in idle:
            self._sessions.pop(id).unsubscribe()
