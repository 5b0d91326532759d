"""Programs that start other programs: what `env`, `xargs`, `find -exec`, `sh -c` and their kind would start. Pure.

An option we don't know may take a value, and then the next word is no program: so it is a doubt, never a guess.
Only the file such a name is known for is opened. Another file of that name is a program like any other.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from ...core.numbers import whole
from .shell_builtins import SHELLS_OWN, check_builtin
from .shell_reader import MOST_PIECES, Doubt, Piece, Reading, Word, harmless, is_about_looks, read, words

DEEPEST: Final = 8  # wrappers within wrappers
MOST_SEEN: Final = MOST_PIECES * (DEEPEST + 2)  # what needs no rule of its own; each piece may be wrapped that deep

Names = Callable[[str], Sequence[str]]
"""A program as written to the names it surely acts by; none for a file that is not the one known by its name."""


Steady = Callable[[str], bool]
"""Whether a program as written means the same file to every process."""


class Opened(Reading, frozen=True):
    seen: tuple[Piece, ...] = ()
    """What needs no rule that allows it, and yet rules may forbid: the wrappers that were opened, and what a file that
    only bears a wrapper's name might start."""


POSIX_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "rbash"})


class _Options(Struct, frozen=True):
    """A transparent wrapper's options; its command follows them and `operands` more words."""

    bare: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    glued: frozenset[str] = frozenset()
    """Take a value only as `--option=value`; the word after them is no value."""
    operands: int = 0
    number: bool = False
    """Takes `-5` as an option."""


_TRANSPARENT: Final = {
    "nohup": _Options(),
    "builtin": _Options(),
    "command": _Options(),  # -p looks for the program elsewhere than we do
    "exec": _Options(),  # -l makes a login shell, -c takes the PATH away
    "nice": _Options(frozenset(), words("-n --adjustment"), number=True),
    "ionice": _Options(words("-t --ignore"), words("-c --class -n --classdata")),
    "time": _Options(words("-p")),
    "stdbuf": _Options(frozenset(), words("-i -o -e --input --output --error")),
    "timeout": _Options(
        words("--preserve-status --foreground -v --verbose"), words("-k --kill-after -s --signal"), operands=1
    ),
    # Not -i: without a PATH shells look for programs in folders of their own choice, the present one among them.
    "env": _Options(words("-0 --null -v --debug"), words("-u --unset")),
    "xargs": _Options(
        words("-0 --null -r --no-run-if-empty -t --verbose -x --exit"),
        # Not -a: it prints any file through a command that prints its words.
        words("-n --max-args -L -P --max-procs -s --max-chars -d --delimiter -E -I"),
        glued=words("--max-lines"),
    ),
    "sudo": _Options(words("-A -b -E -H -k -n -P -S"), words("-u --user -g --group -p --prompt")),
    "doas": _Options(words("-n"), words("-u")),
}
_JUDGED_TOO: Final = frozenset({"sudo", "doas"})
_WAITS: Final = _JUDGED_TOO | {"xargs"}
"""These start a command only when they have what they wait for: a line of input, a password."""
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_CHANGES: Final = frozenset({"-delete", "-fls", "-fprint", "-fprint0", "-fprintf"})
_FIND_READS: Final = frozenset({"-files0-from"})
_FIND_FOLLOWS: Final = frozenset({"-H", "-L", "-P"})
_SHELL_FLAGS: Final = re.compile(r"-[ceuxfv]+")
_SHELL_LONG: Final = frozenset({"--norc", "--noprofile", "--posix"})
"""Not -l, --login, -i, -s: such a shell reads files of its own, or its commands from elsewhere."""
_FIND_ACTS: Final = _FIND_RUNS | _FIND_CHANGES | _FIND_READS
APPLETS: Final = frozenset({"busybox", "toybox", "coreutils"})
"""Programs that hold others, and act as the one they are called by or told to be."""
_ANYTHING: Final = Word("", open=True)

WRAPPERS: Final = frozenset(_TRANSPARENT) | APPLETS | POSIX_SHELLS | {"find"}
"""The names that are opened."""


def bare(text: str) -> Sequence[str]:
    """The names of a program when no files are at hand: a bare name means what it says, a path means nothing known."""
    return () if "/" in text else (text,)


def unwrap(
    pieces: Sequence[Piece], *, names: Names = bare, suspected: Names = bare, steady: Steady = lambda _: True
) -> Opened:
    """Every command that would be started, wrappers replaced by what they start. `suspected`: names a program may act
    by besides; what it would start then needs no rule, and may be forbidden."""
    opener = _Opener(names, suspected, steady)
    doubts: tuple[str, ...] = ()
    try:
        for piece in pieces:
            opener.open(piece, depth=0)
    except Doubt as doubt:
        doubts = (str(doubt),)
    return Opened(tuple(opener.pieces), doubts, tuple(opener.seen))


