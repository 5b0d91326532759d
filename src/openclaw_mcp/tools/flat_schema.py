"""Most tools' schemas, checked without the schema library: it takes longer to load than a first call may take. Pure.

`compile_flat` reads only schemas made of the keywords below, and its check only accepts: everything that is not
plainly right is left to the real one (`schema_check`), which decides and names the mistakes.
"""

from collections.abc import Callable
from typing import Any, Final

FEW_VALUES: Final = 16  # values of an object or items of a list that are looked at here
MAX_PARTS: Final = 100  # properties or choices of a schema that is read here: a larger one is measured first
MAX_LEVELS: Final = 4  # subschemas within each other

Accepts = Callable[[Any], bool]

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
}  # fmt: skip
_SCALARS: Final = (str, bool, int, float, type(None))
_NOTES: Final = {"title": str, "description": str, "default": object}
_KEYWORDS: Final = {
    "string": frozenset({"type", "enum", *_NOTES}),
    "boolean": frozenset({"type", *_NOTES}),
    "integer": frozenset({"type", "minimum", "maximum", *_NOTES}),
    "number": frozenset({"type", "minimum", "maximum", *_NOTES}),
    "array": frozenset({"type", "items", "minItems", "maxItems", *_NOTES}),
    "object": frozenset({"type", "properties", "required", "additionalProperties", *_NOTES}),
}


def compile_flat(schema: Any, level: int = 0) -> Accepts | None:
    """A check that is true only for values the schema allows; None when the schema has to be read by the library."""
    kind = schema.get("type") if type(schema) is dict else None
    keywords = _KEYWORDS.get(kind) if type(kind) is str else None
    if keywords is None or not keywords.issuperset(schema) or level > MAX_LEVELS:
        return None
    if not all(isinstance(schema[name], needed) for name, needed in _NOTES.items() if name in schema):
        return None
    if kind == "object":
        return _compile_object(schema, level)
    if kind == "array":
        return _compile_array(schema, level)
    return _compile_scalar(schema, str(kind))


def _compile_scalar(schema: dict[str, Any], kind: str) -> Accepts | None:
    python_type = _TYPES[kind]
    choices, least, most = schema.get("enum"), schema.get("minimum"), schema.get("maximum")
    if choices is not None and not _is_text_list(choices):
        return None
    if not all(limit is None or type(limit) in (int, float) for limit in (least, most)):
        return None

    def accepts(value: Any) -> bool:
        return (
            isinstance(value, python_type)
            and (type(value) is not bool or kind == "boolean")
            and (type(value) is not float or value - value == 0)  # neither infinite nor no number at all
            and (choices is None or value in choices)
            and (least is None or value >= least)
            and (most is None or value <= most)
        )

    return accepts


def _compile_array(schema: dict[str, Any], level: int) -> Accepts | None:
    item = compile_flat(schema["items"], level + 1) if "items" in schema else _is_scalar
    least, most = schema.get("minItems", 0), schema.get("maxItems", FEW_VALUES)
    if item is None or type(least) is not int or type(most) is not int or least < 0 or most < 0:
        return None
    most = min(most, FEW_VALUES)
    return lambda value: type(value) is list and least <= len(value) <= most and all(map(item, value))


def _compile_object(schema: dict[str, Any], level: int) -> Accepts | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    if type(properties) is not dict or len(properties) > MAX_PARTS or type(others) is not bool:
        return None
    if required != [] and not _is_text_list(required):
        return None
    checks = {name: compile_flat(below, level + 1) for name, below in properties.items()}
    known = {name: check for name, check in checks.items() if check is not None}
    if len(known) < len(checks):
        return None

    most, other_check = max(FEW_VALUES, len(known)), _is_scalar if others else _is_nothing

    def accepts(value: Any) -> bool:
        if type(value) is not dict or len(value) > most:
            return False
        for name in required:
            if name not in value:
                return False
        for name, item in value.items():  # noqa: SIM110  (a generator would cost as much as the check)
            if not known.get(name, other_check)(item):
                return False
        return True

    return accepts


def _is_scalar(value: Any) -> bool:
    """Nothing within it could take long to check."""
    return isinstance(value, _SCALARS)


def _is_nothing(_: Any) -> bool:
    return False


def _is_text_list(values: Any) -> bool:
    """A list of different texts, at least one, not too many."""
    if type(values) is not list or not 0 < len(values) <= MAX_PARTS:
        return False
    return all(type(each) is str for each in values) and len(set(values)) == len(values)
