"""Files of messages: those to send, from allowed folders or the web; those received, once their sender is allowed."""

import asyncio
import base64
import binascii
import logging
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import unquote, urljoin, urlsplit

from msgspec import Struct

from ...core.agent import Attachment
from ...core.channel import ChannelBusy, ChannelError, ChannelRefused
from ...core.lenient import convert_lenient
from ...core.mime import OCTET_STREAM
from ...core.model import Json
from ...net.file_access import FileAccess, FileRefused, read_file, url_scheme
from ...net.internet import NoSuchHost, NotPublic, resolve_host, url_host

logger = logging.getLogger(__name__)

DOWNLOAD_TIMEOUT: Final = 60.0  # seconds for one file, redirects included
MAX_REDIRECTS: Final = 5
FETCH_ATTEMPTS: Final = 4  # of one received file: a question must not wait for ever for a missing picture
FIRST_WAIT: Final = 1.0  # seconds before the second attempt, doubled each time
MAX_WAIT: Final = 30.0  # seconds at most, even if the server asks for more


class MediaLoader:
    """Loads files to send. `allow_private_network` lets tests fetch from loopback."""

    def __init__(self, *, allow_private_network: bool = False) -> None:
        self._allow_private_network = allow_private_network

    async def load(self, source: str, access: FileAccess, *, max_bytes: int, name: str | None = None) -> Attachment:
        """The file at a URL, a `data:` URL, or a path that `access` allows. Raises ChannelRefused with the cause."""
        source = source.strip()
        scheme = url_scheme(source)
        if scheme == "data":
            return _decode_data_url(source, max_bytes=max_bytes, name=name)
        if scheme in ("http", "https"):
            try:
                async with asyncio.timeout(DOWNLOAD_TIMEOUT):
                    return await self._fetch(source, max_bytes=max_bytes, name=name)
            except TimeoutError:
                raise ChannelError(f"the file did not arrive within {DOWNLOAD_TIMEOUT:g} s") from None
        if scheme not in ("", "file") and "://" in source:
            raise ChannelRefused(f"a file can't be fetched over {scheme}: give an http(s) address or a path")
        try:
            found = await asyncio.to_thread(read_file, source, access, max_bytes=max_bytes)
        except FileRefused as exc:
            raise ChannelRefused(str(exc)) from None
        mime_type = mimetypes.guess_type(found.name)[0] or OCTET_STREAM
        return Attachment(mime_type=mime_type, name=name or found.name, data=found.data, url=str(found.path))

    async def _fetch(self, url: str, *, max_bytes: int, name: str | None) -> Attachment:
        location = url
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(location, max_bytes=max_bytes)
            if isinstance(answer, str):
                location = _redirect_url(location, answer)
                if url_scheme(location) not in ("http", "https"):
                    break
                continue
            data, mime_type = answer
            name = name or unquote(Path(urlsplit(location).path).name) or None
            mime_type = mime_type or mimetypes.guess_type(name or "")[0] or OCTET_STREAM
            return Attachment(mime_type=mime_type, name=name, data=data, url=url)
        raise ChannelRefused("the address leads nowhere: too many redirects")

    async def _get(self, url: str, *, max_bytes: int) -> tuple[bytes, str] | str:
        """The bytes and their type, or the address of a redirect."""
        # Here for start-up: only a message with a file from the web needs it.
        from ...net.httpx_client import ResponseTooLarge, create_client, httpx, read_body

        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ChannelRefused("the file's address can't be understood") from None
        if not host or parts.username is not None:  # an address with a password has a user name, if an empty one
            raise ChannelRefused("the file's address must name a host and no password")
        address = await self._resolve_host(host, port)
        # To the very address that was checked: the name may resolve to another the next time.
        netloc = url_host(address)
        pinned = parts._replace(netloc=f"{netloc}:{port}" if port else netloc).geturl()
        extensions: dict[str, Any] = {"sni_hostname": host}
        try:
            async with (
                create_client(timeout=DOWNLOAD_TIMEOUT, trust_environment=False) as client,
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
        """One public address of the host; none of this machine or its private network."""
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


# ---- received files ----------------------------------------------------------------------------------------------


class _NamedFile(Struct, frozen=True):
    """What every channel stores of a file."""

    name: str | None = None
    mime_type: str = OCTET_STREAM


@runtime_checkable
class AttachmentFetcher(Protocol):
    """A channel whose messages name files on its server: `InboundMessage.files`."""

    async def fetch(self, file: Json) -> Attachment:
        """The file, or its name alone when it is too large or gone. Raises ChannelError when it may come later."""


async def fetch_attachments(channel: object, files: Sequence[Json]) -> tuple[Attachment, ...]:
    """One for each, in order; only the name of a file that can't be fetched. `channel` is None when it is gone."""
    return tuple([await _fetch_with_retry(channel, file) for file in files])


async def _fetch_with_retry(channel: object, file: Json) -> Attachment:
    wait = FIRST_WAIT
    for left in reversed(range(FETCH_ATTEMPTS)):
        if not isinstance(channel, AttachmentFetcher):
            break
        try:
            return await channel.fetch(file)
        except ChannelRefused as exc:
            logger.warning("attachments: a file was refused (%s), its name is used alone", exc)
            break
        except ChannelError as exc:
            logger.warning("attachments: a file could not be fetched (%s), %d attempts left", exc, left)
            if left:
                await asyncio.sleep(min(exc.retry_after if isinstance(exc, ChannelBusy) else wait, MAX_WAIT))
                wait *= 2
    placeholder = convert_lenient(file, _NamedFile)
    return Attachment(mime_type=placeholder.mime_type, name=placeholder.name)
