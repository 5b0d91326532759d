"""A turn's work in a task of its own, its events read by iterating: limits hit the work, never the reader."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

from ....core.agent import AgentEvent, PartialAnswer, ThinkingText
from ....net.tasks import Tasks

EmitEvent = Callable[[AgentEvent], None]
MAX_BUFFERED_EVENTS: Final = 10_000  # events waiting to be read, text not counted; a reader this far behind has stopped


class ReaderTooSlow(Exception):
    """The events are not read."""


class _EventBuffer:
    """Events on their way to the reader. Text that waits becomes one event: a slow reader gets fewer, longer ones."""

    def __init__(self) -> None:
        self._events: deque[AgentEvent] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, event: AgentEvent) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(event, PartialAnswer) and isinstance(last, PartialAnswer) and not event.replace:
            self._events[-1] = PartialAnswer(last.text + event.text, last.replace)
        elif isinstance(event, ThinkingText) and isinstance(last, ThinkingText):
            self._events[-1] = ThinkingText(last.text + event.text)
        elif len(self._events) >= MAX_BUFFERED_EVENTS:
            raise ReaderTooSlow
        else:
            self._events.append(event)
        self._changed.set()

    def close(self, work: asyncio.Task[AgentEvent]) -> None:
        """The work is done. Its failure is retrieved: once the reader has left it is of no interest."""
        if not work.cancelled():
            work.exception()
        self._closed = True
        self._changed.set()

    async def next(self) -> AgentEvent | None:
        while not self._events:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()


async def stream_events(
    work: Callable[[EmitEvent], Coroutine[Any, Any, AgentEvent]],
) -> AsyncGenerator[AgentEvent, None]:
    """What `work` emits, then what it returns. Closing the iterator cancels the work and waits for its end."""
    buffer = _EventBuffer()
    async with Tasks("model turn") as tasks:
        task = tasks.spawn(work(buffer.put), name="work", on_failure="raise")
        task.add_done_callback(buffer.close)
        while (event := await buffer.next()) is not None:
            yield event
        yield await task
