"""uvicorn's HTTP protocol, with bounds on what a peer may send before its request is whole.

Its parser keeps a header until it ends, and adds to it by copying: without a bound, one endless line costs memory and
quadratic time. Nothing here costs a whole request that comes in one piece more than a few comparisons.
"""

import asyncio
from typing import Any, Final

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .fair_queue import Turns
from .http_limits import Bounds, make_room
from .peers import Begun, Waiting, peer_of
from .read_flow import Flow
from .upgrades import opens_websocket, plain_head

SMALL: Final = 1024  # bytes that are parsed as they come: they hold one request, seldom a few
PIECE: Final = 4096  # bytes parsed at once where nobody knows how many requests they hold
FEW_LINES: Final = 16  # in a piece of a body without a length: so few chunks cost next to nothing
END_OF_HEAD: Final = b"\r\n\r\n"
HELD: Final = 64 << 10  # bytes kept behind requests that wait for their turn before we stop reading
UNWANTED: Final = 256 << 10  # bytes of a body nobody wants that are dropped as they come; the next ones wait for a turn
DROP_PAUSE: Final = 0.005  # seconds between two such turns: some 50 MB a second, of all connections together
GOODBYE: Final = 1.0  # seconds a refused peer gets to read why

SILENT: Final = "silent"  # nothing has come: a new connection
HEAD: Final = "head"
BODY: Final = "body"


class Config(uvicorn.Config):
    """Also what the connections of one server share."""

    def __init__(self, app: Any, *, bounds: Bounds, most: int, **options: Any) -> None:
        super().__init__(app, **options)
        self.bounds = bounds
        self.most = most
        """Connections at once; the next one ends some that are idle, or is not taken."""
        self.turns = Turns(BoundedHttp.go_on)
        self.drops = Turns(BoundedHttp.read_on, pause=DROP_PAUSE)
        self.waiting = {
            SILENT: Waiting(of_a_peer=bounds.silent),
            HEAD: Waiting(of_a_peer=bounds.begun, in_all=bounds.begun_in_all),
            BODY: Waiting(of_a_peer=bounds.bodies),
        }
        self.bodies = Begun(most=bounds.body_bytes)


