"""Programs that start other programs: what `env`, `xargs`, `find -exec`, `sh -c` and their kind would start. Pure.

An option we don't know may take a value, and then the next word is no program: so the command is uncertain.
Only the installed file of such a name is unwrapped. Another file of that name is a program like any other.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from ...core.numbers import parse_whole_number
from .shell_builtins import LAUNCHING_BUILTINS, check_builtin
from .shell_reader import (
    MOST_COMMANDS,
    ParsedCommand,
    ParseResult,
    ShellWord,
    UncertainCommand,
    is_display_variable,
    is_harmless_variable,
    parse_script,
    word_set,
)

DEEPEST: Final = 8  # wrappers within wrappers
MOST_DENY_CANDIDATES: Final = MOST_COMMANDS * (DEEPEST + 2)  # each command may be wrapped that deep

ProgramNames = Callable[[str], Sequence[str]]
"""A program as written to the names it surely acts by; none for a file that is not the one installed by its name."""
IsProcessIndependent = Callable[[str], bool]
"""Whether a program as written means the same file to every process."""


class UnwrapResult(ParseResult, frozen=True):
    deny_candidates: tuple[ParsedCommand, ...] = ()
    """Commands that need no rule to allow them but may be forbidden by one: the wrappers that were unwrapped, and what
    a file that only has a wrapper's name might start."""


POSIX_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "rbash"})


class _WrapperOptions(Struct, frozen=True):
    """A transparent wrapper's options; its command follows them and `operands` more words."""

    flags: frozenset[str] = frozenset()
    with_value: frozenset[str] = frozenset()
    with_attached_value: frozenset[str] = frozenset()
    """Take a value only as `--option=value`; the word after them is no value."""
    operands: int = 0
    numeric_flag: bool = False
    """Takes `-5` as an option."""


_TRANSPARENT: Final = {
    "nohup": _WrapperOptions(),
    "builtin": _WrapperOptions(),
    "command": _WrapperOptions(),  # -p looks for the program elsewhere than we do
    "exec": _WrapperOptions(),  # -l makes a login shell, -c takes the PATH away
    "nice": _WrapperOptions(frozenset(), word_set("-n --adjustment"), numeric_flag=True),
    "ionice": _WrapperOptions(word_set("-t --ignore"), word_set("-c --class -n --classdata")),
    "time": _WrapperOptions(word_set("-p")),
    "stdbuf": _WrapperOptions(frozenset(), word_set("-i -o -e --input --output --error")),
    "timeout": _WrapperOptions(
        word_set("--preserve-status --foreground -v --verbose"), word_set("-k --kill-after -s --signal"), operands=1
    ),
    # Not -i: without a PATH shells look for programs in folders of their own choice, the present one among them.
    "env": _WrapperOptions(word_set("-0 --null -v --debug"), word_set("-u --unset")),
    "xargs": _WrapperOptions(
        word_set("-0 --null -r --no-run-if-empty -t --verbose -x --exit"),
        # Not -a: it prints any file through a command that prints its words.
        word_set("-n --max-args -L -P --max-procs -s --max-chars -d --delimiter -E -I"),
        with_attached_value=word_set("--max-lines"),
    ),
    "sudo": _WrapperOptions(word_set("-A -b -E -H -k -n -P -S"), word_set("-u --user -g --group -p --prompt")),
    "doas": _WrapperOptions(word_set("-n"), word_set("-u")),
}
_PRIVILEGE_WRAPPERS: Final = frozenset({"sudo", "doas"})
_DELAYING_WRAPPERS: Final = _PRIVILEGE_WRAPPERS | {"xargs"}
"""These start a command only when they have what they wait for: a line of input, a password."""
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_CHANGES: Final = frozenset({"-delete", "-fls", "-fprint", "-fprint0", "-fprintf"})
_FIND_READS: Final = frozenset({"-files0-from"})
_FIND_FOLLOWS: Final = frozenset({"-H", "-L", "-P"})
_SHELL_FLAGS: Final = re.compile(r"-[ceuxfv]+")
_SHELL_LONG_OPTIONS: Final = frozenset({"--norc", "--noprofile", "--posix"})
"""Not -l, --login, -i, -s: such a shell reads files of its own, or its commands from elsewhere."""
_FIND_ACTIONS: Final = _FIND_RUNS | _FIND_CHANGES | _FIND_READS
APPLET_BOXES: Final = frozenset({"busybox", "toybox", "coreutils"})
"""Programs that contain others, and act as the one they are called by or given as an argument."""
_ANY_WORD: Final = ShellWord("", is_dynamic=True)

