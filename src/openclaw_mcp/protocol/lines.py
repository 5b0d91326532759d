"""Newline-framed messages out of a byte stream, with a bound on a line's length."""

from typing import Final

LONG_LINE: Final = 1 << 20  # bytes; a line beyond it is gathered in one piece
TOO_LONG: Final = None
"""In the list of lines, in place of one that was dropped for its length."""


class LineSplitter:
    """Feed bytes, take whole lines. A line over the limit is skipped to its end without being kept."""

    __slots__ = ("_chunks", "_limit", "_long", "_size")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._long = bytearray()
        """The beginning of a line that is long: pieces and the whole would be twice its size in memory."""
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | bytearray | None]:
        """Each line that `data` completes, without its newline; TOO_LONG for one that was dropped."""
        *ends, rest = data.split(b"\n")
        lines = [self._finish_line(end) for end in ends]
        if rest:
            self._append(rest)
        return lines

    def take_rest(self) -> bytes | bytearray | None:
        """What came after the last newline; empty when nothing did."""
        return self._finish_line(b"")

    def _append(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._chunks.clear()
            self._long = bytearray()
        elif self._size > LONG_LINE:
            self._long += b"".join(self._chunks)
            self._long += piece
            self._chunks.clear()
        else:
            self._chunks.append(piece)

    def _finish_line(self, end: bytes) -> bytes | bytearray | None:
        if not self._chunks and not self._size and len(end) <= self._limit:
            return end
        self._append(end)
        line: bytes | bytearray | None = self._long or b"".join(self._chunks)
        if self._size > self._limit:
            line = TOO_LONG
        self._chunks.clear()
        self._long = bytearray()
        self._size = 0
        return line