class _Opener:
    """`moved` says that a piece may start in another folder than the whole command does."""

    def __init__(self, names: Names, suspected: Names, steady: Steady) -> None:
        self.pieces: list[Piece] = []
        self.seen: list[Piece] = []
        self._names = names
        self._suspected = suspected
        self._steady = steady
        self._special: Mapping[str, Callable[[str, Piece, int, bool], None]] = {
            "find": self._find,
            **dict.fromkeys(APPLETS, self._applet),
            **dict.fromkeys(POSIX_SHELLS, self._shell),
        }

    def open(self, piece: Piece, *, depth: int, moved: bool = False, name: str | None = None) -> None:
        """`name`: what the piece acts as, where that is not for its file to say."""
        if depth > DEEPEST:
            raise Doubt("programs that start programs are nested too deeply")
        first = piece.words[0]
        if first.open or not first.text:
            raise Doubt("which program runs is decided only when it runs")
        moved = moved or piece.shell is not None
        if moved and "/" in first.text and not first.text.startswith("/"):
            raise Doubt(f"{first.text} depends on the folder it is started in")
        if not self._steady(first.text):
            raise Doubt(f"{first.text} may mean another file to whatever starts it")
        check_builtin(piece)
        name = name or self._acts_as(piece)
        if name not in WRAPPERS:
            self._add(piece)
            self._suspect(piece, depth)
            return
        self._note([piece])
        self._special.get(name, self._transparent)(name, piece, depth, moved)

    def _acts_as(self, piece: Piece) -> str:
        first = piece.words[0].text
        if first in SHELLS_OWN:
            # To everybody but a shell they are programs like others, whatever those do.
            return first if piece.shell is not None else ""
        return next((name for name in self._names(first) if name in WRAPPERS), "")

    def _suspect(self, piece: Piece, depth: int) -> None:
        """A file that bears a wrapper's name and is not it may be a copy of it or a link: what that would start is
        noted."""
        given = piece.words[0].text
        for name in dict.fromkeys((PurePath(given).name.lower(), *(self._suspected(given) if "/" in given else ()))):
            if name in WRAPPERS:
                copy = _Opener(lambda text: (PurePath(text).name,), bare, self._steady)
                with suppress(Doubt):
                    copy.open(piece, depth=depth + 1, name=name)
                self._note([*copy.pieces, *copy.seen])

    def _note(self, pieces: Sequence[Piece]) -> None:
        if len(self.seen) + len(pieces) > MOST_SEEN:
            raise Doubt(f"more than {MOST_SEEN} commands start others")
        self.seen += pieces

    def _add(self, piece: Piece) -> None:
        if len(self.pieces) >= MOST_PIECES:
            raise Doubt(f"there are more than {MOST_PIECES} commands")
        self.pieces.append(piece)

    # ---- wrappers that only pass on --------------------------------------------------------------------------------

    def _transparent(self, name: str, piece: Piece, depth: int, moved: bool) -> None:
        at, values = _past_options(name, _TRANSPARENT[name], piece.words)
        if name == "env":
            at = _past_assignments(piece.words, at)
        inner = piece.words[at:]
        if name == "xargs":
            inner = _fed(inner or (Word("echo"),), values)
        if name in _JUDGED_TOO or not inner:
            self._add(piece)
        if name == "sudo" and inner and "=" in inner[0].text:
            raise Doubt("sudo sets a variable that may change what a command does")
        if inner:
            # What exec and builtin start is still the shell's; the others start a program.
            shell = piece.shell if name in ("command", "builtin", "exec", "time") else None
            later = piece.later or name in _WAITS
            self.open(Piece(inner, shell, piece.fed, later), depth=depth + 1, moved=moved)

    # ---- the rest, each in its own way -----------------------------------------------------------------------------

    def _find(self, name: str, piece: Piece, depth: int, moved: bool) -> None:
        words = piece.words
        self._add(piece)
        if any(word.open for word in words):
            raise Doubt("find's arguments are decided only when it runs")
        at = 1
        while at < len(words) and words[at].text in _FIND_FOLLOWS:
            at += 1
        if at < len(words) and words[at].text.startswith(("-D", "-O", "--")):
            raise Doubt(f"the option {words[at].text[:40]} of find is not understood")
        while at < len(words):
            word = words[at].text
            if word in _FIND_CHANGES:
                raise Doubt(f"find {word} changes files")
            if word in _FIND_READS:
                raise Doubt(f"find {word} reads names from a file")
            at += 1
            if word in _FIND_RUNS:
                end = _find_end(words, at, word)
                # -execdir and -okdir start it beside each file.
                if any(each.text in _FIND_ACTS for each in words[at:end]):
                    raise Doubt(f"find {word} holds a word of find's own")
                inner = Piece(_replaced(words[at:end], "{}"), fed=piece.fed, later=True)
                self.open(inner, depth=depth + 1, moved=moved or word.endswith("dir"))
                at = end + 1

    def _applet(self, name: str, piece: Piece, depth: int, moved: bool) -> None:
        rest = piece.words[1:]
        if rest and rest[0].open:
            raise Doubt("which program runs is decided only when it runs")
        if rest and name == "coreutils":
            flag, _, chosen = rest[0].text.partition("=")
            if flag in ("--coreutils-prog", "--coreutils-prog-shebang") and chosen:
                rest = (Word(chosen), *rest[1:])
        if not rest or rest[0].text.startswith("-"):
            self._add(piece)
            return
        if "/" in rest[0].text:
            raise Doubt(f"{name} takes {rest[0].text[:40]} for a name of its own")
        # It is itself what it starts, whatever other file has that name.
        self.open(Piece(rest, fed=piece.fed, later=piece.later), depth=depth + 1, moved=moved, name=rest[0].text)

    def _shell(self, name: str, piece: Piece, depth: int, moved: bool) -> None:
        words = piece.words
        if words[0].text.startswith("-"):
            raise Doubt(f"{words[0].text[:40]} is a login shell, by its name")
        at, text = 1, False
        while at < len(words) and words[at].text.startswith(("-", "+")):
            word = words[at]
            if word.text == "--":
                at += 1
                break
            if word.open or not (word.text in _SHELL_LONG or _SHELL_FLAGS.fullmatch(word.text)):
                raise Doubt(f"the shell option {word.text} is not understood")
            text = text or (not word.text.startswith("--") and "c" in word.text)
            at += 1
        if at == len(words) or (not text and words[at].text.startswith(("/dev", "/proc", "-"))):
            raise Doubt("a shell reads its commands from elsewhere")
        if not text:
            self._add(piece)
            return
        if words[at].open:
            raise Doubt("the shell's text is decided only when it runs")
        reading = read(words[at].text, shell=name, fed=piece.fed, later=piece.later)
        for inner in reading.pieces:
            self.open(inner, depth=depth + 1, moved=moved)
        if reading.doubts:
            raise Doubt(reading.doubts[0])


