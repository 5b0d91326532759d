"""uvicorn's HTTP protocol, with fewer writes, and bounds on what a peer may send before its request is whole.

Its parser adds to a header by copying: without a bound, one endless line costs memory and quadratic time.
"""

import asyncio
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .flow_control import ReadFlowControl
from .http_limits import STAGE_BODY, STAGE_HEAD, STAGE_SILENT, BoundedConfig, evict_connections
from .peers import peer_key
from .response_sender import ResponseSender
from .upgrades import is_websocket_request, strip_upgrade
from .write_coalescing import coalesce_writes

SMALL_INPUT: Final = 1024  # bytes that are parsed as they come: they hold one request, seldom a few
PARSE_PIECE: Final = 4096  # bytes parsed at once where it is not known how many requests they hold
MAX_FREE_LINES: Final = 16  # in a piece of a body without a length: so few chunks cost next to nothing
END_OF_HEAD: Final = b"\r\n\r\n"
MAX_HELD_BYTES: Final = 64 << 10  # bytes kept behind requests that wait for their turn before we stop reading
DROP_PER_TURN: Final = 256 << 10  # bytes of an unwanted body dropped as they come; the next ones wait for a turn
REFUSAL_GRACE: Final = 1.0  # seconds a refused peer gets to read why


class _RequestRefused(Exception):
    """The parser must not continue; the answer has been sent."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. A request that is not whole in time, or too large, is refused, and the connection ends.

    All that is written in one turn of the loop is sent in one write. One timer checks a connection's idle time: one for
    each request, as uvicorn has it, costs more than reading the request does.
    """

    config: BoundedConfig
    flow: ReadFlowControl
    idle_since: float | None = None
    close_after_response = False  # with the answer that is given now
    peer = ""

    _bytes_left = 0  # bytes that may still come before the head, or the next piece of the body, is whole
    _between_requests = True
    _input_closed = False  # refused, ended, or another protocol's
    _unparsed, _unparsed_offset = b"", 0  # received behind requests that wait for their turn; from there on not parsed
    _drops_input = False  # ended, and still read: what comes is dropped
    _dropped_bytes = 0
    _body_bytes = 0
    _stage, _stage_since = STAGE_SILENT, 0.0
    _request_since = 0.0  # when the last request began
    _deadline: asyncio.TimerHandle | None = None
    _active_cycle: RequestResponseCycle | None = None  # the request that is being answered, or was last
    _idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        transport = coalesce_writes(transport, self.loop)
        super().connection_made(transport)
        self.flow = ReadFlowControl(transport, self)
        self._bounds = self.config.bounds
        self._bytes_left = self._bounds.head_bytes
        self.peer = peer_key(self.client)
        if self.config.is_closing:
            self.evict()
        elif len(self.connections) > self.config.max_connections and not evict_connections(self.connections):
            self._refuse(503, "as many connections as this server takes are open; try again later")
        else:
            self._start_stage(STAGE_SILENT, self._bounds.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._close_input()
        self.config.request_turns.discard(self)
        self.config.drop_turns.discard(self)
        self._disconnect_active()  # with another request behind it, uvicorn disconnects that one alone
        self.pipeline.clear()
        self._stop_idle_timer()

    def evict(self) -> None:
        self._close_input()
        (self.transport.close if self.flow.unread_since is None else self.transport.abort)()

    @property
    def waits_since(self) -> float | None:
        """When it began to wait for its peer, who owes the rest of a request."""
        return None if self._deadline is None else self._stage_since

    @property
    def unread_since(self) -> float | None:
        """Since when its peer reads too slowly, once that is long."""
        since = self.flow.unread_since
        return since if since is not None and self.loop.time() - since > self._bounds.unread_seconds else None

    @property
    def queued_since(self) -> float | None:
        """Since when what its peer asked for beforehand waits for its turn."""
        return self._request_since if self.has_held_input else None

    @property
    def listens_since(self) -> float | None:
        """Since when an answer to a GET has been running: a stream, which its client opens again when it is lost."""
        active = self._active_cycle
        streams = active is not None and active.response_started and not active.response_complete
        return self._request_since if streams and active is not None and active.scope["method"] == "GET" else None

    @property
    def has_held_input(self) -> bool:
        """Whether something that was read waits for its turn."""
        return bool(self.pipeline or self._unparsed) and not self._input_closed

    # ---- input ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if len(data) > SMALL_INPUT or not self._between_requests or self._unparsed or self.pipeline:
            self._parse_pieces(data)
            return
        if not self._parse(data):
            self._bytes_left -= len(data)
            self._start_deadline()

    def _parse(self, data: bytes) -> bool:
        """Whether the connection is between two requests then."""
        try:
            self.parser.feed_data(data)
        except HttpParserError:
            if not self._input_closed:
                self.logger.warning("Invalid HTTP request received.")
                self._refuse(400, "Invalid HTTP request received.")
        except HttpParserUpgrade as upgrade:
            self._change_protocol(data[upgrade.args[0] :])
        return self._between_requests

    def _change_protocol(self, rest: bytes) -> None:
        """A head has come that asks for another protocol; `rest` came behind it."""
        method = self.scope["method"]
        if method == "CONNECT":
            self._refuse(400, "this server is no proxy for others")
        elif self._is_responding or not self._should_upgrade():  # requests before it still use the connection
            head = strip_upgrade(method, self.url, self.scope["http_version"], self.headers)
            self.parser = HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + rest)
        elif is_websocket_request(method, self.headers):
            self.handle_websocket_upgrade()
        else:
            self._refuse(400, "a request for a WebSocket is a GET without a body")

    def _parse_pieces(self, data: bytes) -> None:
        """Parse piece by piece, as far as requests get their turn."""
        if self._input_closed:
            self._drop_input(len(data))
            return
        at, self._unparsed_offset = self._unparsed_offset, 0
        if self._unparsed:
            data, at = (self._unparsed[at:] + data, 0) if data else (self._unparsed, at)
            self._unparsed = b""
        while at < len(data):
            if self.pipeline:
                self._unparsed, self._unparsed_offset = data, at
                if len(data) - at > MAX_HELD_BYTES:
                    self.flow.pause_reading()
                break
            size = self._next_piece_size(data, at)
            if size <= 0:
                self._refuse(431, f"the headers of a request may take {self._bounds.head_bytes} bytes")
                return
            piece = data[at : at + size]
            at += size
            self._bytes_left -= len(piece)
            before = self.scope if self._between_requests else None
            if self._parse(piece):
                if self.scope is not before:  # else they were line ends between two requests
                    self._bytes_left = self._bounds.head_bytes
            else:
                self._start_deadline()
            if self._input_closed or self.transport.is_closing() or self._yield_turn(data, at, len(piece)):
                return

    def _yield_turn(self, data: bytes, at: int, parsed: int) -> bool:
        """Whether the rest of `data` waits for a turn: each chunk of a body, however small, costs time."""
        if at >= len(data) or self._between_requests or not self._has_chunked_body():
            return False
        if data.count(b"\n", at - parsed, at) < MAX_FREE_LINES:
            return False
        self._unparsed, self._unparsed_offset = data, at
        self.flow.pause_reading()
        self.config.request_turns.add(self)
        return True

    def _drop_input(self, size: int) -> None:
        """Count what comes behind an answer that did not wait for it, and take the next of it not at once."""
        self._dropped_bytes += size
        if self._dropped_bytes > self._bounds.max_dropped_bytes:
            self._close_input()
            self.transport.abort()
        elif self._dropped_bytes > DROP_PER_TURN:
            self.flow.pause_reading()
            self.config.drop_turns.add(self)

    def _has_chunked_body(self) -> bool:
        """Whether the request that is not whole has a body without a length."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            return False
        return not any(name == b"content-length" for name, _ in self.scope["headers"])

    def _next_piece_size(self, data: bytes, at: int) -> int:
        """How many bytes to parse next: one head, what is left of a body, or a little."""
        left = self._bytes_left
        if self.cycle is not None and self.cycle.scope is self.scope and not self._between_requests:
            lengths = [int(value) for name, value in self.scope["headers"] if name == b"content-length"]
            return max(lengths[0] - self._body_bytes, SMALL_INPUT) if lengths else min(PARSE_PIECE, left)
        end = data.find(END_OF_HEAD, at, at + left)
        if end >= 0:
            return end + len(END_OF_HEAD) - at
        # Else the end may have begun in what came before.
        if len(data) - at > left and (self._between_requests or data[at] not in END_OF_HEAD):
            return 0  # it is too long, with any end: not worth reading
        return min(SMALL_INPUT, left) if b"\n" in data[at : at + left] else left

    def resume_requests(self) -> None:
        """Begin what was held back: its turn has come. While a request is answered, the next one waits for its end."""
        if self._input_closed or self.transport.is_closing():
            return
        if self.pipeline:
            if self._is_responding:
                return
            self._start_asgi_task(*self.pipeline.pop())
        self._parse_pieces(b"")
        self.flow.resume_reading()

    def resume_drop(self) -> None:
        """Take more of what is dropped: its turn has come."""
        if not self.transport.is_closing() and (self._drops_input or not self._input_closed):
            self.flow.resume_reading()

    @property
    def _is_responding(self) -> bool:
        return self._active_cycle is not None and not self._active_cycle.response_complete

    # ---- for the parser ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._between_requests = False
        self._request_since = self.loop.time()
        self.idle_since = None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._deadline is not None:
            self._end_stage()
        if len(self.headers) > self._bounds.max_headers:
            self._refuse_headers()
            raise _RequestRefused
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self.headers = []  # what comes behind a chunked body is no header of the request

    def on_body(self, body: bytes) -> None:
        if self._deadline is not None:
            self._bytes_left = self._bounds.head_bytes
            self._body_bytes += len(body)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:  # of an upgrade, which has none
            return
        if cycle.response_complete:
            self.config.pending_bodies.remove(self)  # what is dropped takes no memory
            self._drop_input(len(body))
            return
        if self._deadline is not None:
            self.config.pending_bodies.set(self, self._body_bytes)
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._between_requests = True
        if self._deadline is not None:
            self._end_stage()
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope and not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def handle_websocket_upgrade(self) -> None:
        self._close_input()  # from here on another protocol has the connection
        super().handle_websocket_upgrade()
        self._stop_idle_timer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active_cycle = cycle
        super()._start_asgi_task(cycle, lambda scope, receive, _: app(scope, receive, ResponseSender(cycle)))

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

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _check_idle(self) -> None:
        now = self.loop.time()
        left = self.timeout_keep_alive - (now - (self.idle_since or now))
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._check_idle)
        else:
            self.timeout_keep_alive_handler()

    # ---- time ----------------------------------------------------------------------------------------------------

    def _start_deadline(self) -> None:
        """A request has begun and is not whole: from here on its time runs."""
        if self._input_closed:
            return
        cycle = self.cycle
        if len(self.headers) > self._bounds.max_headers:
            self._refuse_headers()
        elif cycle is not None and cycle.scope is self.scope:
            if self._stage != STAGE_BODY or self._deadline is None:
                self._bytes_left = self._bounds.head_bytes
                self._body_bytes, self._dropped_bytes = len(cycle.body), 0
                self._start_stage(STAGE_BODY, self._bounds.body_seconds)
                self.config.pending_bodies.set(self, self._body_bytes)
        elif self._stage != STAGE_HEAD or self._deadline is None:
            self._start_stage(STAGE_HEAD, self._bounds.head_seconds)

    def _start_stage(self, stage: str, seconds: float) -> None:
        self._end_stage()
        self._stage, self._stage_since = stage, self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._on_deadline)
        self.config.pending_by_stage[stage].add(self)

    def _end_stage(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self.config.pending_by_stage[self._stage].discard(self)
            if self._stage == STAGE_BODY:
                self.config.pending_bodies.remove(self)

    def _on_deadline(self) -> None:
        bounds = self._bounds
        if self._stage == STAGE_SILENT:
            self.evict()
        elif self._stage == STAGE_HEAD and (self._is_responding or self.flow.read_paused):  # its turn has not come yet
            self._deadline = self.loop.call_later(bounds.head_seconds, self._on_deadline)
        elif self._stage == STAGE_HEAD:
            self._refuse(408, f"the headers did not arrive within {bounds.head_seconds:g} s")
        else:
            answered = self.cycle.response_complete
            earned = 0.0 if answered else self._body_bytes / bounds.body_rate
            left = self._stage_since + bounds.body_seconds + earned - self.loop.time()
            if not answered and (self.flow.read_paused or self.cycle.waiting_for_100_continue):  # we do not read
                left = bounds.body_seconds
            if left > 0:
                self._deadline = self.loop.call_later(left, self._on_deadline)
            else:
                self._refuse(408, f"the body did not arrive within {bounds.body_seconds:g} s")

    # ---- the end -------------------------------------------------------------------------------------------------

    def _refuse_headers(self) -> None:
        self._refuse(431, f"a request may have {self._bounds.max_headers} headers")

    def _refuse(self, status: int, reason: str) -> None:
        """Answer with the reason, where an answer is due, and close: soon, so that the peer can read it."""
        if self._input_closed:
            return
        due, behind = self._is_response_due(), self._is_behind_response()
        self._close_input()
        if behind:
            self.pipeline.clear()
            self.flow.pause_reading()
            self.close_after_response = True
            return
        if not due:
            self.transport.abort()
            return
        self._disconnect_active()
        text = reason.encode()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(text) + text)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closing on unread bytes would take back what we just sent. Not reading them costs us nothing.
        self.transport.write_eof()
        self.flow.pause_reading()
        self._deadline = self.loop.call_later(REFUSAL_GRACE, self.transport.abort)

    def abandon_body(self) -> bool:
        """End it if its request was answered before the last chunk came, whose place is not known: to look for it
        would cost more than a new connection does."""
        if self._between_requests or self._input_closed or self.pipeline or not self._has_chunked_body():
            return False
        self._close_input()
        self._unparsed, self._dropped_bytes, self._drops_input = b"", 0, True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._deadline = self.loop.call_later(self._bounds.body_seconds, self.transport.abort)
            self.flow.resume_reading()
        else:
            self.transport.close()
        return True

    def _is_behind_response(self) -> bool:
        """Whether what is wrong came behind a request that is still answered: its answer is another's, and is given."""
        in_body = self.cycle is not None and self.cycle.scope is self.scope and not self._between_requests
        return self._is_responding and not (in_body and self.cycle is self._active_cycle)

    def _is_response_due(self) -> bool:
        """Whether the next thing on the wire is the answer to the request that is not whole."""
        active = self._active_cycle
        if active is None:
            return True
        in_body = self.cycle.scope is self.scope and not self._between_requests
        if active.response_complete:
            return not in_body
        return in_body and active is self.cycle and not active.response_started

    def _disconnect_active(self) -> None:
        if self._active_cycle is not None and not self._active_cycle.response_complete:
            self._active_cycle.disconnected = True
            self._active_cycle.message_event.set()

    def _close_input(self) -> None:
        self._input_closed, self._between_requests = True, False
        self._end_stage()
