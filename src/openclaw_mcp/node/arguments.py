"""Arguments of a command, read kindly: aliases count, numbers are brought into range, absent means the default."""

from typing import Any, Final

from ..core.model import Json, ToolCall, ToolSpec

PERCENT: Final = 100


def integer(call: ToolCall, *names: str, default: int, least: int, most: int) -> int:
    """The first of `names` that holds a number, brought between `least` and `most`."""
    value = _first_value(call, names, int | float)
    return min(max(int(value), least), most) if value is not None and value == value else default  # noqa: PLR0124  NaN


def number(call: ToolCall, *names: str, default: float, least: float, most: float) -> float:
    value = _first_value(call, names, int | float)
    return min(max(float(value), least), most) if value is not None and value == value else default  # noqa: PLR0124  NaN


def flag(call: ToolCall, *names: str, default: bool) -> bool:
    value = _first_value(call, names, bool)
    return default if value is None else value


def text(call: ToolCall, *names: str) -> str | None:
    """The first of `names` that holds more than blanks, trimmed."""
    return next(filter(None, (trim(call.arguments.get(name)) for name in names)), None)


def trim(value: Any) -> str | None:
    """A text without the blanks around it; None for any other value, and for blanks alone."""
    return value.strip() or None if isinstance(value, str) else None


def percent(call: ToolCall, name: str, *, default: int) -> int:
    """A quality, given as a share up to 1 or as 1 to 100."""
    value = number(call, name, default=default, least=0, most=PERCENT)
    return max(1, round(value * PERCENT if value <= 1 else value))


def command_spec(
    name: str,
    title: str | None,
    description: str,
    properties: dict[str, Json] | None = None,
    *,
    required: tuple[str, ...] = (),
    **traits: Any,
) -> ToolSpec:
    """A command, by default one that only reads this machine. It accepts properties that it does not name."""
    schema = {"type": "object", "properties": properties or {}, "additionalProperties": True}
    if required:
        schema["required"] = list(required)
    traits.setdefault("annotations", {"readOnlyHint": True, "openWorldHint": False})
    return ToolSpec(name=name, title=title, description=description, input_schema=schema, **traits)


def _first_value(call: ToolCall, names: tuple[str, ...], kind: Any) -> Any:
    for name in names:
        value = call.arguments.get(name)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    return None
