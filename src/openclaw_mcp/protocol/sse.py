"""Server-sent events out of a byte stream, with a bound on an event's size."""

from msgspec import Struct

from .lines import LineSplitter


class SseEvent(Struct, frozen=True):
    data: bytes = b""
    id: str | None = None
    retry: int | None = None
    """Milliseconds the sender asks us to wait before coming back."""


class SseEventTooLong(ValueError):
    """An event is larger than its reader takes."""


class SseParser:
    """Feed bytes, take whole events. Comments and events without a field we know are skipped."""

    __slots__ = ("_data", "_id", "_limit", "_lines", "_retry", "_size")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._lines = LineSplitter(limit=limit)
        self._data: list[bytes | bytearray] = []
        self._id: str | None = None
        self._retry: int | None = None
        self._size = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Each event that `data` completes. Raises SseEventTooLong."""
        found = []
        for whole in self._lines.feed(data):
            if whole is None:
                raise SseEventTooLong
            line = whole.removesuffix(b"\r")
            if line:
                self._read_field(line)
                continue
            if self._data or self._id is not None or self._retry is not None:
                found.append(SseEvent(b"\n".join(self._data), self._id, self._retry))
            self._clear()
        return found

    def _read_field(self, line: bytes | bytearray) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value)
            if self._size > self._limit:
                raise SseEventTooLong
            self._data.append(value)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self._retry = int(value[:9])

    def _clear(self) -> None:
        self._data = []
        self._id = None
        self._retry = None
        self._size = 0
