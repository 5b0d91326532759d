"""The way to models: kept HTTP clients, answers read as they stream, failures sorted."""

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ..wire.sse import Events, TooLong
from .body import Body
from .settings import Provider
from .speech import Answer, Ask, Codec, Heard, Reader
from .troubles import ModelTrouble, refused

if TYPE_CHECKING:
    import httpx

CONNECT_WAIT: Final = 10.0  # seconds to reach a provider
SEND_WAIT: Final = 60.0  # seconds it may take to accept more of a request
MOST_CONNECTIONS: Final = 1000  # at once; sessions beyond it wait for one, within their run's own time
KEPT_CONNECTIONS: Final = 64  # idle ones of one provider, for the next turns
KEPT_SECONDS: Final = 30.0  # an idle one older than this has most likely been closed at the other end
LARGEST_EVENT: Final = 16 << 20  # bytes; one event holds a few words, or an answer that did not stream
LARGEST_REFUSAL: Final = 64 << 10  # bytes read of an answer that is an error
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
HEADERS: Final = {
    "content-type": "application/json", "accept": "text/event-stream, application/json", "user-agent": "openclaw-mcp",
}  # fmt: skip


class Wire:
    """Made once and shared; costs nothing until the first request.

    It uses httpx's transports, one for each request at a time, kept for the next: the client around them and a pool
    shared by many cost more than all the rest of a turn, which fifty sessions at once feel.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[httpx.AsyncHTTPTransport]] = {}
        self._busy: set[httpx.AsyncHTTPTransport] = set()
        self._tls: ssl.SSLContext | None = None
        self._making = asyncio.Lock()
        self._turns = asyncio.Semaphore(MOST_CONNECTIONS)

    async def aclose(self) -> None:
        for way in (*self._busy, *(one for idle in self._idle.values() for one in idle)):
            await way.aclose()
        self._idle.clear()

    async def ask(self, codec: Codec, ask: Ask, key: str | None, hear: Callable[[Heard], None]) -> Answer:
        """The model's answer; `hear` gets its pieces while it comes. Raises ModelTrouble.

        A cancelled wait closes the connection, which is how a provider learns that nobody listens any more.
        """
        reader = codec.reader(ask)
        async with aclosing(self._events(codec, ask, key)) as events:
            async for data in events:
                for heard in understood(reader, data):
                    hear(heard)
        answer = reader.answer()
        if answer is None:
            raise ModelTrouble("the answer broke off in the middle", kind="dropped")
        return answer

    async def _events(self, codec: Codec, ask: Ask, key: str | None) -> AsyncGenerator[bytes, None]:
        provider = ask.choice.provider
        async with (
            self._turns,
            self._way(provider.base_url) as way,
            aclosing(_streamed(way, codec, ask, key)) as events,
        ):
            async for data in events:
                yield data

    @asynccontextmanager
    async def _way(self, base_url: str) -> "AsyncIterator[httpx.AsyncHTTPTransport]":
        idle = self._idle.setdefault(base_url, [])
        way = idle.pop() if idle else await self._made(base_url)
        self._busy.add(way)
        try:
            yield way
        finally:
            self._busy.discard(way)
            if len(idle) < KEPT_CONNECTIONS:
                idle.append(way)
            else:
                await way.aclose()

    async def _made(self, base_url: str) -> "httpx.AsyncHTTPTransport":
        async with self._making:
            # In a thread: the import and the reading of certificates would hold up everybody else on the loop.
            if urlsplit(base_url).scheme == "http":  # nothing to trust there
                await asyncio.to_thread(_loaded)
                return _new(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), base_url)
            if self._tls is None:
                self._tls = await asyncio.to_thread(_prepared)
        return _new(self._tls, base_url)


def understood(reader: Reader, data: bytes) -> tuple[Heard, ...]:
    """What an event says. Whatever a server may send, the reader's surprise is trouble with the model, not with us."""
    try:
        return tuple(reader.read(data))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        raise ModelTrouble("it sent something that is no answer of this API", kind="dropped") from None


def _prepared() -> ssl.SSLContext:
    _loaded()
    import httpx  # here for start-up: it is imported already

    return httpx.create_ssl_context()


def _loaded() -> None:
    # Where rich and pygments are installed, httpx would load them for a command line nobody here types.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None: not to be imported
    import httpx  # noqa: F401  here for start-up: nothing but a turn with a model needs it

    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)  # a line a request, with addresses that may hold secrets


