"""JSON from outside as structs. No field can be trusted to have its type: one that has another is left out. Pure."""

from contextlib import suppress
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, ValidationError, structs

T = TypeVar("T")


def decode_lenient(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    """As `convert_lenient`. Raises msgspec.DecodeError also for what is no JSON."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except ValidationError:
        return convert_lenient(msgspec.json.decode(raw), kind)


def convert_lenient(value: Any, kind: type[T]) -> T:
    """`value` as `kind`. Fields, and items of lists and objects, of another type than declared count as absent.

    Raises ValidationError when nothing of it fits, or a field without a default is absent.
    """
    try:
        return msgspec.convert(value, kind)
    except ValidationError:
        converted: T = _convert_parts(value, kind)
        return converted


def _convert_parts(value: Any, kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for each in arguments:
            with suppress(ValidationError):
                return _convert_parts(value, each)
    elif origin in (list, tuple) and isinstance(value, list):
        return origin(_convert_items(enumerate(value), arguments[0]).values())
    elif origin is dict and isinstance(value, dict):
        return _convert_items(value.items(), arguments[1])
    elif isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Struct):
        fields: dict[str, Any] = {}
        for field in structs.fields(kind):
            if field.encode_name in value:
                fields |= _convert_items([(field.name, value[field.encode_name])], field.type)
        with suppress(TypeError):  # for a missing field
            return kind(**fields)
    raise ValidationError(f"Expected {kind}, got {type(value).__name__}")


def _convert_items(items: Any, kind: Any) -> dict[Any, Any]:
    """Those that fit."""
    found = {}
    for key, item in items:
        with suppress(ValidationError):
            found[key] = convert_lenient(item, kind)
    return found
