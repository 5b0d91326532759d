"""uvicorn's HTTP protocol, with all that is written in one turn of the loop sent in one write."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ENOUGH: Final = 64 << 10  # bytes gathered before they are written at once: flow control must see them


class CorkedHttp(HttpToolsProtocol):
    """The head and the body of an answer leave together, and one timer minds a connection's idle time.

    uvicorn makes and drops a timer for each request, which costs more than reading the request does.
    """

    _idle_since: float | None = None
    _minder: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast(asyncio.Transport, _Cork(transport, self.loop)))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._minder is not None:
            self._minder.cancel()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()
        if self._minder is None:
            self._minder = self.loop.call_later(self.timeout_keep_alive, self._mind)

    def _unset_keepalive_if_required(self) -> None:
        """Something came: the connection is not idle."""
        self._idle_since = None

    def _mind(self) -> None:
        now = self.loop.time()
        left = self.timeout_keep_alive - (now - (self._idle_since or now))
        if left > 0:
            self._minder = self.loop.call_later(left, self._mind)
        else:
            self.timeout_keep_alive_handler()


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

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._size

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
