"""The events of Anthropic's Messages API, as the API streams them and as Claude Code prints them. Pure."""

from typing import Any

from msgspec import Struct


class AnthropicBlock(Struct):
    """A block of a message, or what is added to one."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    partial_json: str = ""
    stop_reason: str | None = None
    tool_use_id: str = ""
    content: Any = None
    is_error: bool = False


class AnthropicMessage(Struct, frozen=True):
    usage: Any = None


class AnthropicEvent(Struct, frozen=True):
    type: str = ""
    index: int = 0
    message: AnthropicMessage | None = None
    content_block: AnthropicBlock | None = None
    delta: AnthropicBlock | None = None
    usage: Any = None
    error: Any = None
