"""The canvas's browser reaches the network through this proxy alone, and it decides where each request may go.

It listens on the loopback, takes CONNECT and absolute http addresses, looks each host up itself and connects to the
very address it judged. Everything a page has the browser fetch passes here, however the page asks for it.
"""

import asyncio
import contextlib
import logging
import re
import secrets
import socket
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from collections.abc import Callable
from hmac import compare_digest
from typing import Final

from msgspec import Struct

from ...net.internet import NoSuchHost, NotPublic, resolve_host, url_host
from ...net.tasks import Tasks
from .urls import PROXY_SIGN_IN_URL, WebOrigin

MAX_CONNECTIONS: Final = 512  # at once; Chromium itself keeps to some 30 for requests and 255 for WebSockets
MAX_LOOK_UPS: Final = 4  # at once: each may hold one of the few threads of the process
MAX_HEAD: Final = 64 << 10  # bytes of a request line with its headers
HEAD_WAIT: Final = 15.0  # seconds from the connection to the end of the headers
CONNECT_WAIT: Final = 20.0  # seconds to find the host and reach it
IDLE_WAIT: Final = 600.0  # seconds without a byte in either direction
CHUNK: Final = 64 << 10  # bytes copied at a time

PROXY_HOST: Final = "proxy.canvas.invalid"
"""Our name for Chromium. It can resolve no other, so nothing gets past us."""
PROXY_USER: Final = "canvas"

