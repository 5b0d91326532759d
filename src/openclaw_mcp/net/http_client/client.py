"""Requests over kept connections: pooled by server, through the environment's proxy, with TLS when it is needed."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .address import Endpoint, ProxyServer, find_proxy, parse_address
from .connection import ConnectionTimeout, HttpConnection, HttpError

if TYPE_CHECKING:
    import ssl

CONNECT_WAIT: Final = 10.0  # seconds to reach a server, TLS and proxy included
ADDRESS_WAIT: Final = 3.0  # seconds for one of several addresses of a host
IDLE_SECONDS: Final = 30.0  # an idle connection older than this has most likely been closed by the server
TUNNEL_OPEN: Final = 200  # the one status that opens a tunnel


class CannotReach(HttpError):
    """No connection to the server. The text is the remedy, where one is known; `reason` is the system's own."""

    def __init__(self, remedy: str = "", *, reason: str = "") -> None:
        super().__init__(remedy)
        self.reason = reason


class InvalidHeader(HttpError):
    """A header holds a line break, or a character that no header can carry."""


class _Pooled(NamedTuple):
    connection: HttpConnection
    proxy: ProxyServer | None
    """What it leads through."""


class HttpClient:
    """Costs nothing until the first request. Concurrent requests use a connection each."""

    def __init__(
        self,
        *,
        max_connections: int,
        max_idle: int,
        use_proxies: bool,
        create_tls_context: "Callable[[], ssl.SSLContext]",
    ) -> None:
        """`max_connections` at once, further requests wait; `max_idle` are kept for each server. `use_proxies`: of the
        environment."""
        self._max_idle = max_idle
        self._use_proxies = use_proxies
        self._create_tls_context = create_tls_context
        self._idle: dict[tuple[str, str, int], list[_Pooled]] = {}
        self._busy: set[HttpConnection] = set()
        self._tls: ssl.SSLContext | None = None
        self._tls_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(max_connections)

    async def aclose(self) -> None:
        idle = (pooled.connection for kept in self._idle.values() for pooled in kept)
        for connection in (*self._busy, *idle):
            connection.close()
        self._idle.clear()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Iterable[bytes] = (),
        *,
        size: int = 0,
        timeout: float | None,
    ) -> AsyncIterator[HttpConnection]:
        """The response, once its headers are there. Leaving before its end closes the connection, by which the server
        learns that it is not wanted any more. `size` is the body's; `timeout` bounds each wait for the server.

        Raises HttpError and InvalidAddress.
        """
        endpoint = parse_address(url)
        async with self._slots:
            pooled = await self._acquire(endpoint)
            try:
                head = _encode_head(method, endpoint, pooled.proxy, headers, size)
                await pooled.connection.send(head, body, timeout=timeout)
                yield pooled.connection
            finally:
                self._release(endpoint, pooled)

    async def _acquire(self, endpoint: Endpoint) -> _Pooled:
        idle = self._idle.get(_pool_key(endpoint), [])
        now = asyncio.get_running_loop().time()
        while idle:
            pooled = idle.pop()
            if pooled.connection.is_reusable and now - pooled.connection.idle_since < IDLE_SECONDS:
                break
            pooled.connection.close()
        else:
            proxy = find_proxy(endpoint) if self._use_proxies else None
            needs_tls = "https" in (endpoint.scheme, proxy.endpoint.scheme if proxy else "")
            tls = await self._tls_context() if needs_tls else None
            pooled = _Pooled(await _open_connection(endpoint, proxy, tls), proxy)
        self._busy.add(pooled.connection)
        return pooled

    def _release(self, endpoint: Endpoint, pooled: _Pooled) -> None:
        connection = pooled.connection
        self._busy.discard(connection)
        idle = self._idle.setdefault(_pool_key(endpoint), [])
        if connection.is_reusable and len(idle) < self._max_idle:
            connection.idle_since = asyncio.get_running_loop().time()
            idle.append(pooled)
        else:
            connection.close()

    async def _tls_context(self) -> "ssl.SSLContext":
        async with self._tls_lock:
            if self._tls is None:
                # In a thread: reading the certificates would hold up everything else on the loop.
                self._tls = await asyncio.to_thread(self._create_tls_context)
        return self._tls


