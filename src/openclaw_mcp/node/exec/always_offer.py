"""For which commands *always* is on offer: those whose form alone says what they load and start.

Three kinds, and no others: programs that load and start nothing, an interpreter with one script, and looking with git.
Everything else finds code by itself (modules, build files, hooks, plug-ins), each program in its own way, so that no
list of it is ever in full: a person says yes to it once, or writes a rule.
"""

import re
from collections.abc import Sequence
from typing import Final

from .program_powers import LOOKING, is_box, name_of, unversioned
from .shell_reader import words

READS_OR_NAMES: Final = words("""
    cat head tail wc nl tac rev cut tr uniq comm paste fold fmt column ls stat file du df grep egrep fgrep cmp diff
    md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum od xxd hexdump strings base64 base32 echo
    printf test [ touch mkdir rmdir basename dirname readlink realpath true false pwd date id whoami uname expr seq
    sleep cd pushd popd
""")
"""Programs that never run what is in a file they are given: for these the folder is enough."""

_STARTS_NOTHING: Final = (
    READS_OR_NAMES
    | LOOKING
    | words("""
    : cp mv ln link unlink rm shred chmod chown chgrp mkfifo mktemp truncate fallocate tee dd sync shuf find jq
    gzip bzip2 xz zstd kill pkill killall pgrep ps pstree lsof ss netstat ping hostname
""")
)
"""Programs that start no others and load no code, whatever they are told. What `find` starts is judged by itself, and
what `jq` imports can only compute."""

SORTING: Final = re.compile(r"-[bcdfghiMnrRsuVzk0-9.,]+")
"""Options with which `sort` and `uniq` print what they are fed, and do nothing else."""
_LINES: Final = re.compile(r"(?:[0-9]+|\$)(?:,(?:[0-9]+|\$))?[pdq]")
"""A script of sed that chooses lines."""
_GIT_LOOKS: Final = words("status log diff show")

_SHELL_FLAGS: Final = re.compile(r"-[eufxv]+")
_NO_FLAGS: Final = re.compile(r"(?!)")
_FLAGS: Final[dict[str, re.Pattern[str]]] = {
    **dict.fromkeys(words("python pypy"), re.compile(r"-[uBEsSIPOq]+")),
    **dict.fromkeys(words("node nodejs"), re.compile(r"--no-warnings|--trace-warnings|--no-deprecation")),
    "perl": re.compile(r"-[wtT]+"),
    "ruby": re.compile(r"-w"),
    **dict.fromkeys(words("php lua luajit tclsh"), _NO_FLAGS),
    **dict.fromkeys(words("sh bash rbash dash ash ksh ksh93 mksh zsh yash"), _SHELL_FLAGS),
}
"""Interpreters that, given a script, load nothing from the folder, and the options that change nothing about it."""
_STANDS_FOR_MANY: Final = words("snap mise rtx asdf volta volta-shim")
_SCRIPT: Final = re.compile(r"[^-+~].*[./].*|[./].*", re.DOTALL)
"""A word that is surely the path of a script, and no order to the interpreter, such as `inspect`."""
_NAME: Final = re.compile(r"\w[\w.+-]*")
_FIRST_LINE: Final = re.compile(rb"#![ \t]*(/[!-~]+)(?:[ \t]+([!-~]+))?[ \t]*\n")
_READ_FIRST_LINES: Final = words("perl ruby")
_MARKED: Final = re.compile(rb"^(?:\xef\xbb\xbf)?[ \t\r\f\v:]*#!", re.MULTILINE)
"""A line that perl or ruby may take for a script's first one."""


def starts_nothing(argv: Sequence[str]) -> bool:
    """Whether an installed program of this name, told this, surely loads and starts nothing."""
    name, given = name_of(argv[0]), argv[1:]
    if name == "sort":
        return all(SORTING.fullmatch(word) for word in given if word.startswith("-"))
    if name == "sed":
        rest = given[1:] if given and given[0] == "-n" else given
        return bool(rest) and bool(_LINES.fullmatch(rest[0])) and not any(word.startswith("-") for word in rest)
    return name in _STARTS_NOTHING


def looks_with_git(argv: Sequence[str]) -> bool:
    """Whether git only looks: then what it starts is in the settings of the repository alone."""
    return name_of(argv[0]) == "git" and len(argv) > 1 and argv[1] in _GIT_LOOKS


def script_of(argv: Sequence[str]) -> str | None:
    """The script an interpreter is given, in the plainest form: options that change nothing, the script, its words."""
    flags = _flags(argv[0])
    if flags is None:
        return None
    first = next((word for word in argv[1:] if not flags.fullmatch(word)), "")
    return first if _SCRIPT.fullmatch(first) else None


def may_stand_for(given: str, file: str, *, system: bool) -> bool:
    """Whether the file that is installed by a name is that program. One that stands for many (`mise`, `snap`) may
    choose another by a file in the folder. `system`: it lies where only the system puts programs."""
    name, real = name_of(given), name_of(file)
    if name == real or is_box(real):
        return True
    if _flags(given) is not None:
        return _flags(file) is not None
    return system and real not in _STANDS_FOR_MANY


def with_its_interpreter(head: bytes, argv: Sequence[str]) -> list[str] | None:
    """A script of somebody's own as its first line has it started; None when that can't be told for certain, or when
    the line says more than which interpreter with which harmless options: `#!/bin/sh ./other.sh` runs another file."""
    found = _FIRST_LINE.match(head)
    if found is None:
        return None
    program, option = found[1].decode(), (found[2] or b"").decode()
    if name_of(program) == "env":
        return [option, *argv] if _NAME.fullmatch(option) else None
    if not option:
        return [program, *argv]
    flags = _flags(program)
    return [program, option, *argv] if flags is not None and flags.fullmatch(option) else None


def reads_first_lines(program: str) -> bool:
    """Whether an interpreter takes options from the first line of a script it is given, too."""
    return unversioned(name_of(program)) in _READ_FIRST_LINES


def first_line_agrees(program: str, content: bytes) -> bool:
    """Whether a script tells such an interpreter nothing but harmless options: perl hands a script over to another
    program that the line names, and takes a later line for the first where `# line 1` stands before it."""
    if b"\0" in content:
        return False  # perl reads UTF-16 as well
    marked = len(_MARKED.findall(content))
    if not marked:
        return True
    started = with_its_interpreter(content, ()) if marked == 1 else None
    return started is not None and unversioned(name_of(started[0])) == unversioned(name_of(program))


def _flags(program: str) -> re.Pattern[str] | None:
    name = name_of(program)
    return _FLAGS.get(name) or _FLAGS.get(unversioned(name))