class _Refused(Exception):
    """The parser must not go on; the peer has been told."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. A request that is not whole in time, or too large, is refused, and the connection ends."""

    config: Config
    flow: Flow
    idle_since: float | None = None
    ends = False  # with the answer that is given now
    peer = ""

    _left = 0
    """Bytes that may still come before the head, or the next piece of the body, is whole."""
    _whole = True
    """Between two requests."""
    _over = False
    """Refused, ended, or another protocol's."""
    _rest = b""
    """Received behind requests that wait for their turn, and, from `_at` on, not parsed yet."""
    _at = 0
    _drops = False
    """Ended, and still read: what comes is dropped."""
    _dropped = 0
    _body = 0
    _stage = SILENT
    _since = 0.0
    _begun = 0.0  # when the last request began
    _deadline: asyncio.TimerHandle | None = None
    _active: RequestResponseCycle | None = None
    """The request that is being answered, or was last; set by who begins one."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = Flow(transport, self)
        self._bounds = self.config.bounds
        self._left = self._bounds.head_bytes
        self.peer = peer_of(self.client)
        if len(self.connections) > self.config.most and not make_room(self.connections):
            self._refuse(503, "as many connections as this server takes are open; try again later")
            return
        self._wait(SILENT, self._bounds.head_seconds)
        self.config.waiting[SILENT].add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._hear_no_more()
        self.config.turns.discard(self)
        self.config.drops.discard(self)
        active = self._active
        if active is not None and not active.response_complete:  # with another behind it, uvicorn tells that one alone
            active.disconnected = True
            active.message_event.set()
        self.pipeline.clear()

    def make_way(self) -> None:
        self._hear_no_more()
        if self.flow.unread_since is None:
            self.transport.close()
        else:
            self.transport.abort()

    @property
    def waits_since(self) -> float | None:
        """When it began to wait for its peer, who owes the rest of a request."""
        return None if self._deadline is None else self._since

    @property
    def unread_since(self) -> float | None:
        """Since when its peer reads too slowly, once that is long."""
        since = self.flow.unread_since
        late = since is not None and self.loop.time() - since > self._bounds.unread_seconds
        return since if late else None

    @property
    def queued_since(self) -> float | None:
        """Since when what its peer asked for beforehand waits for its turn."""
        return self._begun if self.holds_back else None

    @property
    def listens_since(self) -> float | None:
        """Since when an answer to a GET goes on: a stream, which is begun again by who loses it."""
        active = self._active
        streams = active is not None and active.response_started and not active.response_complete
        return self._begun if streams and active is not None and active.scope["method"] == "GET" else None

    @property
    def holds_back(self) -> bool:
        """Whether something that was read waits for its turn."""
        return bool(self.pipeline or self._rest) and not self._over

    # ---- what comes ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if len(data) > SMALL or not self._whole or self._rest or self.pipeline:
            self._take(data)
            return
        if not self._parse(data):
            self._left -= len(data)
            self._mind_unfinished()

    def _parse(self, data: bytes) -> bool:
        """Whether it stands between two requests then."""
        try:
            self.parser.feed_data(data)
        except HttpParserError:
            if not self._over:
                self.logger.warning("Invalid HTTP request received.")
                self._refuse(400, "Invalid HTTP request received.")
        except HttpParserUpgrade as upgrade:
            self._change_protocol(data[upgrade.args[0] :])
        return self._whole

    def _change_protocol(self, rest: bytes) -> None:
        """A head has come that asks for it; `rest` is what came behind."""
        method = self.scope["method"]
        if method == "CONNECT":
            self._refuse(400, "this server is no proxy for others")
        elif self._is_answering or not self._should_upgrade():  # requests before it still use the connection
            head = plain_head(method, self.url, self.scope["http_version"], self.headers)
            self.parser = HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + rest)
        elif opens_websocket(method, self.headers):
            self.handle_websocket_upgrade()
        else:
            self._refuse(400, "a request for a WebSocket is a GET without a body")

    def _take(self, data: bytes) -> None:
        """Parse piece by piece, as far as requests get their turn."""
        if self._over:
            self._drop(len(data))
            return
        at, self._at = self._at, 0
        if self._rest:
            data, at = (self._rest[at:] + data, 0) if data else (self._rest, at)
            self._rest = b""
        while at < len(data):
            if self.pipeline:
                self._rest, self._at = data, at
                if len(data) - at > HELD:
                    self.flow.pause_reading()
                break
            size = self._piece(data, at)
            if size <= 0:
                self._refuse(431, f"the headers of a request may take {self._bounds.head_bytes} bytes")
                return
            piece = data[at : at + size]
            at += size
            self._left -= len(piece)
            before = self.scope if self._whole else None
            if self._parse(piece):
                if self.scope is not before:  # else they were line ends between two requests
                    self._left = self._bounds.head_bytes
            else:
                self._mind_unfinished()
            if self._over or self.transport.is_closing() or self._lets_others_go_first(data, at, len(piece)):
                return

    def _lets_others_go_first(self, data: bytes, at: int, done: int) -> bool:
        """Whether the rest of `data` waits for a turn: each chunk of a body, however small, costs time."""
        if at >= len(data) or self._whole or not self._has_chunks():
            return False
        if data.count(b"\n", at - done, at) < FEW_LINES:
            return False
        self._rest, self._at = data, at
        self.flow.pause_reading()
        self.config.turns.add(self)
        return True

    def _drop(self, size: int) -> None:
        """Count what comes behind an answer that did not wait for it, and take the next of it not at once."""
        self._dropped += size
        if self._dropped > self._bounds.drained:
            self._hear_no_more()
            self.transport.abort()
        elif self._dropped > UNWANTED:
            self.flow.pause_reading()
            self.config.drops.add(self)

    def _has_chunks(self) -> bool:
        """Whether the request that is not whole has a body without a length."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            return False
        return not any(name == b"content-length" for name, _ in self.scope["headers"])

    def _piece(self, data: bytes, at: int) -> int:
        """How many bytes to parse next: one head, what is left of a body, or a little."""
        left = self._left
        if self.cycle is not None and self.cycle.scope is self.scope and not self._whole:
            lengths = [int(value) for name, value in self.scope["headers"] if name == b"content-length"]
            return max(lengths[0] - self._body, SMALL) if lengths else min(PIECE, left)
        end = data.find(END_OF_HEAD, at, at + left)
        if end >= 0:
            return end + len(END_OF_HEAD) - at
        cut = not self._whole and data[at] in END_OF_HEAD  # what came before may be the beginning of that end
        if len(data) - at > left and not cut:  # it is too long, whatever comes: not worth reading
            return 0
        return min(SMALL, left) if b"\n" in data[at : at + left] else left

    def go_on(self) -> None:
        """Begin what was held back: its turn has come. While a request is answered, the next one waits for its end."""
        if self._over or self.transport.is_closing():
            return
        if self.pipeline:
            if self._is_answering:
                return
            self._start_asgi_task(*self.pipeline.pop())
        self._take(b"")
        self.flow.resume_reading()

    def read_on(self) -> None:
        """Take more of what is dropped: its turn has come."""
        if not self.transport.is_closing() and (self._drops or not self._over):
            self.flow.resume_reading()

    @property
    def _is_answering(self) -> bool:
        return self._active is not None and not self._active.response_complete

    # ---- what the parser says ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._whole = False
        self._begun = self.loop.time()
        self.idle_since = None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._deadline is not None:
            self._stop_waiting()
        if len(self.headers) > self._bounds.headers:
            self._refuse_headers()
            raise _Refused
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self.headers = []  # what comes behind a chunked body is no header of the request

    def on_body(self, body: bytes) -> None:
        if self._deadline is not None:
            self._left = self._bounds.head_bytes
            self._body += len(body)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:  # of an upgrade, which has none
            return
        if cycle.response_complete:
            self.config.bodies.remove(self)  # what is dropped takes no memory
            self._drop(len(body))
            return
        if self._deadline is not None:
            self.config.bodies.set(self, self._body)
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._whole = True
        if self._deadline is not None:
            self._stop_waiting()
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope and not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def handle_websocket_upgrade(self) -> None:
        self._hear_no_more()  # from here on the connection is another's
        super().handle_websocket_upgrade()

    # ---- time ----------------------------------------------------------------------------------------------------

    def _mind_unfinished(self) -> None:
        """A request has begun and is not whole: from here on its time runs."""
        if self._over:
            return
        cycle = self.cycle
        if len(self.headers) > self._bounds.headers:
            self._refuse_headers()
        elif cycle is not None and cycle.scope is self.scope:
            if self._stage != BODY or self._deadline is None:
                self._wait(BODY, self._bounds.body_seconds)
                self._left = self._bounds.head_bytes
                self._body, self._dropped = len(cycle.body), 0
                self.config.waiting[BODY].add(self)
                self.config.bodies.set(self, self._body)
        elif self._stage != HEAD or self._deadline is None:
            self._wait(HEAD, self._bounds.head_seconds)
            self.config.waiting[HEAD].add(self)

    def _wait(self, stage: str, seconds: float) -> None:
        self._stop_waiting()
        self._stage = stage
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self.config.waiting[self._stage].discard(self)
            if self._stage == BODY:
                self.config.bodies.remove(self)

    def _late(self) -> None:
        bounds = self._bounds
        if self._stage == SILENT:
            self.make_way()
        elif self._stage == HEAD and (self._is_answering or self.flow.read_paused):  # its turn has not come yet
            self._deadline = self.loop.call_later(bounds.head_seconds, self._late)
        elif self._stage == HEAD:
            self._refuse(408, f"the headers did not arrive within {bounds.head_seconds:g} s")
        else:
            answered = self.cycle.response_complete
            earned = 0.0 if answered else self._body / bounds.body_rate
            left = self._since + bounds.body_seconds + earned - self.loop.time()
            if not answered and (self.flow.read_paused or self.cycle.waiting_for_100_continue):  # we do not read
                left = bounds.body_seconds
            if left > 0:
                self._deadline = self.loop.call_later(left, self._late)
            else:
                self._refuse(408, f"the body did not arrive within {bounds.body_seconds:g} s")

    # ---- the end -------------------------------------------------------------------------------------------------

    def _refuse_headers(self) -> None:
        self._refuse(431, f"a request may have {self._bounds.headers} headers")

    def _refuse(self, status: int, reason: str) -> None:
        """Say why, where an answer is due, and close: soon, so that the peer can read it."""
        if self._over:
            return
        due, behind = self._is_due(), self._is_behind()
        self._hear_no_more()
        if behind:
            self.pipeline.clear()
            self.flow.pause_reading()
            self.ends = True
            return
        if not due:
            self.transport.abort()
            return
        if self._active is not None:
            self._active.disconnected = True
            self._active.message_event.set()
        said = reason.encode()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(said) + said)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closing on unread bytes would take back what we just said. Not reading them costs us nothing.
        self.transport.write_eof()
        self.flow.pause_reading()
        self._deadline = self.loop.call_later(GOODBYE, self.transport.abort)

    def leave_unread(self) -> bool:
        """End it if its request was answered before the last chunk came, of which nobody can say where it will be.

        To look for it would cost more than a new connection does.
        """
        if self._whole or self._over or self.pipeline or not self._has_chunks():
            return False
        self._hear_no_more()
        self._rest, self._dropped, self._drops = b"", 0, True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._deadline = self.loop.call_later(self._bounds.body_seconds, self.transport.abort)
            self.flow.resume_reading()
        else:
            self.transport.close()
        return True

    def _is_behind(self) -> bool:
        """Whether what is wrong came behind a request that is still answered: its answer is another's, and is given."""
        in_body = self.cycle is not None and self.cycle.scope is self.scope and not self._whole
        return self._is_answering and not (in_body and self.cycle is self._active)

    def _is_due(self) -> bool:
        """Whether the next thing on the wire is the answer to the request that is not whole."""
        active = self._active
        if active is None:
            return True
        in_body = self.cycle.scope is self.scope and not self._whole
        if active.response_complete:
            return not in_body
        return in_body and active is self.cycle and not active.response_started

    def _hear_no_more(self) -> None:
        self._over, self._whole = True, False
        self._stop_waiting()
