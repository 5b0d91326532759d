"""What a lent function returned, as the frame the bridge takes. Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ..core.model import Audio, Embedded, Image, Link, Text, ToolResult
from ..protocol.bridge import INVOKE_RESULT, PROGRESS
from ..protocol.mcp import encode_tool_result

BLOCK_TYPES: Final = (Text, Image, Audio, Embedded, Link)


class _ResultFrame(Struct, tag=INVOKE_RESULT, tag_field="type", omit_defaults=True):
    request_id: str
    ok: bool
    content: Any = UNSET
    error: str | UnsetType = UNSET
    mcp: bool = False


class _ProgressFrame(Struct, tag=PROGRESS, tag_field="type", omit_defaults=True):
    request_id: str
    progress: float
    total: float | None = None
    message: str | None = None


_encode = msgspec.json.Encoder().encode


def result_frame(request_id: str, value: Any) -> str:
    """The frame for a value. Raises TypeError for what JSON can't carry."""
    if isinstance(value, ToolResult):
        return _encode_text(_ResultFrame(request_id, ok=True, content=encode_tool_result(value), mcp=True))
    if isinstance(value, BLOCK_TYPES):
        return _encode_text(_ResultFrame(request_id, ok=True, content=[value], mcp=True))
    if isinstance(value, list | tuple) and any(isinstance(part, BLOCK_TYPES) for part in value):
        return _encode_text(_ResultFrame(request_id, ok=True, content=[_to_block(part) for part in value], mcp=True))
    return _encode_text(_ResultFrame(request_id, ok=True, content=value))


def error_frame(request_id: str, reason: str) -> str:
    return _encode_text(_ResultFrame(request_id, ok=False, error=reason))


def progress_frame(request_id: str, done: float, total: float | None, message: str | None) -> str:
    return _encode_text(_ProgressFrame(request_id, done, total, message))


def _to_block(part: Any) -> Any:
    """Between blocks, a string is a text and anything else its JSON."""
    if isinstance(part, BLOCK_TYPES):
        return part
    return Text(part if isinstance(part, str) else _encode_text(part))


def _encode_text(value: Any) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # half a character, as a cut text or a file's odd name has it, must not cost the answer
        return _encode(_replace_surrogates(msgspec.to_builtins(value, str_keys=True))).decode()


def _replace_surrogates(value: Any) -> Any:
    """The value with U+FFFD for each unpaired surrogate."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(part) for key, part in value.items()}
    return [_replace_surrogates(part) for part in value] if isinstance(value, list) else value
