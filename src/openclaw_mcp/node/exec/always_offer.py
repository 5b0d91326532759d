"""For which commands *always* is offered: those whose form alone shows what they load and start.

Three kinds, and no others: programs that load and start nothing, an interpreter with one script, and reading with git.
Everything else finds code by itself (modules, build files, hooks, plug-ins), each program in its own way, so that no
list of it is ever complete: a person allows it once, or writes a rule.
"""

import re
from collections.abc import Sequence
from typing import Final

from .program_powers import READ_ONLY_PROGRAMS, base_name, is_busybox_like, strip_version
from .shell_reader import word_set

DATA_ONLY_PROGRAMS: Final = word_set("""
    cat head tail wc nl tac rev cut tr uniq comm paste fold fmt column ls stat file du df grep egrep fgrep cmp diff
    md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum od xxd hexdump strings base64 base32 echo
    printf test [ touch mkdir rmdir basename dirname readlink realpath true false pwd date id whoami uname expr seq
    sleep cd pushd popd
""")
"""Programs that never run what is in a file they are given: for these the folder is enough."""

_INERT_PROGRAMS: Final = (
    DATA_ONLY_PROGRAMS
    | READ_ONLY_PROGRAMS
    | word_set("""
    : cp mv ln link unlink rm shred chmod chown chgrp mkfifo mktemp truncate fallocate tee dd sync shuf find jq
    gzip bzip2 xz zstd kill pkill killall pgrep ps pstree lsof ss netstat ping hostname
""")
)
"""Programs that start no others and load no code, with any arguments. What `find` starts is evaluated by itself, and
modules of `jq` can only compute."""

SAFE_SORT_OPTIONS: Final = re.compile(r"-[bcdfghiMnrRsuVzk0-9.,]+")
"""Options with which `sort` and `uniq` print their input, and do nothing else."""
_SED_LINE_SCRIPT: Final = re.compile(r"(?:[0-9]+|\$)(?:,(?:[0-9]+|\$))?[pdq]")
"""A script of sed that chooses lines."""
_READ_ONLY_GIT_COMMANDS: Final = word_set("status log diff show")

_SHELL_FLAGS: Final = re.compile(r"-[eufxv]+")
_NO_FLAGS: Final = re.compile(r"(?!)")
_HARMLESS_FLAGS: Final[dict[str, re.Pattern[str]]] = {
    **dict.fromkeys(word_set("python pypy"), re.compile(r"-[uBEsSIPOq]+")),
    **dict.fromkeys(word_set("node nodejs"), re.compile(r"--no-warnings|--trace-warnings|--no-deprecation")),
    "perl": re.compile(r"-[wtT]+"),
    "ruby": re.compile(r"-w"),
    **dict.fromkeys(word_set("php lua luajit tclsh"), _NO_FLAGS),
    **dict.fromkeys(word_set("sh bash rbash dash ash ksh ksh93 mksh zsh yash"), _SHELL_FLAGS),
}
"""Interpreters that, given a script, load nothing from the folder, and the options that change nothing about it."""
_SHIM_PROGRAMS: Final = word_set("snap mise rtx asdf volta volta-shim")
_SCRIPT_PATH: Final = re.compile(r"[^-+~].*[./].*|[./].*", re.DOTALL)
"""An argument that is surely the path of a script, and no subcommand of the interpreter, such as `inspect`."""
_NAME: Final = re.compile(r"\w[\w.+-]*")
_SHEBANG: Final = re.compile(rb"#![ \t]*(/[!-~]+)(?:[ \t]+([!-~]+))?[ \t]*\n")
_SHEBANG_READERS: Final = word_set("perl ruby")
_SHEBANG_LINE: Final = re.compile(rb"^(?:\xef\xbb\xbf)?[ \t\r\f\v:]*#!", re.MULTILINE)
"""A line that perl or ruby may take for the first one of a script."""


def is_inert(argv: Sequence[str]) -> bool:
    """Whether an installed program of this name, with these arguments, surely loads and starts nothing."""
    name, given = base_name(argv[0]), argv[1:]
    if name == "sort":
        return all(SAFE_SORT_OPTIONS.fullmatch(word) for word in given if word.startswith("-"))
    if name == "sed":
        rest = given[1:] if given and given[0] == "-n" else given
        return (
            bool(rest) and bool(_SED_LINE_SCRIPT.fullmatch(rest[0])) and not any(word.startswith("-") for word in rest)
        )
    return name in _INERT_PROGRAMS


def is_read_only_git(argv: Sequence[str]) -> bool:
    """Whether git only reads: then only settings of the repository can make it start programs."""
    return base_name(argv[0]) == "git" and len(argv) > 1 and argv[1] in _READ_ONLY_GIT_COMMANDS


def interpreter_script(argv: Sequence[str]) -> str | None:
    """The script of an interpreter in the simplest form: options that change nothing, the script, arguments."""
    flags = _harmless_flags(argv[0])
    if flags is None:
        return None
    first = next((word for word in argv[1:] if not flags.fullmatch(word)), "")
    return first if _SCRIPT_PATH.fullmatch(first) else None


def may_be_program(given: str, file: str, *, in_system_folder: bool) -> bool:
    """Whether the file that is installed by a name is that program. One that represents many (`mise`, `snap`) may
    choose another by a file in the folder. `in_system_folder`: it is where only the system puts programs."""
    name, real = base_name(given), base_name(file)
    if name == real or is_busybox_like(real):
        return True
    if _harmless_flags(given) is not None:
        return _harmless_flags(file) is not None
    return in_system_folder and real not in _SHIM_PROGRAMS


def expand_shebang(head: bytes, argv: Sequence[str]) -> list[str] | None:
    """The command that the first line of a script makes of it; None when that is not certain, or when the line has more
    than an interpreter with harmless options: `#!/bin/sh ./other.sh` runs another file."""
    found = _SHEBANG.match(head)
    if found is None:
        return None
    program, option = found[1].decode(), (found[2] or b"").decode()
    if base_name(program) == "env":
        return [option, *argv] if _NAME.fullmatch(option) else None
    if not option:
        return [program, *argv]
    flags = _harmless_flags(program)
    return [program, option, *argv] if flags is not None and flags.fullmatch(option) else None


def reads_shebang(program: str) -> bool:
    """Whether an interpreter also takes options from the first line of a script."""
    return strip_version(base_name(program)) in _SHEBANG_READERS


def has_harmless_shebang(program: str, content: bytes) -> bool:
    """Whether a script gives such an interpreter only harmless options: perl passes a script to another program that
    the line names, and takes a later line for the first after `# line 1`."""
    if b"\0" in content:
        return False  # perl reads UTF-16 as well
    marked = len(_SHEBANG_LINE.findall(content))
    if not marked:
        return True
    started = expand_shebang(content, ()) if marked == 1 else None
    return started is not None and strip_version(base_name(started[0])) == strip_version(base_name(program))


def _harmless_flags(program: str) -> re.Pattern[str] | None:
    name = base_name(program)
    return _HARMLESS_FLAGS.get(name) or _HARMLESS_FLAGS.get(strip_version(name))
