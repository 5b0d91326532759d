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
    """Connections whose next request came before the last was answered: in each turn of the loop one of them goes on.

    Whoever asks one thing at a time is so served before those who ask many at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[Queued] = deque()

    def add(self, connection: Queued) -> None:
        if connection.queued:
            return
        connection.queued = True
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            connection.loop.call_soon(self._next, connection.loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        connection = self._waiting[0]
        connection.queued = False
        connection.go_on()
        self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._next, loop)
