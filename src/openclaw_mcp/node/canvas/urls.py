"""Where the canvas may go. Pure, but for the one function that asks the name server."""

import asyncio
import contextlib
import re
import unicodedata
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from ...core.errors import ToolArguments, ToolError
from ...net.internet import NoSuchHost, NotPublic, in_url, look_up, spelt_address

LONGEST_URL: Final = 1 << 20  # characters; a data: page fits, a film does not
RESOLVE_WAIT: Final = 3.0  # seconds for the name server
PORTS: Final = {"http": 80, "https": 443}
DATA: Final = re.compile(r"data:(text/html|text/plain)?(;[^,]*)?,", re.IGNORECASE)
OWN: Final = "https://canvas.invalid"
"""The origin of pages that come from us. `.invalid` is nobody's, and requests to it never reach the network."""
SIGN_IN: Final = "http://canvas.invalid/sign-in"
"""The browser's proxy answers this one, with nothing; Chromium, asked for the secret there, sends it from then on."""


class Origin(Struct, frozen=True):
    scheme: str
    host: str
    """In ASCII and small letters, IPv6 without brackets."""
    port: int


class Target(Struct, frozen=True):
    url: str
    origin: Origin
    trusted: bool
    risk: str | None
    """Why `canvas.navigate` leaves this address alone; None = nothing against it."""


async def presented(url: str, *, trusted: frozenset[Origin]) -> str:
    """The address as Chromium may load it: web, data of two kinds, about:blank, or a path among our own files."""
    url = url.strip()
    if len(url) > LONGEST_URL:
        raise ToolArguments(f"Invalid url: it is longer than {LONGEST_URL} characters")
    if url.lower() == "about:blank" or DATA.match(url):
        return url
    if url.startswith("/") and not url.startswith("//"):
        return f"{OWN}/files{url}"
    target = web(url, trusted=trusted)
    if await leads_inward(target):
        raise ToolArguments("Invalid url: it leads to this machine or its network, whose origin is not trusted")
    return target.url


def web(url: str, *, trusted: frozenset[Origin]) -> Target:
    """An absolute http or https address in canonical form, and what speaks against opening it."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ToolArguments("Invalid url: it can't be understood") from None
    if parts.scheme not in PORTS:
        raise ToolArguments("Invalid url: only http and https addresses are opened")
    if parts.username is not None or parts.password is not None:
        raise ToolArguments("Invalid url: leave out the user name and password")
    if not parts.hostname or re.search(r"[\s\\]", url.strip()):
        raise ToolArguments("Invalid url: it has no host, or blanks or backslashes in it")
    host, foreign = _host(parts.hostname)
    default = PORTS[parts.scheme]
    netloc = in_url(host) if port in (None, default) else f"{in_url(host)}:{port}"
    canonical = parts._replace(netloc=netloc, path=parts.path or "/")
    origin = Origin(parts.scheme, host, default if port is None else port)
    if origin in trusted:
        return Target(canonical.geturl(), origin, trusted=True, risk=None)
    return Target(canonical.geturl(), origin, trusted=False, risk=_risk(origin, foreign=foreign))


def origins(written: Collection[str]) -> frozenset[Origin]:
    """Origins as the settings name them. What is no web address is nobody's origin."""
    found = set()
    for one in written:
        with contextlib.suppress(ToolArguments):
            found.add(web(one, trusted=frozenset()).origin)
    return frozenset(found)


async def leads_inward(target: Target) -> bool:
    """Whether the host is of this machine or its network, without being trusted. Raises ToolError: there is none.

    Asked to give a good answer before a browser starts. What the browser reaches is decided when it connects."""
    try:
        async with asyncio.timeout(RESOLVE_WAIT):
            await look_up(target.origin.host, target.origin.port, anywhere=target.trusted)
    except NotPublic:
        return True
    except NoSuchHost as exc:
        raise ToolError(f"CANVAS_LOAD_FAILED: {exc}") from None
    except TimeoutError:
        pass
    return False


def _host(name: str) -> tuple[str, bool]:
    """The host in ASCII, and whether it was written in other letters."""
    plain = unicodedata.normalize("NFKC", unquote(name)).rstrip(".").lower()
    try:
        ascii_name = plain if ":" in plain else plain.encode("idna").decode()
    except UnicodeError:
        raise ToolArguments("Invalid url: its host is no host name") from None
    address = spelt_address(ascii_name)
    return str(address) if address is not None else ascii_name, ascii_name != name.rstrip(".").lower()


def _risk(origin: Origin, *, foreign: bool) -> str | None:
    if origin.scheme != "https":
        return "it is not https"
    if origin.host == "localhost" or origin.host.endswith(".localhost"):
        return "it leads to this machine"
    if spelt_address(origin.host) is not None:
        return "its host is a bare address"
    if "." not in origin.host:
        return "its host has no dot"
    return "its host is not written in plain letters" if foreign or "xn--" in origin.host else None
