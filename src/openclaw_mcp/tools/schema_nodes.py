"""A schema from elsewhere, read for what checking by it costs, and refused where that is too much. Pure.

Every schema passes here before it is compiled: `jsonschema_rs` itself follows references as often as they are written
and builds every pattern as large as it comes.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, urljoin

import jsonschema_rs
from msgspec import Struct

from .schema import unusable_schema

MAX_SUBSCHEMAS: Final = 10_000  # objects in a schema, at any depth
MAX_PATTERNS: Final = 500  # different regular expressions in a schema
MAX_PATTERN_CHARACTERS: Final = 8_192  # in all of them together
MAX_PATTERN_BYTES: Final = 8 << 20  # of memory they take when compiled, all together
MOST_UNFOLDED_STEPS: Final = 1_000_000  # steps of checking one value with every reference followed
MOST_FLAT_STEPS: Final = 1_000  # steps of a value by a schema of which nothing is counted
MAX_CHAIN: Final = 100  # subschemas within each other that all check the same value
MAX_BACKTRACKS: Final = 1_000  # tries at one string of a pattern with lookarounds or back-references

PATTERN_SIZES: Final = (
    (1 << 10, 4, 200),
    (2 << 10, 60, 2_000),
    (4 << 10, 100, 2_000),
    (16 << 10, 200, 10_000),
    (128 << 10, 1_000, 40_000),
    (1 << 20, 6_000, 400_000),
)
"""Bytes of a compiled pattern at most, and the steps a character costs it at worst: a plain one, and one with
lookarounds or back-references. Beyond the last it is refused."""
BYTES_PER_PATTERN_CHARACTER: Final = 2 << 10  # of such a pattern, compiled

# The steps of some keywords that take longer than others; a step is about 10 ns.
MULTIPLE_OF_STEPS: Final = 3_000  # `multipleOf`
LIMIT_STEPS: Final = 40  # `minimum` and its like
LARGE_LIMIT_STEPS: Final = 500  # one beyond 64 bits
NAME_STEPS: Final = 10  # a name in `required` or `dependentRequired`
COMPARISON_STEPS: Final = {dict: 15, list: 15, int: 80, float: 600}  # a value in `const` or `enum`
NESTED_COMPARISON_STEPS: Final = 15  # a value within such a value
CHARACTERS_PER_STEP: Final = 32  # characters of the schema's texts and names that are compared in a step
WORD_BITS: Final = 32  # bits of a number that are worked with at once
REGEX_FORMAT_STEPS: Final = 1_000  # `format` "regex", for each character
HOSTNAME_FORMAT_STEPS: Final = 15  # `format` "idn-hostname", for each character
HASH_STEPS: Final = 1 / 8  # a character of a text that is looked up in `enum`, or of a name in `properties`
COLLECT_STEPS: Final = 1 / 2  # a character of a name that is remembered for `unevaluatedProperties`
CONVERT_STEPS: Final = 1  # a character of a name that is made a text for `propertyNames`
ERROR_VALUE_BYTES: Final = 64  # bytes of memory a value of the schema takes in a mistake that repeats it, about
ERROR_CHARACTER_BYTES: Final = 12  # of a character: it is kept there three times, and may take four bytes
UNEVALUATED_REPEATS: Final = 4  # how often a schema with `unevaluated…` checks by the keywords beside it

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_IN_PLACE: Final = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_ALTERNATIVES: Final = frozenset({"anyOf", "oneOf"})
_ECHOED_KEYWORDS: Final = (
    "const", "enum", "not", "required", "dependentRequired", "dependencies", "pattern", "format", "contentEncoding",
    "contentMediaType",
)  # fmt: skip
_NAMED_SUBSCHEMAS: Final = ("dependentSchemas", "dependencies", "patternProperties")
_NAME_LIST_KEYWORDS: Final = ("required", "dependentRequired", "dependencies")
_NAMED_PROPERTIES: Final = ("properties", "dependentSchemas")
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_STRING_KEYWORDS: Final = frozenset({"format", "contentEncoding", "contentMediaType"})
_FORMATS: Final = {"regex": REGEX_FORMAT_STEPS, "idn-hostname": HOSTNAME_FORMAT_STEPS}
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_PART_KEYWORDS: Final = _UNEVALUATED | {
    "properties", "patternProperties", "additionalProperties", "propertyNames", "items", "prefixItems",
    "additionalItems", "contains", "uniqueItems",
}  # fmt: skip
_PLAIN_KEYWORDS: Final = frozenset({"type", "title", "description", "default", "examples", "minLength", "maxLength"})
_LARGE_NUMBER: Final = 1 << 64
_INDEX: Final = re.compile("0|[1-9][0-9]{0,5}")
_LOOKAROUND: Final = re.compile(r"\(\?(?:<?[=!]|>|\()|\\[1-9kKG]|[+*?}]\+")


class PatternCost(Struct, frozen=True):
    """What a regular expression takes."""

    bytes: int
    steps: int
    """For each character it is tried on."""


class SchemaNode:
    """A subschema: what it costs to check a value by it, and which others then check the same value or its parts."""

    __slots__ = (
        "alternatives", "chain", "error_bytes", "every_item", "every_property", "first_items", "in_place",
        "key_steps", "max_errors", "other_items", "other_properties", "properties", "property_names", "rank",
        "repeats", "steps", "string_steps", "unfolded_steps", "unique",
    )  # fmt: skip

    def __init__(self) -> None:
        self.steps = 1
        self.max_errors = 1
        """What it may find wrong with a value, at most."""
        self.error_bytes = 0
        """Bytes of the schema that each mistake repeats, at most."""
        self.alternatives = False
        """Whether naming one mistake means finding all of those in its alternatives."""
        self.string_steps = 0.0
        """For each character of a string."""
        self.key_steps = 0.0
        """For each character of a property's name."""
        self.unique = 0
        """1 when the values below are compared with each other."""
        self.repeats = 1
        """How often the value is checked by the others named here."""
        self.in_place: tuple[SchemaNode, ...] = ()
        self.properties: dict[str, SchemaNode] = {}
        self.other_properties: tuple[SchemaNode, ...] = ()
        self.every_property: tuple[SchemaNode, ...] = ()
        self.property_names: tuple[SchemaNode, ...] = ()
        """What checks the properties' names."""
        self.first_items: tuple[SchemaNode, ...] = ()
        self.other_items: tuple[SchemaNode, ...] = ()
        self.every_item: tuple[SchemaNode, ...] = ()
        self.chain = 1
        self.unfolded_steps = 1
        self.rank = -1
        """Larger than that of every node it checks in place."""

    @property
    def is_flat(self) -> bool:
        """Whether no value takes long that has no others in it: nothing looks into texts, names or further.

        Looking them up takes less than a step for a character, and is done once for each.
        """
        below = (*self.properties.values(), *self.other_properties, *self.every_property)
        plain = not (self.in_place or self.property_names) and self.key_steps < 1 and self.steps <= MOST_FLAT_STEPS
        return plain and all(
            not each.in_place and each.string_steps < 1 and each.steps <= MOST_FLAT_STEPS for each in below
        )


