"""When a connection is read, whose turn it is among connections that ask much at once."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from uvicorn.protocols.http.flow_control import FlowControl


class HoldingConnection(Protocol):
    """A connection that may hold back what it has read."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def has_held_input(self) -> bool:
        """Whether something that was read waits for its turn."""


HoldingConnectionT = TypeVar("HoldingConnectionT", bound=HoldingConnection)


class ReadFlowControl(FlowControl):
    """Reads on only when nothing that was read waits for its turn. Knows since when its peer does not read."""

    unread_since: float | None = None

    def __init__(self, transport: asyncio.Transport, connection: HoldingConnection) -> None:
        super().__init__(transport)
        self._connection = connection

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread_since = self._connection.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread_since = None

    def resume_reading(self) -> None:
        if self.read_paused and not self._connection.has_held_input:
            super().resume_reading()


class TurnQueue(Generic[HoldingConnectionT]):
    """Connections that wait: in each turn of the loop one of them continues, or, with a pause, one after each pause.

    A peer that asks one thing at a time is so served before those that ask many at once.
    """

    def __init__(self, take_turn: Callable[[HoldingConnectionT], None], *, pause: float = 0.0) -> None:
        self._take_turn = take_turn
        self._pause = pause
        self._waiting: dict[HoldingConnectionT, None] = {}
        self._is_scheduled = False

    def add(self, connection: HoldingConnectionT) -> None:
        """Once, however often it is added before its turn comes."""
        self._waiting[connection] = None
        self._schedule(connection.loop)

    def discard(self, connection: HoldingConnectionT) -> None:
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
