"""The short way for WebSocket frames that are whole texts: past the codec of `websockets`, whose most work they are.

Nearly all that comes and goes on a bridge or a gateway's connection is such a frame.
"""

from struct import pack
from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # installed without its part in C
    from websockets.utils import apply_mask

from .randomness import Drawn

WHOLE_TEXT: Final = 0x81  # the first byte of a frame that is a whole message of text
MASKED: Final = 0x80  # in the second, as every client's frame has it
MASK: Final = 4  # bytes of the mask, before the payload
TWO_BYTES: Final = 126  # instead of the size: it stands in the next two bytes,
EIGHT_BYTES: Final = 127  # or in the next eight

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

    def _received(self, data: bytes) -> None:
        at = min(self._owed, len(data))
        if at:
            self._owed -= at
            self._feed(data[:at])
        if at < len(data):
            self._take(self._begun + data[at:] if at or self._begun else data)

    def _take(self, data: bytes) -> None:
        at, self._begun = 0, b""
        while at < len(data):
            if not self._walks():  # one of them has ended it
                self._feed(data[at:])
                return
            begin, end = _frame_at(data, at)
            if not begin:
                self._begun = data[at:]
                return
            if end > len(data):
                self._owed = end - len(data)
                self._feed(data[at:])
                return
            is_text = data[at] == WHOLE_TEXT and (data[at + 1] >= MASKED) is self._masked
            if not is_text or not self._text(data, begin, end):
                self._feed(data[at:end])
            at = end

    def _walks(self) -> bool:
        """Whether what comes now are frames that matter."""
        raise NotImplementedError

    def _text(self, data: bytes, begin: int, end: int) -> bool:
        """Whether a whole text, whose payload is there, was taken."""
        raise NotImplementedError

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
