"""One HTTP request, served within its own task: its headers, its body, its answer, and the watch over its client."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from ...core.model import Caller
from ...net import asgi
from ...net.periodic_sweep import PeriodicSweep
from ...protocol import header_params, jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcMessage, JsonRpcRequest, JsonRpcResponse, MalformedMessage
from .exchange import Exchange, Peer
from .http_gate import HeaderMap, HttpAccessRules, HttpRefusal
from .http_reply import HttpReply, send_json, send_status
from .server import McpServer

BODY_WAIT: Final = 30.0  # seconds a client may take to send its body
WATCH_AFTER: Final = (
    0.05  # about so many seconds into a call it is watched: has the client gone? is a sign of life due?
)

AsgiScope = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class SingleRequestServer:
    """What an endpoint needs to serve requests that stand alone, for one server or for many."""

    def __init__(self, access_rules: HttpAccessRules) -> None:
        self._access_rules = access_rules
        self._slow_calls: PeriodicSweep[_ClientWatch] = PeriodicSweep(WATCH_AFTER, _ClientWatch.start)

    async def read_message(
        self, headers: HeaderMap, receive: AsgiReceive, send: AsgiSend
    ) -> tuple[JsonRpcMessage, HttpReply] | None:
        """The message of a POST and the way to answer it; None when it was answered already. Raises Refusal."""
        self._access_rules.check_body(headers)
        reply = HttpReply(receive, send, accepts_stream=_accepts_stream(headers.get("accept")))
        message = jsonrpc.decode_message(await read_body(receive, self._access_rules.largest_body))
        if isinstance(message, MalformedMessage):
            await send_json(send, jsonrpc.encode_error(message.id, message.error), status=400)
            return None
        return message, reply

    async def serve_stateless(
        self,
        server: McpServer,
        message: JsonRpcMessage,
        headers: HeaderMap,
        repeated_header: str | None,
        caller: Caller,
        reply: HttpReply,
    ) -> None:
        """Serve one message of the stateless era. Raises Refusal."""
        if isinstance(message, JsonRpcRequest):
            reply.id = message.id
            try:
                envelope = _check_envelope(headers, repeated_header, message)
            except JsonRpcError as exc:
                await reply.send_error(exc, status=mcp.HTTP_STATUS.get(exc.code, 400))
                return
            exchange = Exchange(message.id, envelope, caller, peer=_NO_PEER, write=reply.write, headers=headers)
            await self._answer(server, exchange, message, reply)
        elif isinstance(message, JsonRpcResponse):
            raise HttpRefusal(400, "the stateless era has no responses from clients")
        else:
            await send_status(reply.send, 202)

    async def serve_handshake(
        self, server: McpServer, request: JsonRpcRequest, headers: HeaderMap, caller: Caller, reply: HttpReply
    ) -> None:
        """Serve one request of the handshake era as it stands, remembering nothing."""
        reply.id = request.id
        peer = Peer(version=headers.get("mcp-protocol-version", mcp.DEFAULT_HTTP_VERSION))
        envelope = mcp.handshake_envelope(request.params, version=peer.version, capabilities={})
        exchange = Exchange(request.id, envelope, caller, peer=peer, write=reply.write, headers=headers)
        await self._answer(server, exchange, request, reply)

    async def _answer(self, server: McpServer, exchange: Exchange, request: JsonRpcRequest, reply: HttpReply) -> None:
        """Serve within the request's own task; the client's going ends it."""
        watch = _ClientWatch(reply, self._access_rules.max_seconds, self._slow_calls)
        try:
            result = await server.answer(exchange, request.method, request.params)
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
    if "mcp-protocol-version" in headers or not mcp.is_stateless(request.method, request.params):
        return None
    return JsonRpcError(mcp.HEADER_MISMATCH, "The MCP-Protocol-Version header is required with such a body")


class _ClientWatch:
    """Minds a slow call: cancels it when the client goes or time is up, and keeps its stream alive."""

    __slots__ = ("_cancel_reason", "_max_seconds", "_reply", "_request_task", "_sweep", "_watch_task")

    def __init__(self, reply: HttpReply, max_seconds: float, sweep: "PeriodicSweep[_ClientWatch]") -> None:
        loop = sweep.loop
        self._reply = reply
        self._max_seconds = max_seconds
        self._sweep = sweep
        self._request_task = asyncio.current_task(loop)
        self._watch_task: asyncio.Task[None] | None = None
        self._cancel_reason: str | None = None
        sweep.add(self)

    def start(self, _: float) -> None:
        """The call is slow enough to be minded."""
        self._sweep.discard(self)
        self._watch_task = asyncio.get_running_loop().create_task(self._watch_client())

    def stop(self) -> None:
        self._sweep.discard(self)
        if self._watch_task is not None:
            self._watch_task.cancel()

    async def finish_cancellation(self) -> None:
        """After a cancellation: ours is answered, anybody else's goes on."""
        if self._cancel_reason is None or self._request_task is None:
            raise asyncio.CancelledError
        self._request_task.uncancel()
        if self._cancel_reason == "late":
            error = JsonRpcError(jsonrpc.INTERNAL_ERROR, f"The request took longer than {self._max_seconds:g} s")
            await self._reply.send_error(error, status=408)

    async def _watch_client(self) -> None:
        try:
            async with asyncio.timeout(self._max_seconds):
                await self._reply.wait_disconnect()
            self._cancel_reason = "gone"
        except TimeoutError:
            self._cancel_reason = "late"
        assert self._request_task is not None
        self._request_task.cancel()


_NO_PEER: Final = Peer()
"""The stateless era remembers no peer."""


def is_stateless(headers: HeaderMap) -> bool:
    version = headers.get("mcp-protocol-version")
    return version is not None and version not in mcp.HANDSHAKE_VERSIONS


def _check_envelope(headers: HeaderMap, repeated_header: str | None, request: JsonRpcRequest) -> mcp.RequestEnvelope:
    """The request's envelope, once its headers agree with its body. Raises RpcError."""
    if repeated_header is not None:
        raise JsonRpcError(mcp.HEADER_MISMATCH, f"The {repeated_header} header appears more than once")
    header_params.check_headers(headers, request.method, request.params)
    return mcp.stateless_envelope(request.params)


def read_headers(scope: AsgiScope) -> tuple[dict[str, str], str | None]:
    """Headers by lower-case name, values trimmed (not every server does), and the first MCP header that repeats."""
    listed, headers = scope["headers"], asgi.read_headers(scope)
    if len(headers) == len(listed):
        return headers, None
    names = [key for key, _ in listed]
    return headers, next((name.decode() for name in names if name[:4] == b"mcp-" and names.count(name) > 1), None)


async def read_body(receive: AsgiReceive, max_bytes: int) -> bytes:
    """The whole body. Raises Refusal when it is too large, too slow or cut off."""
    try:
        return await asgi.read_body(receive, max_bytes, timeout=BODY_WAIT)
    except asgi.BodyTooLarge:
        raise _too_large(max_bytes) from None
    except asgi.BodyRefused as exc:
        raise HttpRefusal(exc.status, str(exc)) from None


def _too_large(max_bytes: int) -> HttpRefusal:
    return HttpRefusal(413, f"request body too large: at most {max_bytes} bytes")


def _accepts_stream(accept: str | None) -> bool:
    """Whether the client takes a stream. Raises Refusal when it takes no JSON."""
    if accept is None or "*/*" in accept:
        return accept is not None
    if "application/json" not in accept and "application/*" not in accept:
        raise HttpRefusal(406, "Accept must include application/json, and text/event-stream for streams")
    return "text/event-stream" in accept
