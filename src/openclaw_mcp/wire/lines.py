"""Newline-framed messages out of a byte stream, with a bound on a line's length."""

from typing import Final

TOO_LONG: Final = None
"""Stands in the list of lines where one was dropped for its length."""


class Lines:
    """Feed bytes, take whole lines. A line over the limit is skipped to its end without being kept."""

    __slots__ = ("_chunks", "_limit", "_size")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | None]:
        """Each line that `data` completes, without its newline; TOO_LONG for one that was dropped."""
        *ends, rest = data.split(b"\n")
        lines = [self._close(end) for end in ends]
        if rest:
            self._keep(rest)
        return lines

    def rest(self) -> bytes | None:
        """What came after the last newline; empty when nothing did."""
        return self._close(b"")

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._chunks.clear()
        else:
            self._chunks.append(piece)

    def _close(self, end: bytes) -> bytes | None:
        if not self._chunks and not self._size and len(end) <= self._limit:
            return end
        self._keep(end)
        line = b"".join(self._chunks) if self._size <= self._limit else TOO_LONG
        self._chunks.clear()
        self._size = 0
        return line