_TARGET: Final = re.compile(
    r"(?:(http)://)?(\[[0-9A-Fa-f:.]+\]|[^\0-\x20\x7f-\xff:/?#@\[\]\\]+)(?::([0-9]{1,5}))?(/[!-~]*)?"
)
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOP_HEADERS: Final = frozenset(
    {"connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "upgrade"}
)

_AUTH_REQUIRED_RESPONSE: Final = (
    b'HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="canvas"\r\n'
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)
_NO_CONTENT_RESPONSE: Final = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
_FORBIDDEN_RESPONSE: Final = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TUNNEL_RESPONSE: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

logger = logging.getLogger(__name__)


class BadRequestHead(Exception):
    """No request that this proxy takes."""


class RequestHead(Struct, frozen=True, kw_only=True):
    """The part of a request before its body."""

    method: str
    target: str
    host: str
    port: int
    path: str
    """Empty for CONNECT, whose bytes are the browser's and the host's alone."""
    headers: tuple[tuple[str, str], ...]

    def header_values(self, name: str) -> list[str]:
        return [value for other, value in self.headers if other.lower() == name]

    @property
    def origins(self) -> frozenset[WebOrigin]:
        """What it may be for. A WebSocket comes as CONNECT, also one to an http origin."""
        schemes = ("http",) if self.path else ("http", "https")
        return frozenset(WebOrigin(scheme, self.host, self.port) for scheme in schemes)

    @property
    def body_length(self) -> int | None:
        """How many bytes follow; None = as many as come. Raises BadRequestHead."""
        if not self.path:
            return None
        lengths = self.header_values("content-length") or ["0"]
        if self.header_values("transfer-encoding") or len(lengths) > 1 or not re.fullmatch("[0-9]{1,15}", lengths[0]):
            raise BadRequestHead
        return int(lengths[0])

    def encode_for_host(self) -> bytes:
        """As the host gets it: without what was meant for us, and as the only request of its connection."""
        shown = url_host(self.host) if self.port == 80 else f"{url_host(self.host)}:{self.port}"
        kept = [(name, value) for name, value in self.headers if name.lower() not in _HOP_HEADERS]
        lines = [f"{name}: {value}" for name, value in [("Host", shown), *kept, ("Connection", "close")]]
        return "\r\n".join([f"{self.method} {self.path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def parse_head(data: bytes) -> RequestHead:
    """Raises BadRequestHead."""
    first, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = first.split(" ")
    target = _TARGET.fullmatch(parts[1]) if len(parts) == 3 else None
    if target is None or not re.fullmatch("[A-Z]+", parts[0]) or not parts[2].startswith("HTTP/1."):
        raise BadRequestHead
    scheme, host, port, path = target.groups()
    tunnel = scheme is None
    if tunnel != (parts[0] == "CONNECT") or (tunnel and (path or not port)) or int(port or 80) > 65535:
        raise BadRequestHead
    return RequestHead(
        method=parts[0],
        target=parts[1],
        host=host.lower().removeprefix("[").removesuffix("]"),
        port=int(port or 80),
        path="" if tunnel else path or "/",
        headers=tuple(map(_parse_header, lines)),
    )


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not _NAME.fullmatch(name) or not {"\r", "\n", "\0"}.isdisjoint(value):
        raise BadRequestHead
    return name, value.strip(" \t")


class ForwardProxy:
    """Connects to the public internet and to `trusted` origins, for the one browser that got its secret."""

    def __init__(self, trusted: Callable[[], frozenset[WebOrigin]]) -> None:
        self._trusted = trusted
        self._secret = secrets.token_urlsafe(32)
        self._authorization = b"Basic " + b64encode(f"{PROXY_USER}:{self._secret}".encode())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = f"http://{PROXY_HOST}:{self._listener.getsockname()[1]}"
        self._close_listener: Callable[[], None] = self._listener.close
        self._is_stopped = False
        self._writers: set[StreamWriter] = set()
        self._tasks = Tasks("canvas proxy")
        self._lookup_slots = asyncio.Semaphore(MAX_LOOK_UPS)
        self.is_signed_in = False
        """Whether the browser has shown that it knows the secret."""

    async def start(self) -> None:
        # In two steps: a cancellation in the midst of one would leave a server without an owner.
        server = await asyncio.start_server(self._accept, sock=self._listener, limit=MAX_HEAD, start_serving=False)
        self._close_listener = server.close
        await server.start_serving()

    def options(self) -> list[str]:
        """Options with which Chromium sends everything here, and resolves no host by itself."""
        return [
            f"--proxy-server={self._address}",
            "--proxy-bypass-list=<-loopback>",  # or it connects to the loopback itself
            f"--host-resolver-rules=MAP {PROXY_HOST} 127.0.0.1, MAP * ~NOTFOUND",
            "--disable-quic",
            "--webrtc-ip-handling-policy=disable_non_proxied_udp",
            "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # its older name
        ]

    def credentials(self, source: str | None, origin: str | None) -> dict[str, str]:
        """The answer to Chromium's question for a password: the secret for us, nothing for others."""
        if source == "Proxy" and origin == self._address:
            return {"response": "ProvideCredentials", "username": PROXY_USER, "password": self._secret}
        return {"response": "Default"}

    def stop(self) -> None:
        """Accept no more connections, and cut those there are. May be called again."""
        self._is_stopped = True
        self._close_listener()
        for writer in self._writers:
            writer.transport.abort()  # the tasks end with it

    async def aclose(self) -> None:
        self.stop()
        await self._tasks.aclose()

    # ---- one connection ---------------------------------------------------------------------------------------------

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._writers) >= MAX_CONNECTIONS or self._is_stopped:
            writer.transport.abort()
            return
        self._writers.add(writer)

        def on_done(_: object) -> None:  # here, for a task that is cancelled before it begins runs nothing of its own
            self._writers.discard(writer)
            writer.transport.abort()

        self._tasks.spawn(self._serve(reader, writer), name="connection").add_done_callback(on_done)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One request: the next one may be for another host, and comes over another connection."""
        try:
            async with asyncio.timeout(HEAD_WAIT):
                head = parse_head(await reader.readuntil(b"\r\n\r\n"))
            if not self._is_authorized(head):
                writer.write(_AUTH_REQUIRED_RESPONSE)
            elif head.target == PROXY_SIGN_IN_URL:
                self.is_signed_in = True
                writer.write(_NO_CONTENT_RESPONSE)
            else:
                await self._forward(head, reader, writer)
            writer.close()
            async with asyncio.timeout(IDLE_WAIT):
                await writer.wait_closed()
        except (BadRequestHead, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # no answer is a network error, to the browser and to the page

    def _is_authorized(self, head: RequestHead) -> bool:
        given = head.header_values("proxy-authorization")
        return len(given) == 1 and compare_digest(given[0].encode("latin-1"), self._authorization)

    async def _forward(self, head: RequestHead, reader: StreamReader, writer: StreamWriter) -> None:
        body = head.body_length
        try:
            async with asyncio.timeout(CONNECT_WAIT):
                from_host, to_host = await self._connect(head)
        except (NotPublic, NoSuchHost, OSError) as exc:
            logger.debug("the canvas's page was not connected to %s:%d (%s)", head.host, head.port, type(exc).__name__)
            # A plain request gets no answer: the page would take ours for the host's.
            writer.write(b"" if head.path else _FORBIDDEN_RESPONSE)
            return
        try:
            if head.path:
                to_host.write(head.encode_for_host())
            else:
                writer.write(_TUNNEL_RESPONSE)
            await _relay((reader, to_host, body), (from_host, writer, None))
        finally:
            to_host.transport.abort()

    async def _connect(self, head: RequestHead) -> tuple[StreamReader, StreamWriter]:
        """To one of the addresses that were judged, and never by the name, which may mean another a moment later."""
        async with self._lookup_slots:
            addresses = await resolve_host(
                head.host, head.port, allow_private=not self._trusted().isdisjoint(head.origins)
            )
        for address in addresses[:-1]:
            try:
                return await asyncio.open_connection(address, head.port)
            except OSError:
                continue
        return await asyncio.open_connection(addresses[-1], head.port)


CopyDirection = tuple[StreamReader, StreamWriter, int | None]
"""Source, target, and how many bytes at most."""


async def _relay(*directions: CopyDirection) -> None:
    """Copy until one direction has ended; Chromium never closes one half of a connection."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(IDLE_WAIT) as idle:
        async with Tasks("canvas proxy") as tasks:
            copying = [
                tasks.spawn(_copy(*way, on_progress=lambda: idle.reschedule(loop.time() + IDLE_WAIT)), name="copier")
                for way in directions
            ]
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)


async def _copy(
    source: StreamReader, target: StreamWriter, limit: int | None, *, on_progress: Callable[[], None]
) -> None:
    """Until `source` has no more, or has more than it may: a second request where only one may be."""
    with contextlib.suppress(OSError):  # either side has closed the connection
        while piece := await source.read(CHUNK):
            on_progress()
            target.write(piece if limit is None else piece[:limit])
            await target.drain()
            if limit is not None and (limit := limit - len(piece)) < 0:
                return
