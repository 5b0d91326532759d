"""Excerpts of transcripts for a model: bounded, without secrets, without tool calls unless asked for. Pure."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

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


class _Excerpt(Struct, rename="camel"):
    """The newest messages that fit, oldest first, and flags for what was left out."""

    messages: list[Any] = []
    truncated: bool = False
    dropped_messages: int = 0
    content_truncated: bool = False
    content_redacted: bool = False
    bytes: int = 0

    def clean(self, text: str) -> str:
        text, hidden = _SECRETS.subn(HIDDEN_MARK, text)
        self.content_redacted |= hidden > 0
        self.content_truncated |= len(text) > MAX_TEXT_LENGTH
        return text if len(text) <= MAX_TEXT_LENGTH else text[:MAX_TEXT_LENGTH] + CUT_MARK


def trim_messages(messages: Sequence[Json], *, tools: bool) -> Json:
    """The newest messages that fit, oldest first, and flags for what was left out."""
    excerpt = _Excerpt()
    wanted = [message for message in messages if tools or message.get("role") in ("user", "assistant")]
    for number, message in enumerate(reversed(wanted)):
        small: Json = {name: message[name] for name in MESSAGE_FIELDS if name in message}
        small["content"] = _trim_content(message.get("content"), excerpt, tools=tools)
        size = len(_encode(small))
        if excerpt.bytes + size > LARGEST_ANSWER:
            excerpt.truncated, excerpt.dropped_messages = True, len(wanted) - number
            break
        excerpt.bytes += size
        excerpt.messages.insert(0, small)
    return msgspec.to_builtins(excerpt)  # type: ignore[no-any-return]  # of a struct: an object


def _trim_content(content: Any, excerpt: _Excerpt, *, tools: bool) -> list[Any]:
    kept: list[Any] = []
    blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            kept.append({"type": "text", "text": excerpt.clean(str(block.get("text", "")))})
        elif kind in ("toolCall", "tool_use", "toolResult") and tools:
            kept.append({"type": kind, "name": block.get("name"), "id": block.get("id")})
        elif kind in ("image", "audio", "video", "file"):
            kept.append({name: block[name] for name in FILE_FIELDS if name in block})
    return kept


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
