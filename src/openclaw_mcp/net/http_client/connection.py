"""One HTTP/1.1 connection of a client: one request at a time, its response read while it arrives."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

import httptools

if TYPE_CHECKING:
    import ssl

MAX_HEAD_BYTES: Final = 64 << 10  # bytes that may come before a response's headers are whole; no server needs more
MAX_UNREAD: Final = 1 << 20  # bytes of a response that wait to be read before the server is made to wait
SEND_WAIT: Final = 60.0  # seconds a server may take to accept more of a request
INTERIM_STATUSES: Final = range(100, 200)


class HttpError(Exception):
    """A request that got no whole response."""


class ConnectionBroken(HttpError):
    """The connection ended before the response did."""


class NotHttp(ConnectionBroken):
    """The bytes that came are not HTTP."""


class ConnectionTimeout(HttpError):
    """Nothing came for as long as the request may wait."""


class ResponseTooLarge(HttpError):
    """The body is larger than the caller takes."""


class HttpConnection(asyncio.Protocol):
    """`send`, then `read` until nothing is left; then, if it `is_reusable`, the next request.

    Between the two it is the response: `status`, `headers`, `content_type`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timeout: float | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._broken: ConnectionBroken | None = None
        self._paused = self._sent = False
        self._expects_response = False
        self.idle_since = 0.0
        """On the loop's clock."""
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._began = self._ended = self._keeps_alive = False
        self._unread: list[bytes] = []
        self._size = self._head = self.status = 0
        self.headers: dict[str, str] = {}
        """By their names in lower case."""

    @property
    def is_reusable(self) -> bool:
        """The last request was sent whole, its response read to its end, and the server takes another request."""
        return self._sent and self._ended and self._keeps_alive and self._broken is None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def close(self) -> None:
        """At once: a server that still sends learns that the response is not wanted any more."""
        self._break(ConnectionBroken())

    async def start_tls(self, tls: "ssl.SSLContext", host: str) -> None:
        """Continue in TLS, over the connection as it is."""
        self._transport = await self._loop.start_tls(self._require_transport(), self, tls, server_hostname=host)

    async def send(self, head: bytes, body: Iterable[bytes], *, timeout: float | None) -> None:
        """Returns when status and headers of the response are there. `timeout` bounds each wait for bytes, of `read`
        too. Raises ConnectionBroken, ConnectionTimeout."""
        self._reset()
        self._timeout = timeout
        self._sent, self._expects_response = False, True
        transport = self._require_transport()
        for piece in body:
            if self._broken or self._began:  # the server reads no further: its response tells why
                break
            transport.write(head + piece)
            head = b""
            if self._sending is not None:
                await self._wait(self._sending, SEND_WAIT)
        else:
            self._sent = True
        if head and not self._broken:
            transport.write(head)
        await self._wait_until(lambda: self._began)

    async def read(self) -> bytes:
        """The bytes that came since the last call; empty when the response has ended. Raises as `send`."""
        await self._wait_until(lambda: bool(self._unread) or self._ended)
        found = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._size = 0
        if self._paused and not self._broken:
            self._paused = False
            self._require_transport().resume_reading()
        return found

    async def body(self, *, limit: int) -> bytes:
        """The whole of it. Raises as `send`, and ResponseTooLarge."""
        data = bytearray()
        while more := await self.read():
            data += more
            if len(data) > limit:
                raise ResponseTooLarge
        return bytes(data)

    async def body_start(self, *, limit: int) -> bytes:
        """At most its first `limit` bytes. Raises as `send`."""
        data = b""
        while len(data) < limit and (more := await self.read()):
            data += more
        return data[:limit]

    def _require_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise ConnectionBroken
        return self._transport

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._broken:
                raise self._broken
            self._waiter = self._loop.create_future()
            await self._wait(self._waiter, self._timeout)

    async def _wait(self, future: "asyncio.Future[None]", seconds: float | None) -> None:
        # A timer of our own: `asyncio.timeout` costs more than the read it would bound.
        timer = None if seconds is None else self._loop.call_later(seconds, _set_timeout, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, reason: ConnectionBroken) -> None:
        self._broken = self._broken or reason
        if self._transport is not None:
            self._transport.abort()
        self._wake()
        self.resume_writing()

    # ---- for asyncio ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit asyncio's

    def data_received(self, data: bytes) -> None:
        if not self._expects_response or self._ended:  # unasked bytes: the connection can't be trusted any more
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._break(NotHttp())
        if not self._began:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self._break(NotHttp())
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        has_length = "content-length" in self.headers or "transfer-encoding" in self.headers
        if exc is None and self._began and not self._broken and not has_length:
            self._ended = True  # a response without a length ends with its connection
        self._break(ConnectionBroken())

    def pause_writing(self) -> None:
        self._sending = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._sending is not None and not self._sending.done():
            self._sending.set_result(None)
        self._sending = None

    # ---- for the parser ------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status in INTERIM_STATUSES:  # the response itself is still to come
            self.headers = {}
        else:
            self._began = True

    def on_body(self, body: bytes) -> None:
        self._unread.append(body)
        self._size += len(body)
        if self._size > MAX_UNREAD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status not in INTERIM_STATUSES:
            self._ended = True
            self._keeps_alive = self._parser.should_keep_alive()


def _set_timeout(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(ConnectionTimeout())
