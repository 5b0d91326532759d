"""A session's transcript as a model reads it. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from ....core.agent import Attachment
from ....core.model import Json
from .messages import Call, Picture, Result, Said, Words

RECALLED: Final = 400  # messages asked for; with tools, some fifty turns
KEPT: Final = 240  # of them, when there are more
PICTURES: Final = 4  # results of tools whose pictures a model is shown again in later turns
PAST_PICTURE: Final = Words("[an image, shown then]")
CUT: Final = "dropped"
"""The kind of notice that says older messages are left out from there on."""

Spell = Callable[[str], str]


def since_cut(bodies: Sequence[Json]) -> tuple[Sequence[Json], bool]:
    """The messages a model still sees, and whether they are fewer than the last time.

    They are those the latest notice of a cut let stand, and all that came later. Where none stands and there are more
    than we ask for, a cut is due, deep enough that the next one is far off.
    """
    for place in range(len(bodies) - 1, -1, -1):
        notice = bodies[place].get("notice") or {}
        if notice.get("kind") == CUT:
            # Before it stands the message it was made for; the cut need be no more exact than that.
            first = max(0, place - 1 - int(notice.get("kept", 0)))
            return bodies[first:], False
    if len(bodies) >= RECALLED:
        return bodies[-KEPT:], True
    return bodies, False


def read(bodies: Sequence[Json], spell: Spell) -> list[Said]:
    """What was said. Calls get ids of their own here: two turns may have used the same ones."""
    talk: list[Said] = []
    asked: dict[str, Json] = {}
    for number, body in enumerate(bodies):
        if body.get("notice"):
            continue
        match body.get("role"):
            case "user":
                talk.append(Said("user", tuple(_user(body))))
            case "assistant":
                text = "\n".join(b["text"] for b in _blocks(body) if b.get("type") == "text" and b.get("text"))
                if text:
                    talk.append(Said("assistant", (Words(text),)))
                asked |= {str(b.get("id")): b for b in _blocks(body) if b.get("type") == "toolCall"}
            case "toolResult":
                call = asked.pop(str(body.get("toolCallId")), None)
                if call is not None:
                    talk += _used(call, body, f"h{number:08d}", spell)
    return _from_user(_latest_pictures(talk))


def _latest_pictures(talk: list[Said]) -> list[Said]:
    """Pictures are large and rarely looked at twice: all but the latest are only mentioned."""
    left = PICTURES
    for place in range(len(talk) - 1, -1, -1):
        for part in talk[place].parts:
            if isinstance(part, Result) and any(isinstance(inner, Picture) for inner in part.parts):
                if left <= 0:
                    inner = tuple(PAST_PICTURE if isinstance(p, Picture) else p for p in part.parts)
                    talk[place] = Said("user", (msgspec.structs.replace(part, parts=inner),))
                left -= 1
    return talk


def _from_user(talk: list[Said]) -> list[Said]:
    """A conversation begins with something said to the model."""
    for place, said in enumerate(talk):
        if said.role == "user" and not any(isinstance(part, Result) for part in said.parts):
            return talk[place:]
    return []


def _used(call: Json, body: Json, id: str, spell: Spell) -> Iterator[Said]:
    name = spell(str(call.get("name", "")))
    yield Said("assistant", (Call(id, name, msgspec.json.encode(call.get("arguments") or {}).decode()),))
    parts = tuple(part for block in _blocks(body) if (part := _result_part(block)) is not None)
    yield Said("user", (Result(id=id, name=name, parts=parts, failed=bool(body.get("isError"))),))


def _result_part(block: Json) -> "Words | Picture | None":
    if block.get("type") == "image" and isinstance(block.get("data"), str):
        return Picture(str(block.get("mimeType")), block["data"])
    text = block.get("text") or (block.get("resource") or {}).get("text")
    return Words(str(text)) if text else None


def _blocks(body: Json) -> list[Json]:
    content: Any = body.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, dict)]


def _user(body: Json) -> Iterator["Words | Picture"]:
    text = "\n".join(str(block["text"]) for block in _blocks(body) if block.get("text"))
    files = [f"{f.get('fileName') or 'a file'} ({f.get('mimeType')})" for f in body.get("attachments") or ()]
    if files:
        text += f"\n[attached then: {', '.join(files)}]"
    yield Words(text or "(nothing)")


def asked_now(prompt: str, attachments: Sequence[Attachment]) -> Said:
    """The message to answer, with what is attached to it: pictures as they are, the rest by name."""
    parts: list[Words | Picture] = []
    for attachment in attachments:
        name = attachment.name or attachment.kind
        data = attachment.data or b""
        if attachment.kind == "image" and data:
            parts.append(Picture(attachment.mime_type, data))
        else:
            where = f", {attachment.url}" if attachment.url else ""
            parts.append(Words(f"[attached: {name}, {attachment.mime_type}, {len(data)} bytes{where}]"))
    return Said("user", (*parts, Words(prompt)) if prompt or not parts else tuple(parts))
