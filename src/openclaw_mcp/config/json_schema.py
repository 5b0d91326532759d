"""The JSON Schema of openclaw.json, made from the types in `core/config`. Pure."""

import builtins
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType, inspect

from ..core.config.config import Config
from ..core.config.keys import ReloadKind, Section
from ..core.model import Json

JSON_SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_JSON_TYPES: Final = {inspect.StrType: "string", inspect.BoolType: "boolean", inspect.IntType: "integer",
                      inspect.FloatType: "number"}  # fmt: skip
_BOUNDS: Final = {"ge": "minimum", "le": "maximum", "gt": "exclusive_minimum", "lt": "exclusive_maximum",
                  "pattern": "pattern", "min_length": "min_length", "max_length": "max_length"}  # fmt: skip


def _keyword(field: str) -> str:
    first, *others = field.split("_")
    return f"x-{others[0]}" if first == "x" else first + "".join(map(str.title, others))


class ConfigSchemaNode(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_keyword):
    """One part of the schema. Besides the standard keywords: `x-reload`, what a change takes; `x-agents`, why a run may
    or may not change it; `x-unused`: accepted, and read by no code, or those of its values that are not."""

    type: str | list[str] | None = None
    title: str | None = None
    properties: dict[str, "ConfigSchemaNode"] = {}
    additional_properties: "bool | ConfigSchemaNode | None" = None
    items: "ConfigSchemaNode | None" = None
    one_of: list["ConfigSchemaNode"] = []
    required: list[str] = []
    enum: list[object] | None = None
    const: str | None = None
    default: str | bool | int | float | UnsetType = UNSET
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    x_agents: str | None = None
    x_reload: ReloadKind | None = None
    x_unused: bool | list[str] = False


_FIELDS: Final = {field.encode_name: field.name for field in msgspec.structs.fields(ConfigSchemaNode)}


@cache
def config_schema() -> ConfigSchemaNode:
    section = cast("inspect.StructType", inspect.type_info(Config))
    return msgspec.structs.replace(_section_schema(section, defaults=True), x_reload=None)


def published_schema() -> Json:
    """The schema for editors."""
    return _to_json(config_schema())


def schema_of_sections(names: Iterable[str]) -> Json:
    """The part of the schema that describes these sections; names that it does not know are left out."""
    schema = config_schema()
    known = {name: schema.properties[name] for name in names if name in schema.properties}
    # Named also when there are none: without it, an unknown key is refused with another message.
    return {"properties": {}, **_to_json(msgspec.structs.replace(schema, properties=known))}


def _to_json(schema: ConfigSchemaNode) -> Json:
    return {"$schema": JSON_SCHEMA_DIALECT, **msgspec.to_builtins(schema)}


def _schema_of(type: inspect.Type, *, defaults: bool) -> ConfigSchemaNode:
    """`defaults`: whether defaults are named. Not where another level may set the value: a default there would seem to
    override it."""
    match type:
        case inspect.Metadata():
            return _declared_schema(type, defaults=defaults)
        case inspect.UnionType():
            return _union_schema(type.types, defaults=defaults)
        case inspect.StructType():
            return _section_schema(type, defaults=defaults)
        case inspect.LiteralType():
            return ConfigSchemaNode(enum=list(type.values))
        case inspect.DictType():
            if isinstance(type.value_type, inspect.AnyType):
                return ConfigSchemaNode(type="object", additional_properties=True, x_reload="none")
            return ConfigSchemaNode(type="object", additional_properties=_schema_of(type.value_type, defaults=defaults))
        case inspect.VarTupleType(min_length=shortest, max_length=longest):
            items = _schema_of(type.item_type, defaults=defaults)
            return ConfigSchemaNode(type="array", items=items, min_items=shortest, max_items=longest)
        case inspect.AnyType():
            return ConfigSchemaNode()
    bounds = {name: getattr(type, bound, None) for bound, name in _BOUNDS.items()}
    return msgspec.structs.replace(ConfigSchemaNode(type=_JSON_TYPES[type.__class__]), **bounds)


def _declared_schema(type: inspect.Metadata, *, defaults: bool) -> ConfigSchemaNode:
    """A key with what `core/config/keys.py` declares of it."""
    extra: Mapping[str, Any] = type.extra or {}
    if "any_object" in extra:
        node = ConfigSchemaNode(type="object", additional_properties=True)
    elif "section" in extra:
        node = _schema_of(inspect.type_info(extra["section"]), defaults=defaults)
    elif "entries" in extra:
        node = _entries_schema(extra["entries"])
    else:
        node = _schema_of(type.type, defaults=defaults)
    declared = {_FIELDS[keyword]: value for keyword, value in (type.extra_json_schema or {}).items()}
    return msgspec.structs.replace(node, **declared)


def _union_schema(types: Iterable[inspect.Type], *, defaults: bool) -> ConfigSchemaNode:
    """`T | None` is T: a key that is not set is left out, never null."""
    found = [_schema_of(type, defaults=defaults) for type in types if not isinstance(type, inspect.NoneType)]
    if len(found) == 1:
        return found[0]
    names = [one.type for one in found if isinstance(one.type, str) and one == ConfigSchemaNode(type=one.type)]
    if len(names) == len(found):
        return ConfigSchemaNode(type=[name for name in names if name != "integer" or "number" not in names])
    return ConfigSchemaNode(one_of=found)


def _section_schema(type: inspect.StructType, *, defaults: bool) -> ConfigSchemaNode:
    section = cast("builtins.type[Section]", type.cls)
    if section.is_open and not type.fields:
        return ConfigSchemaNode(type="object", additional_properties=True, x_reload="none")
    tag = {} if type.tag_field is None else {type.tag_field: ConfigSchemaNode(const=str(type.tag))}
    hints = get_type_hints(section, include_extras=True)
    properties = {}
    for field in type.fields:
        node = _schema_of(field.type, defaults=defaults)
        if node.enum is not None:
            node = msgspec.structs.replace(node, enum=_literal_values(hints[field.name]))
        if defaults and isinstance(field.default, str | int | float) and field.default != "":
            node = msgspec.structs.replace(node, default=field.default)
        properties[field.encode_name] = node
    return ConfigSchemaNode(
        type="object",
        title=str(section.__doc__).partition("\n")[0].removesuffix("."),
        properties=tag | properties,
        additional_properties=section.is_open,
        x_reload="none",
        required=[*tag, *(field.encode_name for field in type.fields if field.required)],
    )


def _literal_values(hint: object) -> list[object]:
    """The values of a `Literal` as they are declared; msgspec sorts them."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return next((values for part in get_args(hint) if (values := _literal_values(part))), [])


def _entries_schema(entries: dict[str, type[Section]]) -> ConfigSchemaNode:
    """Each section under its name; what a change of it takes is declared at the object that holds them."""
    found = {
        name: msgspec.structs.replace(_schema_of(inspect.type_info(section), defaults=name == "*"), x_reload=None)
        for name, section in entries.items()
    }
    return ConfigSchemaNode(type="object", additional_properties=found.pop("*"), properties=found)