WRAPPERS: Final = frozenset(_TRANSPARENT) | APPLET_BOXES | POSIX_SHELLS | {"find"}
"""The names of programs that are unwrapped."""


def bare_names(text: str) -> Sequence[str]:
    """The names of a program without a look at files: a bare name is taken literally, a path means nothing known."""
    return () if "/" in text else (text,)


def unwrap(
    commands: Sequence[ParsedCommand],
    *,
    certain_names: ProgramNames = bare_names,
    possible_names: ProgramNames = bare_names,
    is_process_independent: IsProcessIndependent = lambda _: True,
) -> UnwrapResult:
    """Every command that would be started, wrappers replaced by what they start. `possible_names`: names a program may
    act by besides; what it would start then needs no rule, and may be forbidden."""
    unwrapper = _Unwrapper(certain_names, possible_names, is_process_independent)
    uncertainties: tuple[str, ...] = ()
    try:
        for command in commands:
            unwrapper.unwrap(command, depth=0)
    except UncertainCommand as exc:
        uncertainties = (str(exc),)
    return UnwrapResult(tuple(unwrapper.commands), uncertainties, tuple(unwrapper.deny_candidates))


class _Unwrapper:
    """`in_other_folder`: a command may start in another folder than the whole command does."""

    def __init__(
        self, certain_names: ProgramNames, possible_names: ProgramNames, is_process_independent: IsProcessIndependent
    ) -> None:
        self.commands: list[ParsedCommand] = []
        self.deny_candidates: list[ParsedCommand] = []
        self._certain_names, self._possible_names = certain_names, possible_names
        self._is_process_independent = is_process_independent
        self._special_wrappers: Mapping[str, Callable[[str, ParsedCommand, int, bool], None]] = {
            "find": self._unwrap_find,
            **dict.fromkeys(APPLET_BOXES, self._unwrap_applet),
            **dict.fromkeys(POSIX_SHELLS, self._unwrap_shell),
        }

    def unwrap(
        self, command: ParsedCommand, *, depth: int, in_other_folder: bool = False, name: str | None = None
    ) -> None:
        """`name`: what the command acts as, where that does not depend on its file."""
        if depth > DEEPEST:
            raise UncertainCommand("programs that start programs are nested too deeply")
        first = command.words[0]
        if first.is_dynamic or not first.text:
            raise UncertainCommand("which program runs is decided only when it runs")
        in_other_folder = in_other_folder or command.shell is not None
        if in_other_folder and "/" in first.text and not first.text.startswith("/"):
            raise UncertainCommand(f"{first.text} depends on the folder it is started in")
        if not self._is_process_independent(first.text):
            raise UncertainCommand(f"{first.text} may mean another file to the program that starts it")
        check_builtin(command)
        name = name or self._wrapper_name(command)
        if name not in WRAPPERS:
            self._add_command(command)
            self._add_possible_wrapper(command, depth)
            return
        self._add_deny_candidates([command])
        self._special_wrappers.get(name, self._unwrap_transparent)(name, command, depth, in_other_folder)

    def _wrapper_name(self, command: ParsedCommand) -> str:
        first = command.words[0].text
        if first in LAUNCHING_BUILTINS:
            # Outside a shell they are programs like others.
            return first if command.shell is not None else ""
        return next((name for name in self._certain_names(first) if name in WRAPPERS), "")

    def _add_possible_wrapper(self, command: ParsedCommand, depth: int) -> None:
        """A file that has a wrapper's name and is not it may be a copy of it or a link: what that would start becomes a
        deny candidate."""
        given = command.words[0].text
        for name in dict.fromkeys(
            (PurePath(given).name.lower(), *(self._possible_names(given) if "/" in given else ()))
        ):
            if name in WRAPPERS:
                copy = _Unwrapper(lambda text: (PurePath(text).name,), bare_names, self._is_process_independent)
                with suppress(UncertainCommand):
                    copy.unwrap(command, depth=depth + 1, name=name)
                self._add_deny_candidates([*copy.commands, *copy.deny_candidates])

    def _add_deny_candidates(self, commands: Sequence[ParsedCommand]) -> None:
        if len(self.deny_candidates) + len(commands) > MOST_DENY_CANDIDATES:
            raise UncertainCommand(f"more than {MOST_DENY_CANDIDATES} commands start others")
        self.deny_candidates += commands

    def _add_command(self, command: ParsedCommand) -> None:
        if len(self.commands) >= MOST_COMMANDS:
            raise UncertainCommand(f"there are more than {MOST_COMMANDS} commands")
        self.commands.append(command)

    # ---- transparent wrappers --------------------------------------------------------------------------------------

    def _unwrap_transparent(self, name: str, command: ParsedCommand, depth: int, in_other_folder: bool) -> None:
        at, values = _skip_options(name, _TRANSPARENT[name], command.words)
        if name == "env":
            at = _skip_assignments(command.words, at)
        inner = command.words[at:]
        if name == "xargs":
            inner = _add_xargs_input(inner or (ShellWord("echo"),), values)
        if name in _PRIVILEGE_WRAPPERS or not inner:
            self._add_command(command)
        if name == "sudo" and inner and "=" in inner[0].text:
            raise UncertainCommand("sudo sets a variable that may change what a command does")
        if inner:
            # What exec and builtin start is still run by the shell; the others start a program.
            shell = command.shell if name in ("command", "builtin", "exec", "time") else None
            after_others = command.runs_after_others or name in _DELAYING_WRAPPERS
            self.unwrap(
                ParsedCommand(inner, shell, command.has_piped_input, after_others),
                depth=depth + 1,
                in_other_folder=in_other_folder,
            )

    # ---- the rest, each in its own way -----------------------------------------------------------------------------

    def _unwrap_find(self, name: str, command: ParsedCommand, depth: int, in_other_folder: bool) -> None:
        words = command.words
        self._add_command(command)
        if any(word.is_dynamic for word in words):
            raise UncertainCommand("find's arguments are decided only when it runs")
        at = 1
        while at < len(words) and words[at].text in _FIND_FOLLOWS:
            at += 1
        if at < len(words) and words[at].text.startswith(("-D", "-O", "--")):
            raise UncertainCommand(f"the option {words[at].text[:40]} of find is not understood")
        while at < len(words):
            word = words[at].text
            if word in _FIND_CHANGES:
                raise UncertainCommand(f"find {word} changes files")
            if word in _FIND_READS:
                raise UncertainCommand(f"find {word} reads names from a file")
            at += 1
            if word in _FIND_RUNS:
                end = _find_exec_end(words, at, word)
                # -execdir and -okdir start it beside each file.
                if any(each.text in _FIND_ACTIONS for each in words[at:end]):
                    raise UncertainCommand(f"find {word} holds a word of find's own")
                inner = ParsedCommand(
                    _replace_placeholder(words[at:end], "{}"),
                    has_piped_input=command.has_piped_input,
                    runs_after_others=True,
                )
                self.unwrap(inner, depth=depth + 1, in_other_folder=in_other_folder or word.endswith("dir"))
                at = end + 1

    def _unwrap_applet(self, name: str, command: ParsedCommand, depth: int, in_other_folder: bool) -> None:
        rest = command.words[1:]
        if rest and rest[0].is_dynamic:
            raise UncertainCommand("which program runs is decided only when it runs")
        if rest and name == "coreutils":
            flag, _, chosen = rest[0].text.partition("=")
            if flag in ("--coreutils-prog", "--coreutils-prog-shebang") and chosen:
                rest = (ShellWord(chosen), *rest[1:])
        if not rest or rest[0].text.startswith("-"):
            self._add_command(command)
            return
        if "/" in rest[0].text:
            raise UncertainCommand(f"{name} takes {rest[0].text[:40]} for a name of its own")
        # It is itself the program it starts, even if another file has that name.
        self.unwrap(
            ParsedCommand(rest, has_piped_input=command.has_piped_input, runs_after_others=command.runs_after_others),
            depth=depth + 1,
            in_other_folder=in_other_folder,
            name=rest[0].text,
        )

    def _unwrap_shell(self, name: str, command: ParsedCommand, depth: int, in_other_folder: bool) -> None:
        words = command.words
        if words[0].text.startswith("-"):
            raise UncertainCommand(f"{words[0].text[:40]} is a login shell, by its name")
        at, text = 1, False
        while at < len(words) and words[at].text.startswith(("-", "+")):
            word = words[at]
            if word.text == "--":
                at += 1
                break
            if word.is_dynamic or not (word.text in _SHELL_LONG_OPTIONS or _SHELL_FLAGS.fullmatch(word.text)):
                raise UncertainCommand(f"the shell option {word.text} is not understood")
            text = text or (not word.text.startswith("--") and "c" in word.text)
            at += 1
        if at == len(words) or (not text and words[at].text.startswith(("/dev", "/proc", "-"))):
            raise UncertainCommand("a shell reads its commands from elsewhere")
        if not text:
            self._add_command(command)
            return
        if words[at].is_dynamic:
            raise UncertainCommand("the shell's text is decided only when it runs")
        parsed = parse_script(
            words[at].text,
            shell=name,
            has_piped_input=command.has_piped_input,
            runs_after_others=command.runs_after_others,
        )
        for inner in parsed.commands:
            self.unwrap(inner, depth=depth + 1, in_other_folder=in_other_folder)
        if parsed.uncertainties:
            raise UncertainCommand(parsed.uncertainties[0])


