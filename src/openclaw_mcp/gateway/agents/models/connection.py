"""One HTTP/1.1 connection to a provider: a request at a time, its answer read while it comes."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Final, cast

import httptools

MAX_HEAD_BYTES: Final = (
    64 << 10
)  # bytes that may come before an answer's headers are whole; nobody sends more in earnest
MAX_UNREAD: Final = 1 << 20  # bytes of an answer that wait to be read before the provider is made to wait
SEND_WAIT: Final = 60.0  # seconds a provider may take to accept more of a request
INTERIM_STATUSES: Final = range(100, 200)


class ConnectionBroken(Exception):
    """The connection ended, or what came is not HTTP."""


class ConnectionTimeout(Exception):
    """Nothing came for as long as was to be waited."""


class HttpConnection(asyncio.Protocol):
    """`send`, then `read` until nothing is left; then, if it is `free`, the next request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._broken = False
        self._paused = False
        self._began = self._ended = False
        self._sent = self._keeps_alive = False
        self._unread: list[bytes] = []
        self._size = self._head = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.idle_since = 0.0
        """On the loop's clock."""

    @property
    def is_reusable(self) -> bool:
        """The last request went out whole, its answer was read to its end, and the other side takes another request."""
        return self._sent and self._ended and self._keeps_alive and not self._broken

    def close(self) -> None:
        """At once: whoever sends still learns that nobody listens."""
        self._broken = True
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Go on in TLS, through whatever was connected so far."""
        assert self._transport is not None
        self._transport = await self._loop.start_tls(self._transport, self, tls, server_hostname=host)

    async def send(self, head: bytes, body: Iterable[bytes], *, timeout: float) -> None:
        """Returns when status and headers of the answer are there; `patience` is for each wait. Raises Broken, Late."""
        self._reset()
        assert self._transport is not None
        self._sent = False
        for piece in body:
            if self._broken or self._began:  # it is not read any further: whatever was answered says why
                break
            self._transport.write(head + piece)
            head = b""
            if self._sending is not None:
                await self._wait(self._sending, SEND_WAIT)
        else:
            self._sent = True
        if head and not self._broken:
            self._transport.write(head)
        await self._wait_until(lambda: self._began, timeout)

    async def read(self, *, timeout: float) -> bytes:
        """What came since the last time; nothing: the answer has ended. Raises Broken, Late."""
        await self._wait_until(lambda: bool(self._unread) or self._ended, timeout)
        found = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._size = 0
        if self._paused and self._transport is not None and not self._broken:
            self._paused = False
            self._transport.resume_reading()
        return found

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._began = self._ended = self._keeps_alive = False
        self._unread = []
        self._size = self._head = self.status = 0
        self.headers = {}

    async def _wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        while not condition():
            if self._broken:
                raise ConnectionBroken
            self._waiter = self._loop.create_future()
            await self._wait(self._waiter, timeout)

    async def _wait(self, future: "asyncio.Future[None]", seconds: float) -> None:
        timer = self._loop.call_later(seconds, _set_timeout, future)
        try:
            await future
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self) -> None:
        self._broken = True
        self._wake()
        self.resume_writing()

    # ---- what the transport says ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._ended:  # nobody asked: whatever it means, it is not to be trusted
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        if not self._began:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._began and not self._broken and not self._has_length:
            self._ended = True  # an answer without a length ends with its connection
        self._break()

    def pause_writing(self) -> None:
        self._sending = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._sending is not None and not self._sending.done():
            self._sending.set_result(None)
        self._sending = None

    @property
    def _has_length(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    # ---- what the parser says ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if self.status in INTERIM_STATUSES:  # the answer itself is still to come
            self.headers = {}
            return
        self._began = True

    def on_body(self, body: bytes) -> None:
        self._unread.append(body)
        self._size += len(body)
        if self._size > MAX_UNREAD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self.status not in INTERIM_STATUSES:
            self._ended = True
            self._keeps_alive = self._parser.should_keep_alive()


def _set_timeout(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(ConnectionTimeout())
