"""When a connection is read, and since when its peer does not read."""

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl


class HoldingConnection(Protocol):
    """A connection that may hold back what it has read."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def has_held_input(self) -> bool:
        """Whether something that was read waits for its turn."""


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
