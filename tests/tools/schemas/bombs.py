"""Schemas and arguments that would take hours or gigabytes to check, and the words that refuse each."""

from collections.abc import Callable
from functools import reduce
from typing import Any

from msgspec import Struct

Json = dict[str, Any]

SCHEMA = "The tool's own schema can't be used: "
ARGUMENTS = "The arguments "
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


class Bomb(Struct, frozen=True):
    says: str
    """How the refusal begins, and a part of its advice, as a regular expression."""
    schema: Callable[[], Json]
    arguments: Callable[[], Json] = dict


def fields(**properties: Any) -> Json:
    return {"type": "object", "properties": properties}


def many(subschema: Callable[[int], Any], count: int) -> Json:
    return fields(**{f"p{number}": subschema(number) for number in range(count)})


def letters(number: int) -> str:
    return f"\\p{{L}}{{40}}{number}"


def doubled(depth: int, keyword: str = "allOf") -> Json:
    """Each definition refers twice to the one before it."""
    parts: Json = {"d0": {"type": "object"}}
    for level in range(1, depth + 1):
        parts[f"d{level}"] = {keyword: [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"type": "object", "$defs": parts, "$ref": f"#/$defs/d{depth}"}


def checked(leaf: Json, doublings: int) -> Json:
    """A property that is checked by a part so often."""
    parts = doubled(doublings)["$defs"] | {"d0": leaf}
    return {**fields(a={"$ref": f"#/$defs/d{doublings}"}), "$defs": parts}


def enums_within_enums() -> Json:
    """Each is referred to, and the innermost has many values."""
    values: list[Any] = [0] * 80_000
    for level in range(55):
        values = [{"$anchor": f"a{level}", "enum": values}]
    refers = [{"properties": {"b": {"$ref": f"#a{level}"}}} for level in range(55)]
    return {**fields(a={"enum": values}), "anyOf": refers}


def doubled_by_anchors() -> Json:
    parts: Json = {"d0": {"$anchor": "a0"}}
    for level in range(1, 61):
        parts[f"d{level}"] = {"$anchor": f"a{level}", "allOf": [{"$dynamicRef": f"#a{level - 1}"}] * 2}
    return {"type": "object", "$defs": parts, "$ref": "#a60"}


def doubled_below() -> Json:
    """Small by itself; checking doubles with each level of the arguments."""
    return {"type": "object", "allOf": [{"properties": {"a": {"$ref": "#"}}}] * 2}


def each_refers_to_all() -> Json:
    parts = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{j}"} for j in range(12)]} for i in range(12)}
    return {"type": "object", "$defs": parts, "$ref": "#/$defs/d0"}


def unevaluated(keyword: str, depth: int = 25) -> Json:
    inner: Json = {"properties": {"a": {}}}
    for _ in range(depth):
        inner = {keyword: inner if keyword == "if" else [inner], "unevaluatedProperties": False}
    return {"type": "object", **inner}


def two_of_one_id() -> Json:
    """The harmless `d60` is not the one that is meant."""
    harmless: Json = {"type": "object", "$defs": {"d60": {}}}
    return {**harmless, "allOf": [{**doubled(60), "$id": "https://example.org/inner"}]}


def long_chain(length: int) -> Json:
    parts = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}]} for level in range(length)}
    parts[f"d{length}"] = {"properties": {"a": {"$ref": "#/$defs/d0"}}}  # type: ignore[dict-item]
    return {"type": "object", "$defs": parts, "$ref": "#/$defs/d0"}


def nested(depth: int) -> Json:
    return reduce(lambda inner, _: {"a": inner}, range(depth), {"b": 1})


def text(count: int) -> str:
    """Random enough that no state is met twice."""
    return "".join("ab"[(number * number * 2654435761 >> 16) & 1] for number in range(count))


def items(schema: Any) -> Json:
    return fields(a={"type": "array", "items": schema})


LONG = "x" * 3_900_000
NAME = "x" * 100_000
WIDE = "\U0001d4b3" * 300_000  # four bytes each
SHORTER = [{"maxLength": number} for number in range(500)]
WORDS = [f"word {number:014}" for number in range(8_000)]

