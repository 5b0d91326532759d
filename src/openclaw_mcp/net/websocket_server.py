"""A server's end of a WebSocket: a stranger until it is known, whole texts past the codec, messages in turns."""

import asyncio
from typing import Any, Final

from websockets.http11 import Response
from websockets.server import ServerProtocol

from .frame_fastpath import ANY_SIZE, ShortWay, framed, unmasked
from .peers import Waiting, peer_of
from .websocket import Socket

IN_A_TURN: Final = 128  # messages of one read that are heard before others get their turn
MOST_LATER: Final = 64 << 10  # bytes that wait for their turn before we stop reading
LARGEST_OF_A_STRANGER: Final = 65_536  # bytes of a message: nobody unknown makes us hold more
MOST_FRAMES: Final = 256  # of a stranger, that are no whole texts: pings, fragments
MOST_STRANGERS: Final = 256  # connections of one peer that are not known yet; the next one ends the oldest
MOST_STRANGERS_IN_ALL: Final = 1024
POLICY: Final = 1008
TOO_LARGE: Final = 1009
TRY_LATER: Final = 1013


def strangers() -> Waiting:
    """The connections of one server whose peers are not known yet."""
    return Waiting(of_a_peer=MOST_STRANGERS, in_all=MOST_STRANGERS_IN_ALL)


class Accepted(ShortWay, Socket):
    """A WebSocket the web server hands over once it has seen the upgrade. `connections` are the server's own.

    It is a stranger, among `strangers`, until `know` is called: it may say little, and gives way to newer ones.
    """

    _masked = True
    _in_a_turn = IN_A_TURN
    _largest = LARGEST_OF_A_STRANGER
    peer = ""

    def __init__(self, codec: ServerProtocol, connections: set[Any], strangers: Waiting) -> None:
        super().__init__(codec)
        self.known = False
        self._frames = 0
        self._since = 0.0
        self._server_codec = codec
        self._connections = connections
        self._strangers = strangers

    @property
    def waits_since(self) -> float | None:
        """Since when it is a stranger."""
        return None if self.known else self._since

    def know(self) -> None:
        """Its peer has proven who it is."""
        self.known = True
        self._largest = ANY_SIZE
        self._strangers.discard(self)

    def make_way(self) -> None:
        """A newer stranger came."""
        if self._closing or self._transport is None:
            self.cut()
            return
        self.close(TRY_LATER, "too many connections wait to be let in; this one waited longest")
        self._transport.close()

    def send(self, message: bytes) -> None:
        if not self.is_open or self._transport is None or self._transport.is_closing():
            return
        frame = framed(message)
        self._written += len(frame)
        self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            super().data_received(data)
            return
        self.alive = True
        self.received += len(data)
        if self._later:
            self._later += data
            if len(self._later) - self._later_from > MOST_LATER:
                super().pause()
        else:
            self._received(data)
            self._put_off()
        if self.received > self._largest:
            self._refuse_size()

    def eof_received(self) -> bool:
        while self._later and not self._paused:  # it was said before the end
            self._go_on()
        return super().eof_received()

    def pause(self) -> None:
        """Also what has been read already is not heard before `resume`."""
        self._paused = True
        super().pause()

    def resume(self) -> None:
        self._paused = False
        if self._later:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            super().resume()

    def _put_off(self) -> None:
        """Messages that came with the last bytes wait for their turn."""
        if self._later and not self._paused:
            asyncio.get_running_loop().call_soon(self._go_on)
            if len(self._later) - self._later_from > MOST_LATER:
                super().pause()

    def _go_on(self) -> None:
        if self._later and not self._paused:
            data, self._later = self._later, b""
            self._take(data, self._later_from)
            if self._later:
                self._put_off()
            elif not self._paused:
                super().resume()

    def _walks(self) -> bool:
        return self.is_open

    def _text(self, data: bytes, begin: int, end: int) -> bool:
        if self._parts is not None:
            return False
        self.is_text, self.received = True, len(data) - end
        if self.listener is not None:
            self.listener.heard(unmasked(data, begin, end))
        return True

    def _feed(self, data: bytes) -> None:
        if self._closing:
            return
        self._codec.receive_data(data)
        self._handle()

    def _feed_frame(self, data: bytes) -> None:
        if not self.known:
            self._frames += 1
            if self._frames > MOST_FRAMES:
                self._refuse_frames()
                return
        self._feed(data)

    def _pass_over(self, data: bytes) -> None:
        self._drop(data)

    def _drop(self, data: bytes) -> None:
        super()._drop(data)
        if self._has_goodbye(data):
            self._hang_up(self.received)

    def _end(self) -> None:
        super()._end()
        if self._later:
            data, self._later = self._later, b""
            self._drop(data[self._later_from :])

    def _refuse_frames(self) -> None:
        """Each costs as much time as a request, and it is nobody known who has us spend it."""
        self.close(POLICY, "too many frames before you are let in")

    def _refuse_size(self) -> None:
        """It is nobody known who says so much."""
        self.close(TOO_LARGE, f"at most {self._largest} bytes until you are let in")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)
        self.peer = peer_of(self.address)
        self._since = asyncio.get_running_loop().time()
        self._strangers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._strangers.discard(self)
        super().connection_lost(exc)
        self._later = self._begun = b""

    def shutdown(self) -> None:
        """The web server's word for: it stops."""
        self.close(1012, "service restart")

    @property
    def address(self) -> tuple[Any, ...] | None:
        """Where the other end is."""
        assert self._transport is not None
        found: tuple[Any, ...] | None = self._transport.get_extra_info("peername")
        return found

    def answer(self, response: Response) -> None:
        """Accept or reject, as the codec made it."""
        self._server_codec.send_response(response)
        self.received = 0
        self._flush()
