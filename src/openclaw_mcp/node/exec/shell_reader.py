"""Shell text into the commands it would run. Pure; what it can't read for certain it says so, and never guesses.

The text may be meant for sh, bash, dash, ash or ksh; behind these names stands dash, bash, busybox, ksh93, mksh or zsh.
They disagree in the corners; so only what all of them read alike is read, and anything else is a doubt. Whoever judges
the pieces must not let doubtful text run on a rule alone.

Shells take a backslash and the newline after it out of the text before they look at it, so the pair may stand in the
middle of anything: `$\\⏎(`. Here it is read only after a blank, where there is nothing to be in the middle of.
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


_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=,@%+-]+")
_PLAIN_IN_QUOTES: Final = re.compile(r'[^"\\$`]+')
_OPEN: Final = frozenset("*?[]~")
_ENDS_WORD: Final = frozenset(" \t\n;&|()<>")
_ODD: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]|[^\x00-\x7f][\\`]")
"""What some shell or locale reads otherwise, quoted or not: control characters, which shells use as marks of their own;
what is no text; a backslash or backquote that GBK, Big5 or Shift-JIS take for half of the character before it."""
_ESCAPES_IN_QUOTES: Final = frozenset('$`"\\')
RESERVED: Final = words("""
    if then else elif fi for while until do done case esac in select function time coproc { } ! [[ ]]
    foreach end repeat always nocorrect noglob namespace
""")
_ABOUT_LOOKS: Final = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLORTERM|NO_COLOR|FORCE_COLOR|COLUMNS|LINES")
_LOOKS: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.:@,+=-]*")
_VALUES: Final = {
    "COLUMNS": re.compile("[0-9]{0,5}"),
    "LINES": re.compile("[0-9]{0,5}"),
    "TZ": re.compile(r"(?!.*\.\.)(?:[A-Za-z0-9_<+-][A-Za-z0-9_.:@/,+<>=-]*)?"),
}
"""What variables may be set to that are more than names. No other holds a path: C libraries read files named after the
language and the terminal, and a catalogue of messages is a program of sorts. A time zone is a path below theirs."""
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_VARIABLE: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_REDIRECT: Final = re.compile(r"([0-9]*)(<<<|<<-?|<>|<&|>>|>&|>\||<\(|>\(|<|>)")
_DESCRIPTOR: Final = re.compile(r"[0-9]|-")
_AFTER_DOLLAR: Final = frozenset(("", *" \t\n/.,:%)|;&"))
_AFTER_DOLLAR_IN_QUOTES: Final = _AFTER_DOLLAR | {'"'}
"""What may follow a `$` that is just a `$`."""
_BEGINS_AFTER_DOLLAR: Final = frozenset("'\"({[$`")
_BLANKS: Final = re.compile(r"[ \t]*")
_BLANKS_AND_NEWLINES: Final = re.compile(r"[ \t\n]*")
BASH: Final = frozenset({"bash", "rbash"})
_NEEDS_ANOTHER: Final = frozenset({"&&", "||", "|", "|&"})
_FEEDS: Final = frozenset({"|", "|&"})


class Word(Struct, frozen=True):
    text: str
    open: bool = False
    """Its value is known only when it runs: a variable, a pattern of file names, another command's output."""


class Piece(Struct, frozen=True):
    """One command as it would be started."""

    words: tuple[Word, ...]
    shell: str | None = None
    """The shell that starts it; None = started directly."""
    fed: bool = False
    """Its input comes, or may come, from another command."""
    later: bool = False
    """Another command of the same text may have run by the time it starts. Those of one pipe start together."""


