"""uvicorn's HTTP protocol, with all that is written in one turn of the loop sent in one write."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from .http_protocol import BoundedHttp
from .write_coalescing import coalesce_writes


class CoalescingHttp(BoundedHttp):
    """The head and the body of an answer leave together, and one timer minds a connection's idle time.

    uvicorn makes and drops a timer for each request, which costs more than reading the request does.
    """

    _idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(coalesce_writes(transport, self.loop))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = _WholeCycle  # uvicorn makes it, and offers no place to say of which class
        self._active_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        if self._idle_timer is not None:  # from here on the connection is another's
            self._idle_timer.cancel()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing() or (not self._between_requests and self.abandon_body()):
            return
        if self.close_after_response:
            self.transport.close()
            return
        if self.pipeline or self._unparsed:
            self.config.request_turns.add(self)
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        self.idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def _check_idle(self) -> None:
        now = self.loop.time()
        left = self.timeout_keep_alive - (now - (self.idle_since or now))
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._check_idle)
        else:
            self.timeout_keep_alive_handler()


class _WholeCycle(RequestResponseCycle):
    """A request on its way. As the app's `send` it also gives a body, and takes an answer, that is there as a whole.

    The usual way asks for both in messages, each awaited and looked at by itself.
    """

    async def run_asgi(self, app: Any) -> None:
        await super().run_asgi(lambda scope, receive, _: app(scope, receive, self))

    async def __call__(self, message: Any) -> None:
        await self.send(message)

    def take_body(self) -> bytes | None:
        """The request's body. None: the usual way is needed."""
        if self.more_body or self.disconnected or self.response_complete or self.waiting_for_100_continue:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return body

    def send_whole(self, status: int, head: bytes, body: bytes) -> bool:
        """Send `head`, lines each with its end, and the body behind it. False: the usual way is needed."""
        if self.response_started or self.disconnected or not self.keep_alive or self.flow.write_paused:
            return False
        if self.access_log or self.default_headers or self.scope["method"] == "HEAD":
            return False
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], head, body))
        self.message_event.set()
        self.on_response()
        return True
