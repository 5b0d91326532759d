"""The text an operator decides by: made from the words that would run, refused where it says others. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final, TypeVar

from ...core.rpc import Fault
from ...core.visible_text import visible_command, visible_program

LONGEST_COMMAND: Final = 16 << 10  # characters; what is too long to read can't be approved
MOST_WORDS: Final = 4096  # of a command

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"})
_QUOTED: Final = re.compile(r"[\s\"]")

Value = TypeVar("Value")


def agreed(name: str, planned: Value | None, given: Value | None) -> Value | None:
    """What the plan says, or the request where it says nothing. Raises Fault when they differ."""
    if planned is not None and given is not None and planned != given:
        raise Fault(f"{name} differs between systemRunPlan and the request; leave one out")
    return given if planned is None else planned


def command_shown(argv: Sequence[str] | None, texts: Sequence[str], env: Mapping[str, str]) -> str:
    """The command for people. Raises Fault when there is none, it is too long, or a text says another than `argv`."""
    texts = [text for text in texts if text]
    if argv is not None:
        if not argv or not argv[0].strip() or len(argv) > MOST_WORDS:
            raise Fault(f"commandArgv must name a program and at most {MOST_WORDS - 1} arguments")
        if not all(says(text, argv) for text in texts):
            raise Fault("command says something else than commandArgv; leave it out, or write the same words")
    elif not texts:
        raise Fault("command is required")
    elif len(set(texts)) > 1:
        raise Fault("command, rawCommand and commandText say different things; leave all but one out")
    command = texts[0] if argv is None else shlex.join([visible_program(argv[0]), *argv[1:]])
    if env:
        command = shlex.join(["env", *(f"{name}={value}" for name, value in env.items())]) + f" {command}"
    shown = visible_command(command)
    if len(shown) > LONGEST_COMMAND:
        raise Fault(f"the command is longer than the {LONGEST_COMMAND} characters a person is shown")
    return shown


def says(text: str, argv: Sequence[str]) -> bool:
    """Whether `text` is these words, in any way of quoting them; or the whole text a shell is given."""
    if text in (shlex.join(argv), _as_openclaw_quotes(argv)):
        return True
    if len(argv) == 3 and argv[1] == "-c" and PurePath(argv[0]).name in _SHELLS and text == argv[2]:
        return True
    if any(char in text for char in "$`\n;|&<>()*?[]{}~#"):  # to a shell it would not be just words
        return False
    try:
        return shlex.split(text) == list(argv)
    except ValueError:
        return False


def _as_openclaw_quotes(argv: Sequence[str]) -> str:
    """As OpenClaw's own programs write a command."""
    return " ".join('"' + word.replace('"', '\\"') + '"' if not word or _QUOTED.search(word) else word for word in argv)
