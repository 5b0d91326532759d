"""The short way for WebSocket frames that are whole texts: past the codec of `websockets`, whose most work they are.

Nearly all that comes and goes on a bridge or a gateway's connection is such a frame.
"""

from struct import pack
from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # installed without its part in C
    from websockets.utils import apply_mask

from ..core.ids import RandomPool

TEXT_FRAME: Final = 0x81  # the first byte of a frame that is a whole message of text
MASK_BIT: Final = 0x80  # in the second, as every client's frame has it
MASK_SIZE: Final = 4  # bytes of the mask, before the payload
LENGTH_16_BIT: Final = 126  # instead of the size: it stands in the next two bytes,
LENGTH_64_BIT: Final = 127  # or in the next eight
OPCODE_MASK: Final = 0x0F  # in the first byte: the kind of a frame,
CLOSE_OPCODE: Final = 8  # such as a goodbye

UNLIMITED: Final = 1 << 62

_mask_pool = RandomPool(MASK_SIZE)


class FrameFastPath:
    """Takes a stream of frames apart, from the beginning of one.

    The codec sees all but whole texts, each whole, so that it too always stands at the beginning of one.
    """

    _expects_mask: bool
    """Whether the peer's frames are to be: a client's are, a server's are not."""
    _partial_header = b""
    """Of a frame whose size is not known yet: less than its head."""
    _codec_bytes_due = 0
    """Bytes the codec has yet to see of a frame it has begun."""
    _frames_paused = False
    """Whether frames are to wait, also those that have come."""
    _frames_per_turn = 1 << 30
    """Frames taken one after another; the rest is in `_deferred`, from `_deferred_offset` on, until `_take` gets it."""
    _deferred = b""
    _deferred_offset = 0
    _max_frame_size = UNLIMITED
    """Bytes of a frame that may come in pieces."""

    def _receive_bytes(self, data: bytes) -> None:
        at = min(self._codec_bytes_due, len(data))
        if at:
            self._codec_bytes_due -= at
            self._feed(data[:at])
        if at < len(data):
            self._process_frames(self._partial_header + data[at:] if at or self._partial_header else data)

    def _process_frames(self, data: bytes, at: int = 0) -> None:
        self._partial_header = b""
        left = self._frames_per_turn
        while at < len(data):
            if not self._accepts_frames():  # one of them has ended it
                self._discard(data[at:])
                return
            if self._frames_paused or not left:
                self._deferred, self._deferred_offset = data, at
                return
            left -= 1
            begin, end = _locate_frame(data, at)
            if not begin:
                self._partial_header = data[at:]
                return
            if end > len(data):
                self._codec_bytes_due = end - len(data)
                if end - begin > self._max_frame_size:
                    self._refuse_size()
                else:
                    self._feed_frame(data[at:])
                return
            is_text = data[at] == TEXT_FRAME and (data[at + 1] >= MASK_BIT) is self._expects_mask
            if not is_text or not self._handle_text(data, begin, end):
                self._feed_frame(data[at:end])
            at = end

    def _has_close_frame(self, data: bytes) -> bool:
        """Whether a close frame is in what comes. Nothing of it is kept but the beginning of a frame's head."""
        skipped = min(self._codec_bytes_due, len(data))
        self._codec_bytes_due -= skipped
        data, self._partial_header, at = self._partial_header + data[skipped:], b"", 0
        while at < len(data):
            begin, end = _locate_frame(data, at)
            if not begin:
                self._partial_header = data[at:]
                return False
            if data[at] & OPCODE_MASK == CLOSE_OPCODE:
                return True
            at = end
        self._codec_bytes_due += at - len(data)
        return False

    def _accepts_frames(self) -> bool:
        """Whether what comes now are frames that matter."""
        raise NotImplementedError

    def _discard(self, data: bytes) -> None:
        """Take what comes when no frame matters any more."""
        self._feed(data)

    def _refuse_size(self) -> None:
        """A frame was begun that is larger than `_largest`; the codec does not see it."""
        raise NotImplementedError

    def _handle_text(self, data: bytes, begin: int, end: int) -> bool:
        """Whether a whole text, whose payload is there, was taken."""
        raise NotImplementedError

    def _feed_frame(self, data: bytes) -> None:
        """Give a frame, or the beginning of one, to the codec."""
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Give it to the codec."""
        raise NotImplementedError


def encode_server_frame(message: bytes) -> bytes:
    """A server's frame."""
    return _frame_header(len(message), 0) + message


def encode_client_frame(message: bytes) -> bytes:
    """A client's frame."""
    mask = _mask_pool.draw()
    return _frame_header(len(message), MASK_BIT) + mask + apply_mask(message, mask)


def unmask_payload(data: bytes, begin: int, end: int) -> bytes:
    """The payload of a client's frame."""
    return apply_mask(data[begin:end], data[begin - MASK_SIZE : begin])


def _frame_header(size: int, mark: int) -> bytes:
    if size < LENGTH_16_BIT:
        return bytes((TEXT_FRAME, mark | size))
    if size <= 0xFFFF:
        return pack("!BBH", TEXT_FRAME, mark | LENGTH_16_BIT, size)
    return pack("!BBQ", TEXT_FRAME, mark | LENGTH_64_BIT, size)


def _locate_frame(data: bytes, at: int) -> tuple[int, int]:
    """Where the payload of the frame at `at` begins, 0 when its head is not whole, and where it ends."""
    if at + 2 > len(data):
        return 0, 0
    size = data[at + 1] & ~MASK_BIT
    begin = at + 2 + (MASK_SIZE if data[at + 1] & MASK_BIT else 0)
    if size == LENGTH_16_BIT:
        begin += 2
    elif size == LENGTH_64_BIT:
        begin += 8
    if begin > len(data):
        return 0, 0
    if size >= LENGTH_16_BIT:
        size = int.from_bytes(data[at + 2 : at + (4 if size == LENGTH_16_BIT else 10)])
    return begin, begin + size
