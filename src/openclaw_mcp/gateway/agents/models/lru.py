"""Values computed from a list of tools, cached while it is the same: such lists are large and seldom change."""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
CachedValue = TypeVar("CachedValue")

MOST_ENTRIES: Final = 16  # different lists at a time: agents differ in the tools they may use, their sessions seldom do


class LruCache(Generic[Item, CachedValue]):
    """Call it as you would `make`. The latest are kept."""

    def __init__(self, make: Callable[[tuple[Item, ...]], CachedValue]) -> None:
        self._make = make
        self._entries: list[tuple[tuple[Item, ...], CachedValue]] = []

    def __call__(self, items: Sequence[Item]) -> CachedValue:
        wanted = tuple(items)
        for place, (known, made) in enumerate(self._entries):
            if known == wanted:  # quick: the same objects, as a rule
                if place:
                    self._entries.insert(0, self._entries.pop(place))
                return made
        made = self._make(wanted)
        self._entries = [(wanted, made), *self._entries[: MOST_ENTRIES - 1]]
        return made
