"""The way to models: kept connections, answers read as they stream, failures sorted."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from ....protocol.sse import Events, TooLong
from .connection import Broken, Connection, Late
from .endpoints import NoAddress, Place, Route, dial, needs_tls, read_address, route_to, trust
from .errors import ModelTrouble, refused
from .messages import Answer, Ask, Codec, Heard, Reader
from .request_body import Body
from .settings import Provider

MOST_CONNECTIONS: Final = 1000  # at once; sessions beyond it wait for one, within their run's own time
KEPT_CONNECTIONS: Final = 64  # idle ones of one provider, for the next turns
KEPT_SECONDS: Final = 30.0  # an idle one older than this has most likely been closed at the other end
LARGEST_EVENT: Final = 16 << 20  # bytes; one event holds a few words, or an answer that did not stream
LARGEST_REFUSAL: Final = 64 << 10  # bytes read of an answer that is an error
OK: Final = 200
HEADERS: Final = {
    "content-type": "application/json", "accept": "text/event-stream, application/json", "user-agent": "openclaw-mcp",
}  # fmt: skip


class Way(NamedTuple):
    """A connection, and by what route it leads where."""

    connection: Connection
    route: Route


class Wire:
    """Made once and shared; costs nothing until the first request."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str, int], list[Way]] = {}
        self._busy: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None
        self._making = asyncio.Lock()
        self._turns = asyncio.Semaphore(MOST_CONNECTIONS)

    async def aclose(self) -> None:
        kept = (way.connection for idle in self._idle.values() for way in idle)
        for connection in (*self._busy, *kept):
            connection.close()
        self._idle.clear()

    async def ask(self, codec: Codec, ask: Ask, key: str | None, hear: Callable[[Heard], None]) -> Answer:
        """The model's answer; `hear` gets its pieces while it comes. Raises ModelTrouble.

        A cancelled wait closes the connection, which is how a provider learns that nobody listens any more.
        """
        provider = ask.choice.provider
        try:
            place = read_address(codec.url(provider.base_url))
        except NoAddress as exc:
            raise ModelTrouble(f"models.providers.{provider.name}.baseUrl {exc}", kind="bad_request") from None
        reader = codec.reader(ask)
        async with self._turns:
            await self._exchange(place, codec, ask, key, Listener(reader, hear))
        answer = reader.answer()
        if answer is None:
            raise _broken_off()
        return answer

    async def _exchange(self, place: Place, codec: Codec, ask: Ask, key: str | None, listener: "Listener") -> None:
        provider = ask.choice.provider
        way = await self._way(place, provider)
        connection, begun = way.connection, False
        try:
            body = Body(codec.body(ask), ask.talk)
            head = _head(
                way.route, place, {**HEADERS, **codec.headers(key), **dict(provider.headers)}, body.size, provider
            )
            await connection.send(head, body, patience=provider.idle_limit)
            if connection.status != OK:
                refusal = await _start(connection, provider.idle_limit)
                raise _without(key, refused(connection.status, refusal, connection.headers))
            begun = True
            await listener.hear_all(connection, patience=provider.idle_limit)
        except Late:
            raise ModelTrouble(f"it said nothing for {provider.idle_limit:g} s", kind="timeout") from None
        except Broken:
            raise _broken_off() if begun else _failed(provider) from None
        finally:
            self._give_back(place, way)

    # ---- connections ---------------------------------------------------------------------------------------------

    async def _way(self, place: Place, provider: Provider) -> Way:
        idle = self._idle.get(_door(place), [])
        now = asyncio.get_running_loop().time()
        while idle:
            way = idle.pop()
            if way.connection.free and now - way.connection.idle_since < KEPT_SECONDS:
                self._busy.add(way.connection)
                return way
            way.connection.close()
        route = route_to(place)
        try:
            connection = await dial(route, await self._trust() if needs_tls(route) else None)
        except (Broken, Late) as exc:
            raise _nobody(provider, str(exc)) from None
        self._busy.add(connection)
        return Way(connection, route)

    async def _trust(self) -> ssl.SSLContext:
        async with self._making:
            if self._tls is None:
                # In a thread: the reading of certificates would hold up everybody else on the loop.
                self._tls = await asyncio.to_thread(trust)
        return self._tls

    def _give_back(self, place: Place, way: Way) -> None:
        connection = way.connection
        self._busy.discard(connection)
        idle = self._idle.setdefault(_door(place), [])
        if connection.free and len(idle) < KEPT_CONNECTIONS:
            connection.idle_since = asyncio.get_running_loop().time()
            idle.append(way)
        else:
            connection.close()


class Listener:
    """Reads an answer out of a connection and passes on what it says."""

    def __init__(self, reader: Reader, hear: Callable[[Heard], None]) -> None:
        self._reader = reader
        self._hear = hear

    async def hear_all(self, connection: Connection, *, patience: float) -> None:
        try:
            if "event-stream" not in connection.headers.get("content-type", "event-stream"):
                self._take(await _whole(connection, patience))
                return
            stream = Events(limit=LARGEST_EVENT)
            while data := await connection.read(patience=patience):
                for event in stream.feed(data):
                    if event.data:
                        self._take(event.data)
        except TooLong:
            raise ModelTrouble(f"it sent an event larger than {LARGEST_EVENT} bytes", kind="bad_request") from None

    def _take(self, data: bytes) -> None:
        for heard in understood(self._reader, data):
            self._hear(heard)


def understood(reader: Reader, data: bytes) -> tuple[Heard, ...]:
    """What an event says. Whatever a server may send, the reader's surprise is trouble with the model, not with us."""
    try:
        return tuple(reader.read(data))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        raise ModelTrouble("it sent something that is no answer of this API", kind="dropped") from None


def _door(place: Place) -> tuple[str, str, int]:
    return place.scheme, place.host, place.port


def _head(route: Route, place: Place, headers: dict[str, str], size: int, provider: Provider) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        where = f"a header of models.providers.{provider.name}, or its key,"
        raise ModelTrouble(f"{where} holds a line break; write it on one line", kind="bad_request")
    first = f"POST {route.prefix}{place.target} HTTP/1.1\r\nhost: {place.named}\r\n{route.extra}"
    return f"{first}{lines}content-length: {size}\r\n\r\n".encode()


async def _start(connection: Connection, patience: float) -> bytes:
    data = b""
    while len(data) <= LARGEST_REFUSAL and (more := await connection.read(patience=patience)):
        data += more
    return data[:LARGEST_REFUSAL]


async def _whole(connection: Connection, patience: float) -> bytes:
    """The answer of a server that does not stream."""
    data = bytearray()
    while more := await connection.read(patience=patience):
        data += more
        if len(data) > LARGEST_EVENT:
            raise TooLong
    return bytes(data)


def _nobody(provider: Provider, why: str) -> ModelTrouble:
    where = _where(provider)
    text = f"{where}: {why}" if why else f"nobody answers at {where}; is it running, and is that its address?"
    return ModelTrouble(text, kind="network")


def _failed(provider: Provider) -> ModelTrouble:
    return ModelTrouble(f"the connection to {_where(provider)} failed", kind="network")


def _broken_off() -> ModelTrouble:
    return ModelTrouble("the answer broke off in the middle", kind="dropped")


def _where(provider: Provider) -> str:
    return provider.base_url.partition("?")[0]


def _without(key: str | None, trouble: ModelTrouble) -> ModelTrouble:
    """Some providers quote the key they refuse."""
    if key and key in str(trouble):
        trouble.args = (str(trouble).replace(key, "***"),)
    return trouble
