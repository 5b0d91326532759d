"""Files to send: from this machine's allowed folders, from the web without reaching into our own network."""

import asyncio
import base64
import binascii
import mimetypes
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

from ...core.agent import Attachment
from ...core.channel import ChannelError, ChannelRefused
from ...net.file_access import FileAccess, FileRefused, read_file, url_scheme
from ...net.internet import NoSuchHost, NotPublic, resolve_host, url_host

FETCH_WAIT: Final = 60.0  # seconds for one file, redirects included
MAX_REDIRECTS: Final = 5
OCTET_STREAM: Final = "application/octet-stream"


class MediaLoader:
    """`own_network` lets tests fetch from loopback."""

    def __init__(self, *, allow_private_network: bool = False) -> None:
        self._allow_private_network = allow_private_network

    async def load(self, source: str, access: FileAccess, *, max_bytes: int, name: str | None = None) -> Attachment:
        """The file at a URL, a `data:` URL, or a path that `access` allows. Raises ChannelRefused saying what is wrong
        with it."""
        source = source.strip()
        scheme = url_scheme(source)
        if scheme == "data":
            return _decode_data_url(source, max_bytes=max_bytes, name=name)
        if scheme in ("http", "https"):
            try:
                async with asyncio.timeout(FETCH_WAIT):
                    return await self._fetch(source, max_bytes=max_bytes, name=name)
            except TimeoutError:
                raise ChannelError(f"the file did not arrive within {FETCH_WAIT:g} s") from None
        if scheme not in ("", "file") and "://" in source:
            raise ChannelRefused(f"a file can't be fetched over {scheme}: give an http(s) address or a path")
        try:
            found = await asyncio.to_thread(read_file, source, access, max_bytes=max_bytes)
        except FileRefused as exc:
            raise ChannelRefused(str(exc)) from None
        kind = mimetypes.guess_type(found.name)[0] or OCTET_STREAM
        return Attachment(mime_type=kind, name=name or found.name, data=found.data, url=str(found.path))

    # ---- the web -------------------------------------------------------------------------------------------------

    async def _fetch(self, url: str, *, max_bytes: int, name: str | None) -> Attachment:
        where = url
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(where, max_bytes=max_bytes)
            if isinstance(answer, str):
                where = _redirect_url(where, answer)
                if url_scheme(where) not in ("http", "https"):
                    break
                continue
            data, kind = answer
            called = name or unquote(Path(urlsplit(where).path).name) or None
            kind = kind or mimetypes.guess_type(called or "")[0] or OCTET_STREAM
            return Attachment(mime_type=kind, name=called, data=data, url=url)
        raise ChannelRefused("the address leads nowhere: too many redirects")

    async def _get(self, url: str, *, max_bytes: int) -> tuple[bytes, str] | str:
        """The bytes and their type, or where to look instead."""
        # Here for start-up: only a message with a file from the web needs it.
        from ...net.httpx_client import ResponseTooLarge, create_client, httpx, read_body

        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ChannelRefused("the file's address can't be understood") from None
        if not host or parts.username is not None:  # no password stands without the place of a name
            raise ChannelRefused("the file's address must name a host and no password")
        address = await self._resolve_host(host, port)
        # To the very address that was judged: a name may mean another the next time it is asked.
        shown = url_host(address)
        pinned = parts._replace(netloc=f"{shown}:{port}" if port else shown).geturl()
        extensions: dict[str, Any] = {"sni_hostname": host}
        try:
            async with (
                create_client(timeout=FETCH_WAIT, trust_environment=False) as client,
                client.stream("GET", pinned, headers={"host": parts.netloc}, extensions=extensions) as response,
            ):
                if response.is_redirect:
                    return str(response.headers.get("location", ""))
                if response.status_code != httpx.codes.OK:
                    raise ChannelRefused(f"the file's server answered {response.status_code}")
                data = await read_body(response, max_bytes)
                return data, response.headers.get("content-type", "").partition(";")[0].strip()
        except ResponseTooLarge:
            raise _too_large(max_bytes) from None
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise ChannelError(f"the file could not be fetched: {type(exc).__name__}") from None

    async def _resolve_host(self, host: str, port: int | None) -> str:
        """One address of the host; none of ours, nor of anything only we can reach."""
        try:
            return (await resolve_host(host, port, allow_private=self._allow_private_network))[0]
        except NoSuchHost:
            raise ChannelRefused("the file's address names a host that can't be found") from None
        except NotPublic:
            raise ChannelRefused("the file's address leads into a private network") from None


def _redirect_url(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise ChannelRefused("the file's address leads nowhere: a redirect can't be understood") from None


def _decode_data_url(source: str, *, max_bytes: int, name: str | None) -> Attachment:
    head, comma, body = source[5:].partition(",")
    if not comma:
        raise ChannelRefused("the data: address has no comma; write data:<type>;base64,<bytes>")
    try:
        data = base64.b64decode(body, validate=True) if head.endswith(";base64") else unquote(body).encode()
    except (binascii.Error, ValueError):
        raise ChannelRefused("the data: address is not valid base64") from None
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return Attachment(mime_type=head.partition(";")[0] or "text/plain", name=name, data=data)


def _too_large(max_bytes: int) -> ChannelRefused:
    return ChannelRefused(f"the file is larger than {max_bytes} bytes, the most this channel takes")
