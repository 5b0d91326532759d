"""A server's end of a WebSocket: a stranger until it is known, whole texts past the codec, messages in turns."""

import asyncio
from typing import Any, Final

from websockets.http11 import Response
from websockets.server import ServerProtocol

from .frame_fastpath import UNLIMITED, FrameFastPath, encode_server_frame, unmask_payload
from .peers import PendingConnections, peer_key
from .websocket import WebSocket

MESSAGES_PER_TURN: Final = 128  # messages of one read that are heard before others get their turn
MAX_DEFERRED_BYTES: Final = 64 << 10  # bytes that wait for their turn before we stop reading
MAX_UNTRUSTED_MESSAGE: Final = 65_536  # bytes of a message: nobody unknown makes us hold more
MAX_UNTRUSTED_FRAMES: Final = 256  # of a stranger, that are no whole texts: pings, fragments
MAX_UNTRUSTED_PER_PEER: Final = 256  # connections of one peer that are not known yet; the next one ends the oldest
MAX_UNTRUSTED_TOTAL: Final = 1024
POLICY_VIOLATION: Final = 1008
TOO_LARGE: Final = 1009
TRY_LATER: Final = 1013


def make_untrusted_pool() -> PendingConnections:
    """The connections of one server whose peers are not known yet."""
    return PendingConnections(per_peer=MAX_UNTRUSTED_PER_PEER, total=MAX_UNTRUSTED_TOTAL)


class AcceptedWebSocket(FrameFastPath, WebSocket):
    """A WebSocket the web server hands over once it has seen the upgrade. `connections` are the server's own.

    It is a stranger, among `strangers`, until `know` is called: it may say little, and gives way to newer ones.
    """

    _expects_mask = True
    _frames_per_turn = MESSAGES_PER_TURN
    _max_frame_size = MAX_UNTRUSTED_MESSAGE
    peer = ""

    def __init__(self, codec: ServerProtocol, connections: set[Any], untrusted: PendingConnections) -> None:
        super().__init__(codec)
        self.trusted = False
        self._untrusted_frames = 0
        self._connected_at = 0.0
        self._server_codec = codec
        self._connections = connections
        self._untrusted = untrusted

    @property
    def waits_since(self) -> float | None:
        """Since when it is a stranger."""
        return None if self.trusted else self._connected_at

    def trust(self) -> None:
        """Its peer has proven who it is."""
        self.trusted = True
        self._max_frame_size = UNLIMITED
        self._untrusted.discard(self)

    def evict(self) -> None:
        """A newer stranger came."""
        if self._closing or self._transport is None:
            self.abort()
            return
        self.close(TRY_LATER, "too many connections wait to be let in; this one waited longest")
        self._transport.close()

    def send(self, message: bytes) -> None:
        if not self.is_open or self._transport is None or self._transport.is_closing():
            return
        frame = encode_server_frame(message)
        self._written_bytes += len(frame)
        self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            super().data_received(data)
            return
        self.alive = True
        self.partial_bytes += len(data)
        if self._deferred:
            self._deferred += data
            if len(self._deferred) - self._deferred_offset > MAX_DEFERRED_BYTES:
                super().pause()
        else:
            self._receive_bytes(data)
            self._schedule_resume()
        if self.partial_bytes > self._max_frame_size:
            self._refuse_size()

    def eof_received(self) -> bool:
        while self._deferred and not self._frames_paused:  # it was said before the end
            self._resume_frames()
        return super().eof_received()

    def pause(self) -> None:
        """Also what has been read already is not heard before `resume`."""
        self._frames_paused = True
        super().pause()

    def resume(self) -> None:
        self._frames_paused = False
        if self._deferred:
            asyncio.get_running_loop().call_soon(self._resume_frames)
        else:
            super().resume()

    def _schedule_resume(self) -> None:
        """Messages that came with the last bytes wait for their turn."""
        if self._deferred and not self._frames_paused:
            asyncio.get_running_loop().call_soon(self._resume_frames)
            if len(self._deferred) - self._deferred_offset > MAX_DEFERRED_BYTES:
                super().pause()

    def _resume_frames(self) -> None:
        if self._deferred and not self._frames_paused:
            data, self._deferred = self._deferred, b""
            self._process_frames(data, self._deferred_offset)
            if self._deferred:
                self._schedule_resume()
            elif not self._frames_paused:
                super().resume()

    def _accepts_frames(self) -> bool:
        return self.is_open

    def _handle_text(self, data: bytes, begin: int, end: int) -> bool:
        if self._fragments is not None:
            return False
        self.is_text, self.partial_bytes = True, len(data) - end
        if self.listener is not None:
            self.listener.on_message(unmask_payload(data, begin, end))
        return True

    def _feed(self, data: bytes) -> None:
        if self._closing:
            return
        self._codec.receive_data(data)
        self._handle_events()

    def _feed_frame(self, data: bytes) -> None:
        if not self.trusted:
            self._untrusted_frames += 1
            if self._untrusted_frames > MAX_UNTRUSTED_FRAMES:
                self._refuse_frames()
                return
        self._feed(data)

    def _discard(self, data: bytes) -> None:
        self._drop_input(data)

    def _drop_input(self, data: bytes) -> None:
        super()._drop_input(data)
        if self._has_close_frame(data):
            self._hang_up(self.partial_bytes)

    def _begin_close(self) -> None:
        super()._begin_close()
        if self._deferred:
            data, self._deferred = self._deferred, b""
            self._drop_input(data[self._deferred_offset :])

    def _refuse_frames(self) -> None:
        """Each costs as much time as a request, and it is nobody known who has us spend it."""
        self.close(POLICY_VIOLATION, "too many frames before you are let in")

    def _refuse_size(self) -> None:
        """It is nobody known who says so much."""
        self.close(TOO_LARGE, f"at most {self._max_frame_size} bytes until you are let in")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)
        self.peer = peer_key(self.address)
        self._connected_at = asyncio.get_running_loop().time()
        self._untrusted.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._untrusted.discard(self)
        super().connection_lost(exc)
        self._deferred = self._partial_header = b""

    def shutdown(self) -> None:
        """The web server's word for: it stops."""
        self.close(1012, "service restart")

    @property
    def address(self) -> tuple[Any, ...] | None:
        """Where the other end is."""
        assert self._transport is not None
        found: tuple[Any, ...] | None = self._transport.get_extra_info("peername")
        return found

    def send_handshake(self, response: Response) -> None:
        """Accept or reject, as the codec made it."""
        self._server_codec.send_response(response)
        self.partial_bytes = 0
        self._flush()