class Reading(Struct, frozen=True):
    pieces: tuple[Piece, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why the pieces may not be all, or not what they seem. Empty = certain."""


class Doubt(Exception):
    """What follows can't be read for certain."""


def read(text: str, *, shell: str, fed: bool = False, later: bool = False) -> Reading:
    """Every command in `text`, those inside substitutions included. `fed`: another command feeds the shell itself.
    `later`: it may have run before."""
    reader = _Reader(text, shell, fed=fed, later=later)
    try:
        reader.read()
    except Doubt as doubt:
        return Reading(tuple(reader.pieces), (str(doubt),))
    return Reading(tuple(reader.pieces))


def harmless(name: str, value: str) -> bool:
    """Whether setting this variable so can't change what a program does, only how its output looks.

    Some shells compute what COLUMNS and LINES are set to, and computing can run commands: these must be numbers.
    """
    return is_about_looks(name) and _VALUES.get(name, _LOOKS).fullmatch(value) is not None


def is_about_looks(name: str) -> bool:
    """Whether this variable only decides how output looks, set or not."""
    return _ABOUT_LOOKS.fullmatch(name) is not None


class _Reader:
    """Reads one text and, through fresh readers of the same list, the texts inside it."""

    def __init__(
        self, text: str, shell: str, pieces: list[Piece] | None = None, depth: int = 0, *, fed: bool, later: bool
    ) -> None:
        self.pieces: list[Piece] = [] if pieces is None else pieces
        self._shell = shell
        self._depth = depth
        self._fed = fed
        self._later = later
        self._text = text
        self._at = 0

    def read(self) -> None:
        if len(self._text) > LONGEST_TEXT:
            raise Doubt(f"the command is longer than {LONGEST_TEXT} characters")
        if self._depth > DEEPEST:
            raise Doubt("commands are nested too deeply")
        if _ODD.search(self._text):
            raise Doubt("there is a character in it that shells read differently")
        self._commands(closing="")

    # ---- commands ------------------------------------------------------------------------------------------------

    def _commands(self, *, closing: str) -> None:
        """Commands up to `closing`, which is consumed; the empty string means the end of the text."""
        needed = bool(closing)
        fed, later = self._fed, self._later
        while True:
            self._blanks(newlines=True)
            if self._closed(closing):
                if needed:
                    raise Doubt("a command is missing")
                break
            if self._peek() == "(":
                self._group()
                self._redirects()
            else:
                self._simple()
            if self._closed(closing):
                break
            separator = self._separator()
            needed = separator in _NEEDS_ANOTHER
            self._fed = fed or separator in _FEEDS
            self._later = self._later or separator not in _FEEDS
        self._fed, self._later = fed, later

    def _closed(self, closing: str) -> bool:
        if self._at == len(self._text):
            if closing:
                raise Doubt(f"a closing {closing} is missing")
            return True
        if self._peek() == closing:
            self._at += 1
            return True
        return False

    def _separator(self) -> str:
        for operator in ("&>", "&|", "&!", ";;", ";&", ";|", "|&"):
            if operator == "|&" and self._shell in BASH:
                continue  # a pipe; a coprocess to ksh, nonsense to dash
            if self._text.startswith(operator, self._at):
                raise Doubt(f"{operator} is not understood")
        for operator in ("&&", "||", "|&", ";", "&", "|", "\n"):
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                return operator
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
        settled = redirected = False
        while True:
            self._blanks()
            if self._peek() in ";&|\n)":  # or at the end, where it is the empty string
                break
            redirect = _REDIRECT.match(self._text, self._at)
            if redirect:
                self._redirect(redirect)
                redirected = True
                continue
            if self._peek() == "(":
                raise Doubt("a function or an array is not understood")
            assigned = None if words else _ASSIGNMENT.match(self._text, self._at)
            word = self._word()
            if assigned is None:
                words.append(word)
            elif word.open or not harmless(assigned[1], word.text[assigned.end() - assigned.start() :]):
                raise Doubt(f"setting {assigned[1]} may change what a command does")
            else:
                settled = True
        if words:
            self._add(tuple(words))
        elif not settled or redirected:
            raise Doubt(f"{self._peek() or 'the end'} stands where a command should begin")

    def _add(self, words: tuple[Word, ...]) -> None:
        first = words[0]
        if first.open or not first.text or "=" in first.text:
            raise Doubt("which program runs is decided only when it runs")
        if first.text in RESERVED or first.text[0] in "-%":
            raise Doubt(f"{first.text} is a word of the shell's own language")
        if len(self.pieces) >= MOST_PIECES:
            raise Doubt(f"there are more than {MOST_PIECES} commands")
        self.pieces.append(Piece(words, self._shell, self._fed, self._later))

    def _redirect(self, found: re.Match[str]) -> None:
        self._at = found.end()
        operator = found[2]
        if len(found[1]) > 1:
            raise Doubt(f"{found[1][:40]} before {operator} is a number to some shells and a word to others")
        if operator in ("<", ">", ">>", ">&", "<&"):
            self._blanks()
            began = self._at
            target = self._word()
            if operator in (">&", "<&"):
                # As written: a quoted one is a file's name to some shells.
                if _DESCRIPTOR.fullmatch(self._text, began, self._at):
                    return
            elif not target.open and target.text == "/dev/null":
                return
        raise Doubt("input or output goes through a file")

    # ---- words ---------------------------------------------------------------------------------------------------

    def _word(self) -> Word:
        text, began, open = self._text, self._at, False
        if text.startswith("=", began):
            raise Doubt("a word that begins with = means a program to some shells")
        parts: list[str] = []
        while self._at < len(text):
            if found := _PLAIN.match(text, self._at):
                parts.append(found[0])
                self._at = found.end()
            elif text[self._at] in _ENDS_WORD:
                break
            else:
                open |= self._part(text[self._at], parts)
        if self._at == began:
            raise Doubt("a word is missing")
        return Word("".join(parts), open)

    def _part(self, char: str, parts: list[str]) -> bool:
        """Read past a part of a word that is more than plain; whether its value is open."""
        if char == '"':
            return self._double(parts)
        if char in "$`":
            return self._substituted(parts, quoted=False)
        if char in _OPEN:
            parts.append(char)
            self._at += 1
            return True
        if char == "'":
            parts.append(self._single())
        elif char == "\\":
            parts.append(self._escaped())
        else:
            raise Doubt(f"{char!a} outside quotes is not understood")
        return False

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end == -1:
            raise Doubt("a quote is not closed")
        inner = self._text[self._at + 1 : end]
        self._at = end + 1
        return inner

    def _escaped(self) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        if not following:
            raise Doubt("the text ends in a backslash")
        if following == "\n":
            raise Doubt("a line is continued in the middle of something")
        if not following.isascii():
            raise Doubt(f"{following!a} outside quotes is not understood")
        self._at += 2
        return following

    def _double(self, parts: list[str]) -> bool:
        self._at += 1
        text, open = self._text, False
        while self._at < len(text):
            if found := _PLAIN_IN_QUOTES.match(text, self._at):
                parts.append(found[0])
                self._at = found.end()
                continue
            char = text[self._at]
            if char == '"':
                self._at += 1
                return open
            if char in "$`":
                open |= self._substituted(parts, quoted=True)
            elif text.startswith("\\\n", self._at):
                self._continued()
            elif text[self._at + 1 : self._at + 2] in _ESCAPES_IN_QUOTES:
                parts.append(self._escaped())
            else:
                parts.append(char)
                self._at += 1
        raise Doubt("a quote is not closed")

    def _substituted(self, parts: list[str], *, quoted: bool) -> bool:
        """Read past a `$` or a backquote; whether the value is open."""
        if self._peek() == "`":
            self._backquoted()
            self._later = True  # whatever is read from here on, the commands inside start first
            return True
        self._at += 1
        following = self._text[self._at : self._at + 1]
        if following == "(":
            self._group()
            self._later = True
            return True
        variable = _VARIABLE.match(self._text, self._at)
        if variable:
            self._at = variable.end()
            after = self._text[self._at : self._at + 1]
            if after == "[":
                raise Doubt("a subscript is not understood")
            if variable[0] == "$" and after in _BEGINS_AFTER_DOLLAR and not (quoted and after == '"'):
                raise Doubt(f"$${after} is one thing to some shells and two to others")
            return True
        if following not in (_AFTER_DOLLAR_IN_QUOTES if quoted else _AFTER_DOLLAR):
            raise Doubt(f"${following} is not understood")
        parts.append("$")
        return False

    def _backquoted(self) -> None:
        end = self._text.find("`", self._at + 1)
        if end == -1:
            raise Doubt("a backquote is not closed")
        inner = self._text[self._at + 1 : end]
        if "\\" in inner:
            raise Doubt("a backslash inside backquotes is not understood")
        self._at = end + 1
        _Reader(inner, self._shell, self.pieces, self._depth + 1, fed=self._fed, later=self._later).read()

    # ---- characters ----------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _blanks(self, *, newlines: bool = False) -> None:
        blanks = _BLANKS_AND_NEWLINES if newlines else _BLANKS
        while True:
            found = blanks.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if not self._text.startswith("\\\n", self._at):
                return
            self._continued()

    def _continued(self) -> None:
        """Read past the end of a line that goes on in the next, if nothing can have begun before it."""
        if self._at and self._text[self._at - 1] not in " \t\n":
            raise Doubt("a line is continued in the middle of something")
        self._at += 2
