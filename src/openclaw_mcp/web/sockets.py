"""uvicorn's HTTP protocol, with all that is written in one turn of the loop sent in one write."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..core.cork import corked


class CorkedHttp(HttpToolsProtocol):
    """The head and the body of an answer leave together, and one timer minds a connection's idle time.

    uvicorn makes and drops a timer for each request, which costs more than reading the request does.
    """

    _idle_since: float | None = None
    _minder: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(corked(transport, self.loop))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._minder is not None:
            self._minder.cancel()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        if self._minder is not None:  # from here on the connection is another's
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
