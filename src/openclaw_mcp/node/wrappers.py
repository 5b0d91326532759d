"""Programs that start other programs: what `env`, `xargs`, `find -exec`, `sh -c` and their kind would start. Pure.

An option we don't know may take a value, and then the next word is no program: so it is a doubt, never a guess.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from .shell import MOST_PIECES, Doubt, Piece, Reading, Word, harmless, read, words

DEEPEST: Final = 8  # wrappers within wrappers

Names = Callable[[str], Sequence[str]]
"""A program as written to the names it goes by: its own, and that of the file behind a link."""

POSIX_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "rbash"})

CARRIERS: Final = re.compile(
    r"(?:[a-z]*sh|python[\d.]*|pypy[\d.]*|perl[\d.]*|ruby[\d.]*|node(?:js)?|deno|bun|php[\d.]*|lua(?:jit)?[\d.]*|tclsh[\d.]*|"
    r"wish|expect|[gmn]?awk|ed|ex|r?vim?|nvim|emacs|nano|gdb|lldb|strace|ltrace|perf|watch|script|scriptreplay|parallel|"
    r"docker|podman|nerdctl|kubectl|systemd-run|systemctl|unshare|nsenter|chroot|flock|taskset|chrt|prlimit|setsid|setarch|"
    r"linux\d\d|at|batch|crontab|make|gmake|ninja|git|tar|bsdtar|rsync|scp|sftp|zip|man|less|more|pkexec|su|sudo|doas|"
    r"runuser|setpriv|capsh|firejail|bwrap|fakeroot|dbus-run-session|xvfb-run|ld-linux.*|ld-.*\.so.*|ld\.so|busybox|toybox|"
    r"env|xargs|find|fd|fdfind|nohup|nice|timeout|stdbuf|time|command|exec|builtin|eval|source|\.|trap|gcc|g\+\+|cc|c\+\+|go|"
    r"cargo|npm|npx|pnpm|yarn|pip[\d.]*|uv|uvx|pipx|java|jshell|osascript|open|xdg-open|tee|sed|m4|sqlite3|psql|mysql|ffmpeg|"
    r"curl|wget|nc|ncat|socat|telnet|ssh-.*|gpg|openssl|apt|apt-get|dpkg|snap|flatpak|rpm|dnf|yum|pacman|brew|"
    r"cp|mv|ln|install|dd|chmod|chown|rm|rmdir|shred|truncate|mkfs.*)",
)
"""Programs that can start others, run a script or destroy: a rule with a wildcard for a program does not mean them."""

_CHANGES_THE_SHELL: Final = words("""
    eval . source trap alias unalias export declare typeset local readonly enable hash bind complete compgen compopt
    mapfile readarray fc history shopt set unset let read getopts wait autoload zmodload emulate disown jobs fg bg
""")
"""Words of a shell that run text, or change what the words after them mean."""


class _Options(Struct, frozen=True):
    """A transparent wrapper's options; its command follows them and `operands` more words."""

    bare: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    operands: int = 0
    number: bool = False
    """Takes `-5` as an option."""


_TRANSPARENT: Final = {
    "nohup": _Options(),
    "builtin": _Options(),
    "command": _Options(words("-p")),
    "exec": _Options(words("-c -l")),
    "nice": _Options(frozenset(), words("-n --adjustment"), number=True),
    "ionice": _Options(words("-t --ignore"), words("-c --class -n --classdata")),
    "time": _Options(words("-p")),
    "stdbuf": _Options(frozenset(), words("-i -o -e --input --output --error")),
    "timeout": _Options(
        words("--preserve-status --foreground -v --verbose"), words("-k --kill-after -s --signal"), operands=1
    ),
    "env": _Options(words("-i - --ignore-environment -0 --null -v --debug"), words("-u --unset")),
    "xargs": _Options(
        words("-0 --null -r --no-run-if-empty -t --verbose -x --exit"),
        words("-n --max-args -L --max-lines -P --max-procs -s --max-chars -d --delimiter -E -I -a --arg-file"),
    ),
    "sudo": _Options(words("-A -b -E -H -k -n -P -S"), words("-u --user -g --group -p --prompt")),
    "doas": _Options(words("-n"), words("-u")),
}
_JUDGED_TOO: Final = frozenset({"sudo", "doas"})
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_CHANGES: Final = frozenset({"-delete", "-fls", "-fprint", "-fprint0", "-fprintf"})
_SHELL_FLAGS: Final = re.compile(r"-[ceuxfvl]+")
_SHELL_LONG: Final = frozenset({"--norc", "--noprofile", "--posix", "--login"})
_ANYTHING: Final = Word("", open=True)


def unwrap(pieces: Sequence[Piece], *, names: Names = lambda text: (PurePath(text).name,)) -> Reading:
    """Every command that would be started, wrappers replaced by what they start."""
    opener = _Opener(names)
    try:
        for piece in pieces:
            opener.open(piece, depth=0)
    except Doubt as doubt:
        return Reading(tuple(opener.pieces), (str(doubt),))
    return Reading(tuple(opener.pieces))