class ParsedSchema(Struct, frozen=True):
    """A schema within the bounds."""

    root: SchemaNode
    pattern_bytes: int
    longest_name: int
    """Characters of the longest name in it: what a mistake's place in the schema is made of."""


def read_schema(schema: Any) -> ParsedSchema:
    """Raises ToolUnavailable saying what to change in the schema."""
    scan = _Scan(schema)
    costs = {pattern: pattern_cost(pattern) for pattern in scan.patterns}
    size = sum(cost.bytes for cost in costs.values())
    if size > MAX_PATTERN_BYTES:
        raise unusable_schema(
            f"its patterns take more than {MAX_PATTERN_BYTES} bytes when compiled; use fewer or simpler ones"
        )
    graph = _Graph(schema, scan, costs)
    root = graph.build()
    return ParsedSchema(root, size, scan.longest_name)


@lru_cache(maxsize=1024)
def pattern_cost(pattern: str) -> PatternCost:
    """Raises ToolUnavailable when it is no regular expression, or too large a one."""
    around = _LOOKAROUND.search(pattern) is not None
    for size, plain_steps, around_steps in PATTERN_SIZES:
        try:
            jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=pattern_options(size))
        except (jsonschema_rs.ValidationError, ValueError):
            continue
        if around:
            return PatternCost(size + BYTES_PER_PATTERN_CHARACTER * len(pattern), around_steps)
        return PatternCost(size, plain_steps)
    raise unusable_schema(f"{_shorten(pattern)} is no regular expression, or too large a one; repeat less in it")


