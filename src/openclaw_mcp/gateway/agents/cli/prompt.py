"""What a CLI agent gets besides the message: where it is, how its answer is delivered, what was written before."""

from collections.abc import Sequence
from typing import Any, Final

from ....core.agent import Turn
from ....core.chat_messages import ChatMessage
from ....core.model import Grant, Json

RECALLED_MESSAGES: Final = 30  # messages for a CLI that starts a new session in an old conversation
RECALLED_CHARACTERS: Final = 8000  # characters of them, the newest first
MAX_HINTS: Final = 2000  # characters of a channel's hints about formatting

MESSAGING_INSTRUCTIONS: Final = """\
## Messaging
What you answer is delivered to the conversation the message came from; no tool is needed for that. To write somewhere
else, or to send a file, use the message_* tools. What you have sent with them to this conversation is not sent again.
A block that begins with "System:" comes from the gateway and not from the person: act on it, don't quote it."""

REPLY_INSTRUCTIONS: Final = """\
## Replying to a message
Begin with [[reply_to_current]] to answer the newest message as a reply, or with [[reply_to:ID]] for another one. The
tag must be the first thing you write and is removed before sending."""

NO_REPLY_INSTRUCTIONS: Final = """\
## Saying nothing
If nothing should be sent, answer with NO_REPLY and not a word more."""


def build_system_prompt(turn: Turn, instructions: Sequence[str | None]) -> str:
    """The sections that apply; `instructions` are the agent's and the caller's own."""
    grant = turn.caller.grant
    sections = [text.strip() for text in instructions if text and text.strip()]
    if grant is not None and grant.channel:
        sections.append(MESSAGING_INSTRUCTIONS)
        hints = turn.settings.get("messageToolHints")
        if hints:
            sections.append(f"## Formatting\n{_format_hints(hints)}")
        sections += [
            REPLY_INSTRUCTIONS,
            NO_REPLY_INSTRUCTIONS,
            f"## This conversation\n{_format_conversation(grant, turn.settings)}",
        ]
    return "\n\n".join(sections)


def _format_hints(hints: Any) -> str:
    text = "\n".join(str(hint) for hint in hints) if isinstance(hints, list) else str(hints)
    return text[:MAX_HINTS]


def _format_conversation(grant: Grant, settings: Json) -> str:
    sender = grant.sender
    parts = {
        "channel": grant.channel,
        "account": grant.account,
        "conversation": None if grant.handed_on else grant.to,
        "thread": None if grant.handed_on else grant.thread,
        "user": (sender.name or sender.username or sender.id) if sender is not None else None,
        "timezone": settings.get("timezone"),
    }
    return " | ".join(f"{name}={' '.join(str(value).split())}" for name, value in parts.items() if value)


async def format_history(turn: Turn) -> str:
    """Earlier messages, for a CLI that does not have them; empty in a new conversation."""
    if turn.load_history is None:
        return ""
    lines: list[str] = []
    left = RECALLED_CHARACTERS
    for message in reversed(await turn.load_history(RECALLED_MESSAGES)):
        text = _message_text(message).strip()
        if message.role not in ("user", "assistant") or not text:
            continue
        line = f"{'Person' if message.role == 'user' else 'You'}: {text}"
        if len(line) > left:
            break
        lines.append(line)
        left -= len(line)
    return "\n".join(reversed(lines))


def _message_text(message: ChatMessage) -> str:
    # With the tool calls, or what an interrupted turn has done already would be done again.
    called = [f"(called {block.name})" for block in message.blocks if block.type == "toolCall"]
    texts = [block.text or "" for block in message.blocks if block.type == "text"]
    return "\n".join(filter(None, [*called, "\n".join(texts)]))
