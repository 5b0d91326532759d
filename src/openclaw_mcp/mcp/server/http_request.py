"""One HTTP request, served within its own task: headers, body, reply, and the watch over its client."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from ...core.model import Caller
from ...net import asgi
from ...net.asgi import Receive, Scope, Send
from ...net.periodic_sweep import PeriodicSweep
from ...net.response_sender import ResponseSender
from ...net.tasks import Tasks
from ...protocol import header_params, jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcId, JsonRpcRequest, JsonRpcResponse
from .exchange import Exchange, Peer
from .http_gate import HeaderMap, HttpAccessRules, HttpRefusal, body_too_large
from .server import McpServer

logger = logging.getLogger(__name__)

BODY_WAIT: Final = 30.0  # seconds a client may take to send its body
WATCH_AFTER: Final = 0.05  # seconds, about, after which a call is watched: has the client gone? is a comment due?
KEEPALIVE_INTERVAL: Final = 15.0  # seconds of silence on a stream before a comment line shows that we are there

HeaderList = tuple[tuple[bytes, bytes], ...]

_STREAM: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class HttpReply:
    """Answers one request. `write` opens the stream; without it the result is plain JSON."""

    __slots__ = ("_accepts_stream", "_headers", "_id", "_is_streaming", "_lock", "_receive", "send")

    def __init__(self, receive: Receive, send: Send, *, accepts_stream: bool, id: JsonRpcId = 0) -> None:
        """`id` is that of the request; a stream for what belongs to no request has none."""
        self.send = send
        self._id = id
        self._headers: HeaderList = ()
        self._receive = receive
        self._accepts_stream = accepts_stream
        self._is_streaming = False
        self._lock: asyncio.Lock | None = None

    def add_session_id(self, session_id: str) -> None:
        """Have the response carry the id of the session that the request opened."""
        self._headers = ((b"mcp-session-id", session_id.encode()),)

    async def write(self, message: bytes) -> None:
        """Send a message before the result. A client that takes no stream does not get it."""
        if self._accepts_stream:
            await self.send_event(message)

    async def send_event(self, message: bytes, *, id: str | None = None, more: bool = True) -> None:
        head = b"event: message\r\n" if id is None else b"id: %b\r\nevent: message\r\n" % id.encode()
        await self.send_raw(head + b"data: " + message + b"\r\n\r\n", more=more)

    async def send_raw(self, data: bytes, *, more: bool = True) -> None:
        """Put bytes on the stream, opening it if need be. The lock keeps its opening first."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self._is_streaming:
                self._is_streaming = True
                start = {"type": "http.response.start", "status": 200, "headers": [*_STREAM, *self._headers]}
                try:
                    await self.send(start)
                except asyncio.CancelledError:  # while it waited for a client that does not read: nothing was sent
                    self._is_streaming = False
                    raise
            await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def send_result(self, result: mcp.McpResult) -> None:
        await self.finish(jsonrpc.encode_result(self._id, result), 200)

    async def send_error(self, exc: JsonRpcError, *, status: int) -> None:
        await self.finish(jsonrpc.encode_error(self._id, exc), status)

    async def finish(self, body: bytes, status: int) -> None:
        if self._is_streaming:
            await self.send_event(body, more=False)
        else:
            await _send_body(self.send, body, status=status, headers=self._headers)

    async def end_without_result(self) -> None:
        """End without a result: the client does not want it any more."""
        if self._is_streaming:
            await self.send_raw(b"", more=False)
        else:
            await asgi.send_status(self.send, 202)

    async def _wait_disconnect(self) -> None:
        """Return when the client is gone; meanwhile send it signs of life."""
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(self._receive_disconnect())
            while not leaving.done():
                await asyncio.wait((leaving,), timeout=KEEPALIVE_INTERVAL)
                if not leaving.done() and self._accepts_stream:
                    await self.send_raw(b":\r\n\r\n")

    async def run_until_disconnect(self, work: Coroutine[Any, Any, object]) -> bool:
        """Run `work` to its end, or stop it when the client disconnects; whether it came to its end."""
        try:
            async with asyncio.TaskGroup() as group:
                running, watching = group.create_task(work), group.create_task(self.watch_client())
                running.add_done_callback(lambda _: watching.cancel())
                watching.add_done_callback(lambda _: running.cancel())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the work's: the watch itself does not fail
        return not running.cancelled()

    async def watch_client(self) -> None:
        """Return when the client is gone, which a failed sign of life shows as well."""
        try:
            await self._wait_disconnect()
        except Exception as exc:  # noqa: BLE001  with any error of the web server the client can't be reached
            logger.debug("mcp http: a client could not be reached any more (%r), its stream ends", exc)

    async def _receive_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class SingleRequestServer:
    """Serves single requests of an endpoint, for one server or for many."""

    def __init__(self, access_rules: HttpAccessRules) -> None:
        self._access_rules = access_rules
        self._slow_calls: PeriodicSweep[_ClientWatch] = PeriodicSweep(WATCH_AFTER, _ClientWatch.start)
        self._watches = Tasks("mcp http")

    async def read_message(
        self, headers: HeaderMap, receive: Receive, send: Send
    ) -> tuple[jsonrpc.JsonRpcMessage, HttpReply] | None:
        """The message of a POST and its reply; None when it was answered already. Raises HttpRefusal."""
        self._access_rules.check_body(headers)
        accepts_stream = _accepts_stream(headers.get("accept"))
        message = jsonrpc.decode_message(await read_body(receive, self._access_rules.largest_body))
        if isinstance(message, jsonrpc.MalformedMessage):
            await _send_body(send, jsonrpc.encode_error(message.id, message.error), status=400)
            return None
        id = message.id if isinstance(message, JsonRpcRequest) else 0
        return message, HttpReply(receive, send, accepts_stream=accepts_stream, id=id)

    async def serve_stateless(
        self,
        server: McpServer,
        message: jsonrpc.JsonRpcMessage,
        headers: HeaderMap,
        repeated_header: str | None,
        caller: Caller,
        reply: HttpReply,
    ) -> None:
        """Serve one message of the stateless era. Raises HttpRefusal."""
        if isinstance(message, JsonRpcRequest):
            try:
                envelope = _check_envelope(headers, repeated_header, message)
            except JsonRpcError as exc:
                await reply.send_error(exc, status=mcp.HTTP_STATUS.get(exc.code, 400))
                return
            exchange = Exchange(message, envelope, caller, peer=_NO_PEER, write=reply.write, headers=headers)
            await self._answer(server, exchange, reply)
            return
        refuse_unknown_version(headers)
        if isinstance(message, JsonRpcResponse):
            raise HttpRefusal(400, "the stateless era has no responses from clients")
        await asgi.send_status(reply.send, 202)

    async def serve_handshake(
        self, server: McpServer, request: JsonRpcRequest, headers: HeaderMap, caller: Caller, reply: HttpReply
    ) -> None:
        """Serve one request of the handshake era by itself, without keeping anything."""
        peer = Peer(version=headers.get("mcp-protocol-version", mcp.DEFAULT_HTTP_VERSION))
        exchange = Exchange(request, peer.envelope(request), caller, peer=peer, write=reply.write, headers=headers)
        await self._answer(server, exchange, reply)

    async def _answer(self, server: McpServer, exchange: Exchange, reply: HttpReply) -> None:
        """Serve within the request's own task; it ends when the client disconnects."""
        watch = _ClientWatch(reply, self._access_rules.max_seconds, self._slow_calls, self._watches)
        try:
            result = await server.answer(exchange)
        except JsonRpcError as exc:
            watch.stop()
            status = mcp.HTTP_STATUS.get(exc.code, 200) if exchange.envelope.stateless else 200
            await reply.send_error(exc, status=status)
        except asyncio.CancelledError:
            watch.stop()
            await watch.finish_cancellation()
        else:
            watch.stop()
            await reply.send_result(result)


