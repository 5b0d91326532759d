"""Files to send: from this machine's allowed folders, from the web without reaching into our own network."""

import asyncio
import base64
import binascii
import ipaddress
import mimetypes
import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

from ..core.agent import Attachment
from ..core.channel import ChannelError, ChannelRefused

FETCH_WAIT: Final = 60.0  # seconds for one file, redirects included
MOST_REDIRECTS: Final = 5
OCTETS: Final = "application/octet-stream"


class Media:
    """`roots` are the folders files may come from; `own_network` lets tests fetch from loopback."""

    def __init__(self, roots: Callable[[], Sequence[Path]], *, own_network: bool = False) -> None:
        self._roots = roots
        self._own_network = own_network

    async def load(self, place: str, *, most: int, name: str | None = None) -> Attachment:
        """The file at a URL, a `data:` URL or a path. Raises ChannelRefused saying what is wrong with it."""
        scheme = urlsplit(place).scheme.lower()
        if scheme == "data":
            return _inline(place, most=most, name=name)
        if scheme in ("http", "https"):
            try:
                async with asyncio.timeout(FETCH_WAIT):
                    return await self._fetch(place, most=most, name=name)
            except TimeoutError:
                raise ChannelError(f"the file did not arrive within {FETCH_WAIT:g} s") from None
        if scheme not in ("", "file") and len(scheme) > 1:  # one letter is a drive
            raise ChannelRefused(f"a file can't be fetched over {scheme}: give an http(s) address or a path")
        path = Path(unquote(place.removeprefix("file://")) if scheme == "file" else place)
        return await asyncio.to_thread(self._read, path, most, name)

    # ---- this machine --------------------------------------------------------------------------------------------

    def _read(self, path: Path, most: int, name: str | None) -> Attachment:
        path = path.expanduser()
        roots = [root.resolve() for root in self._roots()]
        if not path.is_absolute() and roots:
            path = roots[0] / path
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise ChannelRefused(f"there is no file {path.name}") from None
        if not any(real.is_relative_to(root) for root in roots):
            shown = ", ".join(map(str, roots)) or "no folder"
            raise ChannelRefused(f"files are sent from {shown} only; put it there first")
        try:
            # Not through a link put there since: what is opened is what was judged.
            descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as exc:
            raise ChannelRefused(f"{real.name} can't be read: {exc.strerror}") from None
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise ChannelRefused(f"{real.name} is no file")
            if about.st_size > most:
                raise _too_large(most)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(most + 1)
        finally:
            os.close(descriptor)
        if len(data) > most:
            raise _too_large(most)
        kind = mimetypes.guess_type(real.name)[0] or OCTETS
        return Attachment(mime_type=kind, name=name or real.name, data=data, url=str(path))

    # ---- the web -------------------------------------------------------------------------------------------------

    async def _fetch(self, url: str, *, most: int, name: str | None) -> Attachment:
        where = url
        for _ in range(MOST_REDIRECTS + 1):
            answer = await self._get(where, most=most)
            if isinstance(answer, str):
                where = urljoin(where, answer)
                if urlsplit(where).scheme not in ("http", "https"):
                    break
                continue
            data, kind = answer
            called = name or unquote(Path(urlsplit(where).path).name) or None
            kind = kind or mimetypes.guess_type(called or "")[0] or OCTETS
            return Attachment(mime_type=kind, name=called, data=data, url=url)
        raise ChannelRefused("the address leads nowhere: too many redirects")

    async def _get(self, url: str, *, most: int) -> tuple[bytes, str] | str:
        """The bytes and their type, or where to look instead."""
        import httpx  # here for start-up: only a message with a file from the web needs it

        parts = urlsplit(url)
        host = parts.hostname
        if not host or parts.username or parts.password:
            raise ChannelRefused("the file's address must name a host and no password")
        address = await self._address(host, parts.port or (443 if parts.scheme == "https" else 80))
        # To the very address that was judged: a name may mean another the next time it is asked.
        shown = f"[{address}]" if ":" in address else address
        pinned = parts._replace(netloc=f"{shown}:{parts.port}" if parts.port else shown).geturl()
        extensions: dict[str, Any] = {"sni_hostname": host}
        try:
            async with (
                httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=FETCH_WAIT) as client,
                client.stream("GET", pinned, headers={"host": parts.netloc}, extensions=extensions) as response,
            ):
                if response.is_redirect:
                    return str(response.headers.get("location", ""))
                if response.status_code != httpx.codes.OK:
                    raise ChannelRefused(f"the file's server answered {response.status_code}")
                data = bytearray()
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > most:
                        raise _too_large(most)
                return bytes(data), response.headers.get("content-type", "").partition(";")[0].strip()
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise ChannelError(f"the file could not be fetched: {type(exc).__name__}") from None

    async def _address(self, host: str, port: int) -> str:
        """One address of the host; none of ours, nor of anything only we can reach."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise ChannelRefused("the file's address names a host that can't be found") from None
        addresses = [str(one[4][0]).partition("%")[0] for one in found]
        for address in addresses:
            if not self._own_network and not _public(address):
                raise ChannelRefused("the file's address leads into a private network")
        return addresses[0]


def _public(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast


def _inline(place: str, *, most: int, name: str | None) -> Attachment:
    head, comma, body = place[5:].partition(",")
    if not comma:
        raise ChannelRefused("the data: address has no comma; write data:<type>;base64,<bytes>")
    if len(body) > most * 4 // 3 + 4:
        raise _too_large(most)
    try:
        data = base64.b64decode(body, validate=True) if head.endswith(";base64") else unquote(body).encode()
    except (binascii.Error, ValueError):
        raise ChannelRefused("the data: address is not valid base64") from None
    if len(data) > most:
        raise _too_large(most)
    return Attachment(mime_type=head.partition(";")[0] or "text/plain", name=name, data=data)


def _too_large(most: int) -> ChannelRefused:
    return ChannelRefused(f"the file is larger than {most} bytes, the most this channel takes")
