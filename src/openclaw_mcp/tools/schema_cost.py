"""How many steps it takes to check arguments by a schema, and how much memory to name what is wrong with them.

Both are counted before they are taken.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from ..core.errors import ToolArguments
from .schema_nodes import SchemaNode

MAX_STEPS: Final = 20_000_000  # to check the arguments of one call: about 0.2 s
MOST_DEPTH: Final = 5_000  # subschemas entered at once, for a value within a value; the stack holds ten times as many
MOST_CACHED_NODES: Final = 4_000  # nodes of places remembered between calls
VALUE_STEPS: Final = 30  # steps it takes to count those of a value
RESOLVE_STEPS: Final = 50  # steps it takes to find out what checks a place, for each node that may
NAME_STEPS: Final = 5  # steps it takes to note a name of a property
COMPARISON_STEPS: Final = 10  # steps of a value that is compared with others
CHARACTER_COMPARISON_STEPS: Final = 1 / 8  # steps of each of its characters, and of its names
WORD_BITS: Final = 32  # bits of a number that are worked with at once
LARGE_NUMBER: Final = 1 << 64  # numbers beyond take time in proportion to the square of their length

# Bytes of memory that naming mistakes takes, about: each holds a copy of the value it is about.
ERROR_BYTES: Final = 1_500  # one
PATH_STEP_BYTES: Final = 100  # a step of the way to its value, in the schema and in the arguments
VALUE_BYTES: Final = 100  # a value
OBJECT_BYTES: Final = 800  # an object, beside its values
CHARACTER_BYTES: Final = 12  # of a name, or of the path: it is kept there three times, and may take four bytes
DIGIT_BITS: Final = 3  # bits

ValuePart = str | int
"""A property by its name, one of the first items by its index, or one of these:"""
PROPERTY_NAMES: Final = -1  # the names of the properties
OTHER_PROPERTIES: Final = -2  # properties that are not described by name
OTHER_ITEMS: Final = -3  # items behind the first ones


class ValueChecks:
    """Everything that checks the value at one place in the arguments, with how often it does."""

    __slots__ = (
        "alternatives", "chain", "error_bytes", "first_items", "has_name_checks", "key_steps", "known_properties",
        "max_errors", "nodes", "parts", "steps", "string_steps", "unique",
    )  # fmt: skip

    def __init__(self, starts: Iterable[tuple[SchemaNode, int]]) -> None:
        nodes = self.nodes = _expand_in_place(dict(starts))
        self.steps = sum(count * node.steps for node, count in nodes.items())
        self.max_errors = sum(count * node.max_errors for node, count in nodes.items())
        self.error_bytes = sum(
            count * node.max_errors * (ERROR_BYTES + node.error_bytes) for node, count in nodes.items()
        )
        self.alternatives = any(node.alternatives for node in nodes)
        self.string_steps = sum(count * node.string_steps for node, count in nodes.items())
        self.key_steps = sum(count * node.key_steps for node, count in nodes.items())
        self.unique = sum(count * node.unique for node, count in nodes.items())
        self.chain = max((node.chain for node in nodes), default=0)
        self.first_items = max((len(node.first_items) for node in nodes), default=0)
        self.has_name_checks = any(node.property_names for node in nodes)
        self.known_properties: frozenset[str] | None = None
        """The properties that are described by name, once they were needed."""
        self.parts: dict[ValuePart, ValueChecks] = {}
        """What checks the parts of the value that were met so far."""

    def nodes_for(self, part: ValuePart) -> Counter[SchemaNode]:
        """The nodes that check a part of the value: a property, an item, or a kind of part."""
        found: Counter[SchemaNode] = Counter()
        for node, count in self.nodes.items():
            for below in _nodes_for_part(node, part):
                found[below] += count * node.repeats
        return found


class CheckCost:
    """Counts for one schema. What it finds out about places it keeps for the next call."""

    def __init__(self, root: SchemaNode, longest_name: int) -> None:
        self._root = root
        self._path_step_bytes = PATH_STEP_BYTES + CHARACTER_BYTES * longest_name
        self._steps: float = 0
        self._reset_cache()

    def count_steps(self, arguments: Any) -> None:
        """Raises ToolArguments when it takes too long to check the arguments."""
        if self._cached_nodes > MOST_CACHED_NODES:
            self._reset_cache()
        start = self._root_checks
        self._steps = start.steps
        waiting: list[tuple[Any, ValueChecks, int, int]] = [(arguments, start, start.unique, start.chain)]
        while waiting:
            value, place, compared, depth = waiting.pop()
            if depth > MOST_DEPTH:
                raise ToolArguments("The arguments are nested too deeply to be checked; send something flatter")
            steps: float = self._steps + VALUE_STEPS * len(value)
            if steps > MAX_STEPS:  # before they are looked at
                raise _too_long()
            self._steps = 0  # what is found out on the way is added
            named = type(value) is dict
            compared_steps, character_steps = COMPARISON_STEPS * compared, CHARACTER_COMPARISON_STEPS * compared
            if named and (place.key_steps or compared):
                steps += sum(map(len, value)) * (place.key_steps + character_steps)
                steps += self._name_steps(value, place) if place.has_name_checks else 0
            parts = place.parts
            common = (
                None if named or place.first_items else parts.get(OTHER_ITEMS) or self._add_part(place, OTHER_ITEMS)
            )
            for key, item in value.items() if named else enumerate(value):
                there = common or parts.get(key) or self._resolve_part(place, key)
                kind = type(item)
                if kind is str:
                    steps += there.steps + compared_steps + len(item) * (there.string_steps + character_steps)
                elif kind is int and not -LARGE_NUMBER < item < LARGE_NUMBER:
                    steps += (there.steps + compared_steps) * (item.bit_length() // WORD_BITS) ** 2
                else:
                    steps += there.steps + compared_steps
                    if kind is dict or kind is list:
                        waiting.append((item, there, compared + there.unique, depth + there.chain))
            self._add_steps(steps)

    def _name_steps(self, value: dict[str, Any], checks: ValueChecks) -> float:
        """The steps of checking the names of an object's properties by what they are to be."""
        there = checks.parts.get(PROPERTY_NAMES) or self._add_part(checks, PROPERTY_NAMES)
        return len(value) * there.steps + sum(map(len, value)) * there.string_steps

    def can_name_errors(self, arguments: Any, max_bytes: int, *, all_errors: bool) -> bool:
        """Whether finding what is wrong with the arguments takes no more than so many bytes of memory in any case.

        Every mistake, or the first: it holds all those in its alternatives. Raises ToolArguments when it takes too
        long to tell.
        """
        self._steps = 0
        start = self._root_checks
        found = all_errors or start.alternatives
        taken = start.error_bytes if found else ERROR_BYTES
        copies = start.max_errors if found else 1
        # Of a value: what checks it, how often it is copied with those it is in, whether all that is wrong with it is
        # found, and the bytes of the way to it.
        waiting: list[tuple[Any, ValueChecks, int, bool, int]] = [
            (arguments, start, copies, found, self._path_step_bytes * start.chain)
        ]
        while waiting and taken <= max_bytes:
            value, place, copies, all_found, way = waiting.pop()
            named = type(value) is dict
            if named and place.has_name_checks:
                there = place.parts.get(PROPERTY_NAMES) or self._add_part(place, PROPERTY_NAMES)
                if all_found or there.alternatives:  # a mistake in a name is one of the whole object
                    copies += len(value) * there.max_errors
                    taken += len(value) * (there.error_bytes + there.max_errors * way)
            taken += copies * (VALUE_BYTES * len(value) + (OBJECT_BYTES if named else 0))
            if taken > max_bytes:  # before they are looked at
                return False
            if named:
                taken += copies * CHARACTER_BYTES * sum(map(len, value))
            for key, item in value.items() if named else enumerate(value):
                there = place.parts.get(key) or self._resolve_part(place, key)
                found = all_found or there.alternatives
                its_copies = copies + found * there.max_errors
                its_way = way + self._path_step_bytes * there.chain + (CHARACTER_BYTES * len(str(key)) if named else 0)
                taken += found * (there.error_bytes + there.max_errors * its_way)
                kind = type(item)
                if kind is str:
                    taken += its_copies * (len(item) if item.isascii() else 4 * len(item))
                elif kind is int:
                    taken += its_copies * (item.bit_length() // DIGIT_BITS)
                elif kind is dict or kind is list:
                    waiting.append((item, there, its_copies, found, its_way))
        return taken <= max_bytes

    def _resolve_part(self, checks: ValueChecks, part: ValuePart) -> ValueChecks:
        """What checks a property or an item that none of its name or index was met of at this place."""
        if type(part) is int:
            part = part if part < checks.first_items else OTHER_ITEMS
        else:
            if checks.known_properties is None:
                self._add_steps(NAME_STEPS * sum(len(node.properties) for node in checks.nodes))
                checks.known_properties = frozenset().union(*(node.properties for node in checks.nodes))
            part = part if part in checks.known_properties else OTHER_PROPERTIES
        return checks.parts.get(part) or self._add_part(checks, part)

    def _add_part(self, checks: ValueChecks, part: ValuePart) -> ValueChecks:
        self._add_steps(RESOLVE_STEPS * len(checks.nodes))
        starts = frozenset(checks.nodes_for(part).items())
        found = self._checks_by_nodes.get(starts)
        if found is None:
            found = self._checks_by_nodes[starts] = ValueChecks(starts)
            self._cached_nodes += len(found.nodes)
            self._add_steps(RESOLVE_STEPS * len(found.nodes))
        self._cached_nodes += 1
        checks.parts[part] = found
        return found

    def _add_steps(self, steps: float) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _too_long()

    def _reset_cache(self) -> None:
        starts = frozenset({(self._root, 1)})
        self._root_checks = ValueChecks(starts)
        self._checks_by_nodes: dict[frozenset[tuple[SchemaNode, int]], ValueChecks] = {starts: self._root_checks}
        self._cached_nodes = 0


def _too_long() -> ToolArguments:
    reason = "take too long to check by the tool's schema; send fewer values or shorter texts"
    return ToolArguments(f"The arguments {reason}")


def _nodes_for_part(node: SchemaNode, part: ValuePart) -> tuple[SchemaNode, ...]:
    if part == PROPERTY_NAMES:
        return node.property_names
    if part == OTHER_ITEMS:
        return node.other_items + node.every_item
    if type(part) is int and part >= 0:
        return (node.first_items[part : part + 1] or node.other_items) + node.every_item
    described = node.properties.get(part) if type(part) is str else None
    return (node.other_properties if described is None else (described,)) + node.every_property


def _expand_in_place(starts: dict[SchemaNode, int]) -> dict[SchemaNode, int]:
    """The nodes and all that check the same value with them, with how often each does."""
    found, waiting = set(starts), list(starts)
    while waiting:
        new = set(waiting.pop().in_place) - found
        found |= new
        waiting += new
    counts = {node: starts.get(node, 0) for node in sorted(found, key=lambda node: -node.rank)}
    for node, count in counts.items():  # each comes before those it leads to
        for below in node.in_place:
            counts[below] += count * node.repeats
    return counts
