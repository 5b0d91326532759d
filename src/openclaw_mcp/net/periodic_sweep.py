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

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running one. Kept: to ask for it is a system call, since it may be another after a fork."""
        loop = self._loop
        if loop is None or not loop.is_running():
            loop = self._loop = asyncio.get_running_loop()
            self._timer = None
        return loop

    def add(self, thing: Thing) -> None:
        self._things.add(thing)
        if self._timer is None:
            self._timer = self.loop.call_later(self._every, self._round)

    def discard(self, thing: Thing) -> None:
        self._things.discard(thing)

    def _round(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        for thing in list(self._things):
            self._look(thing, now)
        # Goes on while anything is in; the first to come after a quiet moment winds it up again.
        self._timer = self._loop.call_later(self._every, self._round) if self._things else None
