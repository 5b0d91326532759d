"""The address of a request, and the proxy that the environment names for it. Connects to nothing."""

import base64
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from ..peers import is_loopback

PORTS: Final = {"http": 80, "https": 443}
SAFE_CHARACTERS: Final = "/:?#[]@!$&'()*+,;=%~"  # what stays as it is in a path that was typed by hand
ADDRESS_CACHE_SIZE: Final = 256  # parsed addresses kept; a config names a few
EXAMPLE: Final = "is no address; write http(s)://host/v1"


class InvalidAddress(ValueError):
    """The text says what is wrong with the address and what to write."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a request is sent."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def authority(self) -> str:
        """As CONNECT has it: always with the port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ProxyServer(Struct, frozen=True, kw_only=True):
    """A proxy in front of an endpoint."""

    endpoint: Endpoint
    authorization: str = ""
    """The Proxy-Authorization header, as a line, if the proxy wants one."""


@lru_cache(ADDRESS_CACHE_SIZE)
def parse_address(url: str) -> Endpoint:
    """Raises InvalidAddress."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if parts.scheme not in PORTS:
            raise InvalidAddress("must begin with http:// or https://")
        if not host:
            raise InvalidAddress(EXAMPLE)
        host = host if host.isascii() else host.encode("idna").decode()
    except InvalidAddress:
        raise
    except ValueError:  # a port that is no number, a bracket too many, a name no machine can have
        raise InvalidAddress(EXAMPLE) from None
    if not host.isprintable() or " " in host:
        raise InvalidAddress(EXAMPLE)
    target = quote(parts.path or "/", safe=SAFE_CHARACTERS)
    target += f"?{quote(parts.query, safe=SAFE_CHARACTERS)}" if parts.query else ""
    return Endpoint(scheme=parts.scheme, host=host, port=port or PORTS[parts.scheme], target=target)


def find_proxy(endpoint: Endpoint) -> ProxyServer | None:
    """The proxy that the environment names for an endpoint; for one on this machine there is none."""
    from urllib.request import getproxies, proxy_bypass  # here for start-up: it brings email and http.client

    if is_loopback(endpoint.host) or proxy_bypass(endpoint.host):
        return None
    named = getproxies()
    url = named.get(endpoint.scheme) or named.get("all")
    if not url or not url.startswith(("http:", "https:")):
        return None
    parts, authorization = urlsplit(url), ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"proxy-authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    return ProxyServer(endpoint=parse_address(url), authorization=authorization)


def is_header_value(text: str) -> bool:
    """Whether every server understands it as one header's value."""
    return text.isascii() and text.isprintable()
