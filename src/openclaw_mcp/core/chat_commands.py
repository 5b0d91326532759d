"""Chat commands: messages to the gateway itself, such as `/new` and `/status`. Pure."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct

COMMAND_HELP: Final = {
    "/new": "begin a new conversation; words after it are its first message",
    "/reset": "the same",
    "/stop": "stop what the agent is doing",
    "/approve": "for the owner: the questions that wait; /approve CODE once, always or deny answers one",
    "/status": "which session this is, and what it is doing",
    "/model": "which model answers here; with a name, use that one; `default` is the agent's own again",
    "/whoami": "which sender you are here",
    "/help": "this list",
}
RESET_COMMANDS: Final = ("/new", "/reset")
STOPPING_COMMANDS: Final = (*RESET_COMMANDS, "/stop")
"""Commands that end what runs in a session."""
COMMANDS_WITH_WORDS: Final = (*RESET_COMMANDS, "/approve", "/model")
_ALIASES: Final = {"/commands": "/help", "/id": "/whoami"}

ROOT_FOLDERS: Final = frozenset({
    "applications", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "library", "media", "mnt", "nix",
    "opt", "private", "proc", "root", "run", "sbin", "snap", "srv", "sys", "system", "tmp", "users", "usr",
    "var", "volumes",
})  # fmt: skip
"""First words that begin as a command does and name a folder: `/tmp is full` is for the agent."""
LITERAL_HINT: Final = "begin with // to send this to the agent as it is"
MAX_NAMED: Final = 12  # commands that are named in one sentence
_COMMAND_WORD: Final = re.compile(r"/[a-z][a-z0-9_-]*(?:@\w+)?", re.IGNORECASE)


class ChatCommand(Struct, frozen=True):
    name: str
    rest: str = ""
    """The text after it, for the agent."""
    argument: str = ""
    """The text after it, for the command itself."""


class CommandSender(Struct, frozen=True, kw_only=True):
    """Who sends a command, and what of a session this sender may change."""

    name: str
    channel: str
    account: str | None = None
    may_stop: bool = False
    may_reset: bool = False
    may_choose_model: bool = False
    refusal: str = "You may not stop this conversation or begin a new one."
    """The answer when the sender may not stop or reset."""


class CommandReply(Struct, frozen=True):
    text: str
    done: bool = True
    """False: it was refused, and what follows the command is not for the agent either."""
    stopped_run_ids: tuple[str, ...] = ()


CommandRunner = Callable[[ChatCommand, str, CommandSender], Awaitable[CommandReply]]
"""Runs a command in the session of that key."""


def parse_command(text: str) -> ChatCommand | None:
    """The command in a message; None when the message is for the agent. `/stop@bot` is `/stop`."""
    first, _, rest = text.strip().partition(" ")
    name = first.lower().partition("@")[0]
    name, rest = _ALIASES.get(name, name), rest.strip()
    if name in RESET_COMMANDS:
        return ChatCommand(name, rest=rest)
    if name == "/approve" or (name == "/model" and " " not in rest):
        return ChatCommand(name, argument=rest)
    return ChatCommand(name) if name in COMMAND_HELP and not rest else None


def command_word(text: str) -> str | None:
    """The first word of a message, when it looks like a command: `/stop`, not `/etc/hosts` nor `/tmp`."""
    first = next(iter(text.split(maxsplit=1)), "")
    name = first.lower().partition("@")[0]
    return name if _COMMAND_WORD.fullmatch(first) and name[1:] not in ROOT_FOLDERS else None


def refuse_unknown(text: str) -> str | None:
    """The answer to a message that looks like a command and is none, in one sentence; None for every other message."""
    name = command_word(text)
    if name is None or parse_command(text) is not None:
        return None
    name = _ALIASES.get(name, name)
    if name in COMMAND_HELP:
        words = "one word" if name in COMMANDS_WITH_WORDS else "no words"
        return f"{name} takes {words} after it: send {name} alone, or {LITERAL_HINT}."
    return unknown_command_text(name, tuple(COMMAND_HELP))


def unknown_command_text(name: str, known: Sequence[str]) -> str:
    listed = f"there are {', '.join(known[:-1])} and {known[-1]}" if len(known) <= MAX_NAMED else "/help lists them"
    return f"There is no command {name}: {listed}; {LITERAL_HINT}."


def literal_text(text: str) -> str:
    """A message for the agent without the slash that keeps its first word from being a command: `//stop` is `/stop`."""
    rest = text.strip().removeprefix("/")
    is_kept = text.strip().startswith("//") and (parse_command(rest) or refuse_unknown(rest)) is not None
    return rest if is_kept else text


def is_for_agent(text: str) -> bool:
    return parse_command(text) is None and refuse_unknown(text) is None


def is_urgent(text: str) -> bool:
    """Whether it must not wait behind the message that it is about."""
    command = parse_command(text)
    return command is not None and command.name in ("/stop", "/approve")


def refusal_reason(command: ChatCommand, sender: CommandSender) -> str | None:
    """Why the sender may not use a command; None: they may. Those that change nothing are for everyone."""
    if command.name in STOPPING_COMMANDS:
        permitted = sender.may_stop if command.name == "/stop" else sender.may_reset
        return None if permitted else sender.refusal
    if command.name == "/model" and command.argument and not sender.may_choose_model:
        return "Only the owner chooses the model."
    return None


def help_text() -> str:
    return "\n".join(f"{name}  {meaning}" for name, meaning in COMMAND_HELP.items())