def system_tls_context() -> "ssl.SSLContext":
    """Trusts what this machine trusts. Reads files."""
    import ssl  # here for start-up: only https needs it

    return ssl.create_default_context()


def public_tls_context() -> "ssl.SSLContext":
    """Trusts what the environment names, else Mozilla's list: a machine may have none. Reads files."""
    import ssl  # here for start-up: only https needs it

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    import certifi  # here for start-up: only the first request over TLS needs it

    return ssl.create_default_context(cafile=certifi.where())


def _pool_key(endpoint: Endpoint) -> tuple[str, str, int]:
    return endpoint.scheme, endpoint.host, endpoint.port


def _encode_head(
    method: str, endpoint: Endpoint, proxy: ProxyServer | None, headers: Mapping[str, str], size: int
) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        raise InvalidHeader
    prefix, extra = "", ""
    if proxy is not None and endpoint.scheme == "http":  # the proxy reads the request; with TLS it only carries it
        prefix, extra = f"http://{endpoint.host_header}", proxy.authorization
    first = f"{method} {prefix}{endpoint.target} HTTP/1.1\r\nhost: {endpoint.host_header}\r\n{extra}"
    return f"{first}{lines}content-length: {size}\r\n\r\n".encode()


async def _open_connection(
    endpoint: Endpoint, proxy: ProxyServer | None, tls: "ssl.SSLContext | None"
) -> HttpConnection:
    """A connection ready for its first request. Raises CannotReach."""
    try:
        async with asyncio.timeout(CONNECT_WAIT):
            connection = await _connect_endpoint(proxy.endpoint if proxy else endpoint, tls)
            try:
                if proxy is not None and endpoint.scheme == "https" and tls is not None:
                    await _open_tunnel(connection, endpoint, proxy, tls)
            except BaseException:
                connection.close()
                raise
            return connection
    except (TimeoutError, ConnectionTimeout):
        raise CannotReach(reason=f"no answer within {CONNECT_WAIT:g} s") from None
    except CannotReach:
        raise
    except (OSError, UnicodeError, HttpError) as exc:  # nothing listens there, or the name can't be one
        remedy = ""
        if untrusted := getattr(exc, "verify_message", ""):  # of ssl.SSLCertVerificationError, not imported for this
            remedy = f"its certificate is not trusted ({untrusted}); name its authority in SSL_CERT_FILE"
        raise CannotReach(remedy, reason=str(exc)) from None


async def _connect_endpoint(endpoint: Endpoint, tls: "ssl.SSLContext | None") -> HttpConnection:
    """To the first of its addresses that answers; a silent one must not use up the others' time."""
    loop = asyncio.get_running_loop()
    trusted = tls if endpoint.scheme == "https" else None

    async def connect_to(address: tuple[Any, ...]) -> HttpConnection:
        name = endpoint.host if trusted else None
        made = loop.create_connection(
            HttpConnection, str(address[0]), int(address[1]), ssl=trusted, server_hostname=name
        )
        return (await made)[1]

    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    *others, last = [entry[4] for entry in found]
    for address in others:
        with suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(ADDRESS_WAIT):
                return await connect_to(address)
    return await connect_to(last)


async def _open_tunnel(
    connection: HttpConnection, endpoint: Endpoint, proxy: ProxyServer, tls: "ssl.SSLContext"
) -> None:
    to = endpoint.authority
    head = f"CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n{proxy.authorization}\r\n".encode("latin-1")
    await connection.send(head, (), timeout=CONNECT_WAIT)
    if connection.status != TUNNEL_OPEN:
        raise CannotReach(f"the proxy the environment names refuses the way there with HTTP {connection.status}")
    await connection.start_tls(tls, endpoint.host)
