"""What other MCP servers answer, as our own values. Never raises: what is not understood becomes text or nothing."""

from typing import Any, Final

import msgspec
from msgspec import UNSET

from ..core.model import ContentBlock, Json, Text, ToolResult, ToolSpec
from .jsonrpc import encode
from .mcp import SERVER_INFO

MAX_UNKNOWN_BLOCK: Final = 2000  # characters kept of a block we have no name for

_decode_block = msgspec.json.Decoder(ContentBlock).decode


def read_tool(value: Any) -> ToolSpec | None:
    """A listed tool; None when it has no name or its schema is no object."""
    if type(value) is not dict or type(value.get("name")) is not str or not value["name"]:
        return None
    schema = value.get("inputSchema", {"type": "object"})
    if type(schema) is not dict:
        return None
    return ToolSpec(
        name=value["name"],
        description=_field_of_type(value, "description", str) or "",
        input_schema=schema,
        title=_field_of_type(value, "title", str),
        output_schema=_field_of_type(value, "outputSchema", dict),
        annotations=_field_of_type(value, "annotations", dict),
        icons=_field_of_type(value, "icons", list),
        meta=_field_of_type(value, "_meta", dict),
        effect="run",  # a server's own hints about its tools are no ground to trust it
    )


def read_result(value: Json) -> ToolResult:
    """The result of `tools/call`."""
    content = value.get("content")
    blocks = tuple(_read_block(block) for block in content) if type(content) is list else ()
    structured = value.get("structuredContent", UNSET)
    # Who the other server is says nothing of the one that passes its result on.
    meta = {key: item for key, item in (_field_of_type(value, "_meta", dict) or {}).items() if key != SERVER_INFO}
    return ToolResult(blocks, structured, value.get("isError") is True, meta or None)


def _read_block(value: Any) -> ContentBlock:
    data = encode(value)
    try:
        block: ContentBlock = _decode_block(data)
        return block
    except (msgspec.ValidationError, msgspec.DecodeError):
        return Text(data[:MAX_UNKNOWN_BLOCK].decode("utf-8", "replace"))


def _field_of_type(value: Json, key: str, kind: type) -> Any:
    found = value.get(key)
    return found if type(found) is kind else None
