"""MCP over HTTP: a raw ASGI callable. JSON answers; a stream only when something is sent before the result.

Both eras at one address. The stateless era needs nothing kept, and closing its stream cancels the call. The handshake
era gets a session when it begins with `initialize`; a request without one is served by itself.
"""

import asyncio
from collections import deque
from typing import Final

from ...core.errors import OpenClawError
from ...core.model import Caller
from ...net.asgi import Receive, Scope, Send, send_status
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcNotification, JsonRpcRequest, JsonRpcResponse
from .http_gate import HeaderMap, HttpAccessRules, HttpRefusal
from .http_request import (
    HttpReply,
    SingleRequestServer,
    find_version_error,
    is_stateless,
    read_headers,
    refuse_unknown_version,
    send_refusal,
    send_text,
)
from .server import McpServer
from .sessions import McpSessions

MAX_LISTENERS: Final = 1000  # clients that listen for changes at one endpoint with slots
SLOT_WAIT: Final = 0.05  # seconds a request waits for a slot: a burst passes, a jam is reported at once

_ALLOW_POST = ((b"allow", b"POST"),)


class McpHttp:
    """One endpoint. `sessions=False` serves the handshake era without memory, as behind a load balancer.

    `probe_text` answers a plain GET, by which people look whether the server is there.
    """

    def __init__(
        self,
        server: McpServer,
        *,
        access_rules: HttpAccessRules = HttpAccessRules(),
        sessions: bool = True,
        probe_text: str | None = None,
    ) -> None:
        self._server = server
        self._access_rules = access_rules
        self._sessions = McpSessions() if sessions else None
        self._probe_text = probe_text
        self._request_server = SingleRequestServer(access_rules)
        self._slots = RequestSlots(access_rules.max_concurrent) if access_rules.max_concurrent is not None else None
        self._listen_slots = RequestSlots(MAX_LISTENERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})  # there is no WebSocket here
            return
        headers, repeated = read_headers(scope)
        try:
            caller = self._access_rules.authenticate(scope, headers)
            if self._access_rules.bind_session is not None:
                caller = await self._access_rules.bind_session(caller, headers)
            if scope["method"] == "POST":
                await self._serve_post(headers, repeated, caller, receive, send)
            else:
                await self._serve_other(scope["method"], headers, caller, receive, send)
        except HttpRefusal as refusal:
            await send_refusal(send, refusal)

    async def aclose(self) -> None:
        """End every session and its running calls."""
        if self._sessions is not None:
            await self._sessions.aclose()
        await self._server.aclose()

    async def _serve_other(self, method: str, headers: HeaderMap, caller: Caller, receive: Receive, send: Send) -> None:
        if method == "GET" and self._probe_text is not None and "text/event-stream" not in headers.get("accept", ""):
            await send_text(send, self._probe_text)
            return
        refuse_unknown_version(headers)
        if self._sessions is None or method not in ("GET", "DELETE") or is_stateless(headers):
            raise HttpRefusal(405, "POST only", _ALLOW_POST)
        await self._sessions.serve(method, headers, caller, receive, send)

    async def _serve_post(
        self, headers: HeaderMap, repeated_header: str | None, caller: Caller, receive: Receive, send: Send
    ) -> None:
        post = await self._request_server.read_message(headers, receive, send)
        if post is None:
            return
        message, reply = post
        if self._slots is None or not isinstance(message, JsonRpcRequest):
            # An answer from a client needs no slot, or its own calls could keep its answers out.
            await self._serve_message(message, headers, repeated_header, caller, reply)
            return
        # A listening request lasts as long as its client, and must not keep other calls out.
        slots = self._listen_slots if message.method == mcp.LISTEN_METHOD else self._slots
        if not slots.try_acquire():
            await slots.acquire()
        try:
            await self._serve_message(message, headers, repeated_header, caller, reply)
        finally:
            slots.release()

    async def _serve_message(
        self,
        message: jsonrpc.JsonRpcMessage,
        headers: HeaderMap,
        repeated_header: str | None,
        caller: Caller,
        reply: HttpReply,
    ) -> None:
        if is_stateless(headers):
            await self._request_server.serve_stateless(self._server, message, headers, repeated_header, caller, reply)
        else:
            await self._serve_handshake(message, headers, caller, reply)

    async def _serve_handshake(
        self, message: jsonrpc.JsonRpcMessage, headers: HeaderMap, caller: Caller, reply: HttpReply
    ) -> None:
        id = headers.get("mcp-session-id")
        session = None if id is None or self._sessions is None else self._sessions.find(id, caller)
        if isinstance(message, JsonRpcResponse):
            if session is not None:
                session.peer.handle_response(message)
            await send_status(reply.send, 202)
            return
        if isinstance(message, JsonRpcNotification):
            if session is not None and message.method == "notifications/cancelled":
                session.cancel(message.params.get("requestId"))
            await send_status(reply.send, 202)
            return
        assert isinstance(message, JsonRpcRequest)
        error = find_version_error(message, headers)
        if error is not None:
            await reply.send_error(error, status=400)
            return
        try:
            if message.method == "initialize" and self._sessions is not None:
                session = self._sessions.create(mcp.read_initialize(message.params), caller, self._server)
                reply.add_session_id(session.id)
            if session is not None:
                await session.serve(message, self._server, reply)
                return
        except OpenClawError as exc:
            raise HttpRefusal(503, str(exc), ((b"retry-after", b"30"),)) from None
        except JsonRpcError as exc:
            await reply.send_error(exc, status=200)
            return
        await self._request_server.serve_handshake(self._server, message, headers, caller, reply)


class RequestSlots:
    """How many requests are served at once: a slot is free now, or soon, or the server is busy.

    Cheaper than a semaphore where a slot is nearly always free."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Whether a slot was free, and is now the caller's."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Raises HttpRefusal when no slot becomes free in time."""
        if self.try_acquire():
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        try:
            async with asyncio.timeout(SLOT_WAIT):
                await slot
        except (TimeoutError, asyncio.CancelledError) as exc:
            if not slot.cancelled():
                self.release()  # it was given to the request just as that was cancelled
            elif slot in self._waiting:
                self._waiting.remove(slot)
            if isinstance(exc, TimeoutError):
                raise HttpRefusal(503, "server busy", ((b"retry-after", b"1"),)) from None
            raise

    def release(self) -> None:
        """The slot is given to the request that waits longest, or is free."""
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(None)
                return
        self._free += 1
