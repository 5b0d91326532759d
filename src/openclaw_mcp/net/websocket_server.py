"""A server's end of a WebSocket: untrusted until its peer is known, its frames handled in turns."""

import asyncio
from typing import Any, Final

from websockets.http11 import Response
from websockets.server import ServerProtocol

from .peers import PendingConnections, peer_key
from .websocket import MASK_BIT, MASK_SIZE, TEXT_FRAME, WebSocket, locate_payload

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without them
    from websockets.utils import apply_mask

FRAMES_PER_TURN: Final = 128  # frames of one peer that are handled before others get their turn
MAX_HELD_BYTES: Final = 64 << 10  # bytes that wait for their turn before we stop reading
MAX_UNTRUSTED_MESSAGE: Final = 65_536  # bytes of a message: an unknown peer must not make us hold more
MAX_UNTRUSTED_FRAMES: Final = 256  # of an unknown peer, that are no whole texts: pings, fragments
MAX_UNTRUSTED_PER_PEER: Final = 256  # connections of one peer that are not known yet; the next one ends the oldest
MAX_UNTRUSTED_TOTAL: Final = 1024
POLICY_VIOLATION: Final = 1008
TOO_LARGE: Final = 1009
TRY_LATER: Final = 1013
OPCODE_MASK: Final = 0x0F  # in the first byte: the kind of a frame,
CLOSE_OPCODE: Final = 8  # such as a close frame


def make_untrusted_pool() -> PendingConnections:
    """The connections of one server whose peers are not known yet."""
    return PendingConnections(per_peer=MAX_UNTRUSTED_PER_PEER, total=MAX_UNTRUSTED_TOTAL)


