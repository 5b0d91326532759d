"""Proper JSON that can't be represented here: half a character (a lone surrogate), a number beyond all bounds."""

from typing import Any

import msgspec


def recover_id(data: bytes | bytearray | str) -> Any:
    """The `id` of such a message, so that the error can name it; None when it is no object. Raises ValueError when it
    is no JSON at all, or has no `id` that could be sent back."""
    import json  # here for start-up: nearly every message can be read

    try:
        value = json.loads(data, parse_constant=_reject_constant)
        if not isinstance(value, dict):
            return None
        id = value["id"]
        msgspec.json.encode(id)
    except (KeyError, RecursionError) as exc:
        raise ValueError("no id can be read") from exc
    return id


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
