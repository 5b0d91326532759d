"""Where the canvas may go. Pure, but for the one function that asks the name server."""

import asyncio
import re
import unicodedata
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from ..core.errors import ToolArguments
from ..core.internet import NoSuchHost, NotPublic, is_public, look_up, spelt_address

LONGEST_URL: Final = 1 << 20  # characters; a data: page fits, a film does not
RESOLVE_WAIT: Final = 3.0  # seconds for the name server
DATA: Final = re.compile(r"data:(text/html|text/plain)?(;[^,]*)?,", re.IGNORECASE)
OWN: Final = "https://canvas.invalid"
"""The origin of pages that come from us. `.invalid` is nobody's, and requests to it never reach the network."""

HIDDEN_HOSTS: Final = (
    "localhost",
    "*.localhost",
    "0.*",
    "10.*",
    "127.*",
    "169.254.*",
    *(f"100.{number}.*" for number in range(64, 128)),
    *(f"172.{number}.*" for number in range(16, 32)),
    "192.0.0.*",
    "192.168.*",
    "198.18.*",
    "198.19.*",
    *(f"{number}.*" for number in range(224, 256)),
    "[::*",  # loopback, unspecified, and IPv4 in IPv6's clothes
    *(f"[{letters}*" for letters in ("fc", "fd", "fe", "ff", "64:ff9b:", "2001::", "2001:0:", "2002:")),
)
"""Host patterns of this machine and its neighbours, in the spelling Chromium brings every host into."""


class Target(Struct, frozen=True):
    url: str
    host: str = ""
    risk: str | None = None
    """Why `canvas.navigate` leaves this address alone; None = nothing against it."""


async def presented(url: str, *, trusted: Collection[str]) -> str:
    """The address as Chromium may load it: web, data of two kinds, about:blank, or a path among our own files."""
    url = url.strip()
    if len(url) > LONGEST_URL:
        raise ToolArguments(f"Invalid url: it is longer than {LONGEST_URL} characters")
    if url.lower() == "about:blank" or DATA.match(url):
        return url
    if url.startswith("/") and not url.startswith("//"):
        return f"{OWN}/files{url}"
    target = web(url, trusted=trusted)
    if _origin(urlsplit(target.url)) in trusted:
        return target.url
    if target.host == "localhost" or _neighbour(target.host) or await resolves_inward(target.host):
        raise ToolArguments("Invalid url: it leads to this machine or its network, whose origin is not trusted")
    return target.url


def web(url: str, *, trusted: Collection[str]) -> Target:
    """An absolute http or https address in canonical form, and what speaks against opening it."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ToolArguments("Invalid url: it can't be understood") from None
    if parts.scheme not in ("http", "https"):
        raise ToolArguments("Invalid url: only http and https addresses are opened")
    if parts.username is not None or parts.password is not None:
        raise ToolArguments("Invalid url: leave out the user name and password")
    if not parts.hostname or re.search(r"[\s\\]", url.strip()):
        raise ToolArguments("Invalid url: it has no host, or blanks or backslashes in it")
    host, foreign = _host(parts.hostname)
    shown = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme]
    netloc = shown if port in (None, default) else f"{shown}:{port}"
    canonical = parts._replace(netloc=netloc, path=parts.path or "/")
    risk = None if _origin(canonical) in trusted else _risk(canonical, host, foreign=foreign)
    return Target(canonical.geturl(), host, risk)


async def resolves_inward(host: str) -> bool:
    """Whether the name server sends this host to a machine that is not on the public network."""
    try:
        async with asyncio.timeout(RESOLVE_WAIT):
            await look_up(host, 443)
    except NotPublic:
        return True
    except (NoSuchHost, TimeoutError):
        return False  # Chromium will not find it either
    return False


def rules(trusted: Collection[str]) -> str:
    """Chromium's own rules for finding hosts: whatever a page asks for, these are not found."""
    hosts = {urlsplit(origin).hostname or "" for origin in trusted}
    shut = [f"MAP {pattern} ~NOTFOUND" for pattern in HIDDEN_HOSTS]
    return ", ".join([*shut, *(f"EXCLUDE {host}" for host in sorted(hosts) if host)])


def _origin(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}"


def _host(name: str) -> tuple[str, bool]:
    """The host in ASCII, and whether it was written in other letters."""
    plain = unicodedata.normalize("NFKC", unquote(name)).rstrip(".").lower()
    try:
        ascii_name = plain if ":" in plain else plain.encode("idna").decode()
    except UnicodeError:
        raise ToolArguments("Invalid url: its host is no host name") from None
    address = spelt_address(ascii_name)
    return str(address) if address is not None else ascii_name, ascii_name != name.rstrip(".").lower()


def _risk(parts: SplitResult, host: str, *, foreign: bool) -> str | None:
    if parts.scheme != "https":
        return "it is not https"
    if host == "localhost" or host.endswith(".localhost"):
        return "it leads to this machine"
    if spelt_address(host) is not None:
        return "its host is a bare address"
    if "." not in host:
        return "its host has no dot"
    return "its host is not written in plain letters" if foreign or "xn--" in host else None


def _neighbour(host: str) -> bool:
    if host.endswith(".localhost"):
        return True
    address = spelt_address(host)
    return address is not None and not is_public(address)
