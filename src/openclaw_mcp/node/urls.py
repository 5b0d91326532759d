"""Where the canvas may go. Pure, but for the one function that asks the name server."""

import asyncio
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from ..core.errors import ToolArguments

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
    "192.168.*",
    "[::*",  # loopback, unspecified, and IPv4 in IPv6's clothes
    *(f"[{letters}*" for letters in ("fc", "fd", "fe8", "fe9", "fea", "feb", "64:ff9b:")),
)
"""Host patterns of this machine and its neighbours, in the spelling Chromium brings every host into."""


class Target(Struct, frozen=True):
    url: str
    host: str = ""
    risk: str | None = None
    """Why `canvas.navigate` leaves this address alone; None = nothing against it."""


def presentable(url: str, *, trusted: Collection[str]) -> str:
    """The address as Chromium may load it: web, data of two kinds, about:blank, or a path among our own files."""
    url = url.strip()
    if len(url) > LONGEST_URL:
        raise ToolArguments(f"Invalid url: it is longer than {LONGEST_URL} characters")
    if url.lower() == "about:blank" or DATA.match(url):
        return url
    if url.startswith("/") and not url.startswith("//"):
        return f"{OWN}/files{url}"
    target = web(url, trusted=trusted)
    if _origin(urlsplit(target.url)) not in trusted and (target.host == "localhost" or _neighbour(target.host)):
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
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_WAIT):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return False  # Chromium will not find it either
    return any(_neighbour(str(address[4][0])) for address in found)


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
    address = _address(ascii_name)
    return str(address) if address is not None else ascii_name, ascii_name != name.rstrip(".").lower()


def _risk(parts: SplitResult, host: str, *, foreign: bool) -> str | None:
    if parts.scheme != "https":
        return "it is not https"
    if host == "localhost" or host.endswith(".localhost"):
        return "it leads to this machine"
    if _address(host) is not None:
        return "its host is a bare address"
    if "." not in host:
        return "its host has no dot"
    return "its host is not written in plain letters" if foreign or "xn--" in host else None


def _neighbour(host: str) -> bool:
    if host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and (not address.is_global or address.is_multicast)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address a host spells, in any of the ways a browser understands: 127.1, 0x7f000001, 2130706433, ::ffff:…"""
    if ":" in host:
        try:
            six = ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            return None
        return six.ipv4_mapped or six.sixtofour or six
    if not re.fullmatch(r"[0-9a-fx.]+", host):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