def pattern_options(size: int = PATTERN_SIZES[-1][0]) -> jsonschema_rs.FancyRegexOptions:
    return jsonschema_rs.FancyRegexOptions(size_limit=size, backtrack_limit=MAX_BACKTRACKS)


class _Scan:
    """What is anywhere in a schema, whether it is ever reached or not. Raises ToolUnavailable."""

    def __init__(self, schema: Any) -> None:
        self.patterns: set[str] = set()
        self.anchors: dict[str, Any] = {}
        self.longest_name = 0
        self._sizes: dict[int, tuple[int, int]] = {}
        met: list[Any] = []
        old = isinstance(schema, dict) and "draft-04" in str(schema.get("$schema"))
        ids = ("$id", "id") if old else ("$id",)
        waiting, count = [schema], 0
        while waiting:
            value = waiting.pop()
            if type(value) is list:
                met.append(value)
                waiting += [item for item in value if type(item) in (dict, list)]
                continue
            if type(value) is not dict:
                continue
            met.append(value)
            count += 1
            if count > MAX_SUBSCHEMAS:
                raise unusable_schema(f"it has more than {MAX_SUBSCHEMAS} objects in it; describe less")
            if value is not schema and any(type(value.get(key)) is str for key in ids):
                raise unusable_schema(
                    "a part of it has an $id of its own; put shared parts below $defs and refer to them there"
                )
            self._collect(value)
            waiting += [item for item in value.values() if type(item) in (dict, list)]
        if len(self.patterns) > MAX_PATTERNS:
            raise unusable_schema(f"it has more than {MAX_PATTERNS} different patterns; use fewer")
        if sum(map(len, self.patterns)) > MAX_PATTERN_CHARACTERS:
            raise unusable_schema(
                f"its patterns have more than {MAX_PATTERN_CHARACTERS} characters in all; shorten them"
            )
        for value in reversed(met):  # what is within a value was met after it
            self._sizes[id(value)] = self._measure(value)

    def size(self, value: Any) -> tuple[int, int]:
        """How many values there are in a value of the schema, itself included, and how many characters.

        A number counts as the text that takes as long to compare: it grows with the square of its length.
        """
        kind = type(value)
        if kind is dict or kind is list:
            return self._sizes[id(value)]
        return 1, len(value) if kind is str else (value.bit_length() // WORD_BITS) ** 2 // 2 if kind is int else 0

    def _measure(self, value: Any) -> tuple[int, int]:
        values, characters = 1, 0
        if type(value) is dict:
            self.longest_name = max(self.longest_name, *map(len, value), 0)
            characters = sum(map(len, value))
            value = value.values()
        for part in value:
            within, long = self.size(part)
            values += within
            characters += long
        return values, characters

    def _collect(self, value: dict[str, Any]) -> None:
        if type(value.get("pattern")) is str:
            self.patterns.add(value["pattern"])
        self.patterns.update(_as_object(value.get("patternProperties")))
        for name in {value[key] for key in _ANCHORS if type(value.get(key)) is str}:
            if name in self.anchors:
                raise unusable_schema(f"two parts of it have the $anchor {_shorten(name)}; give each another")
            self.anchors[name] = value


class _Graph:
    """The subschemas that are reached, each once, however often it is referred to."""

    def __init__(self, schema: Any, scan: _Scan, costs: dict[str, PatternCost]) -> None:
        self._schema = schema
        self._scan = scan
        self._costs = costs
        self._nodes: dict[int, SchemaNode] = {}
        self._unread: list[tuple[SchemaNode, dict[str, Any]]] = []
        given = _as_object(schema)
        base = given.get("$id", given.get("id"))
        self._base = base.rstrip("#") if isinstance(base, str) else ""
        if "json-schema.org/" in self._base:
            raise unusable_schema("its $id is that of JSON Schema itself; give it another, or none")

    def build(self) -> SchemaNode:
        root = self._node(self._schema)
        while self._unread:
            node, schema = self._unread.pop()
            self._read_node(node, schema)
        _rank_nodes(self._nodes.values())
        return root

    def _node(self, schema: Any) -> SchemaNode:
        """The node of a subschema; what is none costs a step, and is refused when it is compiled."""
        if type(schema) is not dict:
            return SchemaNode()
        node = self._nodes.get(id(schema))
        if node is None:
            node = self._nodes[id(schema)] = SchemaNode()
            self._unread.append((node, schema))
        return node

    def _nodes_of(self, schema: dict[str, Any], *keywords: str) -> tuple[SchemaNode, ...]:
        return tuple(self._node(below) for key in keywords if key in schema for below in _subschemas(key, schema[key]))

    def _read_node(self, node: SchemaNode, schema: dict[str, Any]) -> None:
        if _PLAIN_KEYWORDS.issuperset(schema):  # most of them, and in no time
            node.steps = node.max_errors = 1 + len(schema)
            return
        node.max_errors = _count_errors(schema)
        node.steps = node.max_errors + self._keyword_steps(schema, node.max_errors)
        node.error_bytes = self._error_bytes(schema)
        node.alternatives = not _ALTERNATIVES.isdisjoint(schema)
        node.in_place = tuple(self._resolve_reference(schema[key]) for key in _REFERENCES if key in schema)
        node.in_place += self._nodes_of(schema, *_IN_PLACE)
        if type(schema.get("pattern")) is str:
            node.string_steps = self._costs[schema["pattern"]].steps
        if "enum" in schema:
            node.string_steps += HASH_STEPS
        if not _STRING_KEYWORDS.isdisjoint(schema):
            node.string_steps += _FORMATS.get(str(schema.get("format")), len(_STRING_KEYWORDS))
        if not _PART_KEYWORDS.isdisjoint(schema):
            self._read_parts(node, schema)

    def _read_parts(self, node: SchemaNode, schema: dict[str, Any]) -> None:
        """What checks an object's properties, or a list's items."""
        node.repeats = 1 if _UNEVALUATED.isdisjoint(schema) else UNEVALUATED_REPEATS
        node.unique = int(schema.get("uniqueItems") is True)
        node.properties = {name: self._node(below) for name, below in _as_object(schema.get("properties")).items()}
        node.other_properties = self._nodes_of(schema, "additionalProperties")
        node.every_property = self._nodes_of(schema, "patternProperties", "unevaluatedProperties")
        node.property_names = self._nodes_of(schema, "propertyNames")
        # Twice: they are tried again to find the other properties.
        node.key_steps = 2 * sum(self._costs[key].steps for key in _as_object(schema.get("patternProperties")))
        node.key_steps += (
            HASH_STEPS * bool(node.properties)
            + COLLECT_STEPS * (node.repeats > 1)
            + CONVERT_STEPS * len(node.property_names)
        )
        items = schema.get("items")
        positional = items if type(items) is list else schema.get("prefixItems")
        node.first_items = tuple(map(self._node, positional)) if type(positional) is list else ()
        node.other_items = self._nodes_of(schema, "additionalItems", *(() if type(items) is list else ("items",)))
        node.every_item = self._nodes_of(schema, "contains", "unevaluatedItems")

    def _keyword_steps(self, schema: dict[str, Any], max_errors: int) -> int:
        """What some keywords take beside the one step of each."""
        steps = NAME_STEPS * (max_errors - len(schema) - 1) + (MULTIPLE_OF_STEPS if "multipleOf" in schema else 0)
        for limit in (schema[key] for key in _LIMITS if key in schema):
            steps += LARGE_LIMIT_STEPS if type(limit) is int and abs(limit) >= _LARGE_NUMBER else LIMIT_STEPS
        names = sum(self._scan.size(schema[key])[1] for key in _NAME_LIST_KEYWORDS if key in schema)
        names += sum(len(name) for key in _NAMED_PROPERTIES for name in _as_object(schema.get(key)))
        values = schema.get("enum")
        compared = (*(values if type(values) is list else ()), schema.get("const"))
        return steps + names // CHARACTERS_PER_STEP + sum(map(self._comparison_steps, compared))

    def _comparison_steps(self, value: Any) -> int:
        """The steps of comparing with a value in `const` or `enum`."""
        values, characters = self._scan.size(value)
        within = NESTED_COMPARISON_STEPS * values if type(value) in (dict, list) else 0
        return COMPARISON_STEPS.get(type(value), 1) + within + characters // CHARACTERS_PER_STEP

    def _error_bytes(self, schema: dict[str, Any]) -> int:
        sizes = [self._scan.size(schema[key]) for key in _ECHOED_KEYWORDS if key in schema]
        return sum(ERROR_VALUE_BYTES * values + ERROR_CHARACTER_BYTES * characters for values, characters in sizes)

    def _resolve_reference(self, reference: Any) -> SchemaNode:
        """What a reference means: a place in this very schema."""
        address, _, fragment = str(reference).partition("#")
        if address and urljoin(self._base, address).rstrip("#") != self._base:
            raise unusable_schema(f"it refers to {_shorten(reference)}: references outside the schema are not followed")
        name = unquote(fragment)
        if name.count("/") != fragment.count("/") or name.count("~") != fragment.count("~"):
            raise unusable_schema(f"it refers to {_shorten(reference)}; write `/` in a name as ~1 and `~` as ~0")
        found = (
            self._scan.anchors.get(name) if name and not name.startswith("/") else _resolve_pointer(self._schema, name)
        )
        if type(found) not in (dict, bool):
            raise unusable_schema(f"it refers to {_shorten(reference)}, which is no part of it; correct the reference")
        return self._node(found)


def _rank_nodes(nodes: Iterable[SchemaNode]) -> None:
    """Order the nodes, each after those that check the same value with it, and count what they come to together."""
    count = 0
    for first in nodes:
        if first.rank >= 0:
            continue
        path: list[tuple[SchemaNode, Iterator[SchemaNode]]] = [(first, iter(first.in_place))]
        open_nodes = {first}
        while path:
            node, below = path[-1]
            following = next((each for each in below if each.rank < 0), None)
            if following is None:
                path.pop()
                open_nodes.discard(node)
                node.rank = count
                count += 1
                _sum_up(node)
            elif following in open_nodes:
                raise unusable_schema(
                    "a part of it refers to itself for the same value; go down a property or item between"
                )
            else:
                open_nodes.add(following)
                path.append((following, iter(following.in_place)))


def _sum_up(node: SchemaNode) -> None:
    node.chain = 1 + max((below.chain for below in node.in_place), default=0)
    node.unfolded_steps = node.steps + node.repeats * sum(below.unfolded_steps for below in node.in_place)
    if node.chain > MAX_CHAIN:
        raise unusable_schema(f"more than {MAX_CHAIN} of its parts are within each other for one value; nest them less")
    if node.unfolded_steps > MOST_UNFOLDED_STEPS:
        raise unusable_schema(
            f"with its references followed it takes more than {MOST_UNFOLDED_STEPS} steps to check one value;"
            " refer to parts less often, or offer fewer alternatives"
        )


def _count_errors(schema: dict[str, Any]) -> int:
    """How much may be wrong with one value: each keyword finds one thing, or one for each name it asks for."""
    required = schema.get("required")
    count = 1 + len(schema) + (len(required) if type(required) is list else 0)
    for key in ("dependentRequired", "dependencies"):
        count += sum(1 + len(names) for names in _as_object(schema.get(key)).values() if type(names) is list)
    return count


def _subschemas(keyword: str, value: Any) -> list[Any]:
    """Those a keyword holds: one, a list of them, or several by name."""
    if keyword in _NAMED_SUBSCHEMAS:
        return [below for below in _as_object(value).values() if type(below) is not list]
    return value if type(value) is list else [value]


def _as_object(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _resolve_pointer(schema: Any, pointer: str) -> Any:
    """What a JSON pointer means; None when there is nothing."""
    for escaped in pointer.split("/")[1:]:
        name = escaped.replace("~1", "/").replace("~0", "~")
        if type(schema) is dict and name in schema:
            schema = schema[name]
        elif type(schema) is list and _INDEX.fullmatch(name) and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return None
    return schema


def _shorten(value: object) -> str:
    return repr(str(value)[:60])
