"""A schema somebody else wrote, read for what checking by it costs, and refused where that is too much. Pure.

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

from ..core.errors import ToolUnavailable

MOST_SUBSCHEMAS: Final = 10_000  # objects in a schema, at any depth
MOST_PATTERNS: Final = 500  # different regular expressions in a schema
MOST_PATTERN_CHARACTERS: Final = 8_192  # in all of them together
MOST_PATTERN_BYTES: Final = 8 << 20  # of memory they take when compiled, all together
MOST_UNFOLDED: Final = 1_000_000  # steps of checking one value with every reference followed
MOST_FLAT: Final = 1_000  # steps of a value by a schema of which nothing is counted
LONGEST_CHAIN: Final = 100  # subschemas within each other that all check the same value
MOST_BACKTRACKS: Final = 1_000  # tries at one string of a pattern with lookarounds or back-references

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
BYTES_OF_A_CHARACTER: Final = 2 << 10  # of such a pattern, compiled

# The steps of some keywords that take longer than others; a step is about 10 ns.
MULTIPLE: Final = 3_000  # `multipleOf`
LIMIT: Final = 40  # `minimum` and its like
LARGE_LIMIT: Final = 500  # one beyond 64 bits
NAME: Final = 10  # a name in `required` or `dependentRequired`
COMPARED: Final = {dict: 15, list: 15, int: 80, float: 600}  # a value in `const` or `enum`
COMPARED_WITHIN: Final = 15  # a value within such a value
COMPARED_AT_ONCE: Final = 32  # characters of the schema's texts and names that are compared in a step
WORD: Final = 32  # bits of a number that are worked with at once
AS_PATTERN: Final = 1_000  # `format` "regex", for each character
AS_HOST: Final = 15  # `format` "idn-hostname", for each character
HASHED: Final = 1 / 8  # a character of a text that is looked up in `enum`, or of a name in `properties`
COLLECTED: Final = 1 / 2  # a character of a name that is remembered for `unevaluatedProperties`
CONVERTED: Final = 1  # a character of a name that is made a text for `propertyNames`
SAID_VALUE: Final = 64  # bytes of memory a value of the schema takes in a mistake that repeats it, about
SAID_CHARACTER: Final = 12  # of a character: it stands there three times, and may take four bytes
AGAIN: Final = 4  # how often a schema with `unevaluated…` checks by what stands beside it

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_IN_PLACE: Final = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_ALTERNATIVES: Final = frozenset({"anyOf", "oneOf"})
_REPEATED: Final = (
    "const", "enum", "not", "required", "dependentRequired", "dependencies", "pattern", "format", "contentEncoding",
    "contentMediaType",
)  # fmt: skip
_BY_NAME: Final = ("dependentSchemas", "dependencies", "patternProperties")
_NAMING: Final = ("required", "dependentRequired", "dependencies")
_NAMED: Final = ("properties", "dependentSchemas")
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_TEXTS: Final = frozenset({"format", "contentEncoding", "contentMediaType"})
_FORMATS: Final = {"regex": AS_PATTERN, "idn-hostname": AS_HOST}
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_OF_PARTS: Final = _UNEVALUATED | {
    "properties", "patternProperties", "additionalProperties", "propertyNames", "items", "prefixItems",
    "additionalItems", "contains", "uniqueItems",
}  # fmt: skip
_PLAIN: Final = frozenset({"type", "title", "description", "default", "examples", "minLength", "maxLength"})
_LARGEST: Final = 1 << 64
_INDEX: Final = re.compile("0|[1-9][0-9]{0,5}")
_LOOKS_AROUND: Final = re.compile(r"\(\?(?:<?[=!]|>|\()|\\[1-9kKG]|[+*?}]\+")


class PatternCost(Struct, frozen=True):
    """What a regular expression takes."""

    bytes: int
    steps: int
    """For each character it is tried on."""


class Node:
    """A subschema: what it costs to check a value by it, and which others then check the same value or its parts."""

    __slots__ = (
        "alternatives", "chain", "every_item", "every_property", "first_items", "in_place", "key_steps", "names",
        "other_items", "other_properties", "properties", "rank", "reasons", "said", "steps", "string_steps", "times",
        "unfolded", "unique",
    )  # fmt: skip

    def __init__(self) -> None:
        self.steps = 1
        self.reasons = 1
        """What it may find wrong with a value, at most."""
        self.said = 0
        """Bytes of the schema that each mistake repeats, at most."""
        self.alternatives = False
        """Whether naming one mistake means finding all of those in its alternatives."""
        self.string_steps = 0.0
        """For each character of a string."""
        self.key_steps = 0.0
        """For each character of a property's name."""
        self.unique = 0
        """1 when the values below are compared with each other."""
        self.times = 1
        """How often the value is checked by the others named here."""
        self.in_place: tuple[Node, ...] = ()
        self.properties: dict[str, Node] = {}
        self.other_properties: tuple[Node, ...] = ()
        self.every_property: tuple[Node, ...] = ()
        self.names: tuple[Node, ...] = ()
        """What checks the properties' names."""
        self.first_items: tuple[Node, ...] = ()
        self.other_items: tuple[Node, ...] = ()
        self.every_item: tuple[Node, ...] = ()
        self.chain = 1
        self.unfolded = 1
        self.rank = -1
        """Larger than that of every node it checks in place."""

    @property
    def is_flat(self) -> bool:
        """Whether no value takes long that has no others in it: nothing looks into texts, names or further.

        Looking them up takes less than a step for a character, and is done once for each.
        """
        below = (*self.properties.values(), *self.other_properties, *self.every_property)
        plain = not (self.in_place or self.names) and self.key_steps < 1 and self.steps <= MOST_FLAT
        return plain and all(not each.in_place and each.string_steps < 1 and each.steps <= MOST_FLAT for each in below)


