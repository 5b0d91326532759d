"""Which addresses the canvas may show. Pure, but for the one function that asks the name server."""

import asyncio
import contextlib
import re
import unicodedata
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from ...core.errors import ToolArguments, ToolError
from ...net.internet import NoSuchHost, NotPublic, parse_ip_literal, resolve_host, url_host

MAX_URL_LENGTH: Final = 1 << 20  # characters; a data: page fits, a film does not
RESOLVE_WAIT: Final = 3.0  # seconds for the name server
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
DATA_URL: Final = re.compile(r"data:(text/html|text/plain)?(;[^,]*)?,", re.IGNORECASE)
CANVAS_ORIGIN: Final = "https://canvas.invalid"
"""The origin of pages that come from us. `.invalid` belongs to no one, and requests to it never reach the network."""
PROXY_SIGN_IN_URL: Final = "http://canvas.invalid/sign-in"
"""The browser's proxy answers this one, with nothing; Chromium, asked for the secret there, sends it from then on."""


class WebOrigin(Struct, frozen=True):
    scheme: str
    host: str
    """In ASCII and small letters, IPv6 without brackets."""
    port: int


class WebTarget(Struct, frozen=True):
    url: str
    origin: WebOrigin
    trusted: bool
    risk: str | None
    """Why `canvas.navigate` does not open this address; None = it does."""


async def resolve_page_url(url: str, *, trusted: frozenset[WebOrigin]) -> str:
    """The address as Chromium may load it: web, data of two kinds, about:blank, or a path among our own files."""
    url = url.strip()
    if len(url) > MAX_URL_LENGTH:
        raise ToolArguments(f"Invalid url: it is longer than {MAX_URL_LENGTH} characters")
    if url.lower() == "about:blank" or DATA_URL.match(url):
        return url
    if url.startswith("/") and not url.startswith("//"):
        return f"{CANVAS_ORIGIN}/files{url}"
    target = parse_web_url(url, trusted=trusted)
    if await leads_to_private_network(target):
        raise ToolArguments("Invalid url: it leads to this machine or its network, whose origin is not trusted")
    return target.url


def parse_web_url(url: str, *, trusted: frozenset[WebOrigin]) -> WebTarget:
    """An absolute http or https address in canonical form, and the reason not to open it, if any."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ToolArguments("Invalid url: it can't be understood") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ToolArguments("Invalid url: only http and https addresses are opened")
    if parts.username is not None or parts.password is not None:
        raise ToolArguments("Invalid url: leave out the user name and password")
    if not parts.hostname or re.search(r"[\s\\]", url.strip()):
        raise ToolArguments("Invalid url: it has no host, or blanks or backslashes in it")
    host, foreign = _normalize_host(parts.hostname)
    default = DEFAULT_PORTS[parts.scheme]
    netloc = url_host(host) if port in (None, default) else f"{url_host(host)}:{port}"
    canonical = parts._replace(netloc=netloc, path=parts.path or "/")
    origin = WebOrigin(parts.scheme, host, default if port is None else port)
    if origin in trusted:
        return WebTarget(canonical.geturl(), origin, trusted=True, risk=None)
    return WebTarget(canonical.geturl(), origin, trusted=False, risk=_navigation_risk(origin, foreign=foreign))


def parse_origins(texts: Collection[str]) -> frozenset[WebOrigin]:
    """Origins as the settings name them. A text that is no web address is left out."""
    found = set()
    for one in texts:
        with contextlib.suppress(ToolArguments):
            found.add(parse_web_url(one, trusted=frozenset()).origin)
    return frozenset(found)


async def leads_to_private_network(target: WebTarget) -> bool:
    """Whether the host is of this machine or its network, without being trusted. Raises ToolError: there is none.

    Asked to give a good answer before a browser starts. What the browser reaches is decided when it connects."""
    try:
        async with asyncio.timeout(RESOLVE_WAIT):
            await resolve_host(target.origin.host, target.origin.port, allow_private=target.trusted)
    except NotPublic:
        return True
    except NoSuchHost as exc:
        raise ToolError(f"CANVAS_LOAD_FAILED: {exc}") from None
    except TimeoutError:
        pass
    return False


def _normalize_host(name: str) -> tuple[str, bool]:
    """The host in ASCII, and whether it was written in other letters."""
    plain = unicodedata.normalize("NFKC", unquote(name)).rstrip(".").lower()
    try:
        ascii_name = plain if ":" in plain else plain.encode("idna").decode()
    except UnicodeError:
        raise ToolArguments("Invalid url: its host is no host name") from None
    address = parse_ip_literal(ascii_name)
    return str(address) if address is not None else ascii_name, ascii_name != name.rstrip(".").lower()


def _navigation_risk(origin: WebOrigin, *, foreign: bool) -> str | None:
    if origin.scheme != "https":
        return "it is not https"
    if origin.host == "localhost" or origin.host.endswith(".localhost"):
        return "it leads to this machine"
    if parse_ip_literal(origin.host) is not None:
        return "its host is a bare address"
    if "." not in origin.host:
        return "its host has no dot"
    return "its host is not written in plain letters" if foreign or "xn--" in origin.host else None
