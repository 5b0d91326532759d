"""The JSON Schema of openclaw.json, made from the types in `core/config`. Pure."""

import builtins
from collections.abc import Iterable
from functools import cache
from typing import Final, Literal, cast, get_args, get_origin, get_type_hints

from msgspec import inspect

from ..core.config.config import Config
from ..core.config.keys import Section
from ..core.model import Json

JSON_SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_JSON_TYPES: Final = {inspect.StrType: "string", inspect.BoolType: "boolean", inspect.IntType: "integer",
                      inspect.FloatType: "number"}  # fmt: skip
_BOUNDS: Final = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum",
                  "pattern": "pattern", "min_length": "minLength", "max_length": "maxLength"}  # fmt: skip


@cache
def config_schema() -> Json:
    """Published for editors. Besides the standard keywords: `x-reload`, what a change takes; `x-agents`, why a run may
    or may not change it; `x-unused`: accepted, and read by no code."""
    top = _section_schema(cast("inspect.StructType", inspect.type_info(Config)), defaults=True)
    del top["x-reload"]
    return {"$schema": JSON_SCHEMA_DIALECT, "title": "openclaw.json", **top}


def _schema_of(type: inspect.Type, *, defaults: bool) -> Json:
    """`defaults`: whether defaults are named. Not where another level may set the value: a default there would seem to
    override it."""
    match type:
        case inspect.Metadata():
            extra, own = type.extra or {}, type.extra_json_schema or {}
            if "any_object" in extra:
                return {"type": "object", "additionalProperties": True, **own}
            if "entries" in extra:
                return _entries_schema(extra["entries"]) | own
            return _schema_of(type.type, defaults=defaults) | own
        case inspect.UnionType():
            return _union_schema(type.types, defaults=defaults)
        case inspect.StructType():
            return _section_schema(type, defaults=defaults)
        case inspect.LiteralType():
            return {"enum": list(type.values)}
        case inspect.DictType():
            is_any = isinstance(type.value_type, inspect.AnyType)
            values = True if is_any else _schema_of(type.value_type, defaults=defaults)
            return {"type": "object", "additionalProperties": values} | ({"x-reload": "none"} if is_any else {})
        case inspect.VarTupleType():
            bounds = {"minItems": type.min_length, "maxItems": type.max_length}
            items = _schema_of(type.item_type, defaults=defaults)
            return {"type": "array", "items": items, **{name: v for name, v in bounds.items() if v is not None}}
        case inspect.AnyType():
            return {}
    bounds = {name: getattr(type, bound, None) for bound, name in _BOUNDS.items()}
    return {"type": _JSON_TYPES[type.__class__], **{name: value for name, value in bounds.items() if value is not None}}


def _union_schema(types: Iterable[inspect.Type], *, defaults: bool) -> Json:
    """`T | None` is T: a key that is not set is left out, never null."""
    found = [_schema_of(type, defaults=defaults) for type in types if not isinstance(type, inspect.NoneType)]
    if len(found) == 1:
        return found[0]
    if all(list(one) == ["type"] for one in found):
        names = [one["type"] for one in found]
        return {"type": [name for name in names if name != "integer" or "number" not in names]}
    return {"oneOf": found}


def _section_schema(type: inspect.StructType, *, defaults: bool) -> Json:
    section = cast("builtins.type[Section]", type.cls)
    properties: Json = {} if type.tag_field is None else {type.tag_field: {"const": type.tag}}
    hints = get_type_hints(section, include_extras=True)
    for field in type.fields:
        found = properties[field.encode_name] = _schema_of(field.type, defaults=defaults)
        if "enum" in found:
            found["enum"] = _literal_values(hints[field.name])
        if defaults and isinstance(field.default, str | int | float) and field.default != "":
            found["default"] = field.default
    tag = [] if type.tag_field is None else [type.tag_field]
    required = tag + [field.encode_name for field in type.fields if field.required]
    return {
        "type": "object",
        "title": str(section.__doc__).partition("\n")[0].removesuffix("."),
        "properties": properties,
        "additionalProperties": section.is_open,
        "x-reload": "none",
        **({"required": required} if required else {}),
    }


def _literal_values(hint: object) -> list[object]:
    """The values of a `Literal` as they are declared; msgspec sorts them."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return next((values for part in get_args(hint) if (values := _literal_values(part))), [])


def _entries_schema(entries: dict[str, type[Section]]) -> Json:
    """Each section under its name; what a change of it takes is declared at the object that holds them."""
    found = {name: _schema_of(inspect.type_info(section), defaults=name == "*") for name, section in entries.items()}
    for section in found.values():
        del section["x-reload"]
    others = found.pop("*")
    return {"type": "object", "additionalProperties": others} | ({"properties": found} if found else {})
