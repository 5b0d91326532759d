"""Other programs' JSON as structs. Their fields vary by version, so one that does not fit is left out, not an error."""

from contextlib import suppress
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, ValidationError, structs

Kind = TypeVar("Kind")
Shape = TypeVar("Shape", bound=Struct)


def decode_lenient(data: bytes | msgspec.Raw, kind: type[Kind]) -> Kind:
    """As `convert_lenient`. Raises msgspec.DecodeError also when it is not JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except ValidationError:
        return convert_lenient(msgspec.json.decode(data), kind)


def convert_lenient(value: Any, kind: type[Kind]) -> Kind:
    """A JSON value as `kind`. Fields, and items of lists and objects, of another type than declared count as absent.

    Raises ValidationError when nothing of it fits, or a field without a default is absent.
    """
    try:
        return msgspec.convert(value, kind)
    except ValidationError:
        converted: Kind = _convert_parts(value, kind)
        return converted


def read_struct(value: Any, shape: type[Shape]) -> Shape:
    """As `convert_lenient`, for a struct whose fields all have defaults: a value that is no object has no fields."""
    try:
        return convert_lenient(value, shape)
    except ValidationError:
        return shape()


def decode_struct(data: bytes, shape: type[Shape]) -> Shape:
    """As `read_struct`. Raises msgspec.DecodeError when it is not JSON."""
    try:
        return decode_lenient(data, shape)
    except ValidationError:
        return shape()


def _convert_parts(value: Any, kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for option in arguments:
            with suppress(ValidationError):
                return _convert_parts(value, option)
    elif kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # JSON does not tell 2.0 from 2, and msgspec's decoder takes both
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
