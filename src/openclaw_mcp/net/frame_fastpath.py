"""The short way for WebSocket frames that are whole texts: past the codec of `websockets`, whose most work they are.

Nearly all that comes and goes on a bridge or a gateway's connection is such a frame.
"""

from struct import pack
from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # installed without its part in C
    from websockets.utils import apply_mask

from ..core.ids import Drawn

WHOLE_TEXT: Final = 0x81  # the first byte of a frame that is a whole message of text
MASKED: Final = 0x80  # in the second, as every client's frame has it
MASK: Final = 4  # bytes of the mask, before the payload
TWO_BYTES: Final = 126  # instead of the size: it stands in the next two bytes,
EIGHT_BYTES: Final = 127  # or in the next eight
OPCODE: Final = 0x0F  # in the first byte: the kind of a frame,
CLOSE: Final = 8  # such as a goodbye

ANY_SIZE: Final = 1 << 62

_masks = Drawn(MASK)


class ShortWay:
    """Takes a stream of frames apart, from the beginning of one.

    The codec sees all but whole texts, each whole, so that it too always stands at the beginning of one.
    """

    _masked: bool
    """Whether the peer's frames are to be: a client's are, a server's are not."""
    _begun = b""
    """Of a frame whose size is not known yet: less than its head."""
    _owed = 0
    """Bytes the codec has yet to see of a frame it has begun."""
    _paused = False
    """Whether frames are to wait, also those that have come."""
    _in_a_turn = 1 << 30
    """Frames taken one after another; the rest lies in `_later`, from `_later_from` on, until `_take` gets it."""
    _later = b""
    _later_from = 0
    _largest = ANY_SIZE
    """Bytes of a frame that may come in pieces."""

    def _received(self, data: bytes) -> None:
        at = min(self._owed, len(data))
        if at:
            self._owed -= at
            self._feed(data[:at])
        if at < len(data):
            self._take(self._begun + data[at:] if at or self._begun else data)

    def _take(self, data: bytes, at: int = 0) -> None:
        self._begun = b""
        left = self._in_a_turn
        while at < len(data):
            if not self._walks():  # one of them has ended it
                self._pass_over(data[at:])
                return
            if self._paused or not left:
                self._later, self._later_from = data, at
                return
            left -= 1
            begin, end = _frame_at(data, at)
            if not begin:
                self._begun = data[at:]
                return
            if end > len(data):
                self._owed = end - len(data)
                if end - begin > self._largest:
                    self._refuse_size()
                else:
                    self._feed_frame(data[at:])
                return
            is_text = data[at] == WHOLE_TEXT and (data[at + 1] >= MASKED) is self._masked
            if not is_text or not self._text(data, begin, end):
                self._feed_frame(data[at:end])
            at = end

    def _has_goodbye(self, data: bytes) -> bool:
        """Whether a close frame is in what comes. Nothing of it is kept but the beginning of a frame's head."""
        skipped = min(self._owed, len(data))
        self._owed -= skipped
        data, self._begun, at = self._begun + data[skipped:], b"", 0
        while at < len(data):
            begin, end = _frame_at(data, at)
            if not begin:
                self._begun = data[at:]
                return False
            if data[at] & OPCODE == CLOSE:
                return True
            at = end
        self._owed += at - len(data)
        return False

    def _walks(self) -> bool:
        """Whether what comes now are frames that matter."""
        raise NotImplementedError

    def _pass_over(self, data: bytes) -> None:
        """Take what comes when no frame matters any more."""
        self._feed(data)

    def _refuse_size(self) -> None:
        """A frame was begun that is larger than `_largest`; the codec does not see it."""
        raise NotImplementedError

    def _text(self, data: bytes, begin: int, end: int) -> bool:
        """Whether a whole text, whose payload is there, was taken."""
        raise NotImplementedError

    def _feed_frame(self, data: bytes) -> None:
        """Give a frame, or the beginning of one, to the codec."""
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Give it to the codec."""
        raise NotImplementedError


def framed(message: bytes) -> bytes:
    """A server's frame."""
    return _head(len(message), 0) + message


def masked(message: bytes) -> bytes:
    """A client's frame."""
    mask = _masks.draw()
    return _head(len(message), MASKED) + mask + apply_mask(message, mask)


def unmasked(data: bytes, begin: int, end: int) -> bytes:
    """The payload of a client's frame."""
    return apply_mask(data[begin:end], data[begin - MASK : begin])


def _head(size: int, mark: int) -> bytes:
    if size < TWO_BYTES:
        return bytes((WHOLE_TEXT, mark | size))
    if size <= 0xFFFF:
        return pack("!BBH", WHOLE_TEXT, mark | TWO_BYTES, size)
    return pack("!BBQ", WHOLE_TEXT, mark | EIGHT_BYTES, size)


def _frame_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the payload of the frame at `at` begins, 0 when its head is not whole, and where it ends."""
    if at + 2 > len(data):
        return 0, 0
    size = data[at + 1] & ~MASKED
    begin = at + 2 + (MASK if data[at + 1] & MASKED else 0)
    if size == TWO_BYTES:
        begin += 2
    elif size == EIGHT_BYTES:
        begin += 8
    if begin > len(data):
        return 0, 0
    if size >= TWO_BYTES:
        size = int.from_bytes(data[at + 2 : at + (4 if size == TWO_BYTES else 10)])
    return begin, begin + size
