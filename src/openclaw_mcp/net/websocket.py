"""A WebSocket straight on asyncio's transports: messages come by call, text is sent without waiting.

One class for both ends. No task and no queue per connection: two thousand idle peers cost two thousand small objects,
what is unsent is the transport's own count, and a peer that does not read can be cut off. A codec in `websockets`
does the framing.
"""

import asyncio
from typing import Final, Protocol, cast

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.protocol import Protocol as Codec

QUIET_SECONDS: Final = 0.2  # seconds without a byte after which a peer has sent all it had begun to send
CLOSE_GRACE: Final = 5.0  # seconds a peer gets to answer our close frame before the connection is cut
MAX_REASON_BYTES: Final = 123  # bytes a close frame has room for
MAX_DROPPED_BYTES: Final = 65_536  # bytes behind our close frame that are read of a peer unknown or unreading,
CLOSE_READ_GRACE: Final = 1.0  # which then gets so many seconds to read it
MAX_UNREAD_PONGS: Final = 1 << 20  # bytes of pongs for a peer that pings and does not read; beyond, it is cut off
ABNORMAL: Final = 1006

TEXT_FRAME: Final = 0x81  # the first byte of a frame that is a whole message of text
MASK_BIT: Final = 0x80  # in the second byte, as every client's frame has it
MASK_SIZE: Final = 4  # bytes of the mask, before the payload
LENGTH_16_BIT: Final = 126  # instead of the size: the next two bytes hold it,
LENGTH_64_BIT: Final = 127  # or the next eight


class WebSocketListener(Protocol):
    """What a socket reports to. Called in the event loop; must not block."""

    def on_open(self) -> None: ...

    def on_message(self, message: bytes) -> None: ...

    def on_close(self, code: int, reason: str) -> None:
        """Exactly once, however it ended."""