class _Opener:
    def __init__(self, names: Names) -> None:
        self.pieces: list[Piece] = []
        self._names = names
        self._special: Mapping[str, Callable[[Piece, int], None]] = {
            "find": self._find,
            "busybox": self._applet,
            "toybox": self._applet,
            **dict.fromkeys(POSIX_SHELLS, self._shell),
        }

    def open(self, piece: Piece, *, depth: int) -> None:
        if depth > DEEPEST:
            raise Doubt("programs that start programs are nested too deeply")
        first = piece.words[0]
        if first.open or not first.text:
            raise Doubt("which program runs is decided only when it runs")
        if piece.shell and "/" in first.text and not first.text.startswith("/"):
            raise Doubt(f"{first.text} depends on the folder the shell stands in")
        self._check_builtin(piece)
        for name in self._names(first.text):
            if name in _TRANSPARENT:
                self._transparent(name, piece, depth)
                return
            if name in self._special:
                self._special[name](piece, depth)
                return
        self._add(piece)

    def _add(self, piece: Piece) -> None:
        if len(self.pieces) >= MOST_PIECES:
            raise Doubt(f"there are more than {MOST_PIECES} commands")
        self.pieces.append(piece)

    def _check_builtin(self, piece: Piece) -> None:
        name = piece.words[0].text
        if piece.shell is None:
            return
        if name in _CHANGES_THE_SHELL:
            raise Doubt(f"{name} can change what the shell does next")
        if name in ("printf", "test", "[") and any(word.open or word.text.startswith("-v") for word in piece.words[1:]):
            raise Doubt(f"{name} may evaluate its words")

    # ---- wrappers that only pass on --------------------------------------------------------------------------------

    def _transparent(self, name: str, piece: Piece, depth: int) -> None:
        at, values = _past_options(name, _TRANSPARENT[name], piece.words)
        if name == "env":
            at = _past_assignments(piece.words, at)
        inner = piece.words[at:]
        if name == "xargs":
            inner = _fed(inner or (Word("echo"),), values.get("-I"))
        if name in _JUDGED_TOO or not inner:
            self._add(piece)
        if inner:
            # What exec and builtin start is still the shell's; the others start a program.
            shell = piece.shell if name in ("command", "builtin", "exec", "time") else None
            self.open(Piece(inner, shell), depth=depth + 1)

    # ---- the rest, each in its own way -----------------------------------------------------------------------------

    def _find(self, piece: Piece, depth: int) -> None:
        words = piece.words
        self._add(piece)
        if any(word.open for word in words):
            raise Doubt("find's arguments are decided only when it runs")
        at = 1
        while at < len(words):
            word = words[at].text
            if word in _FIND_CHANGES:
                raise Doubt(f"find {word} changes files")
            at += 1
            if word in _FIND_RUNS:
                end = next((i for i in range(at, len(words)) if words[i].text in (";", "+")), None)
                if end is None or end == at:
                    raise Doubt(f"find {word} has no command or no end")
                self.open(Piece(_replaced(words[at:end], "{}")), depth=depth + 1)
                at = end + 1

    def _applet(self, piece: Piece, depth: int) -> None:
        if len(piece.words) == 1 or piece.words[1].text.startswith("-"):
            self._add(piece)
            return
        self.open(Piece(piece.words[1:]), depth=depth + 1)

    def _shell(self, piece: Piece, depth: int) -> None:
        words = piece.words
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
        name = next(name for name in self._names(words[0].text) if name in POSIX_SHELLS)
        reading = read(words[at].text, shell=name)
        for inner in reading.pieces:
            self.open(inner, depth=depth + 1)
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
        if word in options.bare or (options.number and word[1:].isdecimal()):
            continue
        if word in options.valued:
            if at >= len(given) or given[at].open:
                raise Doubt(f"{name} {word} has no value of its own")
            values[word] = given[at].text
            at += 1
        else:
            flag, value = _attached(name, options, word)
            values[flag] = value
    if any(word.open for word in given[at : at + options.operands]):
        raise Doubt(f"{name}'s arguments are decided only when it runs")
    return at + options.operands, values


def _attached(name: str, options: _Options, word: str) -> tuple[str, str]:
    """An option that holds its value: `--signal=9`, `-n5`."""
    flag, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "=", word[2:])
    if flag not in options.valued or not equals or not value:
        raise Doubt(f"the option {word[:40]} of {name} is not understood")
    return flag, value


def _past_assignments(words: Sequence[Word], at: int) -> int:
    while at < len(words) and "=" in words[at].text:
        variable = words[at].text.partition("=")[0]
        if words[at].open or not harmless(variable):
            raise Doubt(f"setting {variable[:40]} may change what a command does")
        at += 1
    return at


def _fed(words: tuple[Word, ...], placeholder: str | None) -> tuple[Word, ...]:
    """A command of xargs: what it is fed may be anything."""
    if placeholder is None:
        return (*words, _ANYTHING)
    return _replaced(words, placeholder) if placeholder else (_ANYTHING,)


def _replaced(words: Sequence[Word], placeholder: str) -> tuple[Word, ...]:
    return tuple(Word(word.text, open=True) if placeholder in word.text else word for word in words)