def _skip_options(name: str, options: _WrapperOptions, arguments: Sequence[ShellWord]) -> tuple[int, dict[str, str]]:
    """Where the command begins, and the values of the options before it."""
    at, values = 1, dict[str, str]()
    while at < len(arguments) and arguments[at].text.startswith("-"):
        word = arguments[at].text
        if arguments[at].is_dynamic:
            raise UncertainCommand(f"{name}'s options are decided only when it runs")
        at += 1
        if word == "--":
            break
        if word in options.flags or (options.numeric_flag and parse_whole_number(word[1:]) is not None):
            continue
        if word in options.with_value:
            if at >= len(arguments) or arguments[at].is_dynamic:
                raise UncertainCommand(f"{name} {word} has no value of its own")
            flag, value = word, arguments[at].text
            at += 1
        else:
            flag, value = _parse_attached_value(name, options, word)
        if flag == "-I" and values.get(flag, value) != value:
            raise UncertainCommand(f"{name} {flag} is given twice")
        if name == "env" and not is_display_variable(value):
            raise UncertainCommand(f"{name} {flag} {value[:40]} may change what a command does")
        values[flag] = value
    if any(word.is_dynamic for word in arguments[at : at + options.operands]):
        raise UncertainCommand(f"{name}'s arguments are decided only when it runs")
    return at + options.operands, values


