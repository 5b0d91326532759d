"""A turn's work in a task of its own, its events read by whoever iterates: limits hit the work, never the reader."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from ....core.agent import AgentEvent, Partial, Thinking

Tell = Callable[[AgentEvent], None]
MOST_UNTOLD: Final = 10_000  # events waiting to be read, words not counted; a reader this far behind has stopped


class TooFarBehind(Exception):
    """Nobody reads what is told."""


class _Untold:
    """Events on their way to the reader. Words that wait become one event: a slow reader gets fewer, longer ones."""

    def __init__(self) -> None:
        self._events: deque[AgentEvent] = deque()
        self._news = asyncio.Event()
        self._over = False

    def tell(self, event: AgentEvent) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(event, Partial) and isinstance(last, Partial) and not event.replace:
            self._events[-1] = Partial(last.text + event.text, last.replace)
        elif isinstance(event, Thinking) and isinstance(last, Thinking):
            self._events[-1] = Thinking(last.text + event.text)
        elif len(self._events) >= MOST_UNTOLD:
            raise TooFarBehind
        else:
            self._events.append(event)
        self._news.set()

    def end(self) -> None:
        self._over = True
        self._news.set()

    async def next(self) -> AgentEvent | None:
        while not self._events:
            if self._over:
                return None
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()


async def telling(work: Callable[[Tell], Awaitable[AgentEvent]]) -> AsyncGenerator[AgentEvent, None]:
    """What `work` tells, then what it returns. Closing the iterator cancels the work and waits for its end."""
    untold = _Untold()

    async def whole() -> AgentEvent:
        try:
            return await work(untold.tell)
        finally:
            untold.end()

    task = asyncio.get_running_loop().create_task(whole())
    try:
        while (event := await untold.next()) is not None:
            yield event
        yield await task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains of one that came after the reader had left
