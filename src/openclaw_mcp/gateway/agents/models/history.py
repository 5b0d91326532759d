"""A session's transcript as a model reads it. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from ....core.agent import Attachment
from ....core.model import Json
from .messages import ImagePart, ModelMessage, TextPart, ToolCallPart, ToolResultPart

RECALLED_MESSAGES: Final = 400  # messages asked for; with tools, some fifty turns
KEPT_MESSAGES: Final = 240  # of them, when there are more
RECENT_IMAGES: Final = 4  # results of tools whose pictures a model is shown again in later turns
IMAGE_OMITTED: Final = TextPart("[an image, shown then]")
DROPPED_NOTICE: Final = "dropped"
"""The kind of notice that says older messages are left out from there on."""

ToolNameMapper = Callable[[str], str]


def visible_messages(bodies: Sequence[Json]) -> tuple[Sequence[Json], bool]:
    """The messages a model still sees, and whether they are fewer than the last time.

    They are those the latest notice of a cut let stand, and all that came later. Where none stands and there are more
    than we ask for, a cut is due, deep enough that the next one is far off.
    """
    for place in range(len(bodies) - 1, -1, -1):
        notice = bodies[place].get("notice") or {}
        if notice.get("kind") == DROPPED_NOTICE:
            # Before it stands the message it was made for; the cut need be no more exact than that.
            first = max(0, place - 1 - int(notice.get("kept", 0)))
            return bodies[first:], False
    if len(bodies) >= RECALLED_MESSAGES:
        return bodies[-KEPT_MESSAGES:], True
    return bodies, False


def parse_transcript(bodies: Sequence[Json], api_name: ToolNameMapper) -> list[ModelMessage]:
    """What was said. Calls get ids of their own here: two turns may have used the same ones."""
    talk: list[ModelMessage] = []
    asked: dict[str, Json] = {}
    for number, body in enumerate(bodies):
        if body.get("notice"):
            continue
        match body.get("role"):
            case "user":
                talk.append(ModelMessage("user", tuple(_user_parts(body))))
            case "assistant":
                text = "\n".join(b["text"] for b in _blocks(body) if b.get("type") == "text" and b.get("text"))
                if text:
                    talk.append(ModelMessage("assistant", (TextPart(text),)))
                asked |= {str(b.get("id")): b for b in _blocks(body) if b.get("type") == "toolCall"}
            case "toolResult":
                call = asked.pop(str(body.get("toolCallId")), None)
                if call is not None:
                    talk += _tool_messages(call, body, f"h{number:08d}", api_name)
    return _start_at_user(_keep_recent_images(talk))


def _keep_recent_images(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Pictures are large and rarely looked at twice: all but the latest are only mentioned."""
    left = RECENT_IMAGES
    for place in range(len(messages) - 1, -1, -1):
        for part in messages[place].parts:
            if isinstance(part, ToolResultPart) and any(isinstance(inner, ImagePart) for inner in part.parts):
                if left <= 0:
                    inner = tuple(IMAGE_OMITTED if isinstance(p, ImagePart) else p for p in part.parts)
                    messages[place] = ModelMessage("user", (msgspec.structs.replace(part, parts=inner),))
                left -= 1
    return messages


def _start_at_user(messages: list[ModelMessage]) -> list[ModelMessage]:
    """A conversation begins with something said to the model."""
    for place, said in enumerate(messages):
        if said.role == "user" and not any(isinstance(part, ToolResultPart) for part in said.parts):
            return messages[place:]
    return []


def _tool_messages(call: Json, body: Json, id: str, api_name: ToolNameMapper) -> Iterator[ModelMessage]:
    name = api_name(str(call.get("name", "")))
    yield ModelMessage(
        "assistant", (ToolCallPart(id, name, msgspec.json.encode(call.get("arguments") or {}).decode()),)
    )
    parts = tuple(part for block in _blocks(body) if (part := _result_part(block)) is not None)
    yield ModelMessage("user", (ToolResultPart(id=id, name=name, parts=parts, failed=bool(body.get("isError"))),))


def _result_part(block: Json) -> "TextPart | ImagePart | None":
    if block.get("type") == "image" and isinstance(block.get("data"), str):
        return ImagePart(str(block.get("mimeType")), block["data"])
    text = block.get("text") or (block.get("resource") or {}).get("text")
    return TextPart(str(text)) if text else None


def _blocks(body: Json) -> list[Json]:
    content: Any = body.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, dict)]


def _user_parts(body: Json) -> Iterator["TextPart | ImagePart"]:
    text = "\n".join(str(block["text"]) for block in _blocks(body) if block.get("text"))
    files = [f"{f.get('fileName') or 'a file'} ({f.get('mimeType')})" for f in body.get("attachments") or ()]
    if files:
        text += f"\n[attached then: {', '.join(files)}]"
    yield TextPart(text or "(nothing)")


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
