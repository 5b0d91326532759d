"""A transport that sends all that is written in one turn of the loop in one write: a system call costs more than most
messages do, here and at the reader's end."""

import asyncio
from typing import Any, Final, cast

FLUSH_THRESHOLD: Final = 64 << 10  # bytes gathered before they are written at once: flow control must see them


def coalesce_writes(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> asyncio.Transport:
    return cast("asyncio.Transport", _CoalescingTransport(transport, loop))


class _CoalescingTransport:
    """A transport that gathers what is written until the loop comes round, or until there is enough of it."""

    __slots__ = ("_loop", "_pieces", "_size", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > FLUSH_THRESHOLD:
            self._flush()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._transport.abort()

    def _flush(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            if not self._transport.is_closing():  # it may have gone since
                self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._size

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
