"""The commands that `chat.send` carries out itself, and how clients list them. Pure."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ...core.chat_commands import COMMAND_HELP, COMMANDS_WITH_WORDS


class CommandRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """A command as clients list it."""

    name: str
    native_name: str
    text_aliases: tuple[str, ...]
    description: str
    category: Literal["session"] = "session"
    source: Literal["native"] = "native"
    scope: Literal["both"] = "both"
    accepts_args: bool = False


def list_commands() -> Sequence[CommandRow]:
    return [
        CommandRow(
            name=command[1:],
            native_name=command[1:],
            text_aliases=(command,),
            description=meaning,
            accepts_args=command in COMMANDS_WITH_WORDS,
        )
        for command, meaning in COMMAND_HELP.items()
    ]
