"""Whose turn it is among connections that ask much at once."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class TurnTaker(Protocol):
    """A connection that waits for its turn."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


TurnTakerT = TypeVar("TurnTakerT", bound=TurnTaker)


class TurnQueue(Generic[TurnTakerT]):
    """Connections that wait: in each turn of the loop one of them goes on, or, with a pause, one after each pause.

    Whoever asks one thing at a time is so served before those who ask many at once.
    """

    def __init__(self, take_turn: Callable[[TurnTakerT], None], *, pause: float = 0.0) -> None:
        self._take_turn = take_turn
        self._pause = pause
        self._waiting: dict[TurnTakerT, None] = {}
        self._is_scheduled = False

    def add(self, connection: TurnTakerT) -> None:
        """Once, however often it is added before its turn comes."""
        self._waiting[connection] = None
        self._schedule(connection.loop)

    def discard(self, connection: TurnTakerT) -> None:
        self._waiting.pop(connection, None)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_scheduled or not self._waiting:
            return
        self._is_scheduled = True
        if self._pause:
            loop.call_later(self._pause, self._run_next, loop)
        else:
            loop.call_soon(self._run_next, loop)

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        connection = next(iter(self._waiting), None)
        if connection is None:
            return
        del self._waiting[connection]
        try:
            self._take_turn(connection)
        finally:
            self._schedule(loop)
