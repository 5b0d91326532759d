"""Whose turn it is among connections that ask much at once."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """A connection that waits for its turn."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


Connection = TypeVar("Connection", bound=Queued)


class Turns(Generic[Connection]):
    """Connections that wait: in each turn of the loop one of them goes on, or, with a pause, one after each pause.

    Whoever asks one thing at a time is so served before those who ask many at once.
    """

    def __init__(self, go_on: Callable[[Connection], None], *, pause: float = 0.0) -> None:
        self._go_on = go_on
        self._pause = pause
        self._waiting: dict[Connection, None] = {}
        self._due = False

    def add(self, connection: Connection) -> None:
        """Once, however often it is added before its turn comes."""
        self._waiting[connection] = None
        self._schedule(connection.loop)

    def discard(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._due or not self._waiting:
            return
        self._due = True
        if self._pause:
            loop.call_later(self._pause, self._next, loop)
        else:
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = False
        connection = next(iter(self._waiting), None)
        if connection is None:
            return
        del self._waiting[connection]
        try:
            self._go_on(connection)
        finally:
            self._schedule(loop)