def _new(tls: ssl.SSLContext, base_url: str) -> "httpx.AsyncHTTPTransport":
    import httpx  # here for start-up: it is imported already

    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEPT_SECONDS)
    return httpx.AsyncHTTPTransport(verify=tls, limits=limits, proxy=_proxy(base_url))


def _proxy(base_url: str) -> str | None:
    """The proxy the environment names for an address, which is never one of this machine."""
    from urllib.request import getproxies, proxy_bypass  # here for start-up: httpx has imported it already

    place = urlsplit(base_url)
    host = place.hostname or ""
    if host in LOOPBACK or proxy_bypass(host):
        return None
    named = getproxies()
    proxy = named.get(place.scheme) or named.get("all")
    return proxy if proxy and proxy.startswith(("http:", "https:")) else None


async def _streamed(
    way: "httpx.AsyncHTTPTransport", codec: Codec, ask: Ask, key: str | None
) -> AsyncGenerator[bytes, None]:
    import httpx  # here for start-up: whoever gets here has imported it already

    provider = ask.choice.provider
    begun = False
    try:
        response = await way.handle_async_request(_request(codec, ask, key))
        async with aclosing(response):
            if response.status_code != httpx.codes.OK:
                raise _without(key, refused(response.status_code, await _start(response), response.headers))
            begun = True
            if "event-stream" not in response.headers.get("content-type", "event-stream"):
                yield await _whole(response)
                return
            stream = Events(limit=LARGEST_EVENT)
            async for chunk in response.aiter_bytes():
                for event in stream.feed(chunk):
                    if event.data:
                        yield event.data
    except httpx.HTTPError as exc:
        raise _sorted(exc, provider, begun=begun) from None
    except httpx.InvalidURL:
        place = f"models.providers.{provider.name}.baseUrl"
        raise ModelTrouble(f"{place} is no address; write http(s)://host/v1", kind="bad_request") from None
    except TooLong:
        raise ModelTrouble(f"it sent an event larger than {LARGEST_EVENT} bytes", kind="bad_request") from None


def _request(codec: Codec, ask: Ask, key: str | None) -> "httpx.Request":
    import httpx  # here for start-up, as above

    provider = ask.choice.provider
    body = Body(codec.body(ask), ask.talk)
    headers = {**HEADERS, **codec.headers(key), **dict(provider.headers), "content-length": str(body.size)}
    waits = {"connect": CONNECT_WAIT, "write": SEND_WAIT, "read": provider.idle_limit, "pool": CONNECT_WAIT}
    url = codec.url(provider.base_url)
    return httpx.Request("POST", url, headers=headers, content=_pieces(body), extensions={"timeout": waits})


async def _pieces(body: Body) -> AsyncGenerator[bytes, None]:
    for piece in body:
        yield piece


async def _start(response: "httpx.Response") -> bytes:
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > LARGEST_REFUSAL:
            break
    return data[:LARGEST_REFUSAL]


async def _whole(response: "httpx.Response") -> bytes:
    """The answer of a server that does not stream."""
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > LARGEST_EVENT:
            raise TooLong
    return bytes(data)


def _sorted(exc: "httpx.HTTPError", provider: Provider, *, begun: bool) -> ModelTrouble:
    import httpx  # here for start-up: it is imported by the time anything fails

    where = provider.base_url.partition("?")[0]
    if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout):
        return ModelTrouble(f"nobody answers at {where}; is it running, and is that its address?", kind="network")
    if isinstance(exc, httpx.UnsupportedProtocol):
        place = f"models.providers.{provider.name}.baseUrl"
        return ModelTrouble(f"{place} must begin with http:// or https://", kind="bad_request")
    if isinstance(exc, httpx.TimeoutException):
        return ModelTrouble(f"it said nothing for {provider.idle_limit:g} s", kind="timeout")
    if begun:
        return ModelTrouble("the answer broke off in the middle", kind="dropped")
    return ModelTrouble(f"the connection to {where} failed", kind="network")


def _without(key: str | None, trouble: ModelTrouble) -> ModelTrouble:
    """Some providers quote the key they refuse."""
    if key and key in str(trouble):
        trouble.args = (str(trouble).replace(key, "***"),)
    return trouble
