"""What an app answers a request with under our web server."""

from collections.abc import Awaitable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class ResponseSender:
    """The `send` of a request's app. An answer that is there as a whole is written at once; see decision 77.

    Not an attribute of `cycle`: a circle of references for each request would be left to the garbage collector.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def __call__(self, message: Any) -> Awaitable[None]:
        return self._cycle.send(message)

    def send_whole(self, status: int, content_type: bytes, body: bytes) -> bool:
        """Send an answer with no other headers. False: it must be sent as messages."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused:
            return False
        if cycle.access_log or cycle.default_headers or cycle.scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (STATUS_LINE[status], content_type, len(body))
        cycle.transport.write(head + body)
        cycle.message_event.set()
        cycle.on_response()
        return True
