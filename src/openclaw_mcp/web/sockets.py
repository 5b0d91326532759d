"""uvicorn's protocols, with all that is written in one turn of the loop sent in one write."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

ENOUGH: Final = 64 << 10  # bytes gathered before they are written at once: flow control must see them


class CorkedHttp(HttpToolsProtocol):
    """The head and the body of an answer leave together."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(_corked(transport, self.loop))


class CorkedWebSocket(WebSocketsSansIOProtocol):
    def connection_made(self, transport: Any) -> None:
        super().connection_made(_corked(transport, self.loop))


class _Cork:
    """A transport that gathers what is written until the loop comes round, or until there is enough of it."""

    __slots__ = ("_loop", "_pieces", "_size", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > ENOUGH:
            self._flush()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._transport.abort()

    def _flush(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _corked(transport: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Transport:
    """A WebSocket begins as HTTP: what is corked already stays as it is."""
    return cast(asyncio.Transport, transport if isinstance(transport, _Cork) else _Cork(transport, loop))
