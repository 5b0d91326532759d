"""A session's transcript as a model reads it. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from ....core.agent import Attachment
from ....core.chat_messages import ChatBlock, ChatMessage
from .messages import ImagePart, ModelMessage, TextPart, ToolCallPart, ToolResultPart, replace_images

RECALLED_MESSAGES: Final = 400  # messages asked for; with tools, some fifty turns
KEPT_MESSAGES: Final = 240  # of them, when there are more
RECENT_IMAGES: Final = 4  # results of tools whose pictures a model is shown again in later turns
IMAGE_OMITTED: Final = TextPart("[an image, shown then]")
DROPPED_NOTICE: Final = "dropped"
"""The kind of notice from which on older messages are left out."""

ToolNameMapper = Callable[[str], str]


def visible_messages(past: Sequence[ChatMessage]) -> tuple[Sequence[ChatMessage], bool]:
    """The messages a model still sees, and whether they are fewer than the last time.

    They are those the latest notice of a cut kept, and all that came later. Where there is no notice and there are more
    than we ask for, a cut is due, deep enough that the next one is far off.
    """
    for place in range(len(past) - 1, -1, -1):
        notice = past[place].notice
        if notice is not None and notice.kind == DROPPED_NOTICE:
            # The message it was made for is before it; the cut need be no more exact than that.
            return past[max(0, place - 1 - notice.kept) :], False
    if len(past) >= RECALLED_MESSAGES:
        return past[-KEPT_MESSAGES:], True
    return past, False


def parse_transcript(past: Sequence[ChatMessage], api_name: ToolNameMapper) -> list[ModelMessage]:
    """The messages for the model. Calls get ids of their own here: two turns may have used the same ones."""
    messages: list[ModelMessage] = []
    calls: dict[str, ChatBlock] = {}
    for number, message in enumerate(past):
        if message.notice is not None:
            continue
        match message.role:
            case "user":
                messages.append(ModelMessage("user", (_user_part(message),)))
            case "assistant":
                text = "\n".join(block.text for block in message.blocks if block.type == "text" and block.text)
                if text:
                    messages.append(ModelMessage("assistant", (TextPart(text),)))
                calls |= {block.id: block for block in message.blocks if block.type == "toolCall"}
            case "toolResult":
                call = calls.pop(message.tool_call_id, None)
                if call is not None:
                    messages += _tool_messages(call, message, f"h{number:08d}", api_name)
    return _start_at_user(_keep_recent_images(messages))


def _keep_recent_images(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Pictures are large and rarely looked at twice: all but the latest are only mentioned."""
    left = RECENT_IMAGES
    for place in range(len(messages) - 1, -1, -1):
        for part in messages[place].parts:
            if isinstance(part, ToolResultPart) and any(isinstance(inner, ImagePart) for inner in part.parts):
                if left <= 0:
                    messages[place] = ModelMessage("user", (replace_images(part, IMAGE_OMITTED),))
                left -= 1
    return messages


def _start_at_user(messages: list[ModelMessage]) -> list[ModelMessage]:
    """A conversation begins with a message to the model."""
    for place, message in enumerate(messages):
        if message.role == "user" and not any(isinstance(part, ToolResultPart) for part in message.parts):
            return messages[place:]
    return []


def _tool_messages(call: ChatBlock, result: ChatMessage, id: str, api_name: ToolNameMapper) -> Iterator[ModelMessage]:
    name = api_name(call.name or "")
    yield ModelMessage("assistant", (ToolCallPart(id, name, msgspec.json.encode(call.arguments or {}).decode()),))
    parts = tuple(part for block in result.blocks if (part := _result_part(block)) is not None)
    yield ModelMessage("user", (ToolResultPart(id=id, name=name, parts=parts, failed=result.is_error),))


def _result_part(block: ChatBlock) -> "TextPart | ImagePart | None":
    if block.type == "image" and block.data is not None:
        return ImagePart(str(block.mime_type), block.data)
    text = block.text or (block.resource.text if block.resource is not None else None)
    return TextPart(text) if text else None


def _user_part(message: ChatMessage) -> TextPart:
    text = "\n".join(block.text for block in message.blocks if block.text)
    files = [f"{file.file_name or 'a file'} ({file.mime_type})" for file in message.attachments or ()]
    if files:
        text += f"\n[attached then: {', '.join(files)}]"
    return TextPart(text or "(nothing)")


def prompt_message(prompt: str, attachments: Sequence[Attachment]) -> ModelMessage:
    """The message to answer, with what is attached to it: pictures as they are, the rest by name."""
    parts: list[TextPart | ImagePart] = []
    for attachment in attachments:
        name = attachment.name or attachment.kind
        data = attachment.data or b""
        if attachment.kind == "image" and data:
            parts.append(ImagePart(attachment.mime_type, data))
        else:
            where = f", {attachment.url}" if attachment.url else ""
            parts.append(TextPart(f"[attached: {name}, {attachment.mime_type}, {len(data)} bytes{where}]"))
    return ModelMessage("user", (*parts, TextPart(prompt)) if prompt or not parts else tuple(parts))