def find_version_error(request: JsonRpcRequest, headers: HeaderMap) -> JsonRpcError | None:
    """What is wrong with a stateless-era request whose headers do not say so."""
    if "mcp-protocol-version" in headers or not mcp.is_stateless(request):
        return None
    return JsonRpcError(mcp.HEADER_MISMATCH, "The MCP-Protocol-Version header is required with such a body")


class _ClientWatch:
    """Watches a slow call: cancels it when the client disconnects or the time is up, and keeps its stream alive."""

    __slots__ = ("_cancel_reason", "_max_seconds", "_reply", "_request_task", "_sweep", "_tasks", "_watch_task")

    def __init__(
        self, reply: HttpReply, max_seconds: float, sweep: "PeriodicSweep[_ClientWatch]", tasks: Tasks
    ) -> None:
        self._reply = reply
        self._max_seconds = max_seconds
        self._sweep = sweep
        self._tasks = tasks
        self._request_task = asyncio.current_task(sweep.loop)
        self._watch_task: asyncio.Task[None] | None = None
        self._cancel_reason: str | None = None
        sweep.add(self)

    def start(self, _: float) -> None:
        """The call is slow enough to be watched."""
        self._sweep.discard(self)
        self._watch_task = self._tasks.spawn(self._watch_client(), name="watch over a slow call")

    def stop(self) -> None:
        self._sweep.discard(self)
        if self._watch_task is not None:
            self._watch_task.cancel()

    async def finish_cancellation(self) -> None:
        """After a cancellation: ours is answered, any other continues."""
        if self._cancel_reason is None or self._request_task is None:
            raise asyncio.CancelledError
        self._request_task.uncancel()
        if self._cancel_reason == "late":
            error = JsonRpcError(jsonrpc.INTERNAL_ERROR, f"The request took longer than {self._max_seconds:g} s")
            await self._reply.send_error(error, status=408)

    async def _watch_client(self) -> None:
        try:
            async with asyncio.timeout(self._max_seconds):
                await self._reply.watch_client()
            self._cancel_reason = "gone"
        except TimeoutError:
            self._cancel_reason = "late"
        assert self._request_task is not None
        self._request_task.cancel()


