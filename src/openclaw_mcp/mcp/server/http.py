"""MCP over HTTP: a raw ASGI callable. JSON answers; a stream only when something is said before the result.

Both eras at one address. The stateless era needs nothing kept, and closing its stream cancels the call. The handshake
era gets a session when it opens with `initialize`; a request without one is served as it stands.
"""

from typing import Final

from ...core.errors import OpenClawError
from ...core.model import Caller
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import Notification, Request, Response, RpcError
from .http_gate import Gate, Headers, Refusal
from .http_reply import Reply, refuse, send_status, send_text
from .http_request import Inline, Receive, Scope, Send, is_stateless, read_headers, unversioned
from .server import McpServer
from .sessions import Session, Sessions
from .slots import Slots

MOST_LISTENERS: Final = 1000  # clients that wait for news of changes at one door with slots

_ALLOW_POST = ((b"allow", b"POST"),)


class McpHttp:
    """One endpoint. `sessions=False` serves the handshake era without memory, as behind a load balancer.

    `probe` is what a plain GET is answered, by people who look whether we are here.
    """

    def __init__(
        self, server: McpServer, *, gate: Gate = Gate(), sessions: bool = True, probe: str | None = None
    ) -> None:
        self._server = server
        self._gate = gate
        self._sessions = Sessions() if sessions else None
        self._probe = probe
        self._inline = Inline(gate)
        self._slots = Slots(gate.slots) if gate.slots is not None else None
        self._listeners = Slots(MOST_LISTENERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})  # there is no socket here, whoever asks
            return
        headers, repeated = read_headers(scope)
        try:
            caller = self._gate.admit(scope, headers)
            if self._gate.place is not None:
                caller = await self._gate.place(caller, headers)
            if scope["method"] == "POST":
                await self._post(headers, repeated, caller, receive, send)
            else:
                await self._other(scope["method"], headers, caller, receive, send)
        except Refusal as refusal:
            await refuse(send, refusal)

    async def aclose(self) -> None:
        """End every session and its running calls."""
        if self._sessions is not None:
            await self._sessions.aclose()
        await self._server.aclose()

    async def _other(self, method: str, headers: Headers, caller: Caller, receive: Receive, send: Send) -> None:
        if method == "GET" and self._probe is not None and "text/event-stream" not in headers.get("accept", ""):
            await send_text(send, self._probe)
            return
        if self._sessions is None or method not in ("GET", "DELETE") or is_stateless(headers):
            raise Refusal(405, "POST only", _ALLOW_POST)
        await self._sessions.serve(method, headers, caller, receive, send)

    async def _post(self, headers: Headers, repeated: str | None, caller: Caller, receive: Receive, send: Send) -> None:
        post = await self._inline.read(headers, receive, send)
        if post is None:
            return
        message, reply = post
        if self._slots is None or not isinstance(message, Request):
            # What a client answers us needs no slot, or its own calls could keep its answers out.
            await self._take(message, headers, repeated, caller, reply)
            return
        # Who only listens stays for as long as its client lives, and must not keep the others' calls out.
        slots = self._listeners if message.method == mcp.LISTEN else self._slots
        if not slots.take_free():
            await slots.take()
        try:
            await self._take(message, headers, repeated, caller, reply)
        finally:
            slots.give()

    async def _take(
        self, message: jsonrpc.Message, headers: Headers, repeated: str | None, caller: Caller, reply: Reply
    ) -> None:
        if is_stateless(headers):
            await self._inline.stateless(self._server, message, headers, repeated, caller, reply)
        else:
            await self._handshake(message, headers, caller, reply)

    async def _handshake(self, message: jsonrpc.Message, headers: Headers, caller: Caller, reply: Reply) -> None:
        session = self._session(headers, caller)
        if isinstance(message, Response):
            if session is not None:
                session.peer.hear(message)
            await send_status(reply.send, 202)
            return
        if isinstance(message, Notification):
            if session is not None and message.method == "notifications/cancelled":
                session.cancel(message.params.get("requestId"))
            await send_status(reply.send, 202)
            return
        assert isinstance(message, Request)
        reply.id = message.id
        error = unversioned(message, headers)
        if error is not None:
            await reply.error(error, status=400)
            return
        try:
            if message.method == "initialize" and self._sessions is not None:
                session = self._sessions.begin(message.params, caller, self._server)
                reply.headers = ((b"mcp-session-id", session.id.encode()),)
            if session is not None:
                await session.serve(message, self._server, reply)
                return
        except OpenClawError as exc:
            raise Refusal(503, str(exc), ((b"retry-after", b"30"),)) from None
        except RpcError as exc:
            await reply.error(exc, status=200)
            return
        await self._inline.handshake(self._server, message, headers, caller, reply)

    def _session(self, headers: Headers, caller: Caller) -> Session | None:
        id = headers.get("mcp-session-id")
        if id is None or self._sessions is None:
            return None
        return self._sessions.find(id, caller)
