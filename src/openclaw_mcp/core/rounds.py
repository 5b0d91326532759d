"""One timer that looks after many things: cheaper than a timer each when most are gone before it would ring."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Rounds(Generic[Thing]):
    """While anything is in, `look(thing, now)` is called for each about every `seconds`, by the event loop's clock."""

    __slots__ = ("_every", "_look", "_loop", "_things", "_timer")

    def __init__(self, every: float, look: Callable[[Thing, float], None]) -> None:
        self._every = every
        self._look = look
        self._things: set[Thing] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, thing: Thing, loop: asyncio.AbstractEventLoop) -> None:
        self._things.add(thing)
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(self._every, self._round)

    def discard(self, thing: Thing) -> None:
        self._things.discard(thing)

    def _round(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        for thing in list(self._things):
            self._look(thing, now)
        # Goes on while anything is in; the first to come after a quiet moment winds it up again.
        self._timer = self._loop.call_later(self._every, self._round) if self._things else None
