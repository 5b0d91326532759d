"""A small HTTP/1.1 client over kept-alive connections: what the stdio forwarder needs, and light to import."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from ...core.errors import BadRequest, ToolUnavailable

CONNECT_WAIT: Final = 10.0  # seconds a proxy may take to accept a connection
MAX_IDLE: Final = 16  # connections kept for the next request
IDLE_TIMEOUT: Final = 30.0  # seconds a kept connection is trusted; well below what servers keep
LARGEST_RESPONSE: Final = 64 << 20  # bytes of one answer; the proxy's own limits are lower
CHUNK: Final = 1 << 16

Headers = Mapping[str, str]


class _Connection(Struct):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    last_used: float


class ProxyResponse:
    """A response being read. The parser calls the `on_` methods."""

    def __init__(self, connection: _Connection) -> None:
        self.status = 0
        self.content_type = ""
        self.is_complete = False
        self.keep_alive = False
        self._connection = connection
        self._parser = httptools.HttpResponseParser(self)
        self._has_headers = False
        self._chunks: list[bytes] = []

    async def read_headers(self) -> None:
        """Read as far as the headers."""
        while not self._has_headers:
            await self._read_more()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        size = 0
        while True:
            for chunk in self._chunks:
                size += len(chunk)
                yield chunk
            self._chunks.clear()
            if self.is_complete:
                return
            if size > LARGEST_RESPONSE and self.content_type != "text/event-stream":
                raise ToolUnavailable(f"the proxy's answer is larger than {LARGEST_RESPONSE} bytes")
            await self._read_more()

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def _read_more(self) -> None:
        data = await self._connection.reader.read(CHUNK)
        if not data:
            raise ConnectionResetError
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise ToolUnavailable("what answers at the proxy's address does not speak HTTP") from None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value.decode("latin-1").partition(";")[0].strip().lower()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True
        self.keep_alive = self._parser.should_keep_alive()


class ProxyHttpClient:
    """Requests to one server. Concurrent ones use a connection each; done with, it is kept for the next."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = None
            parts = parts._replace(scheme="")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"{base_url!r} is no address of a proxy; give one like http://127.0.0.1:8000")
        self.base_url = base_url
        self._host = parts.hostname
        self._use_tls = parts.scheme == "https"
        self._port = port or (443 if self._use_tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/")
        self._idle: list[_Connection] = []

    @contextlib.asynccontextmanager
    async def send(self, method: str, path: str, headers: Headers, body: bytes = b"") -> AsyncIterator[ProxyResponse]:
        """One request; leaving before its answer is complete closes the connection, which cancels it over there."""
        head = self._format_head(method, path, headers, len(body))
        connection = await self._get_connection()
        answer = ProxyResponse(connection)
        try:
            connection.writer.write(head + body)
            await connection.writer.drain()
            await answer.read_headers()
            yield answer
        except OSError:
            raise ToolUnavailable(f"the connection to the proxy at {self.base_url} was lost") from None
        finally:
            if answer.is_complete and answer.keep_alive and len(self._idle) < MAX_IDLE:
                connection.last_used = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.writer.close()

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop().writer.close()

    async def _get_connection(self) -> _Connection:
        now = asyncio.get_running_loop().time()
        while self._idle:
            kept = self._idle.pop()
            if now - kept.last_used < IDLE_TIMEOUT and not kept.reader.at_eof():
                return kept
            kept.writer.close()
        try:
            async with asyncio.timeout(CONNECT_WAIT):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._use_tls or None)
        except (OSError, TimeoutError, UnicodeError):  # the last for a name that can't be one
            raise ToolUnavailable(f"no proxy answers at {self.base_url}; is `openclaw proxy` running there?") from None
        return _Connection(reader, writer, now)

    def _format_head(self, method: str, path: str, headers: Headers, length: int) -> bytes:
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise BadRequest(f"{name} holds characters that HTTP can't carry; correct what it is taken from")
        lines = [f"{method} {self._path}{path} HTTP/1.1", f"Host: {self._netloc}", f"Content-Length: {length}"]
        lines.extend(f"{name}: {value}" for name, value in headers.items())
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
