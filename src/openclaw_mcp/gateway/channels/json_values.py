"""Values of JSON from outside, none of which can be trusted to have its type. Pure."""

from typing import Any

from ...core.model import Json


def as_dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def as_int(value: Any, default: int = 0) -> int:
    return value if isinstance(value, int) else default


def as_dicts(value: Any) -> list[Json]:
    """The objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
