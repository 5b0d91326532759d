"""How a provider is reached: its address read, TLS, the proxy the environment names."""

import asyncio
import base64
import os
import socket
import ssl
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from .connection import ConnectionBroken, ConnectionTimeout, HttpConnection

CONNECT_WAIT: Final = 10.0  # seconds to reach a provider, TLS and proxy included
ADDRESS_WAIT: Final = 3.0  # seconds for one of several addresses of a place
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
PORTS: Final = {"http": 80, "https": 443}
TUNNEL_OPEN: Final = 200  # the one answer that opens a tunnel
SAFE_CHARACTERS: Final = "/:?#[]@!$&'()*+,;=%~"  # what stays as it is in a path that was typed by hand
ADDRESS_CACHE_SIZE: Final = 256  # that stay read; a config names a few


class InvalidAddress(ValueError):
    """What stands in the config is no address; says what to write."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a request goes."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def host_header(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def authority(self) -> str:
        """As CONNECT has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@lru_cache(ADDRESS_CACHE_SIZE)
def parse_address(url: str) -> Endpoint:
    """Raises NoAddress."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if parts.scheme not in PORTS:
            raise InvalidAddress("must begin with http:// or https://")
        if not host:
            raise InvalidAddress("is no address; write http(s)://host/v1")
        host = host if host.isascii() else host.encode("idna").decode()
    except InvalidAddress:
        raise
    except ValueError:  # a port that is no number, a bracket too many, a name no machine can have
        raise InvalidAddress("is no address; write http(s)://host/v1") from None
    if not host.isprintable() or " " in host:
        raise InvalidAddress("is no address; write http(s)://host/v1")
    target = quote(parts.path or "/", safe=SAFE_CHARACTERS) + (
        f"?{quote(parts.query, safe=SAFE_CHARACTERS)}" if parts.query else ""
    )
    return Endpoint(scheme=parts.scheme, host=host, port=port or PORTS[parts.scheme], target=target)


class Route(Struct, frozen=True, kw_only=True):
    """A place and the proxy in front of it. `prefix` goes before the target of a request, `extra` among its headers."""

    endpoint: Endpoint
    proxy: Endpoint | None = None
    proxy_authorization: str = ""
    """The Proxy-Authorization header, if the proxy wants one."""

    @property
    def target_prefix(self) -> str:
        return f"http://{self.endpoint.host_header}" if self._proxy_reads_request else ""

    @property
    def extra_headers(self) -> str:
        return self.proxy_authorization if self._proxy_reads_request else ""

    @property
    def _proxy_reads_request(self) -> bool:
        """The proxy reads the request itself; with TLS it only carries it."""
        return self.proxy is not None and self.endpoint.scheme == "http"


def find_route(endpoint: Endpoint) -> Route:
    """Through the proxy the environment names for an address, which is never one of this machine."""
    from urllib.request import getproxies, proxy_bypass  # here for start-up: it brings email and http.client

    if endpoint.host in LOOPBACK or proxy_bypass(endpoint.host):
        return Route(endpoint=endpoint)
    named = getproxies()
    proxy = named.get(endpoint.scheme) or named.get("all")
    if not proxy or not proxy.startswith(("http:", "https:")):
        return Route(endpoint=endpoint)
    parts, letter = urlsplit(proxy), ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        letter = f"proxy-authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    return Route(endpoint=endpoint, proxy=parse_address(proxy), proxy_authorization=letter)


def create_tls_context() -> ssl.SSLContext:
    """Whose certificates are believed: those the environment names, else Mozilla's. Reads files."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    import certifi  # here for start-up: only the first request over TLS needs it

    return ssl.create_default_context(cafile=certifi.where())


async def open_connection(route: Route, tls: ssl.SSLContext | None) -> HttpConnection:
    """A connection ready for its first request; `tls` for places that want it. Raises Broken, with the reason if it is
    known, and Late."""
    first = route.proxy or route.endpoint
    try:
        async with asyncio.timeout(CONNECT_WAIT):
            connection = await _connect_endpoint(first, tls)
            try:
                if route.proxy is not None and route.endpoint.scheme == "https":
                    assert tls is not None
                    await _open_tunnel(connection, route, tls)
            except BaseException:
                connection.close()
                raise
            return connection
    except TimeoutError:
        raise ConnectionTimeout from None
    except ssl.SSLCertVerificationError as exc:
        why = f"its certificate is not trusted ({exc.verify_message}); name its authority in SSL_CERT_FILE"
        raise ConnectionBroken(why) from None
    except (OSError, UnicodeError):  # nobody there, or a name that is none
        raise ConnectionBroken from None


async def _connect_endpoint(endpoint: Endpoint, tls: ssl.SSLContext | None) -> HttpConnection:
    """To the first of its addresses that answers; one that keeps silent must not use up the others' time."""
    loop = asyncio.get_running_loop()
    trusted = tls if endpoint.scheme == "https" else None

    async def at(address: tuple[Any, ...]) -> HttpConnection:
        made = loop.create_connection(
            HttpConnection,
            str(address[0]),
            int(address[1]),
            ssl=trusted,
            server_hostname=endpoint.host if trusted else None,
        )
        return (await made)[1]

    *others, last = [
        found[4] for found in await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    ]
    for address in others:
        with suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(ADDRESS_WAIT):
                return await at(address)
    return await at(last)


async def _open_tunnel(connection: HttpConnection, route: Route, tls: ssl.SSLContext) -> None:
    to = route.endpoint.authority
    head = f"CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n{route.proxy_authorization}\r\n".encode("latin-1")
    await connection.send(head, (), timeout=CONNECT_WAIT)
    if connection.status != TUNNEL_OPEN:
        raise ConnectionBroken(f"the proxy the environment names refuses the way there with HTTP {connection.status}")
    await connection.start_tls(tls, route.endpoint.host)


def needs_tls(route: Route) -> bool:
    return "https" in (route.endpoint.scheme, route.proxy.scheme if route.proxy else "")
