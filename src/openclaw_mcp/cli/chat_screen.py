"""Where a chat is shown and typed: a terminal with a line to type in below the conversation, or plain streams."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from ..core.errors import BadRequest
from .line_editor import EndOfInput, LineEditor, advance_column, layout_input
from .report import printable

if sys.platform != "win32":
    import termios

MAX_PIPED_LINE: Final = 2 << 20  # bytes of one line of a pipe; a gateway takes no longer message
READ_SIZE: Final = 65536  # bytes of one read of the terminal
INPUT_ROWS: Final = 8  # rows of the typed line that are shown; the conversation keeps the rest
TYPED: Final = "> "
"""What stands before a typed line."""

_SAVE, _RESTORE, _CLEAR_BELOW, _DOWN = "\x1b7", "\x1b8", "\x1b[J", "\x1bD"
_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


class ChatScreen(Protocol):
    """What a chat writes to and reads from."""

    is_interactive: bool
    """Whether a person types, who sees what arrives meanwhile."""
    shows_partial_text: bool

    def show(self, text: str) -> None:
        """Show it on lines of its own."""

    def show_note(self, text: str) -> None:
        """Show a sentence about the chat itself."""

    def add_text(self, text: str) -> None:
        """Go on with the line that the text before it began."""

    def end_text(self) -> None:
        """End such a line."""

    def set_status(self, status: str) -> None:
        """What goes on now, for as long as it goes on."""

    def clear_line(self) -> bool:
        """Take back what is typed; whether anything was."""

    def read_lines(self) -> AsyncIterator[str]:
        """Each line that is entered, until the end of input."""


class PlainScreen:
    """Standard input and output as they are, when one of them is no terminal."""

    is_interactive = False

    def __init__(self) -> None:
        self._is_terminal = self.shows_partial_text = sys.stdout.isatty()
        self._in_line = False

    def show(self, text: str) -> None:
        self.end_text()
        print(self._clean(text), flush=True)

    def show_note(self, text: str) -> None:
        self.end_text()
        print(f"-- {printable(text)}", file=sys.stderr, flush=True)  # standard output is the agent's

    def add_text(self, text: str) -> None:
        print(self._clean(text), end="", flush=True)
        self._in_line = not text.endswith("\n")

    def end_text(self) -> None:
        if self._in_line:
            print(flush=True)
        self._in_line = False

    def set_status(self, status: str) -> None:
        return

    def clear_line(self) -> bool:
        return False

    async def read_lines(self) -> AsyncIterator[str]:
        read_line = await _open_stdin()
        while line := await read_line():
            yield line.decode(errors="replace").rstrip("\r\n")

    def _clean(self, text: str) -> str:
        return printable(text) if self._is_terminal else text


def _can_be_waited_for(source: int) -> bool:
    """Whether the event loop can wait for its data. It can't for a file or a device such as /dev/null."""
    mode = os.fstat(source).st_mode
    is_stream = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(source)
    return is_stream and sys.platform != "win32"


