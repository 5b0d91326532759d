"""An app's answer as a tool result: content blocks pass through, any other JSON becomes text. Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import ToolError
from ...core.model import Block, Json, Text, ToolResult, Traffic
from .frames import Frame, short

NOTHING: Final = Raw(b"null")
NO_REASON: Final = "The app said no and gave no reason"


class _Whole(Struct, rename="camel"):
    """A complete MCP tool result."""

    content: list[Block]
    structured_content: Raw | UnsetType = UNSET
    is_error: bool = False
    meta: Json | None = field(default=None, name="_meta")


class _Failure(Struct):
    message: str


_blocks = msgspec.json.Decoder(list[Block]).decode
_whole = msgspec.json.Decoder(_Whole).decode
_string = msgspec.json.Decoder(str).decode
_failure = msgspec.json.Decoder(_Failure).decode


def result(frame: Frame, *, sent: int) -> ToolResult:
    """What the caller gets for an `invoke_result`. Raises ToolError when it claims to be MCP and is not."""
    content = frame.content if isinstance(frame.content, Raw) else NOTHING
    traffic = Traffic(sent=sent, received=frame.size)
    if not frame.ok:
        reason = frame.error if isinstance(frame.error, Raw) and bytes(frame.error) != b"null" else content
        return ToolResult((Text(_reason(reason)),), failed=True, traffic=traffic)
    if frame.mcp:
        return _mcp(content, traffic)
    raw = bytes(content)
    first = raw[:1]
    if first == b"{":
        return ToolResult((Text(raw.decode()),), structured=content, traffic=traffic)
    if first == b'"':
        return ToolResult((Text(_string(raw)),), traffic=traffic)
    if first == b"[":
        blocks = _as_blocks(raw)
        if blocks:
            return ToolResult(blocks, traffic=traffic)
    return ToolResult((Text(raw.decode()),), traffic=traffic)


def _mcp(content: Raw, traffic: Traffic) -> ToolResult:
    raw = bytes(content)
    try:
        if raw[:1] == b"[":
            return ToolResult(tuple(_blocks(raw)), traffic=traffic)
        whole = _whole(raw)
    except (ValueError, RecursionError) as exc:
        raise ToolError(f"The app's answer claims to be MCP content and is not: {short(exc)}") from None
    structured: Any = whole.structured_content
    return ToolResult(tuple(whole.content), structured, whole.is_error, whole.meta, traffic)


def _as_blocks(raw: bytes) -> tuple[Block, ...]:
    """The blocks, or nothing when the list is just a list."""
    try:
        return tuple(_blocks(raw))
    except (ValueError, RecursionError):
        return ()


def _reason(raw: Raw) -> str:
    text = bytes(raw)
    if text[:1] == b'"':
        return _string(text) or NO_REASON
    if text[:1] == b"{":
        try:
            return _failure(text).message or NO_REASON
        except (ValueError, RecursionError):
            pass
    return NO_REASON if text == b"null" else text.decode()
