"""How many requests are served at once: a place is free at once, soon, or the server is busy."""

import asyncio
from collections import deque
from typing import Final

from .http_gate import HttpRefusal

SLOT_WAIT: Final = 0.05  # seconds a request waits for a slot: a burst passes, a jam is told at once


class RequestSlots:
    """`take` before serving, `give` after. Cheaper than a semaphore where a place is nearly always free."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Whether a place was free, and is now the caller's."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Raises Refusal when no place becomes free in time."""
        if self.try_acquire():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(SLOT_WAIT):
                await place
        except (TimeoutError, asyncio.CancelledError) as exc:
            if not place.cancelled():
                self.release()  # it was handed over as the caller left
            elif place in self._waiting:
                self._waiting.remove(place)
            if isinstance(exc, TimeoutError):
                raise HttpRefusal(503, "server busy", ((b"retry-after", b"1"),)) from None
            raise

    def release(self) -> None:
        """The place goes to who waits longest, or is free."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
