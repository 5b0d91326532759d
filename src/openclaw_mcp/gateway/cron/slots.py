"""How many agents and programs work at once."""

import asyncio
from collections.abc import Callable


class JobSlots:
    """As many at once as the setting says when one is wanted."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._freed:
            await self._freed.wait_for(lambda: self._used < self._limit())
            self._used += 1

    async def __aexit__(self, *_exc: object) -> None:
        self._used -= 1
        async with self._freed:
            self._freed.notify()
