"""Other programs' JSON as structs. Their fields vary by version, so one that does not fit is left out, not an error."""

import re
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, ValidationError, structs

Kind = TypeVar("Kind")
Shape = TypeVar("Shape", bound=Struct)

MAX_DEPTH: Final = 100  # objects and lists within each other, of JSON that nests too deeply to be decoded whole

_ABSENT: Final[Any] = object()
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def decode_lenient(data: bytes | msgspec.Raw, kind: type[Kind]) -> Kind:
    """As `convert_lenient`. Raises msgspec.DecodeError also when it is not JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValidationError, RecursionError):
        return convert_lenient(_decode_any(bytes(data)), kind)


def convert_lenient(value: Any, kind: type[Kind]) -> Kind:
    """A JSON value as `kind`. Fields, and items of lists and objects, of another type than declared count as absent.

    Raises ValidationError when nothing of it fits, or a field without a default is absent.
    """
    converted: Kind = _convert(value, kind)
    if converted is _ABSENT:
        raise ValidationError(f"Expected {kind}, got {type(value).__name__}")
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


class _Kind(Struct, frozen=True, kw_only=True):
    """A declared type, taken apart once: asking msgspec or `typing` for it again with each value takes long."""

    options: tuple[Any, ...] = ()
    """Of a union."""
    made_of: type[Any] | None = None
    """The values a plain type takes."""
    sequence: type[list[Any]] | type[tuple[Any, ...]] | None = None
    is_dict: bool = False
    item: Any = None
    """Of a list, tuple or dict."""
    fields: tuple[tuple[str, str, Any], ...] | None = None
    """Of a struct: name, name in JSON, type."""


@cache
def _take_apart(kind: Any) -> _Kind:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _Kind(options=arguments)
    if origin in (list, tuple):
        return _Kind(sequence=origin, item=arguments[0])
    if origin is dict:
        return _Kind(is_dict=True, item=arguments[1])
    if isinstance(kind, type) and issubclass(kind, Struct):
        fields = structs.fields(kind)
        return _Kind(fields=tuple((field.name, field.encode_name, field.type) for field in fields))
    return _Kind(made_of=kind if kind in (str, bool, int) else None)


def _convert_parts(value: Any, kind: Any) -> Any:
    """What fits of a value that does not fit as a whole; _ABSENT when nothing does."""
    parts = _take_apart(kind)
    if parts.options:
        found = (_convert_parts(value, option) for option in parts.options)
        return next((each for each in found if each is not _ABSENT), _ABSENT)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # JSON does not tell 2.0 from 2, and msgspec's decoder takes both
    if parts.sequence is not None and isinstance(value, list):
        items = (_convert(item, parts.item) for item in value)
        return parts.sequence(item for item in items if item is not _ABSENT)
    if not isinstance(value, dict):
        return _ABSENT
    if parts.is_dict:
        entries = ((key, _convert(item, parts.item)) for key, item in value.items())
        return {key: item for key, item in entries if item is not _ABSENT}
    if parts.fields is None:
        return _ABSENT
    fields = {name: _convert(value[key], type) for name, key, type in parts.fields if key in value}
    try:
        return kind(**{name: item for name, item in fields.items() if item is not _ABSENT})
    except TypeError:  # for a missing field
        return _ABSENT


def _convert(value: Any, kind: Any) -> Any:
    made_of = _take_apart(kind).made_of
    if made_of is not None and type(value) is made_of:
        return value
    with suppress(RecursionError):  # nested deeper than anything we read
        if made_of is None:
            with suppress(ValidationError):
                return msgspec.convert(value, kind)
        return _convert_parts(value, kind)
    return _ABSENT


def _decode_any(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        return msgspec.json.decode(_cut_depth(data))


def _cut_depth(data: bytes) -> bytes:
    """JSON with every value that is nested too deeply to decode as null: else one in a message loses all the others."""
    pieces, begin, depth = [], 0, 0
    for token in _BRACKETS.finditer(data):
        bracket = token[0]
        if bracket in b"[{":
            depth += 1
            if depth == MAX_DEPTH:
                pieces += [data[begin : token.start()], b"null"]
        elif bracket in b"]}":
            if depth == MAX_DEPTH:
                begin = token.end()
            depth -= 1
    return b"".join([*pieces, data[begin:]])
