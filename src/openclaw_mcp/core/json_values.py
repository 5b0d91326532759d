"""Small readings of JSON values that several packages need. Pure."""

from collections.abc import Mapping
from typing import Any


def drop_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def content_text(content: Any) -> str:
    """The text of a message's content: a string, or a list of blocks of which those of type `text` count."""
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
