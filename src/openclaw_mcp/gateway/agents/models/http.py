"""The way to models: kept connections, answers read as they stream, failures sorted."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from ....protocol.sse import SseEventTooLong, SseParser
from .connection import ConnectionBroken, ConnectionTimeout, HttpConnection
from .endpoints import (
    Endpoint,
    InvalidAddress,
    Route,
    create_tls_context,
    find_route,
    needs_tls,
    open_connection,
    parse_address,
)
from .errors import ModelError, error_from_response
from .messages import AnswerDelta, AnswerReader, ModelAnswer, ModelCodec, ModelRequest
from .request_body import RequestBody
from .settings import ModelProvider

MAX_CONNECTIONS: Final = 1000  # at once; sessions beyond it wait for one, within their run's own time
MOST_IDLE_CONNECTIONS: Final = 64  # idle ones of one provider, for the next turns
IDLE_SECONDS: Final = 30.0  # an idle one older than this has most likely been closed at the other end
MAX_EVENT_BYTES: Final = 16 << 20  # bytes; one event holds a few words, or an answer that did not stream
LARGEST_ERROR_BODY: Final = 64 << 10  # bytes read of an answer that is an error
HTTP_OK: Final = 200
HEADERS: Final = {
    "content-type": "application/json", "accept": "text/event-stream, application/json", "user-agent": "openclaw-mcp",
}  # fmt: skip


class PooledConnection(NamedTuple):
    """A connection, and by what route it leads where."""

    connection: HttpConnection
    route: Route


class ModelHttpClient:
    """Made once and shared; costs nothing until the first request."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str, int], list[PooledConnection]] = {}
        self._busy: set[HttpConnection] = set()
        self._tls: ssl.SSLContext | None = None
        self._tls_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def aclose(self) -> None:
        kept = (way.connection for idle in self._idle.values() for way in idle)
        for connection in (*self._busy, *kept):
            connection.close()
        self._idle.clear()

    async def ask(
        self, codec: ModelCodec, request: ModelRequest, key: str | None, on_delta: Callable[[AnswerDelta], None]
    ) -> ModelAnswer:
        """The model's answer; `hear` gets its pieces while it comes. Raises ModelTrouble.

        A cancelled wait closes the connection, which is how a provider learns that nobody listens any more.
        """
        provider = request.choice.provider
        try:
            place = parse_address(codec.url(provider.base_url))
        except InvalidAddress as exc:
            raise ModelError(f"models.providers.{provider.name}.baseUrl {exc}", kind="bad_request") from None
        reader = codec.create_reader(request)
        async with self._slots:
            await self._exchange(place, codec, request, key, AnswerStream(reader, on_delta))
        answer = reader.answer()
        if answer is None:
            raise _incomplete_error()
        return answer

    async def _exchange(
        self, endpoint: Endpoint, codec: ModelCodec, request: ModelRequest, key: str | None, stream: "AnswerStream"
    ) -> None:
        provider = request.choice.provider
        way = await self._acquire(endpoint, provider)
        connection, begun = way.connection, False
        try:
            body = RequestBody(codec.encode_body(request), request.messages)
            head = _request_head(
                way.route, endpoint, {**HEADERS, **codec.headers(key), **dict(provider.headers)}, body.size, provider
            )
            await connection.send(head, body, timeout=provider.idle_limit)
            if connection.status != HTTP_OK:
                refusal = await _read_error_body(connection, provider.idle_limit)
                raise _redact_key(key, error_from_response(connection.status, refusal, connection.headers))
            begun = True
            await stream.read_all(connection, timeout=provider.idle_limit)
        except ConnectionTimeout:
            raise ModelError(f"it said nothing for {provider.idle_limit:g} s", kind="timeout") from None
        except ConnectionBroken:
            raise _incomplete_error() if begun else _connection_error(provider) from None
        finally:
            self._release(endpoint, way)

    # ---- connections ---------------------------------------------------------------------------------------------

    async def _acquire(self, endpoint: Endpoint, provider: ModelProvider) -> PooledConnection:
        idle = self._idle.get(_pool_key(endpoint), [])
        now = asyncio.get_running_loop().time()
        while idle:
            way = idle.pop()
            if way.connection.is_reusable and now - way.connection.idle_since < IDLE_SECONDS:
                self._busy.add(way.connection)
                return way
            way.connection.close()
        route = find_route(endpoint)
        try:
            connection = await open_connection(route, await self._tls_context() if needs_tls(route) else None)
        except (ConnectionBroken, ConnectionTimeout) as exc:
            raise _unreachable_error(provider, str(exc)) from None
        self._busy.add(connection)
        return PooledConnection(connection, route)

    async def _tls_context(self) -> ssl.SSLContext:
        async with self._tls_lock:
            if self._tls is None:
                # In a thread: the reading of certificates would hold up everybody else on the loop.
                self._tls = await asyncio.to_thread(create_tls_context)
        return self._tls

    def _release(self, endpoint: Endpoint, pooled: PooledConnection) -> None:
        connection = pooled.connection
        self._busy.discard(connection)
        idle = self._idle.setdefault(_pool_key(endpoint), [])
        if connection.is_reusable and len(idle) < MOST_IDLE_CONNECTIONS:
            connection.idle_since = asyncio.get_running_loop().time()
            idle.append(pooled)
        else:
            connection.close()


