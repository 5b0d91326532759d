"""Messages that come quickly one after the other become one: `messages.inbound`. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ...core.channel import InboundMessage
from ...core.config.gateway import InboundConfig
from . import commands

MAX_COALESCED: Final = 20  # messages of one turn; somebody who writes on and on is answered now and then


def debounce_seconds(inbound: InboundConfig, channel: str) -> float:
    """Seconds to wait for the next message on this channel; 0: each is a turn of its own."""
    return inbound.by_channel.get(channel, inbound.debounce_ms) / 1000


def accepts_more(message: InboundMessage) -> bool:
    """Whether more may follow it: an order is obeyed at once."""
    return commands.parse_command(message.text) is None


def is_continuation(first: InboundMessage, message: InboundMessage) -> bool:
    """The same person, in the same place, and no order."""
    same = message.sender.id == first.sender.id and message.vouched == first.vouched
    return message.address == first.address and same and accepts_more(message)


def coalesce_messages(messages: Sequence[InboundMessage]) -> InboundMessage:
    """One message under the first one's name."""
    return msgspec.structs.replace(
        messages[0],
        text="\n".join(part.text for part in messages if part.text),
        at=messages[-1].at,
        attachments=tuple(file for part in messages for file in part.attachments),
        files=tuple(file for part in messages for file in part.files),
        reply_to=next((part.reply_to for part in messages if part.reply_to is not None), None),
        mentioned=any(part.mentioned for part in messages),
    )
