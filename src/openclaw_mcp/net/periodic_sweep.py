"""One timer that looks after many things: cheaper than a timer each when most are gone before it would ring."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class PeriodicSweep(Generic[Item]):
    """While anything is in, `look(thing, now)` is called for each about every `seconds`, by the event loop's clock."""

    __slots__ = ("_check", "_interval", "_items", "_loop", "_timer")

    def __init__(self, interval: float, check: Callable[[Item, float], None]) -> None:
        self._interval = interval
        self._check = check
        self._items: set[Item] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running one. Kept: to ask for it is a system call, since it may be another after a fork."""
        loop = self._loop
        if loop is None or not loop.is_running():
            loop = self._loop = asyncio.get_running_loop()
            self._timer = None
        return loop

    def add(self, item: Item) -> None:
        self._items.add(item)
        if self._timer is None:
            self._timer = self.loop.call_later(self._interval, self._sweep)

    def discard(self, item: Item) -> None:
        self._items.discard(item)

    def _sweep(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        for thing in list(self._items):
            self._check(thing, now)
        # Repeats while it has entries; the first entry after a pause starts it again.
        self._timer = self._loop.call_later(self._interval, self._sweep) if self._items else None
