"""A terminal in memory: what a person would see of what is written to it."""

import os
import re

SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?]*)([A-Za-z])|([78D]))")


class Terminal:
    """Understands what `TerminalScreen` writes. Rows that scroll away stay in `rows`."""

    def __init__(self, width: int = 40, height: int = 8) -> None:
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self._saved = (0, 0)
        self._top = 0

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.width, self.height))

    @property
    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")

    def write(self, text: str) -> None:
        while text:
            found = SEQUENCE.match(text)
            if found:
                self._control(found)
                text = text[found.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _control(self, found: "re.Match[str]") -> None:
        number, letter, single = found.groups()
        match letter or single:
            case "7":
                self._saved = (self.row - self._top, self.column)  # a place on the screen, not in the text
            case "8":
                self.row, self.column = self._saved[0] + self._top, self._saved[1]
            case "D":
                self._down()
            case "A":
                self.row = max(self._top, self.row - int(number or 1))
            case "G":
                self.column = int(number or 1) - 1
            case "J":
                self.rows[self.row] = self.rows[self.row][: self.column]
                del self.rows[self.row + 1 :]

    def _down(self) -> None:
        self.row += 1
        while len(self.rows) <= self.row:
            self.rows.append("")
        self._top = max(self._top, self.row - self.height + 1)

    def _put(self, char: str) -> None:
        if char == "\n":
            self._down()
            self.column = 0
            return
        if self.column >= self.width:
            self._down()
            self.column = 0
        row = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = row[: self.column] + char + row[self.column + 1 :]
        self.column += 1
