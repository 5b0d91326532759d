"""Many MCP servers behind one HTTP endpoint: whoever routes chooses the door, each request is served as it stands.

Nothing of a client is kept between requests, so that any process can serve the next one. A handshake-era client gets
an `Mcp-Session-Id` all the same: it tells one client's requests from another's when it cancels one.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...core.model import Caller
from ...protocol import mcp
from ...protocol.jsonrpc import Id, Notification, Request
from .exchange import Peer
from .http_gate import Headers, Refusal
from .http_reply import Reply, send_status
from .http_request import Inline, Receive, Send, is_stateless, unversioned
from .server import McpServer

MOST_UNHEARD: Final = 64  # list changes waiting for a listener that does not read; each only says *look again*

Elsewhere = Callable[[str, Id], None]
_ALLOWED = ((b"allow", b"GET, POST"),)


class Door:
    """One server, the requests it is serving, and its open streams."""

    __slots__ = ("_calls", "_closed", "_streams", "caller", "inside", "server")

    def __init__(self, server: McpServer, caller: Caller) -> None:
        self.server = server
        self.caller = caller
        self.inside = 0
        """Requests being served."""
        self._calls: dict[tuple[str, Id], asyncio.Task[Any]] = {}
        self._streams: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def busy(self) -> bool:
        return self.inside > 0

    def cancel(self, client: str, id: Id) -> bool:
        """End a client's request; whether it was being served here."""
        task = self._calls.pop((client, id), None)
        if task is not None:
            task.cancel()
        return task is not None

    def close(self) -> None:
        """Streams end now; calls end when what they wait for fails, and say why."""
        self._closed = True
        for task in list(self._streams):
            task.cancel()

    async def call(self, client: str | None, request: Request, headers: Headers, reply: Reply, inline: Inline) -> None:
        """Serve a handshake-era request; a client that has a name may cancel it."""
        error = unversioned(request, headers)
        if error is not None:
            reply.id = request.id
            await reply.error(error, status=400)
        elif client is None:
            await inline.handshake(self.server, request, headers, self.caller, reply)
        else:
            await self._cancellable(client, request, headers, reply, inline)

    async def _cancellable(self, client: str, request: Request, headers: Headers, reply: Reply, inline: Inline) -> None:
        key = (client, request.id)
        if key in self._calls:
            raise Refusal(400, "this request `id` is still being served")
        task = asyncio.current_task()
        assert task is not None
        self._calls[key] = task
        try:
            await inline.handshake(self.server, request, headers, self.caller, reply)
        except asyncio.CancelledError:
            if key in self._calls or task.uncancel() > 0:  # not the client's wish, or not its alone
                raise
            await reply.give_up()
        finally:
            self._calls.pop(key, None)

    async def stream(self, reply: Reply) -> None:
        """Tell a handshake-era listener of list changes until it goes or the door closes."""
        unheard: deque[bytes] = deque(maxlen=MOST_UNHEARD)
        news = asyncio.Event()

        def push(message: bytes) -> None:
            unheard.append(message)
            news.set()

        async def relay() -> None:
            while True:
                await news.wait()
                news.clear()
                while unheard:
                    await reply.event(unheard.popleft())

        disconnect = self.server.subscriptions.connect(Peer(), push)
        try:
            await reply.raw(b":\r\n\r\n")
            await self.until_closed(reply, reply.while_there(relay()))
        finally:
            disconnect()

    async def until_closed(self, reply: Reply, work: Any) -> None:
        """Run a stream that ends, properly, when the door closes."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await work
        except asyncio.CancelledError:
            if not self._closed or task.uncancel() > 0:
                raise
            await reply.give_up()
        finally:
            self._streams.discard(task)


async def serve(
    door: Door,
    method: str,
    headers: Headers,
    repeated: str | None,
    receive: Receive,
    send: Send,
    *,
    inline: Inline,
    client: str | None,
    introduce: bool,
    elsewhere: Elsewhere,
) -> None:
    """Serve one request at `door`. Raises Refusal.

    `client` tells requests of one handshake-era client from another's; with `introduce`, one that has no such name
    gets it with `initialize`. A request it cancels that is not served here is handed to `elsewhere`.
    """
    door.inside += 1
    try:
        if method == "POST":
            await _post(door, headers, repeated, receive, send, inline, client, introduce, elsewhere)
        elif method != "GET" or is_stateless(headers) or "text/event-stream" not in headers.get("accept", ""):
            raise Refusal(405, "POST a message, or GET a text/event-stream of list changes", _ALLOWED)
        else:
            await door.stream(Reply(receive, send, streams=True))
    finally:
        door.inside -= 1


async def _post(  # noqa: PLR0917  one caller, which names them all
    door: Door,
    headers: Headers,
    repeated: str | None,
    receive: Receive,
    send: Send,
    inline: Inline,
    client: str | None,
    introduce: bool,
    elsewhere: Elsewhere,
) -> None:
    post = await inline.read(headers, receive, send)
    if post is None:
        return
    message, reply = post
    if is_stateless(headers):
        work = inline.stateless(door.server, message, headers, repeated, door.caller, reply)
        if isinstance(message, Request) and message.method == mcp.LISTEN:
            work = door.until_closed(reply, work)
        await work
    elif isinstance(message, Request):
        if introduce and message.method == "initialize":
            reply.headers = ((b"mcp-session-id", os.urandom(16).hex().encode()),)
        await door.call(client, message, headers, reply, inline)
    else:
        if isinstance(message, Notification) and client is not None:
            _heed(door, client, message, elsewhere)
        await send_status(send, 202)


def _heed(door: Door, client: str, message: Notification, elsewhere: Elsewhere) -> None:
    id = message.params.get("requestId")
    if message.method == "notifications/cancelled" and isinstance(id, str | int) and not door.cancel(client, id):
        elsewhere(client, id)
