"""JSON from outside that is kept and read again: how deeply it may be nested. Pure."""

from typing import Any, Final

import msgspec

MAX_NESTING: Final = 128  # objects and lists within each other
"""A number, not the stack at hand: what can be read where it comes in could not be where the stack is fuller."""

TOO_DEEP_MESSAGE: Final = (
    f"nested too deeply: more than {MAX_NESTING} objects and lists stand within each other; flatten it"
)

_decode = msgspec.json.Decoder().decode


class JsonTooDeep(msgspec.DecodeError):
    """Valid JSON that is nested too deeply to be accepted."""

    def __init__(self) -> None:
        super().__init__(f"it is {TOO_DEEP_MESSAGE}")


def decode_json(text: bytes | bytearray | str) -> Any:
    """What the JSON says. Raises ValueError, which is a TooDeep when that is what is wrong with it."""
    try:
        value = _decode(text)
    except RecursionError:
        raise JsonTooDeep from None
    if is_too_deep(text, value):
        raise JsonTooDeep
    return value


def is_too_deep(text: bytes | bytearray | str, value: Any) -> bool:
    """Whether `value`, read from `text`, is nested too deeply."""
    brackets = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if brackets <= MAX_NESTING:  # nearly every message
        return False
    level: list[Any] = [[value]]
    for _ in range(MAX_NESTING + 1):
        inner = (part for outer in level for part in (outer.values() if type(outer) is dict else outer))
        level = [part for part in inner if type(part) is dict or type(part) is list]
        if not level:
            return False
    return True
