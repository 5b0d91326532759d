"""When a connection is read, and since when its peer does not read."""

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl


class Holding(Protocol):
    """A connection that may hold back what it has read."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def holds_back(self) -> bool:
        """Whether something that was read waits for its turn."""


class Flow(FlowControl):
    """Reads on only when nothing that was read waits for its turn. Knows since when its peer does not read."""

    unread_since: float | None = None

    def __init__(self, transport: asyncio.Transport, connection: Holding) -> None:
        super().__init__(transport)
        self._connection = connection

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread_since = self._connection.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread_since = None

    def resume_reading(self) -> None:
        if self.read_paused and not self._connection.holds_back:
            super().resume_reading()
