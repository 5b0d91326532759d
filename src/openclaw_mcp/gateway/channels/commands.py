"""Chat commands to the gateway itself: `/new`, `/reset`, `/stop`, `/status`, `/whoami`, `/help`. Pure."""

from typing import Final

from msgspec import Struct

from ...core.channel import InboundMessage

COMMAND_HELP: Final = {
    "/new": "begin a new conversation; words after it are its first message",
    "/reset": "the same",
    "/stop": "stop what the agent is doing",
    "/status": "which session this is",
    "/whoami": "which sender you are here",
    "/help": "this list",
}

OWNER_COMMANDS: Final = frozenset({"/new", "/reset", "/stop"})
"""Commands that affect everyone in a session: in the main session, which others may share, only the owner's."""
OWNER_ONLY_REPLY: Final = "This conversation is shared with the owner, who alone may stop it or begin a new one."


class ChatCommand(Struct, frozen=True):
    name: str
    rest: str
    """The text after it, for the agent."""


def parse_command(text: str) -> ChatCommand | None:
    """The command in a message; None when the message is for the agent. `/stop@bot` is `/stop`."""
    first, _, rest = text.strip().partition(" ")
    name = first.lower().partition("@")[0]
    if name not in COMMAND_HELP or (rest.strip() and name not in ("/new", "/reset")):
        return None
    return ChatCommand(name, rest.strip())


def is_urgent(text: str) -> bool:
    command = parse_command(text)
    return command is not None and command.name == "/stop"


def answer_command(command: ChatCommand, message: InboundMessage, session: str) -> str:
    """The answer to a command that changes nothing."""
    match command.name:
        case "/status":
            return f"Session {session} on {message.address.channel}."
        case "/whoami":
            return f"You are {message.sender.id} on {message.address.channel}, account {message.address.account}."
    return "\n".join(f"{name}  {meaning}" for name, meaning in COMMAND_HELP.items())
