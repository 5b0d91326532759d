"""An app's end of its bridge: a connection of `websockets`, with the short way for the calls and their answers."""

from collections.abc import Callable
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import OPEN, Event

from ..net.frame_fastpath import ShortWay, masked

END_OF_HEAD: Final = b"\r\n\r\n"


class Dialled(ShortWay, ClientConnection):
    """`heard` gets each message as it comes: nobody needs to wait for one."""

    _masked = False

    def __init__(self, *given: Any, heard: "Callable[[bytes, Dialled], None]", **more: Any) -> None:
        super().__init__(*given, **more)
        self._heard = heard
        self._parts: list[bytes] = []
        self._head: bytes | None = b""
        """The end of what came of the handshake's answer, until that is whole: frames may come with its last bytes."""

    async def say(self, text: str) -> None:
        """As `send`. Raises ConnectionClosed."""
        if self.protocol.state is not OPEN or self.transport.is_closing():
            await self.send(text)
            return
        self.transport.write(masked(text.encode()))
        if self.paused:
            await self.drain()

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            data = self._shaken(self._head, data)
        if data:
            self._received(data)

    def _shaken(self, before: bytes, data: bytes) -> bytes:
        """What is left of `data` behind the handshake."""
        end = (before + data).find(END_OF_HEAD)
        if end < 0:
            self._head = (before + data)[1 - len(END_OF_HEAD) :]
            self._feed(data)
            return b""
        self._head = None
        frames = end + len(END_OF_HEAD) - len(before)
        self._feed(data[:frames])
        return data[frames:]

    def _walks(self) -> bool:
        return self.protocol.state is OPEN

    def _text(self, data: bytes, begin: int, end: int) -> bool:
        if self._parts:
            return False
        self._heard(data[begin:end], self)
        return True

    def _feed(self, data: bytes) -> None:
        super().data_received(data)

    def process_event(self, event: Event) -> None:
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        self._parts.append(bytes(event.data))
        if event.fin:
            message, self._parts = b"".join(self._parts), []
            self._heard(message, self)
