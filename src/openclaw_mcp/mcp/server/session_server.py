"""Many MCP servers behind one HTTP endpoint: the router chooses one, each request is served by itself.

Nothing of a client is kept between requests, so that any process can serve the next one. A handshake-era client gets
an `Mcp-Session-Id` all the same: it tells one client's requests from another's when it cancels one.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...core.model import Caller
from ...net.asgi import Receive, Send, send_status
from ...protocol import mcp
from ...protocol.jsonrpc import JsonRpcId, JsonRpcNotification, JsonRpcRequest
from .exchange import Peer
from .http_gate import HeaderMap, HttpRefusal
from .http_request import (
    HttpReply,
    SingleRequestServer,
    find_version_error,
    is_stateless,
    refuse_unknown_version,
)
from .server import McpServer

MOST_PENDING_CHANGES: Final = 64  # list changes waiting for a listener that does not read; each only says *look again*

CancelElsewhere = Callable[[str, JsonRpcId], None]
_ALLOW_GET_POST = ((b"allow", b"GET, POST"),)


class SessionServer:
    """One server, the requests it is serving, and its open streams."""

    __slots__ = ("_calls", "_closed", "_streams", "active_requests", "caller", "cancel_elsewhere", "server")

    def __init__(self, server: McpServer, caller: Caller, *, cancel_elsewhere: CancelElsewhere) -> None:
        self.server = server
        self.caller = caller
        self.cancel_elsewhere = cancel_elsewhere
        """Gets the requests that a client cancels and that are not served here."""
        self.active_requests = 0
        """Requests being served."""
        self._calls: dict[tuple[str, JsonRpcId], asyncio.Task[Any]] = {}
        self._streams: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def is_busy(self) -> bool:
        return self.active_requests > 0

    def cancel(self, client: str, id: JsonRpcId) -> bool:
        """End a client's request; whether it was being served here."""
        task = self._calls.pop((client, id), None)
        if task is not None:
            task.cancel()
        return task is not None

    def close(self) -> None:
        """Streams end now; calls end with the reason when what they wait for fails."""
        self._closed = True
        for task in list(self._streams):
            task.cancel()

    async def serve_request(
        self,
        client: str | None,
        request: JsonRpcRequest,
        headers: HeaderMap,
        reply: HttpReply,
        request_server: SingleRequestServer,
    ) -> None:
        """Serve a handshake-era request; a client that has a name may cancel it."""
        error = find_version_error(request, headers)
        if error is not None:
            await reply.send_error(error, status=400)
            return
        if client is None:
            await request_server.serve_handshake(self.server, request, headers, self.caller, reply)
            return
        key = (client, request.id)
        if key in self._calls:
            raise HttpRefusal(400, "this request `id` is still being served")
        task = asyncio.current_task()
        assert task is not None
        self._calls[key] = task
        try:
            await request_server.serve_handshake(self.server, request, headers, self.caller, reply)
        except asyncio.CancelledError:
            if key in self._calls or task.uncancel() > 0:  # not cancelled by the client, or not by it alone
                raise
            await reply.end_without_result()
        finally:
            self._calls.pop(key, None)

    async def stream_changes(self, reply: HttpReply) -> None:
        """Send list changes to a handshake-era listener until it disconnects or the session closes."""
        unsent: deque[bytes] = deque(maxlen=MOST_PENDING_CHANGES)
        has_messages = asyncio.Event()

        def push(message: bytes) -> None:
            unsent.append(message)
            has_messages.set()

        async def relay() -> None:
            while True:
                await has_messages.wait()
                has_messages.clear()
                while unsent:
                    await reply.send_event(unsent.popleft())

        disconnect = self.server.subscriptions.connect(Peer(), push)
        try:
            await reply.send_raw(b":\r\n\r\n")
            await self.run_until_close(reply, reply.run_until_disconnect(relay()))
        finally:
            disconnect()

    async def run_until_close(self, reply: HttpReply, work: Any) -> None:
        """Run a stream that ends, properly, when the session closes."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await work
        except asyncio.CancelledError:
            if not self._closed or task.uncancel() > 0:
                raise
            await reply.end_without_result()
        finally:
            self._streams.discard(task)


async def serve(
    session_server: SessionServer,
    method: str,
    headers: HeaderMap,
    repeated_header: str | None,
    receive: Receive,
    send: Send,
    *,
    request_server: SingleRequestServer,
    client: str | None,
    session_id_prefix: str,
) -> None:
    """Serve one request. Raises HttpRefusal.

    `client` tells requests of one handshake-era client from another's; it gets such a name with `initialize`, which
    begins with `session_id_prefix`.
    """
    session_server.active_requests += 1
    try:
        if method != "POST":
            refuse_unknown_version(headers)
            if method != "GET" or is_stateless(headers) or "text/event-stream" not in headers.get("accept", ""):
                raise HttpRefusal(405, "POST a message, or GET a text/event-stream of list changes", _ALLOW_GET_POST)
            await session_server.stream_changes(HttpReply(receive, send, accepts_stream=True))
        elif (post := await request_server.read_message(headers, receive, send)) is not None:
            message, reply = post
            if is_stateless(headers):
                work = request_server.serve_stateless(
                    session_server.server, message, headers, repeated_header, session_server.caller, reply
                )
                if isinstance(message, JsonRpcRequest) and message.method == mcp.LISTEN_METHOD:
                    work = session_server.run_until_close(reply, work)
                await work
            elif isinstance(message, JsonRpcRequest):
                if message.method == "initialize":
                    reply.add_session_id(session_id_prefix + os.urandom(16).hex())
                await session_server.serve_request(client, message, headers, reply, request_server)
            else:
                if isinstance(message, JsonRpcNotification) and client is not None:
                    _handle_cancellation(session_server, client, message)
                await send_status(send, 202)
    finally:
        session_server.active_requests -= 1


def _handle_cancellation(session_server: SessionServer, client: str, message: JsonRpcNotification) -> None:
    id = message.params.get("requestId")
    if (
        message.method == "notifications/cancelled"
        and isinstance(id, str | int)
        and not session_server.cancel(client, id)
    ):
        session_server.cancel_elsewhere(client, id)
