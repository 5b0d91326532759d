"""How many steps it takes to check arguments by a schema, and how much memory to name what is wrong with them.

Both are counted before they are taken.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from ..core.errors import ToolArguments
from .schema_nodes import Node

MOST_STEPS: Final = 20_000_000  # to check the arguments of one call: about 0.2 s
DEEPEST: Final = 5_000  # subschemas entered at once, for a value within a value; the stack holds ten times as many
MOST_KEPT: Final = 4_000  # nodes of places remembered between calls
VALUE: Final = 30  # steps it takes to count those of a value
PLACE: Final = 50  # steps it takes to find out what checks a place, for each node that may
NAME: Final = 5  # steps it takes to note a name of a property
COMPARED: Final = 10  # steps of a value that is compared with others
COMPARED_CHARACTER: Final = 1 / 8  # steps of each of its characters, and of its names
WORD: Final = 32  # bits of a number that are worked with at once
LARGEST: Final = 1 << 64  # numbers beyond take time in proportion to the square of their length

# Bytes of memory that naming mistakes takes, about: each holds a copy of the value it is about.
MISTAKE: Final = 1_500  # one
STEP: Final = 100  # a step of the way to its value, in the schema and in the arguments
COPIED: Final = 100  # a value
COPIED_OBJECT: Final = 800  # an object, beside its values
COPIED_CHARACTER: Final = 12  # of a name, or of the way: it stands there three times, and may take four bytes
DIGIT: Final = 3  # bits

Part = str | int
"""A property by its name, one of the first items by its index, or one of these:"""
NAMES: Final = -1  # the names of the properties
OTHERS: Final = -2  # properties that are not described by name
ITEMS: Final = -3  # items behind the first ones


class Place:
    """Everything that checks the value at one place in the arguments, with how often it does."""

    __slots__ = (
        "alternatives", "chain", "described", "first_items", "has_names", "key_steps", "nodes", "parts", "reasons",
        "said", "steps", "string_steps", "unique",
    )  # fmt: skip

    def __init__(self, starts: Iterable[tuple[Node, int]]) -> None:
        nodes = self.nodes = _with_those_in_place(dict(starts))
        self.steps = sum(count * node.steps for node, count in nodes.items())
        self.reasons = sum(count * node.reasons for node, count in nodes.items())
        self.said = sum(count * node.reasons * (MISTAKE + node.said) for node, count in nodes.items())
        self.alternatives = any(node.alternatives for node in nodes)
        self.string_steps = sum(count * node.string_steps for node, count in nodes.items())
        self.key_steps = sum(count * node.key_steps for node, count in nodes.items())
        self.unique = sum(count * node.unique for node, count in nodes.items())
        self.chain = max((node.chain for node in nodes), default=0)
        self.first_items = max((len(node.first_items) for node in nodes), default=0)
        self.has_names = any(node.names for node in nodes)
        self.described: frozenset[str] | None = None
        """The properties that are described by name, once somebody has asked."""
        self.parts: dict[Part, Place] = {}
        """What checks the parts of the value that were met so far."""

    def checks(self, part: Part) -> Counter[Node]:
        """The nodes that check a part of the value: a property, an item, or a kind of part."""
        found: Counter[Node] = Counter()
        for node, count in self.nodes.items():
            for below in _checks(node, part):
                found[below] += count * node.times
        return found


class Work:
    """Counts for one schema. What it finds out about places it keeps for the next call."""

    def __init__(self, root: Node, longest_name: int) -> None:
        self._root = root
        self._step = STEP + COPIED_CHARACTER * longest_name
        self._steps: float = 0
        self._forget()

    def count(self, arguments: Any) -> None:
        """Raises ToolArguments when it takes too long to check the arguments."""
        if self._kept > MOST_KEPT:
            self._forget()
        start = self._start
        self._steps = start.steps
        waiting: list[tuple[Any, Place, int, int]] = [(arguments, start, start.unique, start.chain)]
        while waiting:
            value, place, compared, depth = waiting.pop()
            if depth > DEEPEST:
                raise ToolArguments("The arguments are nested too deeply to be checked; send something flatter")
            steps: float = self._steps + VALUE * len(value)
            if steps > MOST_STEPS:  # before they are looked at
                raise _too_long()
            self._steps = 0  # what is found out on the way is added
            named = type(value) is dict
            compared_steps, character_steps = COMPARED * compared, COMPARED_CHARACTER * compared
            if named and (place.key_steps or compared):
                steps += sum(map(len, value)) * (place.key_steps + character_steps)
                steps += self._names(value, place) if place.has_names else 0
            parts = place.parts
            common = None if named or place.first_items else parts.get(ITEMS) or self._part(place, ITEMS)
            for key, item in value.items() if named else enumerate(value):
                there = common or parts.get(key) or self._unmet(place, key)
                kind = type(item)
                if kind is str:
                    steps += there.steps + compared_steps + len(item) * (there.string_steps + character_steps)
                elif kind is int and not -LARGEST < item < LARGEST:
                    steps += (there.steps + compared_steps) * (item.bit_length() // WORD) ** 2
                else:
                    steps += there.steps + compared_steps
                    if kind is dict or kind is list:
                        waiting.append((item, there, compared + there.unique, depth + there.chain))
            self._add(steps)

    def _names(self, value: dict[str, Any], place: Place) -> float:
        """The steps of checking the names of an object's properties by what they are to be."""
        there = place.parts.get(NAMES) or self._part(place, NAMES)
        return len(value) * there.steps + sum(map(len, value)) * there.string_steps

    def naming(self, arguments: Any, most: int, *, every: bool) -> bool:
        """Whether finding what is wrong with the arguments takes no more than so many bytes of memory, whatever it is.

        Every mistake, or the first: it holds all those in its alternatives. Raises ToolArguments when it takes too
        long to tell.
        """
        self._steps = 0
        start = self._start
        found = every or start.alternatives
        taken = start.said if found else MISTAKE
        copies = start.reasons if found else 1
        # Of a value: what checks it, how often it is copied with those it is in, whether all that is wrong with it is
        # found, and the bytes of the way to it.
        waiting: list[tuple[Any, Place, int, bool, int]] = [(arguments, start, copies, found, self._step * start.chain)]
        while waiting and taken <= most:
            value, place, copies, all_found, way = waiting.pop()
            named = type(value) is dict
            if named and place.has_names:
                there = place.parts.get(NAMES) or self._part(place, NAMES)
                if all_found or there.alternatives:  # a mistake in a name is one of the whole object
                    copies += len(value) * there.reasons
                    taken += len(value) * (there.said + there.reasons * way)
            taken += copies * (COPIED * len(value) + (COPIED_OBJECT if named else 0))
            if taken > most:  # before they are looked at
                return False
            if named:
                taken += copies * COPIED_CHARACTER * sum(map(len, value))
            for key, item in value.items() if named else enumerate(value):
                there = place.parts.get(key) or self._unmet(place, key)
                found = all_found or there.alternatives
                its_copies = copies + found * there.reasons
                its_way = way + self._step * there.chain + (COPIED_CHARACTER * len(str(key)) if named else 0)
                taken += found * (there.said + there.reasons * its_way)
                kind = type(item)
                if kind is str:
                    taken += its_copies * (len(item) if item.isascii() else 4 * len(item))
                elif kind is int:
                    taken += its_copies * (item.bit_length() // DIGIT)
                elif kind is dict or kind is list:
                    waiting.append((item, there, its_copies, found, its_way))
        return taken <= most

    def _unmet(self, place: Place, part: Part) -> Place:
        """What checks a property or an item that none of its name or index was met of at this place."""
        if type(part) is int:
            part = part if part < place.first_items else ITEMS
        else:
            if place.described is None:
                self._add(NAME * sum(len(node.properties) for node in place.nodes))
                place.described = frozenset().union(*(node.properties for node in place.nodes))
            part = part if part in place.described else OTHERS
        return place.parts.get(part) or self._part(place, part)

    def _part(self, place: Place, part: Part) -> Place:
        self._add(PLACE * len(place.nodes))
        starts = frozenset(place.checks(part).items())
        found = self._places.get(starts)
        if found is None:
            found = self._places[starts] = Place(starts)
            self._kept += len(found.nodes)
            self._add(PLACE * len(found.nodes))
        self._kept += 1
        place.parts[part] = found
        return found

    def _add(self, steps: float) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise _too_long()

    def _forget(self) -> None:
        starts = frozenset({(self._root, 1)})
        self._start = Place(starts)
        self._places: dict[frozenset[tuple[Node, int]], Place] = {starts: self._start}
        self._kept = 0


def _too_long() -> ToolArguments:
    words = "take too long to check by the tool's schema; send fewer values or shorter texts"
    return ToolArguments(f"The arguments {words}")


def _checks(node: Node, part: Part) -> tuple[Node, ...]:
    if part == NAMES:
        return node.names
    if part == ITEMS:
        return node.other_items + node.every_item
    if type(part) is int and part >= 0:
        return (node.first_items[part : part + 1] or node.other_items) + node.every_item
    described = node.properties.get(part) if type(part) is str else None
    return (node.other_properties if described is None else (described,)) + node.every_property


def _with_those_in_place(starts: dict[Node, int]) -> dict[Node, int]:
    """The nodes and all that check the same value with them, with how often each does."""
    found, waiting = set(starts), list(starts)
    while waiting:
        new = set(waiting.pop().in_place) - found
        found |= new
        waiting += new
    counts = {node: starts.get(node, 0) for node in sorted(found, key=lambda node: -node.rank)}
    for node, count in counts.items():  # each comes before those it leads to
        for below in node.in_place:
            counts[below] += count * node.times
    return counts