_NO_PEER: Final = Peer()
"""The stateless era keeps no peer."""


def refuse_unknown_version(headers: HeaderMap) -> None:
    """Raises HttpRefusal, naming the versions that can be used, when the header has none of them."""
    version = headers.get("mcp-protocol-version")
    if version is not None and version not in mcp.ALL_VERSIONS:
        raise HttpRefusal(400, f"MCP-Protocol-Version must be one of {', '.join(mcp.ALL_VERSIONS)}")


def is_stateless(headers: HeaderMap) -> bool:
    version = headers.get("mcp-protocol-version")
    return version is not None and version not in mcp.HANDSHAKE_VERSIONS


def _check_envelope(headers: HeaderMap, repeated_header: str | None, request: JsonRpcRequest) -> mcp.RequestEnvelope:
    """The request's envelope, once its headers agree with its body. Raises JsonRpcError."""
    if repeated_header is not None:
        raise JsonRpcError(mcp.HEADER_MISMATCH, f"The {repeated_header} header appears more than once")
    version = headers["mcp-protocol-version"]
    if version not in mcp.STATELESS_VERSIONS and not mcp.is_stateless(request):
        # A client of any era with a version we do not know: it has not sent the other headers of the stateless era.
        raise mcp.unsupported_version_error(version, mcp.ALL_VERSIONS)
    header_params.check_headers(headers, request)
    return mcp.stateless_envelope(request)


def read_headers(scope: Scope) -> tuple[dict[str, str], str | None]:
    """Headers by lower-case name, values trimmed (not every server does), and the first MCP header that repeats."""
    listed, headers = scope["headers"], asgi.read_headers(scope)
    if len(headers) == len(listed):
        return headers, None
    names = [key for key, _ in listed]
    return headers, next((name.decode() for name in names if name[:4] == b"mcp-" and names.count(name) > 1), None)


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises HttpRefusal when it is too large, too slow or cut off."""
    try:
        return await asgi.read_body(receive, max_bytes, timeout=BODY_WAIT)
    except asgi.BodyTooLarge:
        raise body_too_large(max_bytes) from None
    except asgi.BodyRefused as exc:
        raise HttpRefusal(exc.status, str(exc)) from None


def _accepts_stream(accept: str | None) -> bool:
    """Whether the client takes a stream. Raises HttpRefusal when it takes no JSON."""
    if accept is None or "*/*" in accept:
        return accept is not None
    if "application/json" not in accept and "application/*" not in accept:
        raise HttpRefusal(406, "Accept must include application/json, and text/event-stream for streams")
    return "text/event-stream" in accept


async def _send_body(
    send: Send, body: bytes, *, status: int = 200, headers: HeaderList = (), content_type: bytes = b"application/json"
) -> None:
    # Without headers of its own, whose values uvicorn checks on the usual way.
    if not headers and isinstance(send, ResponseSender) and send.send_whole(status, content_type, body):
        return
    listed = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})


async def send_text(send: Send, text: str, *, status: int = 200, headers: HeaderList = ()) -> None:
    content_type = b"text/plain; charset=utf-8"
    await _send_body(send, text.encode(), status=status, headers=headers, content_type=content_type)


async def send_refusal(send: Send, refusal: HttpRefusal) -> None:
    await send_text(send, refusal.reason, status=refusal.status, headers=refusal.headers)
