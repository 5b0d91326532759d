"""Excerpts of transcripts for a model: bounded, without secrets, without tool calls unless asked for. Pure."""

import re
from typing import Any, Final

import msgspec

from ....core.model import Json
from ....core.numbers import parse_whole_number
from ....core.rpc import RpcError

MAX_TEXT_LENGTH: Final = 4000  # characters of one text
LARGEST_ANSWER: Final = 80 * 1024  # bytes of one answer; the newest messages are kept
CUT_MARK: Final = " … [cut]"
HIDDEN_MARK: Final = "[hidden]"
FILE_FIELDS: Final = ("type", "mimeType", "fileName", "sizeBytes")
MESSAGE_FIELDS: Final = ("role", "timestamp", "toolName", "isError", "model", "stopReason")

_SECRETS: Final = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----"
    r"|(?i:\bbearer\s+[A-Za-z0-9._~+/=-]{16,})",
    re.DOTALL,
)
"""Patterns that are nearly always a credential. Only a guess: the real protection is that a session is not visible."""

_encode = msgspec.json.Encoder().encode


def session_kind(row: Json) -> str:
    """A session's kind as `sessions_list` names it."""
    found = row.get("classification", "other")
    return found if found in ("main", "group", "cron", "hook", "node") else "other"


def trim_messages(messages: list[Json], *, tools: bool) -> Json:
    """The newest messages that fit, oldest first, and flags for what was left out."""
    kept: list[Json] = []
    flags: Json = {"truncated": False, "droppedMessages": 0, "contentTruncated": False, "contentRedacted": False}
    size = 0
    wanted = [message for message in messages if tools or message.get("role") in ("user", "assistant")]
    for number, message in enumerate(reversed(wanted)):
        small = _trim_message(message, flags, tools=tools)
        size += len(_encode(small))
        if size > LARGEST_ANSWER:
            flags |= {"truncated": True, "droppedMessages": len(wanted) - number}
            size -= len(_encode(small))
            break
        kept.append(small)
    return {"messages": kept[::-1], **flags, "bytes": size}


def _trim_message(message: Json, flags: dict[str, Any], *, tools: bool) -> Json:
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    kept_blocks: list[Json] = []
    for block in blocks:
        if block.get("type") == "text":
            kept_blocks.append({"type": "text", "text": _clean_text(str(block.get("text", "")), flags)})
        elif block.get("type") in ("toolCall", "tool_use", "toolResult") and tools:
            kept_blocks.append({"type": block["type"], "name": block.get("name"), "id": block.get("id")})
        elif block.get("type") in ("image", "audio", "video", "file"):
            kept_blocks.append({name: block[name] for name in FILE_FIELDS if name in block})
    return {**{name: message[name] for name in MESSAGE_FIELDS if name in message}, "content": kept_blocks}


def _clean_text(text: str, flags: dict[str, Any]) -> str:
    clean, hidden = _SECRETS.subn(HIDDEN_MARK, text)
    if hidden:
        flags["contentRedacted"] = True
    if len(clean) > MAX_TEXT_LENGTH:
        flags["contentTruncated"] = True
        clean = clean[:MAX_TEXT_LENGTH] + CUT_MARK
    return clean


def config_part(config: Any, path: Any) -> Any:
    """The part of a config at `a.b.c`. Raises RpcError."""
    for step in str(path or "").split(".") if path else ():
        index = parse_whole_number(step, maximum=len(config) - 1) if isinstance(config, list) else None
        if index is not None:
            config = config[index]
        elif isinstance(config, dict) and step in config:
            config = config[step]
        else:
            raise RpcError(f"the config has nothing at {path}")
    return config
