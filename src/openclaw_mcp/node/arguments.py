"""Arguments of a command, read kindly: aliases count, numbers are brought into range, absent means the default."""

from typing import Any, Final

from ..core.model import Json

PERCENT: Final = 100


def integer(arguments: Json, *names: str, default: int, least: int, most: int) -> int:
    """The first of `names` that holds a number, brought between `least` and `most`."""
    value = _first_value(arguments, names, int | float)
    return min(max(int(value), least), most) if value is not None and value == value else default  # noqa: PLR0124  NaN


def number(arguments: Json, *names: str, default: float, least: float, most: float) -> float:
    value = _first_value(arguments, names, int | float)
    return min(max(float(value), least), most) if value is not None and value == value else default  # noqa: PLR0124  NaN


def flag(arguments: Json, *names: str, default: bool) -> bool:
    value = _first_value(arguments, names, bool)
    return default if value is None else value


def text(arguments: Json, *names: str) -> str | None:
    """The first of `names` that holds more than blanks, trimmed."""
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def percent(arguments: Json, name: str, *, default: int) -> int:
    """A quality, given as a share up to 1 or as 1 to 100."""
    value = number(arguments, name, default=default, least=0, most=PERCENT)
    return max(1, round(value * PERCENT if value <= 1 else value))


def object_schema(properties: dict[str, Json], *, required: tuple[str, ...] = ()) -> Json:
    """An input schema that accepts properties it does not name."""
    shape: Json = {"type": "object", "properties": properties, "additionalProperties": True}
    if required:
        shape["required"] = list(required)
    return shape


def _first_value(arguments: Json, names: tuple[str, ...], kind: Any) -> Any:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    return None