FIRST = ARGUMENTS + "do not fit the tool's schema: .*; there may be more mistakes$"
NOT_NAMED = ARGUMENTS + "do not fit.*too many or too long to say where; send less"
FOLLOWED = SCHEMA + "with its references followed.*less often"
TOO_LONG = ARGUMENTS + "take too long to check by the tool's schema; send fewer values or shorter texts"

BOMBS: dict[str, Bomb] = {
    "large patterns": Bomb(SCHEMA + ".*p.L.*40.*repeat less", lambda: many(lambda n: {"pattern": letters(n)}, 200)),
    "large patterns of names": Bomb(
        SCHEMA + ".*repeat less", lambda: {"type": "object", "patternProperties": {letters(n): {} for n in range(200)}}
    ),
    "large patterns nobody refers to": Bomb(
        SCHEMA + ".*repeat less", lambda: {"type": "object", "$defs": many(lambda n: {"pattern": letters(n)}, 200)}
    ),
    "large lookaheads": Bomb(SCHEMA + ".*repeat less", lambda: many(lambda n: {"pattern": f"(?={letters(n)})"}, 200)),
    "many middling patterns": Bomb(
        SCHEMA + "its patterns take more.*fewer or simpler", lambda: many(lambda n: {"pattern": f"\\PL{n}"}, 400)
    ),
    "many small patterns": Bomb(
        SCHEMA + "it has more than 500 different patterns; use fewer", lambda: many(lambda n: {"pattern": f"{n}"}, 501)
    ),
    "one pattern of many parts": Bomb(
        SCHEMA + "its patterns have more than 8192 characters.*shorten",
        lambda: fields(a={"pattern": "(?=[ab]{900})" * 700}),
    ),
    "doubling references": Bomb(SCHEMA + "with its references followed.*less often", lambda: doubled(60)),
    "doubling alternatives": Bomb(SCHEMA + "with its references followed.*less often", lambda: doubled(60, "anyOf")),
    "doubling by anchors": Bomb(SCHEMA + "with its references followed.*less often", doubled_by_anchors),
    "doubling in a part with its own id": Bomb(SCHEMA + r".*has an \$id of its own; put", two_of_one_id),
    "doubling with each level": Bomb(TOO_LONG, doubled_below, lambda: nested(60)),
    "all refer to all": Bomb(SCHEMA + ".*refers to itself for the same value; go down", each_refers_to_all),
    "unevaluated, all": Bomb(SCHEMA + "with its references followed.*less often", lambda: unevaluated("allOf")),
    "unevaluated, any": Bomb(SCHEMA + "with its references followed.*less often", lambda: unevaluated("anyOf")),
    "unevaluated, if": Bomb(SCHEMA + "with its references followed.*less often", lambda: unevaluated("if")),
    "a long chain": Bomb(SCHEMA + "more than 100 of its parts are within each other", lambda: long_chain(300)),
    "a chain in deep arguments": Bomb(
        ARGUMENTS + "are nested too deeply.*flatter", lambda: long_chain(48), lambda: nested(115)
    ),
    "100,000 properties": Bomb(SCHEMA + "it takes .* bytes, and may take 262144", lambda: many(lambda _: {}, 100_000)),
    "too many objects": Bomb(SCHEMA + "it has more than 10000 objects", lambda: many(lambda _: {}, 11_000)),
    "1,000 alternatives for 2,000 items": Bomb(
        TOO_LONG, lambda: items({"anyOf": [{"const": number} for number in range(1000)]}), lambda: {"a": ["x"] * 2000}
    ),
    "alternatives of whole lists": Bomb(
        NOT_NAMED,
        lambda: fields(a={"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]}),
        lambda: {"a": [1] * 100_000},
    ),
    "700,000 wrong items": Bomb(TOO_LONG, lambda: items({"type": "string"}), lambda: {"a": [1] * 700_000}),
    "100,000 wrong items": Bomb(
        FIRST,
        lambda: items({"type": "string"}),
        lambda: {"a": [1] * 100_000},
    ),
    "fractions to compare": Bomb(
        TOO_LONG, lambda: items({"enum": [number + 0.5 for number in range(1000)]}), lambda: {"a": [999.5] * 10_000}
    ),
    "fractions to divide": Bomb(
        TOO_LONG, lambda: items({"multipleOf": 1e-300}), lambda: {"a": [1e300] * 100_000}
    ),
    "long numbers": Bomb(TOO_LONG, lambda: items({"minimum": 3}), lambda: {"a": [10**4000] * 900}),
    "objects to compare": Bomb(
        TOO_LONG, lambda: items({"enum": [{"v": number} for number in range(2000)]}), lambda: {"a": [{"v": 1}] * 3000}
    ),
    "a long text for a lookahead": Bomb(
        TOO_LONG, lambda: fields(a={"pattern": "(?=[ab]*c)b"}), lambda: {"a": text(1_000_000)}
    ),
    "a long text for a pattern": Bomb(
        TOO_LONG, lambda: fields(a={"pattern": "[ab]*a[ab]{999}c"}), lambda: {"a": text(1_000_000)}
    ),
    "long names for a pattern": Bomb(
        TOO_LONG,
        lambda: {"type": "object", "propertyNames": {"pattern": "[ab]*a[ab]{999}c"}},
        lambda: {text(1_000_000): 1},
    ),
    "a text that is a pattern": Bomb(
        TOO_LONG, lambda: {**DRAFT_7, **fields(a={"format": "regex"})}, lambda: {"a": "(\\p{L}{40})" * 20_000}
    ),
    "mistakes about a long text": Bomb(FIRST, lambda: fields(a={"allOf": SHORTER}), lambda: {"a": LONG}),
    "alternatives for a long text": Bomb(NOT_NAMED, lambda: fields(a={"anyOf": SHORTER}), lambda: {"a": LONG}),
    "one alternative for a long text": Bomb(NOT_NAMED, lambda: fields(a={"oneOf": SHORTER}), lambda: {"a": LONG}),
    "names that are lacking beside a long text": Bomb(
        FIRST, lambda: {"type": "object", "required": [f"n{number}" for number in range(300)]}, lambda: {"a": LONG}
    ),
    "names that a name asks for beside a long text": Bomb(
        FIRST,
        lambda: {"type": "object", "dependentRequired": {"a": [f"n{number}" for number in range(300)]}},
        lambda: {"a": LONG},
    ),
    "a mistake at every level around a long text": Bomb(
        FIRST,
        lambda: {"type": "object", "required": ["b"], "properties": {"a": {"$ref": "#"}}},
        lambda: reduce(lambda inner, _: {"a": inner}, range(100), {"c": LONG}),
    ),
    "mistakes about a long name": Bomb(
        NOT_NAMED, lambda: {"type": "object", "propertyNames": {"allOf": SHORTER[:100]}}, lambda: {LONG: 1}
    ),
    "mistakes about many names": Bomb(
        FIRST,
        lambda: {"type": "object", "propertyNames": {"maxLength": 1}},
        lambda: {f"name{number}": 1 for number in range(5000)},
    ),
    "mistakes about small objects": Bomb(
        FIRST,
        lambda: {"type": "object", "required": [f"n{number}" for number in range(300)]},
        lambda: {"a": [{"a": 1}] * 5000},
    ),
    "mistakes below a long name": Bomb(
        FIRST, lambda: {"type": "object", "additionalProperties": {"items": {"type": "string"}}},
        lambda: {NAME: [1] * 3000},
    ),
    "mistakes below a long name of the schema": Bomb(
        FIRST,
        lambda: {**items({"$ref": f"#/$defs/{NAME}"}), "$defs": {NAME: {"type": "string"}}},
        lambda: {"a": [1] * 3000},
    ),
    "mistakes that repeat many words": Bomb(FIRST, lambda: items({"enum": WORDS}), lambda: {"a": ["x"] * 1000}),
    "mistakes that repeat a long text": Bomb(FIRST, lambda: items({"const": NAME}), lambda: {"a": ["x"] * 3000}),
    "mistakes that repeat a part": Bomb(
        FIRST, lambda: items({"not": {"enum": ["x", NAME]}}), lambda: {"a": ["x"] * 3000}
    ),
    "mistakes that repeat a long required name": Bomb(
        FIRST, lambda: items({"required": [NAME]}), lambda: {"a": [{}] * 3000}
    ),
    "long texts to compare, doubled": Bomb(FOLLOWED, lambda: checked({"const": NAME}, 12), lambda: {"a": NAME}),
    "long texts to choose from, doubled": Bomb(
        FOLLOWED, lambda: checked({"enum": [1, NAME[1:] + "a", NAME]}, 12), lambda: {"a": NAME}
    ),
    "long texts within a value to compare, doubled": Bomb(
        FOLLOWED, lambda: checked({"const": [{"b": NAME}]}, 12), lambda: {"a": [{"b": NAME}]}
    ),
    "long numbers to compare, doubled": Bomb(FOLLOWED, lambda: checked({"const": 10**4200}, 10), lambda: {"a": 1}),
    "long names that are required, doubled": Bomb(
        FOLLOWED, lambda: checked({"required": [NAME]}, 12), lambda: {"a": {NAME: 1}}
    ),
    "long names that ask for others, doubled": Bomb(
        FOLLOWED, lambda: checked({"dependentRequired": {NAME: ["b"]}}, 12), lambda: {"a": {NAME: 1, "b": 1}}
    ),
    "long names that ask for others in an older draft, doubled": Bomb(
        FOLLOWED, lambda: {**DRAFT_7, **checked({"dependencies": {"b": [NAME]}}, 12)}, lambda: {"a": {NAME: 1, "b": 1}}
    ),
    "long names that ask for a part, doubled": Bomb(
        FOLLOWED, lambda: checked({"dependentSchemas": {NAME: {}}}, 12), lambda: {"a": {NAME: 1}}
    ),
    "many names that ask for nothing, doubled": Bomb(
        FOLLOWED,
        lambda: checked({"dependentRequired": {f"n{number}": [] for number in range(5000)}}, 7),
        lambda: {"a": {}},
    ),
    "long names that are described, doubled": Bomb(
        FOLLOWED, lambda: checked({"properties": {NAME: {}}}, 12), lambda: {"a": {NAME: 1}}
    ),
    "long names to look up, doubled": Bomb(
        TOO_LONG, lambda: checked(many(lambda _: {}, 20), 10), lambda: {"a": {LONG: 1}}
    ),
    "long texts to look up, doubled": Bomb(
        TOO_LONG, lambda: checked({"not": {"enum": WORDS[:20]}}, 10), lambda: {"a": LONG}
    ),
    "long names to check, doubled": Bomb(
        TOO_LONG, lambda: checked({"propertyNames": {"minLength": 1}}, 8), lambda: {"a": {WIDE: 1}}
    ),
    "long names that are compared, doubled": Bomb(
        TOO_LONG, lambda: checked({"propertyNames": {"const": NAME}}, 12), lambda: {"a": {NAME: 1}}
    ),
    "long names to remember, doubled": Bomb(
        TOO_LONG, lambda: checked({"unevaluatedProperties": {}}, 10), lambda: {"a": {WIDE: 1}}
    ),
    "long texts that must differ, doubled": Bomb(
        TOO_LONG, lambda: checked({"uniqueItems": True}, 10), lambda: {"a": [f"{NAME}{number}" for number in range(30)]}
    ),
    "long names that must differ, doubled": Bomb(
        TOO_LONG,
        lambda: checked({"uniqueItems": True}, 10),
        lambda: {"a": [{f"{NAME}{number}": 1} for number in range(30)]},
    ),
    "long names of hosts": Bomb(
        TOO_LONG, lambda: {**DRAFT_7, **checked({"not": {"format": "idn-hostname"}}, 3)}, lambda: {"a": WIDE}
    ),
    "enums within enums": Bomb(FOLLOWED, enums_within_enums),
}  # fmt: skip
