"""An app's answer as a tool result: content blocks pass through, any other JSON becomes text. Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import ToolError
from ...core.model import ContentBlock, Json, Text, ToolResult, Traffic
from .frames import Frame, short_reason

JSON_NULL: Final = Raw(b"null")
NO_REASON: Final = "The app said no and gave no reason"


class _McpResult(Struct, rename="camel"):
    """A complete MCP tool result."""

    content: list[ContentBlock]
    structured_content: Raw | UnsetType = UNSET
    is_error: bool = False
    meta: Json | None = field(default=None, name="_meta")


class _ErrorObject(Struct):
    message: str


_decode_blocks = msgspec.json.Decoder(list[ContentBlock]).decode
_decode_result = msgspec.json.Decoder(_McpResult).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_error = msgspec.json.Decoder(_ErrorObject).decode


def to_tool_result(frame: Frame, *, sent: int) -> ToolResult:
    """What the caller gets for an `invoke_result`. Raises ToolError when it claims to be MCP and is not."""
    content = frame.content if isinstance(frame.content, Raw) else JSON_NULL
    traffic = Traffic(sent=sent, received=frame.size)
    if frame.ok and frame.content is UNSET:
        return ToolResult(traffic=traffic)
    if not frame.ok:
        reason = frame.error if isinstance(frame.error, Raw) and bytes(frame.error) != b"null" else content
        return ToolResult((Text(_failure_reason(reason)),), failed=True, traffic=traffic)
    if frame.mcp:
        return _parse_mcp_result(content, traffic)
    raw = bytes(content)
    first = raw[:1]
    if first == b"{":
        return ToolResult((Text(raw.decode()),), structured=content, traffic=traffic)
    if first == b'"':
        return ToolResult((Text(_decode_string(raw)),), traffic=traffic)
    if first == b"[":
        blocks = _try_decode_blocks(raw)
        if blocks:
            return ToolResult(blocks, traffic=traffic)
    return ToolResult((Text(raw.decode()),), traffic=traffic)


def _parse_mcp_result(content: Raw, traffic: Traffic) -> ToolResult:
    raw = bytes(content)
    try:
        if raw[:1] == b"[":
            return ToolResult(tuple(_decode_blocks(raw)), traffic=traffic)
        whole = _decode_result(raw)
    except (ValueError, RecursionError) as exc:
        raise ToolError(f"The app's answer claims to be MCP content and is not: {short_reason(exc)}") from None
    structured: Any = whole.structured_content
    return ToolResult(tuple(whole.content), structured, whole.is_error, whole.meta, traffic)


def _try_decode_blocks(raw: bytes) -> tuple[ContentBlock, ...]:
    """The blocks, or nothing when the list is just a list."""
    try:
        return tuple(_decode_blocks(raw))
    except (ValueError, RecursionError):
        return ()


def _failure_reason(raw: Raw) -> str:
    text = bytes(raw)
    if text[:1] == b'"':
        return _decode_string(text) or NO_REASON
    if text[:1] == b"{":
        try:
            return _decode_error(text).message or NO_REASON
        except (ValueError, RecursionError):
            pass
    return NO_REASON if text == b"null" else text.decode()