def _past_options(name: str, options: _Options, given: Sequence[Word]) -> tuple[int, dict[str, str]]:
    """Where the command begins, and the values of the options before it."""
    at, values = 1, dict[str, str]()
    while at < len(given) and given[at].text.startswith("-"):
        word = given[at].text
        if given[at].open:
            raise Doubt(f"{name}'s options are decided only when it runs")
        at += 1
        if word == "--":
            break
        if word in options.bare or (options.number and whole(word[1:]) is not None):
            continue
        if word in options.valued:
            if at >= len(given) or given[at].open:
                raise Doubt(f"{name} {word} has no value of its own")
            flag, value = word, given[at].text
            at += 1
        else:
            flag, value = _attached(name, options, word)
        if flag == "-I" and values.get(flag, value) != value:
            raise Doubt(f"{name} {flag} is given twice")
        if name == "env" and not is_about_looks(value):
            raise Doubt(f"{name} {flag} {value[:40]} may change what a command does")
        values[flag] = value
    if any(word.open for word in given[at : at + options.operands]):
        raise Doubt(f"{name}'s arguments are decided only when it runs")
    return at + options.operands, values


def _attached(name: str, options: _Options, word: str) -> tuple[str, str]:
    """An option that holds its value: `--signal=9`, `-n5`."""
    flag, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "=", word[2:])
    if flag not in options.valued | options.glued or not equals or not value:
        raise Doubt(f"the option {word[:40]} of {name} is not understood")
    return flag, value


def _past_assignments(words: Sequence[Word], at: int) -> int:
    while at < len(words) and "=" in words[at].text:
        variable, _, value = words[at].text.partition("=")
        if words[at].open or not harmless(variable, value):
            raise Doubt(f"setting {variable[:40]} may change what a command does")
        at += 1
    return at


def _find_end(words: Sequence[Word], at: int, action: str) -> int:
    """Where the command of `find -exec` ends: at `;`, or at a `+` right after `{}`; finds differ about any other."""
    end = next((i for i in range(at, len(words)) if words[i].text in (";", "+")), None)
    if end is None or end == at:
        raise Doubt(f"find {action} has no command or no end")
    if words[end].text == "+" and (words[end - 1].text != "{}" or action not in ("-exec", "-execdir")):
        raise Doubt(f"find {action} ends in a + that does not stand right after {{}}")
    return end


def _fed(words: tuple[Word, ...], values: Mapping[str, str]) -> tuple[Word, ...]:
    """A command of xargs: what it is fed may be anything. Which of two ways to feed counts, xargs decides."""
    ways = [flag for flag in ("-I", "-L", "--max-lines", "-n", "--max-args") if flag in values]
    if "-I" not in ways:
        return (*words, _ANYTHING)
    if len(ways) > 1:
        raise Doubt(f"xargs {' and '.join(ways)} contradict each other")
    return _replaced(words, values["-I"]) if values["-I"] else (_ANYTHING,)


def _replaced(words: Sequence[Word], placeholder: str) -> tuple[Word, ...]:
    return tuple(Word(word.text, open=True) if placeholder in word.text else word for word in words)