class WebSocket(asyncio.Protocol):
    """`codec` decides which end we are; a subclass does the opening."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.listener: WebSocketListener | None = None
        self._transport: asyncio.Transport | None = None
        self._fragments: bytearray | None = None
        self._unread_bytes = 0
        self._abort_timer: asyncio.TimerHandle | None = None
        self._hang_up_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._dropped_bytes = 0
        self.trusted = True
        """Whether we know who is at the other end."""
        self._close_status: tuple[int, str] | None = None
        self._writable_future: asyncio.Future[None] | None = None
        self._lost_future: asyncio.Future[None] | None = None
        self.partial_bytes = 0
        """Bytes since the last whole message."""
        self.is_text = True
        """Whether the message that is handled now is text."""
        self._written_bytes = 0
        self.alive = True
        """Set by anything received; a pinger clears it and checks it again later."""

    # ---- for its owner ---------------------------------------------------------------------------------------------

    def set_listener(self, listener: WebSocketListener) -> None:
        """Report to `listener` from here on, and read on; one that is closed by now is reported at once."""
        if self._close_status is None:
            self.listener = listener
            self.resume()
        else:
            listener.on_close(*self._close_status)

    @property
    def is_open(self) -> bool:
        return not self._closing and self._codec.state is OPEN

    @property
    def backlog_bytes(self) -> int:
        """Bytes the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def bytes_delivered(self) -> int:
        """Bytes the peer has taken so far. One that is owed bytes and takes none has stopped reading."""
        return self._written_bytes - self.backlog_bytes

    def send(self, message: bytes) -> None:
        """Send one text message. It is dropped silently when the socket is no longer open."""
        if not self.is_open:
            return
        try:
            self._codec.send_text(message)
        except InvalidState:
            return
        self._flush()

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was sent, or is gone."""
        if self._writable_future is not None:
            await asyncio.shield(self._writable_future)

    def ping(self) -> None:
        if self.is_open:
            self._codec.send_ping(b"")
            self._flush()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Send a close frame; the connection is cut when the peer does not answer within CLOSE_GRACE."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        try:
            self._codec.send_close(code, truncate_reason(reason))
        except InvalidState:
            self._transport.abort()
            return
        self._flush()
        self._begin_close()
        self.resume()
        self._report_close(code, reason)

    def abort(self) -> None:
        """End it now, unsent bytes and all."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self, timeout: float) -> None:
        """Wait until the connection is lost; it is cut when the peer takes longer than `timeout` seconds."""
        if self._transport is None:
            return
        if self._lost_future is None:
            self._lost_future = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(timeout, self._transport.abort)
        try:
            await asyncio.shield(self._lost_future)
        finally:
            timer.cancel()

    def pause(self) -> None:
        """Read no further for now; the peer's own writes will wait."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- for asyncio ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit asyncio's

    def data_received(self, data: bytes) -> None:
        self.alive = True
        self.partial_bytes += len(data)
        if self._closing:
            self._drop_input(data)
            return
        self._codec.receive_data(data)
        self._handle_events()

    def eof_received(self) -> bool:
        if not self._closing:
            self._codec.receive_eof()
            self._handle_events()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closing = True  # nothing that came is handled any more
        if self._lost_future is not None:
            self._lost_future.set_result(None)
        for timer in (self._abort_timer, self._hang_up_timer):
            if timer is not None:
                timer.cancel()
        self.resume_writing()
        closed = self._codec.close_rcvd
        self._report_close(closed.code if closed else ABNORMAL, closed.reason if closed else "")
        self._release_buffers()
        self.listener = None

    def pause_writing(self) -> None:
        if self._writable_future is None:
            self._writable_future = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._unread_bytes = 0
        if self._writable_future is not None:
            self._writable_future.set_result(None)
            self._writable_future = None

    # ---- events --------------------------------------------------------------------------------------------------

    def _handle_events(self) -> None:
        for event in self._codec.events_received():
            if isinstance(event, Frame):
                self._handle_frame(event)
            else:
                self._handle_handshake(event)
        written = self._written_bytes
        self._flush()
        if self._writable_future is not None:  # the peer does not read, and yet makes us answer
            self._unread_bytes += self._written_bytes - written
            if self._unread_bytes > MAX_UNREAD_PONGS:
                self.abort()
        if self._codec.close_expected():
            self._begin_close()
            closed = self._codec.close_rcvd or self._codec.close_sent
            if closed is not None:
                self._report_close(closed.code, closed.reason)

    def _handle_handshake(self, event: Request | Response) -> None:
        raise NotImplementedError

    def _handle_frame(self, frame: Frame) -> None:
        if self._closing or frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return  # the codec has answered pings and closes
        parts = self._fragments
        if parts is None:
            self.is_text = frame.opcode is Opcode.TEXT
            if not frame.fin:
                self._fragments = bytearray(frame.data)
                return
            message = bytes(frame.data)
        else:
            parts += frame.data  # one buffer: fragments may be many and small, or empty
            if not frame.fin:
                return
            message, self._fragments = bytes(parts), None
        self.partial_bytes = self._count_pending()
        if self.listener is not None:
            self.listener.on_message(message)

    def _count_pending(self) -> int:
        """Bytes received behind the message that is handled now."""
        return 0

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            self._codec.data_to_send()
            return
        for data in self._codec.data_to_send():
            if data:
                self._written_bytes += len(data)
                transport.write(data)
            elif self._codec.parser_exc is not None:
                # Some clients trip over our half of the connection ending while they are still writing.
                self._hang_up(-1)
            else:
                self._hang_up(self.partial_bytes)

    def _hang_up(self, received: int) -> None:
        """End our half, unless more than `received` bytes came by now: then a little later."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if received != self.partial_bytes:
            self._hang_up_timer = asyncio.get_running_loop().call_later(
                QUIET_SECONDS, self._hang_up, self.partial_bytes
            )
        elif transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _begin_close(self) -> None:
        """A close frame was sent: the peer ends the connection, or we do.

        Until then we read on, and drop what we read: closing on unread bytes would make the kernel drop our last frame.
        """
        self._closing = True
        self._release_buffers()
        self._abort_after(CLOSE_GRACE)

    def _abort_after(self, seconds: float) -> None:
        """Sooner than it was to be."""
        if self._transport is None:
            return
        when = asyncio.get_running_loop().time() + seconds
        if self._abort_timer is None or self._abort_timer.when() > when:
            if self._abort_timer is not None:
                self._abort_timer.cancel()
            self._abort_timer = asyncio.get_running_loop().call_at(when, self._transport.abort)

    def _drop_input(self, data: bytes) -> None:
        """Of what comes behind our close frame nothing is kept. A peer that sends on is not read any more where it is
        unknown, or reads nothing itself: our close frame waits behind all it has not read."""
        self._dropped_bytes += len(data)
        reads = self._writable_future is None
        if not (self.trusted and reads) and self._dropped_bytes > MAX_DROPPED_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._abort_after(CLOSE_READ_GRACE)

    def _release_buffers(self) -> None:
        """Free what was received: the codec and its parser hold each other, and would keep it until collected."""
        self._fragments = None
        self._codec.reader.discard()
        self._codec.parser.close()

    def _report_close(self, code: int, reason: str) -> None:
        if self._close_status is None:
            self._close_status = code, reason
            if self.listener is not None:
                self.listener.on_close(code, reason)


def truncate_reason(text: str) -> str:
    """`text` cut to what a close frame carries, never in the middle of a character."""
    return text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def locate_payload(data: bytes, at: int) -> tuple[int, int]:
    """Where the payload of the frame at `at` begins and ends; 0 twice when the frame's head is not whole."""
    if at + 2 > len(data):
        return 0, 0
    size = data[at + 1] & ~MASK_BIT
    begin = at + 2 + (MASK_SIZE if data[at + 1] & MASK_BIT else 0)
    if size >= LENGTH_16_BIT:
        length_bytes = 2 if size == LENGTH_16_BIT else 8
        begin += length_bytes
        size = int.from_bytes(data[at + 2 : at + 2 + length_bytes])
    return (begin, begin + size) if begin <= len(data) else (0, 0)