class Shape(Struct, frozen=True):
    """A schema within the bounds."""

    root: Node
    pattern_bytes: int
    longest_name: int
    """Characters of the longest name in it: what a mistake's place in the schema is made of."""


def read(schema: Any) -> Shape:
    """Raises ToolUnavailable saying what to change in the schema."""
    scan = _Scan(schema)
    costs = {pattern: pattern_cost(pattern) for pattern in scan.patterns}
    size = sum(cost.bytes for cost in costs.values())
    if size > MOST_PATTERN_BYTES:
        raise refused(
            f"its patterns take more than {MOST_PATTERN_BYTES} bytes when compiled; use fewer or simpler ones"
        )
    graph = _Graph(schema, scan, costs)
    root = graph.build()
    return Shape(root, size, scan.longest_name)


def refused(why: str) -> ToolUnavailable:
    return ToolUnavailable(f"The tool's own schema can't be used: {why}")


@lru_cache(maxsize=1024)
def pattern_cost(pattern: str) -> PatternCost:
    """Raises ToolUnavailable when it is no regular expression, or too large a one."""
    around = _LOOKS_AROUND.search(pattern) is not None
    for size, plain_steps, around_steps in PATTERN_SIZES:
        try:
            jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=pattern_options(size))
        except (jsonschema_rs.ValidationError, ValueError):
            continue
        if around:
            return PatternCost(size + BYTES_OF_A_CHARACTER * len(pattern), around_steps)
        return PatternCost(size, plain_steps)
    raise refused(f"{_short(pattern)} is no regular expression, or too large a one; repeat less in it")


def pattern_options(size: int = PATTERN_SIZES[-1][0]) -> jsonschema_rs.FancyRegexOptions:
    return jsonschema_rs.FancyRegexOptions(size_limit=size, backtrack_limit=MOST_BACKTRACKS)


