"""Shell text into the commands it would run. Pure; what it can't read for certain it says so, and never guesses.

The text may be meant for sh, bash, dash, ksh or zsh, which disagree in the corners; so only what all of them read alike
is read, and anything else is a doubt. Whoever judges the pieces must not let doubtful text run on a rule alone.
"""

import re
from typing import Final

from msgspec import Struct

LONGEST_TEXT: Final = 64 << 10  # bytes; a longer script belongs in a file somebody has looked at
MOST_PIECES: Final = 256  # commands in one text; more than anybody types
DEEPEST: Final = 16  # substitutions within substitutions


def words(text: str) -> frozenset[str]:
    """A set of words, written as a sentence."""
    return frozenset(text.split())


_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,@%+-")
_OPEN: Final = frozenset("*?[]~")
_ENDS_WORD: Final = frozenset(" \t\n;&|()<>")
_RESERVED: Final = words("""
    if then else elif fi for while until do done case esac in select function time coproc { } ! [[ ]]
    foreach end repeat always nocorrect noglob
""")
_HARMLESS: Final = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLORTERM|NO_COLOR|FORCE_COLOR|COLUMNS|LINES")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)\+?=")
_VARIABLE: Final = re.compile(r"\{[A-Za-z_]\w*\}|[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_REDIRECT: Final = re.compile(r"(\d*)(<<<|<<-?|<>|<&|>>|>&|>\||<\(|>\(|<|>)")


class Word(Struct, frozen=True):
    text: str
    open: bool = False
    """Its value is known only when it runs: a variable, a pattern of file names, another command's output."""


class Piece(Struct, frozen=True):
    """One command as it would be started."""

    words: tuple[Word, ...]
    shell: str | None = None
    """The shell that starts it; None = started directly."""


class Reading(Struct, frozen=True):
    pieces: tuple[Piece, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why the pieces may not be all, or not what they seem. Empty = certain."""


class Doubt(Exception):
    """What follows can't be read for certain."""


def read(text: str, *, shell: str) -> Reading:
    """Every command in `text`, those inside substitutions included."""
    reader = _Reader(shell)
    try:
        reader.read(text)
    except Doubt as doubt:
        return Reading(tuple(reader.pieces), (str(doubt),))
    return Reading(tuple(reader.pieces))


def harmless(name: str) -> bool:
    """Whether setting this variable can't change what a program does, only how its output looks."""
    return _HARMLESS.fullmatch(name) is not None


class _Reader:
    """Reads one text and, through fresh readers of the same list, the texts inside it."""

    def __init__(self, shell: str, pieces: list[Piece] | None = None, depth: int = 0) -> None:
        self.pieces: list[Piece] = [] if pieces is None else pieces
        self._shell = shell
        self._depth = depth
        self._text = ""
        self._at = 0

    def read(self, text: str) -> None:
        if len(text) > LONGEST_TEXT:
            raise Doubt(f"the command is longer than {LONGEST_TEXT} characters")
        if self._depth > DEEPEST:
            raise Doubt("commands are nested too deeply")
        self._text, self._at = text, 0
        self._commands(closing="")

    # ---- commands ------------------------------------------------------------------------------------------------

    def _commands(self, *, closing: str) -> None:
        """Commands up to `closing`, which is consumed; the empty string means the end of the text."""
        while True:
            self._blanks(newlines=True)
            if self._closed(closing):
                return
            if self._peek() == "(":
                self._group()
                self._redirects()
            else:
                self._simple()
            self._blanks()
            if self._closed(closing):
                return
            self._separator()

    def _closed(self, closing: str) -> bool:
        if self._at == len(self._text):
            if closing:
                raise Doubt(f"a closing {closing} is missing")
            return True
        if closing and self._peek() == closing:
            self._at += 1
            return True
        return False

    def _separator(self) -> None:
        for operator in ("&>", "&|", "&!", ";;", ";&", ";|"):
            if self._text.startswith(operator, self._at):
                raise Doubt(f"{operator} is not understood")
        for operator in ("&&", "||", "|&", ";", "&", "|", "\n"):
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                return
        raise Doubt(f"{self._peek()} stands where a command should end")

    def _group(self) -> None:
        if self._text.startswith("((", self._at):
            raise Doubt("arithmetic is not understood")
        self._at += 1
        self._deeper()
        self._commands(closing=")")
        self._depth -= 1

    def _redirects(self) -> None:
        """What follows a group: redirections, and no words."""
        self._blanks()
        while found := _REDIRECT.match(self._text, self._at):
            self._redirect(found)
            self._blanks()

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Doubt("commands are nested too deeply")

    def _simple(self) -> None:
        words: list[Word] = []
        began = self._at
        while True:
            self._blanks()
            if self._at == len(self._text) or self._peek() in ";&|\n)":
                break
            redirect = _REDIRECT.match(self._text, self._at)
            if redirect:
                self._redirect(redirect)
                continue
            if self._peek() == "(":
                raise Doubt("a function or an array is not understood")
            assigned = None if words else _ASSIGNMENT.match(self._text, self._at)
            word = self._word()
            if assigned is None:
                words.append(word)
            elif word.open or not harmless(assigned[1]):
                raise Doubt(f"setting {assigned[1]} may change what a command does")
        if words:
            self._add(tuple(words))
        elif self._at == began:
            raise Doubt(f"{self._peek() or 'the end'} stands where a command should begin")

    def _add(self, words: tuple[Word, ...]) -> None:
        first = words[0]
        if first.open or not first.text or "=" in first.text:
            raise Doubt("which program runs is decided only when it runs")
        if first.text in _RESERVED:
            raise Doubt(f"{first.text} is a word of the shell's own language")
        if len(self.pieces) >= MOST_PIECES:
            raise Doubt(f"there are more than {MOST_PIECES} commands")
        self.pieces.append(Piece(words, self._shell))

    def _redirect(self, found: re.Match[str]) -> None:
        self._at = found.end()
        operator = found[2]
        if operator in ("<", ">", ">>", ">&", "<&"):
            self._blanks()
            target = self._word()
            if operator in (">&", "<&"):
                if not target.open and (target.text.isdecimal() or target.text == "-"):
                    return
            elif not target.open and target.text == "/dev/null":
                return
        raise Doubt("input or output goes through a file")

    # ---- words ---------------------------------------------------------------------------------------------------

    def _word(self) -> Word:
        parts: list[str] = []
        began, open = self._at, False
        while self._at < len(self._text):
            char = self._peek()
            if char in _ENDS_WORD:
                break
            if char == "'":
                parts.append(self._single())
            elif char == '"':
                open |= self._double(parts)
            elif char == "\\":
                parts.append(self._escaped())
            elif char in "$`":
                open |= self._substituted(parts, quoted=False)
            elif char in _PLAIN or char in _OPEN:
                if char == "=" and self._at == began:
                    raise Doubt("a word that begins with = means a program to some shells")
                open |= char in _OPEN
                parts.append(char)
                self._at += 1
            else:
                raise Doubt(f"{char!a} outside quotes is not understood")
        if self._at == began:
            raise Doubt("a word is missing")
        return Word("".join(parts), open)

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise Doubt("a quote is not closed")
        inner = self._text[self._at + 1 : end]
        self._at = end + 1
        return inner

    def _escaped(self) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        if not following:
            raise Doubt("the text ends in a backslash")
        self._at += 2
        return "" if following == "\n" else following

    def _double(self, parts: list[str]) -> bool:
        self._at += 1
        open = False
        while self._at < len(self._text):
            char = self._peek()
            if char == '"':
                self._at += 1
                return open
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                parts.append(self._escaped())
            elif char in "$`":
                open |= self._substituted(parts, quoted=True)
            else:
                parts.append(char)
                self._at += 1
        raise Doubt("a quote is not closed")

    def _substituted(self, parts: list[str], *, quoted: bool) -> bool:
        """Read past a `$` or a backquote; whether the value is open."""
        if self._peek() == "`":
            self._backquoted()
            return True
        self._at += 1
        following = self._text[self._at : self._at + 1]
        if following == "(":
            if self._text.startswith("((", self._at):
                raise Doubt("arithmetic is not understood")
            self._group()
            return True
        variable = _VARIABLE.match(self._text, self._at)
        if variable:
            self._at = variable.end()
            if self._text[self._at : self._at + 1] == "[":
                raise Doubt("a subscript is not understood")
            return True
        if following in ("{", "[") or (not quoted and following in ("'", '"')):
            raise Doubt(f"${following} is not understood")
        parts.append("$")
        return False

    def _backquoted(self) -> None:
        inner: list[str] = []
        at = self._at + 1
        while at < len(self._text):
            char = self._text[at]
            if char == "`":
                self._at = at + 1
                _Reader(self._shell, self.pieces, self._depth + 1).read("".join(inner))
                return
            if char == "\\":
                following = self._text[at + 1 : at + 2]
                if following not in ("$", "`", "\\"):
                    raise Doubt("a backslash inside backquotes is not understood")
                inner.append(following)
                at += 2
                continue
            inner.append(char)
            at += 1
        raise Doubt("a backquote is not closed")

    # ---- characters ----------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _blanks(self, *, newlines: bool = False) -> None:
        while self._at < len(self._text):
            if self._text[self._at] in (" \t\n" if newlines else " \t"):
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            else:
                return
