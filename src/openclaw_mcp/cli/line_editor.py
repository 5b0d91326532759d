"""A line that is typed: keys as a terminal sends them, the text and the cursor they make. Pure."""

import codecs
import re
import unicodedata
from collections.abc import Iterator
from enum import Enum
from typing import Final

MAX_TYPED: Final = 100_000  # characters of one line; more is not typed but pasted by mistake
MAX_HISTORY: Final = 500  # entered lines that the arrow keys bring back
NEWLINE_MARK: Final = "↵"
"""How a line break within pasted text is shown."""

_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[^\x1b]|[^\[O\x1b])")
_UNFINISHED_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?\Z")


class EndOfInput(Enum):
    """Ctrl-D on an empty line."""

    END = "end"


class LineEditor:
    """Feed it what the terminal sends; it yields each line as it is entered."""

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unread = ""
        self._pasting = False
        self._history: list[str] = []
        self._recalled = 0
        """Position in the history; its length while a new line is typed."""
        self._draft = ""
        self._keys = {
            "\x7f": self._backspace, "\x08": self._backspace, "\x01": self._home, "\x05": self._end,
            "\x02": self._left, "\x06": self._right, "\x0b": self._cut_to_end, "\x15": self._cut_to_start,
            "\x17": self._cut_word, "\x10": self._recall_earlier, "\x0e": self._recall_later, "\x04": self._delete,
            "\x1b[A": self._recall_earlier, "\x1bOA": self._recall_earlier, "\x1b[B": self._recall_later,
            "\x1bOB": self._recall_later, "\x1b[C": self._right, "\x1bOC": self._right, "\x1b[D": self._left,
            "\x1bOD": self._left, "\x1b[H": self._home, "\x1bOH": self._home, "\x1b[1~": self._home,
            "\x1b[F": self._end, "\x1bOF": self._end, "\x1b[4~": self._end, "\x1b[3~": self._delete,
            "\x1b[1;5C": self._word_right, "\x1bf": self._word_right, "\x1b[1;5D": self._word_left,
            "\x1bb": self._word_left, "\x1b\x7f": self._cut_word,
        }  # fmt: skip

    def feed(self, data: bytes) -> Iterator[str | EndOfInput]:
        self._unread += self._decoder.decode(data)
        while key := self._next_key():
            if key == _PASTE_BEGIN:
                self._pasting = True
            elif key == _PASTE_END:
                self._pasting = False
            elif self._pasting:
                self._insert("\n" if key == "\r" else key)
            elif key in "\r\n":
                yield self._enter()
            elif key == "\x04" and not self.text:
                yield EndOfInput.END
            elif key in self._keys:
                self._keys[key]()
            elif len(key) == 1:
                self._insert(key)

    def clear(self) -> None:
        self._set("")

    def _next_key(self) -> str:
        """The next key; empty while none is complete."""
        if not self._unread or _UNFINISHED_ESCAPE.match(self._unread):
            return ""
        found = _ESCAPE.match(self._unread)
        key = found[0] if found else self._unread[0]
        self._unread = self._unread[len(key) :]
        return key

    def _enter(self) -> str:
        line = self.text
        if line.strip() and self._history[-1:] != [line]:
            self._history = [*self._history, line][-MAX_HISTORY:]
        self._recalled = len(self._history)
        self._set("")
        return line

    # ---- keys ----------------------------------------------------------------------------------------------------

    def _set(self, text: str, cursor: int | None = None) -> None:
        self.text = text
        self.cursor = len(text) if cursor is None else cursor

    def _insert(self, char: str) -> None:
        if (char.isprintable() or char in "\n\t") and len(self.text) < MAX_TYPED:
            self._set(self.text[: self.cursor] + char + self.text[self.cursor :], self.cursor + 1)

    def _backspace(self) -> None:
        if self.cursor:
            self._set(self.text[: self.cursor - 1] + self.text[self.cursor :], self.cursor - 1)

    def _delete(self) -> None:
        self._set(self.text[: self.cursor] + self.text[self.cursor + 1 :], self.cursor)

    def _home(self) -> None:
        self.cursor = 0

    def _end(self) -> None:
        self.cursor = len(self.text)

    def _left(self) -> None:
        self.cursor = max(0, self.cursor - 1)

    def _right(self) -> None:
        self.cursor = min(len(self.text), self.cursor + 1)

    def _word_left(self) -> None:
        self.cursor = len(re.sub(r"\S*\s*\Z", "", self.text[: self.cursor]))

    def _word_right(self) -> None:
        rest = self.text[self.cursor :]
        self.cursor += len(rest) - len(re.sub(r"\A\s*\S*", "", rest))

    def _cut_to_end(self) -> None:
        self._set(self.text[: self.cursor])

    def _cut_to_start(self) -> None:
        self._set(self.text[self.cursor :], 0)

    def _cut_word(self) -> None:
        end = self.cursor
        self._word_left()
        self._set(self.text[: self.cursor] + self.text[end:], self.cursor)

    def _recall_earlier(self) -> None:
        if self._recalled == len(self._history):
            self._draft = self.text
        if self._recalled:
            self._recalled -= 1
            self._set(self._history[self._recalled])

    def _recall_later(self) -> None:
        if self._recalled < len(self._history):
            self._recalled += 1
            self._set(self._history[self._recalled] if self._recalled < len(self._history) else self._draft)


# ---- widths ----------------------------------------------------------------------------------------------------------


def char_width(char: str) -> int:
    """Columns of a terminal that a character takes."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def advance_column(column: int, text: str, width: int) -> int:
    """The column after `text`, written from `column` on in lines of `width`; `width` itself when the line is full."""
    for char in text:
        if char == "\n":
            column = 0
        elif char == "\t":
            column = min(width - 1, (column // 8 + 1) * 8)
        else:
            taken = char_width(char)
            column = taken if column + taken > width else column + taken
    return column


def layout_input(prompt: str, text: str, cursor: int, *, width: int, rows: int) -> tuple[list[str], int, int]:
    """The rows that show a typed line, at most `rows` around the cursor; and the row and column of the cursor."""
    shown = prompt + text.replace("\n", NEWLINE_MARK).replace("\t", " ")
    lines, columns, target = [""], [0], len(prompt) + cursor
    at = (0, 0)
    for position, char in enumerate(shown + " "):  # the last place is where the next character goes
        taken = char_width(char)
        if columns[-1] + taken > width:
            lines.append("")
            columns.append(0)
        if position == target:
            at = (len(lines) - 1, columns[-1])
        lines[-1] += char
        columns[-1] += taken
    first = max(0, min(at[0] - rows + 1, len(lines) - rows)) if at[0] < len(lines) - rows else max(0, len(lines) - rows)
    return (
        [line.rstrip(" ") if line is lines[-1] else line for line in lines[first : first + rows]],
        at[0] - first,
        at[1],
    )
