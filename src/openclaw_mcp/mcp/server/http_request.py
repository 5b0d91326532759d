"""One HTTP request, served within its own task: its headers, its body, its answer, and the watch over its client."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from ...core.model import Caller
from ...net.periodic_sweep import Rounds
from ...protocol import header_params, jsonrpc, mcp
from ...protocol.jsonrpc import Malformed, Message, Request, Response, RpcError
from .exchange import Exchange, Peer
from .http_gate import Gate, Headers, Refusal
from .http_reply import Reply, send_json, send_status
from .server import McpServer

BODY_WAIT: Final = 30.0  # seconds a client may take to send its body
SLOW: Final = 0.05  # about so many seconds into a call it is watched: has the client gone? is a sign of life due?

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Inline:
    """What an endpoint needs to serve requests that stand alone, for one server or for many."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._slow: Rounds[_Watch] = Rounds(SLOW, _Watch.begin)

    async def read(self, headers: Headers, receive: Receive, send: Send) -> tuple[Message, Reply] | None:
        """The message of a POST and the way to answer it; None when it was answered already. Raises Refusal."""
        self._gate.check_body(headers)
        reply = Reply(receive, send, streams=_accepts(headers.get("accept")))
        asked = getattr(send, "asked", None)  # our own web server mostly has it as a whole
        body = None if asked is None else asked()
        largest = self._gate.largest_body
        body = await read_body(receive, largest) if body is None else _bounded(body, largest)
        message = jsonrpc.decode(body)
        if isinstance(message, Malformed):
            await send_json(send, jsonrpc.error(message.id, message.error), status=400)
            return None
        return message, reply

    async def stateless(
        self,
        server: McpServer,
        message: Message,
        headers: Headers,
        repeated: str | None,
        caller: Caller,
        reply: Reply,
    ) -> None:
        """Serve one message of the stateless era. Raises Refusal."""
        if isinstance(message, Request):
            reply.id = message.id
            try:
                envelope = _checked(headers, repeated, message)
            except RpcError as exc:
                await reply.error(exc, status=mcp.HTTP_STATUS.get(exc.code, 400))
                return
            exchange = Exchange(message.id, envelope, caller, peer=_NOBODY, write=reply.write, headers=headers)
            await self._answer(server, exchange, message, reply)
        elif isinstance(message, Response):
            raise Refusal(400, "the stateless era has no responses from clients")
        else:
            await send_status(reply.send, 202)

    async def handshake(
        self, server: McpServer, request: Request, headers: Headers, caller: Caller, reply: Reply
    ) -> None:
        """Serve one request of the handshake era as it stands, remembering nothing."""
        reply.id = request.id
        peer = Peer(version=headers.get("mcp-protocol-version", mcp.ASSUMED_OVER_HTTP))
        envelope = mcp.handshake_envelope(request.params, version=peer.version, capabilities={})
        exchange = Exchange(request.id, envelope, caller, peer=peer, write=reply.write, headers=headers)
        await self._answer(server, exchange, request, reply)

    async def _answer(self, server: McpServer, exchange: Exchange, request: Request, reply: Reply) -> None:
        """Serve within the request's own task; the client's going ends it."""
        watch = _Watch(reply, self._gate.longest, self._slow)
        try:
            result = await server.answer(exchange, request.method, request.params)
        except RpcError as exc:
            watch.stop()
            status = mcp.HTTP_STATUS.get(exc.code, 200) if exchange.envelope.stateless else 200
            await reply.error(exc, status=status)
        except asyncio.CancelledError:
            watch.stop()
            await watch.settle()
        else:
            watch.stop()
            await reply.result(result)


def unversioned(request: Request, headers: Headers) -> RpcError | None:
    """What is wrong with a stateless-era request whose headers do not say so."""
    if "mcp-protocol-version" in headers or not mcp.is_stateless(request.method, request.params):
        return None
    return RpcError(mcp.HEADER_MISMATCH, "The MCP-Protocol-Version header is required with such a body")