class AcceptedWebSocket(WebSocket):
    """A WebSocket the web server hands over once it has seen the upgrade. `connections` are the server's own.

    It stays among `untrusted` until `trust` is called: its peer may send little, and it is ended for newer ones. The
    codec gets frame by frame, so that nothing behind a frame has an effect before that frame was handled.
    """

    frames_per_turn = FRAMES_PER_TURN
    peer = ""

    def __init__(self, codec: ServerProtocol, connections: set[Any], untrusted: PendingConnections) -> None:
        super().__init__(codec)
        self.trusted = False
        self._untrusted_frames = 0
        self._connected_at = 0.0
        self._server_codec = codec
        self._max_text = codec.max_message_size or 0
        self._connections = connections
        self._untrusted = untrusted
        self._input = b""
        """Received and, from `_input_offset` on, not given to the codec yet."""
        self._input_offset = 0
        self._frame_rest = 0
        """Bytes that are still to come of a frame the codec has begun."""
        self._paused = False
        """Whether frames are to wait, also those that have come."""
        self._turn: asyncio.Handle | None = None

    @property
    def waits_since(self) -> float | None:
        """Since when it is untrusted."""
        return None if self.trusted else self._connected_at

    @property
    def address(self) -> tuple[Any, ...] | None:
        """Where the other end is; None once the connection is lost."""
        return self._transport.get_extra_info("peername") if self._transport is not None else None

    def trust(self) -> None:
        """Its peer has proven who it is."""
        self.trusted = True
        self._untrusted.discard(self)

    def evict(self) -> None:
        """End, so that a newer untrusted one can be taken."""
        if self._closing or self._transport is None:
            self.abort()
            return
        self.close(TRY_LATER, "too many connections wait to be let in; this one waited longest")
        self._transport.close()

    def shutdown(self) -> None:
        """Called by the web server when it stops."""
        self.close(1012, "service restart")

    def send_handshake(self, response: Response) -> None:
        """Accept or reject, as the codec made it."""
        self._server_codec.send_response(response)
        self.partial_bytes = 0
        self._flush()

    # ---- for asyncio ---------------------------------------------------------------------------------------------

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

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            super().data_received(data)
            return
        self.alive = True
        self.partial_bytes += len(data)
        self._input = self._input + data if self._input else data
        if self._turn is None and not self._paused:
            self._take_turn()
        if len(self._input) - self._input_offset > MAX_HELD_BYTES:
            super().pause()
        if not self.trusted and self.partial_bytes > MAX_UNTRUSTED_MESSAGE:
            self._refuse_size()

    def eof_received(self) -> bool:
        while self._turn is not None and not self._paused:  # it was sent before the end
            self._turn.cancel()
            self._take_turn()
        return super().eof_received()

    def pause(self) -> None:
        """Frames that have been read already wait for `resume` too."""
        self._paused = True
        super().pause()

    def resume(self) -> None:
        self._paused = False
        if self._input:
            self._schedule_turn()
        else:
            super().resume()

    # ---- frames --------------------------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Handle what has come: so many frames, the others in a later turn."""
        waited, self._turn = self._turn is not None, None
        left = self.frames_per_turn
        while self._input and self.is_open and not self._paused:
            begin = self._input_offset
            payload, end = locate_payload(self._input, begin) if not self._frame_rest else (0, begin + self._frame_rest)
            if end <= begin:  # the frame's head is not whole
                break
            if not left:
                self._schedule_turn()
                return
            left -= 1
            if self._is_whole_text(payload, end):
                self._handle_text(payload, end)
            else:
                self._feed_frame(end - begin)
        if waited and not self._paused:
            super().resume()

    def _is_whole_text(self, payload: int, end: int) -> bool:
        """Whether the next frame is a whole message of text, of a peer we know, that the codec would let pass: nearly
        every one is, and the codec takes a tenth of a call's time for it (decision 77)."""
        data, begin = self._input, self._input_offset
        return (
            self.trusted
            and 0 < payload <= end <= len(data)
            and data[begin] == TEXT_FRAME
            and data[begin + 1] >= MASK_BIT
            and self._fragments is None
            and end - payload <= self._max_text
        )

    def _handle_text(self, payload: int, end: int) -> None:
        message = apply_mask(self._input[payload:end], self._input[payload - MASK_SIZE : payload])
        self._advance_input(end)
        self.partial_bytes = self._count_pending()
        self.is_text = True
        if self.listener is not None:
            self.listener.on_message(message)

    def _advance_input(self, offset: int) -> None:
        self._input_offset = offset
        if offset == len(self._input):
            self._input, self._input_offset = b"", 0

    def _feed_frame(self, size: int) -> None:
        """Give the codec a frame of `size` bytes, or as much of it as there is."""
        begin, is_begun = self._input_offset, self._frame_rest > 0
        data = self._input[begin : begin + size]
        self._frame_rest = size - len(data)
        self._advance_input(begin + len(data))
        if not self.trusted and not is_begun:
            if self._frame_rest and size > MAX_UNTRUSTED_MESSAGE:
                self._refuse_size()
                return
            self._untrusted_frames += data[0] != TEXT_FRAME
            if self._untrusted_frames > MAX_UNTRUSTED_FRAMES:  # each costs as much time as a request
                self._refuse_frames()
                return
        self._codec.receive_data(data)
        self._handle_events()

    def _refuse_frames(self) -> None:
        self.close(POLICY_VIOLATION, "too many frames before you are let in")

    def _refuse_size(self) -> None:
        self.close(TOO_LARGE, f"at most {MAX_UNTRUSTED_MESSAGE} bytes until you are let in")

    def _count_pending(self) -> int:
        return len(self._input) - self._input_offset

    # ---- the end -------------------------------------------------------------------------------------------------

    def _begin_close(self) -> None:
        super()._begin_close()
        data = self._input[self._input_offset :]
        self._input, self._input_offset = b"", 0
        if data:
            self._drop_input(data)

    def _drop_input(self, data: bytes) -> None:
        super()._drop_input(data)
        if self._has_close_frame(data):
            self._hang_up(self.partial_bytes)

    def _has_close_frame(self, data: bytes) -> bool:
        """Whether a close frame begins in what comes. Nothing is kept but the beginning of a frame's head."""
        skipped = min(self._frame_rest, len(data))
        self._frame_rest -= skipped
        data, self._input, at = self._input + data[skipped:], b"", 0
        while at < len(data):
            _, end = locate_payload(data, at)
            if not end:
                self._input = data[at:]
                return False
            if data[at] & OPCODE_MASK == CLOSE_OPCODE:
                return True
            at = end
        self._frame_rest += at - len(data)
        return False

    def _release_buffers(self) -> None:
        super()._release_buffers()
        if self._transport is None:
            self._input, self._input_offset = b"", 0
            if self._turn is not None:
                self._turn.cancel()
                self._turn = None
