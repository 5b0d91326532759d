"""What was made of some tools, kept while they are the same: they are many, weigh much and seldom change."""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

MOST: Final = 16  # different menus at a time: agents differ in what they may use, their sessions seldom do


class Kept(Generic[Item, Made]):
    """Call it as you would `make`. The latest are kept."""

    def __init__(self, make: Callable[[tuple[Item, ...]], Made]) -> None:
        self._make = make
        self._kept: list[tuple[tuple[Item, ...], Made]] = []

    def __call__(self, items: Sequence[Item]) -> Made:
        wanted = tuple(items)
        for place, (known, made) in enumerate(self._kept):
            if known == wanted:  # quick: the same objects, as a rule
                if place:
                    self._kept.insert(0, self._kept.pop(place))
                return made
        made = self._make(wanted)
        self._kept = [(wanted, made), *self._kept[: MOST - 1]]
        return made
