"""Messages that come quickly one after the other become one: `messages.inbound`. Pure."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ...core.channel import Heard
from ...core.model import Json
from . import commands

MOST_JOINED: Final = 20  # messages of one turn; somebody who writes on and on is answered now and then
MOST_SECONDS: Final = 60.0


def patience(config: Json, channel: str) -> float:
    """Seconds to wait for the next message on this channel; 0: each is a turn of its own."""
    inbound: Any = config.get("messages", {}).get("inbound", {})
    own = inbound.get("byChannel", {}).get(channel, inbound.get("debounceMs", 0))
    return min(max(0, own) / 1000, MOST_SECONDS) if isinstance(own, int) else 0.0


def opens(heard: Heard) -> bool:
    """Whether more may follow it: an order is obeyed at once."""
    return commands.read(heard.text) is None


def follows(first: Heard, heard: Heard) -> bool:
    """The same person, in the same place, and no order."""
    same = heard.sender.id == first.sender.id and heard.vouched == first.vouched
    return heard.address == first.address and same and opens(heard)


def joined(parts: Sequence[Heard]) -> Heard:
    """One message under the first one's name."""
    return msgspec.structs.replace(
        parts[0],
        text="\n".join(part.text for part in parts if part.text),
        at=parts[-1].at,
        attachments=tuple(file for part in parts for file in part.attachments),
        files=tuple(file for part in parts for file in part.files),
        reply_to=next((part.reply_to for part in parts if part.reply_to is not None), None),
        mentioned=any(part.mentioned for part in parts),
    )