class _Watch:
    """Minds a slow call: cancels it when the client goes or time is up, and keeps its stream alive."""

    __slots__ = ("_longest", "_minding", "_reply", "_rounds", "_serving", "_verdict")

    def __init__(self, reply: Reply, longest: float, rounds: "Rounds[_Watch]") -> None:
        loop = rounds.loop
        self._reply = reply
        self._longest = longest
        self._rounds = rounds
        self._serving = asyncio.current_task(loop)
        self._minding: asyncio.Task[None] | None = None
        self._verdict: str | None = None
        rounds.add(self)

    def begin(self, _: float) -> None:
        """The call is slow enough to be minded."""
        self._rounds.discard(self)
        self._minding = asyncio.get_running_loop().create_task(self._mind())

    def stop(self) -> None:
        self._rounds.discard(self)
        if self._minding is not None:
            self._minding.cancel()

    async def settle(self) -> None:
        """After a cancellation: ours is answered, anybody else's goes on."""
        if self._verdict is None or self._serving is None:
            raise asyncio.CancelledError
        self._serving.uncancel()
        if self._verdict == "late":
            error = RpcError(jsonrpc.INTERNAL_ERROR, f"The request took longer than {self._longest:g} s")
            await self._reply.error(error, status=408)

    async def _mind(self) -> None:
        try:
            async with asyncio.timeout(self._longest):
                await self._reply.until_gone()
            self._verdict = "gone"
        except TimeoutError:
            self._verdict = "late"
        assert self._serving is not None
        self._serving.cancel()


_NOBODY: Final = Peer()
"""The stateless era remembers no peer."""


def is_stateless(headers: Headers) -> bool:
    version = headers.get("mcp-protocol-version")
    return version is not None and version not in mcp.HANDSHAKE_VERSIONS


def _checked(headers: Headers, repeated: str | None, request: Request) -> mcp.Envelope:
    """The request's envelope, once its headers agree with its body. Raises RpcError."""
    if repeated is not None:
        raise RpcError(mcp.HEADER_MISMATCH, f"The {repeated} header appears more than once")
    header_params.check_headers(headers, request.method, request.params)
    return mcp.stateless_envelope(request.params)


def read_headers(scope: Scope) -> tuple[dict[str, str], str | None]:
    """Headers by lower-case name, values trimmed (not every server does), and the first MCP header that repeats."""
    listed = scope["headers"]
    headers = {key.decode("latin-1"): value.decode("latin-1").strip(" \t") for key, value in listed}
    if len(headers) == len(listed):
        return headers, None
    names = [key for key, _ in listed]
    return headers, next((name.decode() for name in names if name[:4] == b"mcp-" and names.count(name) > 1), None)


async def read_body(receive: Receive, largest: int) -> bytes:
    """The whole body. Raises Refusal when it is too large, too slow or cut off."""
    event = await receive()
    if not event.get("more_body"):
        return _bounded(event.get("body", b""), largest)
    chunks = [event.get("body", b"")]
    size = len(chunks[0])
    try:
        async with asyncio.timeout(BODY_WAIT):
            while event.get("more_body"):
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise Refusal(400, "the body was cut off")
                chunks.append(event.get("body", b""))
                size += len(chunks[-1])
                if size > largest:
                    raise _too_large(largest)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {BODY_WAIT:g} s") from None
    return b"".join(chunks)


def _bounded(body: bytes, largest: int) -> bytes:
    if len(body) > largest:
        raise _too_large(largest)
    return body


def _too_large(largest: int) -> Refusal:
    return Refusal(413, f"request body too large: at most {largest} bytes")


def _accepts(accept: str | None) -> bool:
    """Whether the client takes a stream. Raises Refusal when it takes no JSON."""
    if accept is None or "*/*" in accept:
        return accept is not None
    if "application/json" not in accept and "application/*" not in accept:
        raise Refusal(406, "Accept must include application/json, and text/event-stream for streams")
    return "text/event-stream" in accept
