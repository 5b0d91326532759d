"""Whose turn it is among connections that ask much at once."""

import asyncio
from collections import deque
from typing import Protocol


class Queued(Protocol):
    """A connection that has something left to begin."""

    queued: bool
    loop: asyncio.AbstractEventLoop

    def go_on(self) -> None: ...


class Turns:
    """Connections that wait: in each turn of the loop one of them goes on, or, with a pause, one after each pause.

    Whoever asks one thing at a time is so served before those who ask many at once.
    """

    def __init__(self, *, pause: float = 0.0) -> None:
        self._waiting: deque[Queued] = deque()
        self._pause = pause

    def add(self, connection: Queued) -> None:
        if connection.queued:
            return
        connection.queued = True
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            self._go_on_soon(connection.loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        connection = self._waiting[0]
        connection.queued = False
        connection.go_on()
        self._waiting.popleft()
        if self._waiting:
            self._go_on_soon(loop)

    def _go_on_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._pause:
            loop.call_later(self._pause, self._next, loop)
        else:
            loop.call_soon(self._next, loop)
