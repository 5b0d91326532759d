"""Other programs' JSON as structs. Their fields vary by version, so one that does not fit is left out, not an error."""

from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, structs

Shape = TypeVar("Shape", bound=Struct)


def decode_lenient(data: bytes, shape: type[Shape]) -> Shape:
    """JSON text as a struct whose fields all have defaults. Raises DecodeError when it is not JSON."""
    try:
        return msgspec.json.decode(data, type=shape, strict=False)
    except msgspec.ValidationError:
        return convert_lenient(msgspec.json.decode(data), shape)


def convert_lenient(value: Any, shape: type[Shape]) -> Shape:
    """A JSON value as a struct whose fields all have defaults: a field of another type counts as absent, an item of
    another type is left out of its list, and what is no object has no fields."""
    found = _read(value, shape)
    return shape() if found is UNSET else found


def _read(value: Any, kind: Any) -> Any:
    """The value as `kind`, or as much of it as fits; UNSET if nothing does."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        pass
    for option in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if isinstance(value, dict) and isinstance(option, type) and issubclass(option, Struct):
            found = {
                field.name: _read(value[field.encode_name], field.type)
                for field in structs.fields(option)
                if field.encode_name in value
            }
            return option(**{name: part for name, part in found.items() if part is not UNSET})
        if isinstance(value, list) and get_origin(option) is tuple:
            items = (_read(item, get_args(option)[0]) for item in value)
            return tuple(item for item in items if item is not UNSET)
    return UNSET