async def _open_stdin() -> Callable[[], Any]:
    if not _can_be_waited_for(sys.stdin.fileno()):
        return lambda: asyncio.to_thread(sys.stdin.buffer.readline, MAX_PIPED_LINE)
    reader = asyncio.StreamReader(limit=MAX_PIPED_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def read_line() -> bytes:
        try:
            return await reader.readline()
        except ValueError:
            raise BadRequest(f"a line is longer than {MAX_PIPED_LINE} bytes; send it as a file or in parts") from None

    return read_line


class TerminalScreen:
    """The conversation above, the line that is typed below it: what arrives never falls into what is typed.

    The end of the conversation is the terminal's saved cursor; everything below it is drawn again after each change.
    """

    is_interactive = shows_partial_text = True

    def __init__(self, write: Callable[[str], None], size: Callable[[], os.terminal_size]) -> None:
        self._write = write
        self._size = size
        self._editor = LineEditor()
        self._status = ""
        self._column = 0
        """Where the conversation's last line ends; 0 when it is complete."""
        self._drawn = False
        self._lines: asyncio.Queue[str | EndOfInput] = asyncio.Queue()

    def show(self, text: str) -> None:
        self._redraw(f"{self._line_break()}{printable(text)}\n")

    def show_note(self, text: str) -> None:
        self.show(f"-- {text}")

    def add_text(self, text: str) -> None:
        self._redraw(printable(text))

    def end_text(self) -> None:
        if self._column:
            self._redraw("\n")

    def set_status(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._redraw()

    def clear_line(self) -> bool:
        was_typed = bool(self._editor.text)
        self._editor.clear()
        self._redraw()
        return was_typed

    async def read_lines(self) -> AsyncIterator[str]:
        self._redraw()
        while isinstance(line := await self._lines.get(), str):
            yield line

    def on_input(self, data: bytes) -> None:
        """What the terminal sent; nothing at its end."""
        if not data:
            self._lines.put_nowait(EndOfInput.END)
        for entered in self._editor.feed(data):
            if isinstance(entered, str) and entered.strip():
                self.show(TYPED + entered)
            self._lines.put_nowait(entered)
        self._redraw()

    def on_resize(self) -> None:
        """The rows have moved: begin below them."""
        self._drawn, self._column = False, 0
        self._redraw("\n")

    def close(self) -> None:
        """Leave the conversation as it is, without the line below it."""
        self._write(f"{_RESTORE}{_CLEAR_BELOW}{self._line_break()}" if self._drawn else "")
        self._drawn, self._column = False, 0

    def _line_break(self) -> str:
        return "\n" if self._column else ""

    def _redraw(self, output: str = "") -> None:
        width, height = self._size()
        parts = [_RESTORE, _CLEAR_BELOW] if self._drawn else []
        self._column = advance_column(self._column, output, width)
        if self._column >= width:  # a terminal forgets that the next character wraps when its cursor is moved
            output, self._column = f"{output}\n", 0
        prompt = f"{self._status} {TYPED}" if self._status else TYPED
        most = max(1, min(INPUT_ROWS, height - 1))
        rows, row, column = layout_input(prompt, self._editor.text, self._editor.cursor, width=width, rows=most)
        below = len(rows) - (0 if self._column else 1)
        room = f"{_DOWN * below}\x1b[{below}A" if below else ""  # scrolls now, so that the saved place stays right
        up = len(rows) - 1 - row
        parts += [output, room, _SAVE, self._line_break(), "\n".join(rows), f"\x1b[{up}A" if up else ""]
        self._write("".join([*parts, f"\x1b[{column + 1}G"]))
        self._drawn = True


@contextmanager
def open_screen() -> Iterator[ChatScreen]:
    """The terminal, when there is one that can move its cursor; else plain streams."""
    can_move = os.environ.get("TERM", "dumb") != "dumb"
    if sys.platform != "win32" and can_move and sys.stdin.isatty() and sys.stdout.isatty():
        with _open_terminal() as screen:
            yield screen
    else:
        yield PlainScreen()


if sys.platform != "win32":

    @contextmanager
    def _open_terminal() -> Iterator[TerminalScreen]:
        screen, source = TerminalScreen(_write_all, _terminal_size), sys.stdin.fileno()
        before = termios.tcgetattr(source)
        typing = [*before[:3], before[3] & ~(termios.ICANON | termios.ECHO), *before[4:]]
        loop = asyncio.get_running_loop()

        def take_terminal() -> None:
            termios.tcsetattr(source, termios.TCSADRAIN, typing)
            _write_all(_PASTE_ON)

        def resume() -> None:  # after Ctrl-Z
            take_terminal()
            screen.on_resize()

        take_terminal()
        loop.add_reader(source, lambda: screen.on_input(_read(source)))
        loop.add_signal_handler(signal.SIGWINCH, screen.on_resize)
        loop.add_signal_handler(signal.SIGCONT, resume)
        try:
            yield screen
        finally:
            loop.remove_reader(source)
            screen.close()
            _write_all(_PASTE_OFF)
            termios.tcsetattr(source, termios.TCSADRAIN, before)


def _terminal_size() -> os.terminal_size:
    """A terminal that does not know its size has the usual one."""
    width, height = os.get_terminal_size(sys.stdout.fileno())
    return os.terminal_size((width or 80, height or 24))


def _read(source: int) -> bytes:
    """Nothing at the end: also when the terminal was closed."""
    with suppress(OSError):
        return os.read(source, READ_SIZE)
    return b""


def _write_all(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
