"""A turn's work in a task of its own, its events read by whoever iterates: limits hit the work, never the reader."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from ..core.agent import AgentEvent

Tell = Callable[[AgentEvent], None]
MOST_UNTOLD: Final = 10_000  # events waiting to be read; a reader this far behind has stopped


class TooFarBehind(Exception):
    """Nobody reads what is told."""


async def telling(work: Callable[[Tell], Awaitable[AgentEvent]]) -> AsyncGenerator[AgentEvent, None]:
    """What `work` tells, then what it returns. Closing the iterator cancels the work and waits for its end."""
    untold: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

    def tell(event: AgentEvent) -> None:
        if untold.qsize() >= MOST_UNTOLD:
            raise TooFarBehind
        untold.put_nowait(event)

    async def whole() -> AgentEvent:
        try:
            return await work(tell)
        finally:
            untold.put_nowait(None)

    task = asyncio.get_running_loop().create_task(whole())
    try:
        while (event := await untold.get()) is not None:
            yield event
        yield await task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains of one that came after the reader had left
