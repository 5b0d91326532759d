"""The command text an operator decides on: made from the arguments that would run; other texts are refused. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final, TypeVar

from ...core.rpc import RpcError
from ...core.visible_text import escape_command, escape_program

MAX_COMMAND_LENGTH: Final = 16 << 10  # characters; a text too long to read can't be approved
MAX_ARGV_LENGTH: Final = 4096  # of a command

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"})
_NEEDS_QUOTES: Final = re.compile(r"[\s\"]")

Value = TypeVar("Value")


def reconcile(name: str, planned: Value | None, requested: Value | None) -> Value | None:
    """The plan's value, else the request's. Raises RpcError when they differ."""
    if planned is not None and requested is not None and planned != requested:
        raise RpcError(f"{name} differs between systemRunPlan and the request; leave one out")
    return requested if planned is None else planned


def display_command(argv: Sequence[str] | None, texts: Sequence[str], env: Mapping[str, str]) -> str:
    """The command for people. Raises RpcError when there is none, it is too long, or a text differs from `argv`."""
    texts = [text for text in texts if text]
    if argv is not None:
        if not argv or not argv[0].strip() or len(argv) > MAX_ARGV_LENGTH:
            raise RpcError(f"commandArgv must name a program and at most {MAX_ARGV_LENGTH - 1} arguments")
        if not all(is_same_command(text, argv) for text in texts):
            raise RpcError("command says something else than commandArgv; leave it out, or write the same words")
    elif not texts:
        raise RpcError("command is required")
    elif len(set(texts)) > 1:
        raise RpcError("command, rawCommand and commandText say different things; leave all but one out")
    command = texts[0] if argv is None else shlex.join([escape_program(argv[0]), *argv[1:]])
    if env:
        command = shlex.join(["env", *(f"{name}={value}" for name, value in env.items())]) + f" {command}"
    shown = escape_command(command)
    if len(shown) > MAX_COMMAND_LENGTH:
        raise RpcError(f"the command is longer than the {MAX_COMMAND_LENGTH} characters a person is shown")
    return shown


def is_same_command(text: str, argv: Sequence[str]) -> bool:
    """Whether `text` is these arguments, in any way of quoting them; or the whole text a shell gets."""
    if text in (shlex.join(argv), _quote_like_openclaw(argv)):
        return True
    if len(argv) == 3 and argv[1] == "-c" and PurePath(argv[0]).name in _SHELLS and text == argv[2]:
        return True
    if any(char in text for char in "$`\n;|&<>()*?[]{}~#"):  # a shell would expand these
        return False
    try:
        return shlex.split(text) == list(argv)
    except ValueError:
        return False


def _quote_like_openclaw(argv: Sequence[str]) -> str:
    """A command as OpenClaw's own programs write it."""
    return " ".join(
        '"' + each.replace('"', '\\"') + '"' if not each or _NEEDS_QUOTES.search(each) else each for each in argv
    )