class _Scan:
    """What stands anywhere in a schema, whether it is ever reached or not. Raises ToolUnavailable."""

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
            if count > MOST_SUBSCHEMAS:
                raise refused(f"it has more than {MOST_SUBSCHEMAS} objects in it; describe less")
            if value is not schema and any(type(value.get(key)) is str for key in ids):
                raise refused(
                    "a part of it has an $id of its own; put shared parts below $defs and refer to them there"
                )
            self._note(value)
            waiting += [item for item in value.values() if type(item) in (dict, list)]
        if len(self.patterns) > MOST_PATTERNS:
            raise refused(f"it has more than {MOST_PATTERNS} different patterns; use fewer")
        if sum(map(len, self.patterns)) > MOST_PATTERN_CHARACTERS:
            raise refused(f"its patterns have more than {MOST_PATTERN_CHARACTERS} characters in all; shorten them")
        for value in reversed(met):  # what is within a value was met after it
            self._sizes[id(value)] = self._sum(value)

    def size(self, value: Any) -> tuple[int, int]:
        """How many values there are in a value of the schema, itself included, and how many characters.

        A number counts as the text that takes as long to compare: it grows with the square of its length.
        """
        kind = type(value)
        if kind is dict or kind is list:
            return self._sizes[id(value)]
        return 1, len(value) if kind is str else (value.bit_length() // WORD) ** 2 // 2 if kind is int else 0

    def _sum(self, value: Any) -> tuple[int, int]:
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

    def _note(self, value: dict[str, Any]) -> None:
        if type(value.get("pattern")) is str:
            self.patterns.add(value["pattern"])
        self.patterns.update(_map(value.get("patternProperties")))
        for name in {value[key] for key in _ANCHORS if type(value.get(key)) is str}:
            if name in self.anchors:
                raise refused(f"two parts of it have the $anchor {_short(name)}; give each another")
            self.anchors[name] = value


class _Graph:
    """The subschemas that are reached, each once, however often it is referred to."""

    def __init__(self, schema: Any, scan: _Scan, costs: dict[str, PatternCost]) -> None:
        self._schema = schema
        self._scan = scan
        self._costs = costs
        self._nodes: dict[int, Node] = {}
        self._unread: list[tuple[Node, dict[str, Any]]] = []
        given = _map(schema)
        base = given.get("$id", given.get("id"))
        self._base = base.rstrip("#") if isinstance(base, str) else ""
        if "json-schema.org/" in self._base:
            raise refused("its $id is that of JSON Schema itself; give it another, or none")

    def build(self) -> Node:
        root = self._node(self._schema)
        while self._unread:
            node, schema = self._unread.pop()
            self._read(node, schema)
        _rank(self._nodes.values())
        return root

    def _node(self, schema: Any) -> Node:
        """The node of a subschema; what is none costs a step, and is refused when it is compiled."""
        if type(schema) is not dict:
            return Node()
        node = self._nodes.get(id(schema))
        if node is None:
            node = self._nodes[id(schema)] = Node()
            self._unread.append((node, schema))
        return node

    def _all(self, schema: dict[str, Any], *keywords: str) -> tuple[Node, ...]:
        return tuple(self._node(below) for key in keywords if key in schema for below in _subschemas(key, schema[key]))

    def _read(self, node: Node, schema: dict[str, Any]) -> None:
        if _PLAIN.issuperset(schema):  # most of them, and in no time
            node.steps = node.reasons = 1 + len(schema)
            return
        node.reasons = _reasons(schema)
        node.steps = node.reasons + self._steps(schema, node.reasons)
        node.said = self._said(schema)
        node.alternatives = not _ALTERNATIVES.isdisjoint(schema)
        node.in_place = tuple(self._target(schema[key]) for key in _REFERENCES if key in schema)
        node.in_place += self._all(schema, *_IN_PLACE)
        if type(schema.get("pattern")) is str:
            node.string_steps = self._costs[schema["pattern"]].steps
        if "enum" in schema:
            node.string_steps += HASHED
        if not _OF_TEXTS.isdisjoint(schema):
            node.string_steps += _FORMATS.get(str(schema.get("format")), len(_OF_TEXTS))
        if not _OF_PARTS.isdisjoint(schema):
            self._read_parts(node, schema)

    def _read_parts(self, node: Node, schema: dict[str, Any]) -> None:
        """What checks an object's properties, or a list's items."""
        node.times = 1 if _UNEVALUATED.isdisjoint(schema) else AGAIN
        node.unique = int(schema.get("uniqueItems") is True)
        node.properties = {name: self._node(below) for name, below in _map(schema.get("properties")).items()}
        node.other_properties = self._all(schema, "additionalProperties")
        node.every_property = self._all(schema, "patternProperties", "unevaluatedProperties")
        node.names = self._all(schema, "propertyNames")
        # Twice: other properties are told from these by trying them again.
        node.key_steps = 2 * sum(self._costs[key].steps for key in _map(schema.get("patternProperties")))
        node.key_steps += HASHED * bool(node.properties) + COLLECTED * (node.times > 1) + CONVERTED * len(node.names)
        items = schema.get("items")
        positional = items if type(items) is list else schema.get("prefixItems")
        node.first_items = tuple(map(self._node, positional)) if type(positional) is list else ()
        node.other_items = self._all(schema, "additionalItems", *(() if type(items) is list else ("items",)))
        node.every_item = self._all(schema, "contains", "unevaluatedItems")

    def _steps(self, schema: dict[str, Any], reasons: int) -> int:
        """What some keywords take beside the one step of each."""
        steps = NAME * (reasons - len(schema) - 1) + (MULTIPLE if "multipleOf" in schema else 0)
        for limit in (schema[key] for key in _LIMITS if key in schema):
            steps += LARGE_LIMIT if type(limit) is int and abs(limit) >= _LARGEST else LIMIT
        names = sum(self._scan.size(schema[key])[1] for key in _NAMING if key in schema)
        names += sum(len(name) for key in _NAMED for name in _map(schema.get(key)))
        values = schema.get("enum")
        compared = (*(values if type(values) is list else ()), schema.get("const"))
        return steps + names // COMPARED_AT_ONCE + sum(map(self._compared, compared))

    def _compared(self, value: Any) -> int:
        """The steps of comparing with a value in `const` or `enum`."""
        values, characters = self._scan.size(value)
        within = COMPARED_WITHIN * values if type(value) in (dict, list) else 0
        return COMPARED.get(type(value), 1) + within + characters // COMPARED_AT_ONCE

    def _said(self, schema: dict[str, Any]) -> int:
        sizes = [self._scan.size(schema[key]) for key in _REPEATED if key in schema]
        return sum(SAID_VALUE * values + SAID_CHARACTER * characters for values, characters in sizes)

    def _target(self, reference: Any) -> Node:
        """What a reference means: a place in this very schema."""
        address, _, fragment = str(reference).partition("#")
        if address and urljoin(self._base, address).rstrip("#") != self._base:
            raise refused(f"it refers to {_short(reference)}: references outside the schema are not followed")
        name = unquote(fragment)
        if name.count("/") != fragment.count("/") or name.count("~") != fragment.count("~"):
            raise refused(f"it refers to {_short(reference)}; write `/` in a name as ~1 and `~` as ~0")
        found = self._scan.anchors.get(name) if name and not name.startswith("/") else _at(self._schema, name)
        if type(found) not in (dict, bool):
            raise refused(f"it refers to {_short(reference)}, which is no part of it; correct the reference")
        return self._node(found)


def _rank(nodes: Iterable[Node]) -> None:
    """Order the nodes, each after those that check the same value with it, and count what they come to together."""
    count = 0
    for first in nodes:
        if first.rank >= 0:
            continue
        path: list[tuple[Node, Iterator[Node]]] = [(first, iter(first.in_place))]
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
                raise refused("a part of it refers to itself for the same value; go down a property or item between")
            else:
                open_nodes.add(following)
                path.append((following, iter(following.in_place)))


def _sum_up(node: Node) -> None:
    node.chain = 1 + max((below.chain for below in node.in_place), default=0)
    node.unfolded = node.steps + node.times * sum(below.unfolded for below in node.in_place)
    if node.chain > LONGEST_CHAIN:
        raise refused(f"more than {LONGEST_CHAIN} of its parts stand within each other for one value; nest them less")
    if node.unfolded > MOST_UNFOLDED:
        raise refused(
            f"with its references followed it takes more than {MOST_UNFOLDED} steps to check one value;"
            " refer to parts less often, or offer fewer alternatives"
        )


def _reasons(schema: dict[str, Any]) -> int:
    """How much may be wrong with one value: each keyword finds one thing, or one for each name it asks for."""
    required = schema.get("required")
    count = 1 + len(schema) + (len(required) if type(required) is list else 0)
    for key in ("dependentRequired", "dependencies"):
        count += sum(1 + len(names) for names in _map(schema.get(key)).values() if type(names) is list)
    return count


def _subschemas(keyword: str, value: Any) -> list[Any]:
    """Those a keyword holds: one, a list of them, or several by name."""
    if keyword in _BY_NAME:
        return [below for below in _map(value).values() if type(below) is not list]
    return value if type(value) is list else [value]


def _map(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _at(schema: Any, pointer: str) -> Any:
    """What a JSON pointer means; None when there is nothing."""
    for escaped in pointer.split("/")[1:]:
        word = escaped.replace("~1", "/").replace("~0", "~")
        if type(schema) is dict and word in schema:
            schema = schema[word]
        elif type(schema) is list and _INDEX.fullmatch(word) and int(word) < len(schema):
            schema = schema[int(word)]
        else:
            return None
    return schema


def _short(value: object) -> str:
    return repr(str(value)[:60])