def _parse_attached_value(name: str, options: _WrapperOptions, word: str) -> tuple[str, str]:
    """An option that holds its value: `--signal=9`, `-n5`."""
    flag, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "=", word[2:])
    if flag not in options.with_value | options.with_attached_value or not equals or not value:
        raise UncertainCommand(f"the option {word[:40]} of {name} is not understood")
    return flag, value


def _skip_assignments(words: Sequence[ShellWord], at: int) -> int:
    while at < len(words) and "=" in words[at].text:
        variable, _, value = words[at].text.partition("=")
        if words[at].is_dynamic or not is_harmless_variable(variable, value):
            raise UncertainCommand(f"setting {variable[:40]} may change what a command does")
        at += 1
    return at


def _find_exec_end(words: Sequence[ShellWord], at: int, action: str) -> int:
    """Where the command of `find -exec` ends: at `;`, or at a `+` right after `{}`; finds differ about any other."""
    end = next((i for i in range(at, len(words)) if words[i].text in (";", "+")), None)
    if end is None or end == at:
        raise UncertainCommand(f"find {action} has no command or no end")
    if words[end].text == "+" and (words[end - 1].text != "{}" or action not in ("-exec", "-execdir")):
        raise UncertainCommand(f"find {action} ends in a + that does not stand right after {{}}")
    return end


def _add_xargs_input(words: tuple[ShellWord, ...], values: Mapping[str, str]) -> tuple[ShellWord, ...]:
    """A command of xargs, whose input may be anything. Which of two ways to pass it counts, xargs decides."""
    ways = [flag for flag in ("-I", "-L", "--max-lines", "-n", "--max-args") if flag in values]
    if "-I" not in ways:
        return (*words, _ANY_WORD)
    if len(ways) > 1:
        raise UncertainCommand(f"xargs {' and '.join(ways)} contradict each other")
    return _replace_placeholder(words, values["-I"]) if values["-I"] else (_ANY_WORD,)


def _replace_placeholder(words: Sequence[ShellWord], placeholder: str) -> tuple[ShellWord, ...]:
    return tuple(ShellWord(word.text, is_dynamic=True) if placeholder in word.text else word for word in words)
