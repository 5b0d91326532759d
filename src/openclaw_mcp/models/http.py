"""The way to models: one kept HTTP client, answers read as they stream, failures sorted."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from ..wire.sse import Events, TooLong
from .settings import Provider
from .speech import Answer, Ask, Codec, Heard
from .troubles import ModelTrouble, refused

if TYPE_CHECKING:
    import httpx

CONNECT_WAIT: Final = 10.0  # seconds to reach a provider
SEND_WAIT: Final = 60.0  # seconds it may take to accept more of a request
MOST_CONNECTIONS: Final = 1000  # at once; sessions beyond it wait for one, within their run's own time
KEPT_CONNECTIONS: Final = 100  # idle ones, for the next turn
LARGEST_EVENT: Final = 16 << 20  # bytes; one event holds a few words, or an answer that did not stream
LARGEST_REFUSAL: Final = 64 << 10  # bytes read of an answer that is an error
LOOPBACK: Final = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class Wire:
    """Made once and shared; costs nothing until the first request."""

    def __init__(self) -> None:
        self._clients: dict[bool, httpx.AsyncClient] = {}
        self._making = asyncio.Lock()

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def ask(self, codec: Codec, ask: Ask, key: str | None, hear: Callable[[Heard], None]) -> Answer:
        """The model's answer; `hear` gets its pieces while it comes. Raises ModelTrouble.

        A cancelled wait closes the connection, which is how a provider learns that nobody listens any more.
        """
        reader = codec.reader(ask)
        async with aclosing(self._events(codec, ask, key)) as events:
            async for data in events:
                for heard in reader.read(data):
                    hear(heard)
        answer = reader.answer()
        if answer is None:
            raise ModelTrouble("the answer broke off in the middle", kind="dropped")
        return answer

    async def _events(self, codec: Codec, ask: Ask, key: str | None) -> AsyncGenerator[bytes, None]:
        provider = ask.choice.provider
        client = await self._client(tls=not provider.base_url.startswith("http:"))
        # Here for start-up: whoever gets here has imported it already.
        import httpx

        headers = {"content-type": "application/json", **codec.headers(key), **dict(provider.headers)}
        idle = httpx.Timeout(connect=CONNECT_WAIT, write=SEND_WAIT, read=provider.idle_limit, pool=None)
        begun = False
        try:
            async with client.stream(
                "POST", codec.url(provider.base_url), content=codec.body(ask), headers=headers, timeout=idle
            ) as response:
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

    async def _client(self, *, tls: bool) -> "httpx.AsyncClient":
        async with self._making:
            if tls not in self._clients:
                # In a thread: the import and the reading of certificates would hold up everybody else on the loop.
                self._clients[tls] = await asyncio.to_thread(_new, tls=tls)
        return self._clients[tls]


def _new(*, tls: bool) -> "httpx.AsyncClient":
    import httpx  # here for start-up: nothing but a turn with a model needs it

    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)  # a line a request, with addresses that may hold secrets
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=KEPT_CONNECTIONS),
        verify=tls,  # reading the certificates takes longer than the first call
        follow_redirects=False,  # our key is for this provider, not for one it names
        mounts=dict.fromkeys(LOOPBACK),  # a proxy of the environment has no business with this machine
    )


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