class AnswerStream:
    """Reads an answer out of a connection and passes on what it says."""

    def __init__(self, reader: AnswerReader, on_delta: Callable[[AnswerDelta], None]) -> None:
        self._reader = reader
        self._on_delta = on_delta

    async def read_all(self, connection: HttpConnection, *, timeout: float) -> None:
        try:
            if "event-stream" not in connection.headers.get("content-type", "event-stream"):
                self._handle_data(await _read_body(connection, timeout))
                return
            stream = SseParser(limit=MAX_EVENT_BYTES)
            while data := await connection.read(timeout=timeout):
                for event in stream.feed(data):
                    if event.data:
                        self._handle_data(event.data)
        except SseEventTooLong:
            raise ModelError(f"it sent an event larger than {MAX_EVENT_BYTES} bytes", kind="bad_request") from None

    def _handle_data(self, data: bytes) -> None:
        for heard in parse_event(self._reader, data):
            self._on_delta(heard)


def parse_event(reader: AnswerReader, data: bytes) -> tuple[AnswerDelta, ...]:
    """What an event says. Whatever a server may send, the reader's surprise is trouble with the model, not with us."""
    try:
        return tuple(reader.read(data))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        raise ModelError("it sent something that is no answer of this API", kind="dropped") from None


def _pool_key(endpoint: Endpoint) -> tuple[str, str, int]:
    return endpoint.scheme, endpoint.host, endpoint.port


def _request_head(
    route: Route, endpoint: Endpoint, headers: dict[str, str], size: int, provider: ModelProvider
) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        where = f"a header of models.providers.{provider.name}, or its key,"
        raise ModelError(f"{where} holds a line break; write it on one line", kind="bad_request")
    first = (
        f"POST {route.target_prefix}{endpoint.target} HTTP/1.1\r\nhost: {endpoint.host_header}\r\n{route.extra_headers}"
    )
    return f"{first}{lines}content-length: {size}\r\n\r\n".encode()


async def _read_error_body(connection: HttpConnection, timeout: float) -> bytes:
    data = b""
    while len(data) <= LARGEST_ERROR_BODY and (more := await connection.read(timeout=timeout)):
        data += more
    return data[:LARGEST_ERROR_BODY]


async def _read_body(connection: HttpConnection, timeout: float) -> bytes:
    """The answer of a server that does not stream."""
    data = bytearray()
    while more := await connection.read(timeout=timeout):
        data += more
        if len(data) > MAX_EVENT_BYTES:
            raise SseEventTooLong
    return bytes(data)


def _unreachable_error(provider: ModelProvider, reason: str) -> ModelError:
    where = _provider_address(provider)
    text = f"{where}: {reason}" if reason else f"nobody answers at {where}; is it running, and is that its address?"
    return ModelError(text, kind="network")


def _connection_error(provider: ModelProvider) -> ModelError:
    return ModelError(f"the connection to {_provider_address(provider)} failed", kind="network")


def _incomplete_error() -> ModelError:
    return ModelError("the answer broke off in the middle", kind="dropped")


def _provider_address(provider: ModelProvider) -> str:
    return provider.base_url.partition("?")[0]


def _redact_key(key: str | None, error: ModelError) -> ModelError:
    """Some providers quote the key they refuse."""
    if key and key in str(error):
        error.args = (str(error).replace(key, "***"),)
    return error
