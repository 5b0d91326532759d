"""The pipes of a program that `processes` starts: output kept within bounds or taken line by line, and input."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, cast

from ..protocol.lines import LineSplitter

MAX_LAST_LINE: Final = 200  # characters of a program's last line that an error text repeats


class Output(asyncio.Protocol):
    """One output stream of a program. `on_data` gets each piece, `on_end` is called once after the last."""

    def __init__(self, on_data: Callable[[bytes], object], on_end: Callable[[], object] = lambda: None) -> None:
        self.closed = asyncio.Event()
        self.last_piece = b""
        self.last_time = 0.0
        """By the loop's clock."""
        self.is_paused = False
        self._on_data = on_data
        self._on_end = on_end
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.last_piece = data
        self.last_time = asyncio.get_running_loop().time()
        if not self.closed.is_set():
            self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.end()

    def end(self) -> None:
        """Take nothing more, even if a process still holds the pipe."""
        if not self.closed.is_set():
            self.closed.set()
            self._on_end()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self.end()

    def pause(self) -> None:
        """Let the program wait until `resume`."""
        if self._transport is not None and not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.is_paused:
            self._transport.resume_reading()
        self.is_paused = False


class KeptOutput(Output):
    """Keeps the first `head` and the last `tail` bytes. With `close_when_full`, the pipe is closed when more comes."""

    def __init__(self, *, head: int = 0, tail: int = 0, close_when_full: bool = False) -> None:
        super().__init__(self._keep)
        self.dropped_bytes = 0
        self._max_head = head
        self._max_tail = tail
        self._close_when_full = close_when_full
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    @property
    def data(self) -> bytes:
        return bytes(self._head) + b"".join(self._tail)

    def text(self) -> str:
        """All that was kept, with a note in place of what was not."""
        if not self.dropped_bytes:
            return self.data.decode(errors="replace")
        head, tail = self._head.decode(errors="replace"), b"".join(self._tail).decode(errors="replace")
        return f"{head}\n[... {self.dropped_bytes} bytes left out ...]\n{tail}"

    def lines(self) -> list[str]:
        """The lines that are not blank, without the blanks around them."""
        return [line.strip() for line in self.data.decode(errors="replace").splitlines() if line.strip()]

    def last_line(self) -> str:
        """Short enough to be repeated in an error text; empty when there is none."""
        return (self.lines() or [""])[-1][:MAX_LAST_LINE]

    def _keep(self, data: bytes) -> None:
        space = self._max_head - len(self._head)
        self._head += data[:space]
        if rest := data[space:]:
            kept = rest[-self._max_tail :] if self._max_tail else b""
            self.dropped_bytes += len(rest) - len(kept)
            if kept:
                self._tail.append(kept)
                self._tail_size += len(kept)
            while self._tail_size > self._max_tail:
                self._drop_oldest()
            if self.dropped_bytes and self._close_when_full:
                self.close()

    def _drop_oldest(self) -> None:
        oldest, excess = self._tail.popleft(), self._tail_size - self._max_tail
        dropped = min(excess, len(oldest))
        if dropped < len(oldest):
            self._tail.appendleft(oldest[dropped:])
        self._tail_size -= dropped
        self.dropped_bytes += dropped


class LineOutput(Output):
    """Lines to be taken one by one; a program that is `max_waiting` lines ahead of the reader waits."""

    def __init__(self, *, max_length: int, max_waiting: int = 1000) -> None:
        super().__init__(self._split, self._finish)
        self._splitter = LineSplitter(limit=max_length)
        self._max_waiting = max_waiting
        self._lines: deque[bytes | None] = deque()
        self._changed = asyncio.Event()

    async def wait_line(self) -> bool:
        """Whether there is a line to take: False once the output has ended and all have been taken."""
        while not self._lines and not self.closed.is_set():
            self._changed.clear()
            await self._changed.wait()
        return bool(self._lines)

    def take_line(self) -> bytes | None:
        """The next line, without its newline; None in place of one that was longer than the limit."""
        line = self._lines.popleft()
        if len(self._lines) <= self._max_waiting // 2:
            self.resume()
        return line

    async def __aiter__(self) -> AsyncIterator[bytes | None]:
        while await self.wait_line():
            yield self.take_line()

    def _split(self, data: bytes) -> None:
        for line in self._splitter.feed(data):
            self._add(line)
        self._changed.set()
        if len(self._lines) > self._max_waiting:
            self.pause()

    def _finish(self) -> None:
        self._add(self._splitter.take_rest())
        self._changed.set()

    def _add(self, line: bytes | bytearray | None) -> None:
        if line is None or line:
            self._lines.append(line if line is None else bytes(line))


class Input(asyncio.BaseProtocol):
    """The input of a program that is written to while it runs. `on_lost` is called when it can't be any more."""

    def __init__(self, on_lost: Callable[[], object] = lambda: None) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program does not read any more."""
        if self._transport is None:
            raise BrokenPipeError
        try:
            self._transport.write(data)
        except (RuntimeError, OSError) as exc:  # uvloop raises when the reader went away a moment ago
            raise BrokenPipeError from exc

    def close(self) -> None:
        """Once all that was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
