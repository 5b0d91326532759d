"""The two ends of a stdio pipe on the event loop: read when there is something, write without ever blocking.

asyncio's own pipe transports take one turn of the loop more for each read; between two processes that talk in turns,
that is the largest cost there is.
"""

import asyncio
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final

CHUNK: Final = 1 << 16  # bytes taken in one read: what a pipe holds; a larger buffer is mapped again each time
MAX_UNREAD: Final = 64 << 20  # bytes of answers a client may leave unread before we stop taking requests

STDIN: Final = 0


class StdinReader:
    """Calls `on_data` with the bytes that arrive on stdin, and with none at its end."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        self._watched = False
        self._ended = False

    def open(self) -> None:
        try:
            self._loop.add_reader(STDIN, self._read)
        except (OSError, NotImplementedError):  # a regular file, or a platform whose loop has no such thing
            threading.Thread(target=self._read_forever, daemon=True).start()
            return
        _set_blocking(STDIN, False)
        self._watched = True

    def pause(self) -> None:
        if self._watched:
            self._loop.remove_reader(STDIN)

    def resume(self) -> None:
        if self._watched and not self._ended:
            self._loop.add_reader(STDIN, self._read)

    def close(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(STDIN)
            _set_blocking(STDIN, True)  # it may be a terminal, and then it is the shell's too

    def _read(self) -> None:
        try:
            data = os.read(STDIN, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal that went away
            data = b""
        if not data:
            self._ended = True
            self._loop.remove_reader(STDIN)
        self._on_data(data)

    def _read_forever(self) -> None:
        data = b"more"
        while data:
            data = os.read(STDIN, CHUNK)
            self._loop.call_soon_threadsafe(self._on_data, data)


class DescriptorWriter:
    """Writes to a descriptor. Bytes that do not fit wait here; too many of them pause the input."""

    def __init__(
        self, descriptor: int, *, pause: Callable[[], None], resume: Callable[[], None], on_broken: Callable[[], None]
    ) -> None:
        self._descriptor = descriptor
        self._pause = pause
        self._resume = resume
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._paused = False
        self._broken = False
        self._empty = asyncio.Event()
        self._empty.set()
        _set_blocking(descriptor, False)

    @property
    def is_closed(self) -> bool:
        """Whether the other end is closed, so that nothing we write can be read."""
        if not self._broken and sys.platform != "win32":
            poll = select.poll()
            poll.register(self._descriptor, 0)
            self._broken = any(event & select.POLLERR for _, event in poll.poll(0))
        return self._broken

    def write(self, data: bytes) -> None:
        if self._broken:
            return
        if self._waiting:
            self._waiting += data
            self._pause_if_full()
            return
        written = self._write_some(data)
        if written < len(data) and not self._broken:
            self._waiting += memoryview(data)[written:]
            self._empty.clear()
            self._loop.add_writer(self._descriptor, self._drain)
            self._pause_if_full()

    async def close(self, seconds: float) -> None:
        """Wait until the rest is written, for so many seconds at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            self._loop.remove_writer(self._descriptor)
        _set_blocking(self._descriptor, True)

    def _write_some(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._broken = True
            self._on_broken()
            return 0

    def _drain(self) -> None:
        del self._waiting[: self._write_some(self._waiting)]
        if self._broken:
            self._waiting.clear()
        if not self._waiting:
            self._loop.remove_writer(self._descriptor)
            self._empty.set()
        if self._paused and len(self._waiting) < MAX_UNREAD // 2:
            self._paused = False
            self._resume()

    def _pause_if_full(self) -> None:
        if not self._paused and len(self._waiting) > MAX_UNREAD:
            self._paused = True
            self._pause()


def _set_blocking(descriptor: int, blocking: bool) -> None:
    """Windows has no such mode for pipes: there a write waits for a client that does not read."""
    if sys.platform != "win32":
        os.set_blocking(descriptor, blocking)
