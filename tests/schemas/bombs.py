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
    "a long chain": Bomb(SCHEMA + "more than 100 of its parts stand within each other", lambda: long_chain(300)),
    "a chain in deep arguments": Bomb(
        ARGUMENTS + "are nested too deeply.*flatter", lambda: long_chain(40), lambda: nested(250)
    ),
    "100,000 properties": Bomb(SCHEMA + "it takes .* bytes, and may take 262144", lambda: many(lambda _: {}, 100_000)),
    "too many objects": Bomb(SCHEMA + "it has more than 10000 objects", lambda: many(lambda _: {}, 11_000)),
    "1,000 alternatives for 2,000 items": Bomb(
        TOO_LONG, lambda: items({"anyOf": [{"const": number} for number in range(1000)]}), lambda: {"a": ["x"] * 2000}
    ),
    "alternatives of whole lists": Bomb(
        ARGUMENTS + "do not fit.*too many to say where; send fewer",
        lambda: fields(a={"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]}),
        lambda: {"a": [1] * 100_000},
    ),
    "700,000 wrong items": Bomb(TOO_LONG, lambda: items({"type": "string"}), lambda: {"a": [1] * 700_000}),
    "100,000 wrong items": Bomb(
        ARGUMENTS + "do not fit.*too many to say where; send fewer",
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
}  # fmt: skip
