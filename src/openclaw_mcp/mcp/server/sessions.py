"""Handshake-era sessions over HTTP: memory of a client, streams it can resume, calls that outlive a connection."""

import asyncio
import os
import time
from collections import deque
from typing import Any, Final

from ...core.errors import ToolBusy
from ...core.model import Caller, Json
from ...core.numbers import whole
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import Id, Request, RpcError
from .exchange import Exchange, Peer
from .http_gate import Headers, Refusal
from .http_reply import Receive, Reply, Send, send_status
from .server import McpServer

IDLE: Final = 1800.0  # seconds without a request before a session is forgotten
MOST_SESSIONS: Final = 10_000
MOST_STREAMS: Final = 64  # streams one session can resume
MOST_KEPT: Final = 16 << 20  # bytes of answered requests one session can still resume; the newest stays in any case
MOST_EVENTS: Final = 512  # events a stream keeps for a client that lost its connection
RETRY: Final = 500  # milliseconds we suggest before reconnecting
PRIMED_SINCE: Final = "2025-11-25"  # the revision whose clients expect a stream to open with an event id


class Stream:
    """What was said on one stream, kept so that a client can pick up where it lost us."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hung_up = False
        """The server has ended the connection; the client is to come back for the rest."""
        self._events: deque[tuple[int, bytes]] = deque(maxlen=MOST_EVENTS)
        self.size = 0
        self._count = 0
        self._ended = False
        self._news = asyncio.Event()

    def say(self, message: bytes) -> None:
        self._count += 1
        self.size += len(message)
        self._events.append((self._count, message))
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def hang_up(self) -> None:
        self.hung_up = True
        self._news.set()

    async def something(self) -> None:
        """Return once there is anything to send, or nothing will be."""
        await self._news.wait()

    def only(self) -> bytes | None:
        """The one thing said, if the stream ended with it."""
        return self._events[0][1] if self._ended and self._count == 1 else None

    @property
    def over(self) -> bool:
        return self._ended

    @property
    def silent(self) -> bool:
        return self._ended and self._count == 0

    async def relay(self, reply: Reply, *, after: int) -> None:
        """Send everything after event `after`, as it comes, until the stream ends or is hung up."""
        while not self.hung_up:
            self._news.clear()
            for number, message in [event for event in self._events if event[0] > after]:
                after = number
                await reply.event(message, id=f"{self.name}_{number}")
            if self._ended:
                break
            await self._news.wait()
        await reply.raw(b"", more=False)


class Session:
    """One client's memory. Its calls run on when a connection breaks; `notifications/cancelled` ends them."""

    def __init__(self, params: Json, caller: Caller, server: McpServer) -> None:
        self.id = os.urandom(16).hex()
        self.caller = caller
        self.peer = Peer(answers_us=True)
        self.peer.introduce(params)
        self.used = time.monotonic()
        self._running: dict[Id, asyncio.Task[None]] = {}
        self._streams: dict[str, Stream] = {}
        self._listening: Stream | None = None
        self._sequence = 0
        self._disconnect = server.subscriptions.connect(self.peer, self._announce)

    async def serve(self, request: Request, server: McpServer, reply: Reply) -> None:
        """Answer one request: as JSON if the result is all there is to say, else as a stream."""
        if request.id in self._running:
            raise RpcError(jsonrpc.INVALID_REQUEST, "Invalid request: this `id` is still being served")
        stream = self._stream()
        work = self._running[request.id] = asyncio.ensure_future(self._work(request, server, stream))
        work.add_done_callback(lambda _: self._running.pop(request.id, None))
        if not await reply.while_there(stream.something()):
            return
        only = stream.only()
        if only is not None:
            self._streams.pop(stream.name, None)
            await reply.finish(only, 200)
        elif stream.silent:  # the client has cancelled it
            await send_status(reply.send, 202)
        else:
            if self.peer.version >= PRIMED_SINCE:
                await reply.raw(f"id: {stream.name}_0\r\nretry: {RETRY}\r\ndata: \r\n\r\n".encode())
            await reply.while_there(stream.relay(reply, after=0))

    async def _work(self, request: Request, server: McpServer, stream: Stream) -> None:
        async def write(message: bytes) -> None:
            stream.say(message)

        async def hang_up() -> None:
            if self.peer.version >= PRIMED_SINCE:
                stream.hang_up()

        envelope = mcp.handshake_envelope(
            request.params, version=self.peer.version, capabilities=self.peer.capabilities
        )
        exchange = Exchange(request.id, envelope, self.caller, peer=self.peer, write=write, hang_up=hang_up)
        try:
            stream.say(jsonrpc.result(request.id, await server.answer(exchange, request.method, request.params)))
        except RpcError as exc:
            stream.say(jsonrpc.error(request.id, exc))
        finally:
            stream.end()

    def cancel(self, id: Any) -> None:
        task = self._running.get(id) if isinstance(id, str | int) else None
        if task is not None:
            task.cancel()

    def resume(self, last: str) -> tuple[Stream, int]:
        """The stream and position an event id names. Raises Refusal."""
        name, _, digits = last.rpartition("_")
        stream, number = self._streams.get(name), whole(digits)
        if stream is None or number is None:
            raise Refusal(404, "that stream can't be resumed: Last-Event-ID is unknown here")
        stream.hung_up = False
        return stream, number

    def listen(self) -> Stream:
        """The stream for what belongs to no request; a new listener takes it over from an older one."""
        if self._listening is not None:
            self._listening.hang_up()
        self._listening = self._stream()
        return self._listening

    def _announce(self, message: bytes) -> None:
        if self._listening is not None:
            self._listening.say(message)

    def _stream(self) -> Stream:
        while len(self._streams) >= MOST_STREAMS:
            self._streams.pop(next(iter(self._streams)))
        kept = 0
        for stream in reversed(list(self._streams.values())):
            if stream.over and kept > MOST_KEPT:
                del self._streams[stream.name]
            kept += stream.size
        self._sequence += 1
        stream = self._streams[str(self._sequence)] = Stream(str(self._sequence))
        return stream

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def forget(self) -> None:
        """Stop hearing of changes, and hang up on whoever listens."""
        self._disconnect()
        if self._listening is not None:
            self._listening.hang_up()

    async def aclose(self) -> None:
        self.forget()
        running = list(self._running.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


class Sessions:
    """Every session at one endpoint."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def begin(self, params: Json, caller: Caller, server: McpServer) -> Session:
        self._forget_idle()
        if len(self._sessions) >= MOST_SESSIONS:
            raise ToolBusy(f"{MOST_SESSIONS} sessions are open already; close some or try later")
        session = Session(params, caller, server)
        self._sessions[session.id] = session
        return session

    def find(self, id: str, caller: Caller) -> Session:
        self._forget_idle()
        session = self._sessions.get(id)
        if session is None or session.caller != caller:
            raise Refusal(404, "session not found; send initialize again")
        session.used = time.monotonic()
        self._sessions[id] = self._sessions.pop(id)  # the longest unused comes first
        return session

    async def serve(self, method: str, headers: Headers, caller: Caller, receive: Receive, send: Send) -> None:
        """GET opens or resumes a stream; DELETE ends the session."""
        id = headers.get("mcp-session-id")
        if id is None:
            raise Refusal(405, "POST only, or GET and DELETE with MCP-Session-Id", ((b"allow", b"POST"),))
        session = self.find(id, caller)
        if method == "DELETE":
            del self._sessions[id]
            await session.aclose()
            await send_status(send, 200)
            return
        last = headers.get("last-event-id")
        stream, after = session.resume(last) if last else (session.listen(), 0)
        reply = Reply(receive, send, streams=True)
        await reply.raw(b":\r\n\r\n")
        await reply.while_there(stream.relay(reply, after=after))

    async def aclose(self) -> None:
        for session in list(self._sessions.values()):
            await session.aclose()
        self._sessions.clear()

    def _forget_idle(self) -> None:
        limit = time.monotonic() - IDLE
        idle: list[str] = []
        for id, session in self._sessions.items():
            if session.used >= limit:
                break
            if not session.busy:
                idle.append(id)
        for id in idle:
            self._sessions.pop(id).forget()
