"""An app's end of its bridge: a connection of `websockets`, with the short way for the calls and their answers."""

from collections.abc import Callable
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import OPEN, Event

from ..net.frame_fastpath import FrameFastPath, encode_client_frame

END_OF_HEAD: Final = b"\r\n\r\n"


class BridgeConnection(FrameFastPath, ClientConnection):
    """`heard` gets each message as it comes: nobody needs to wait for one."""

    _expects_mask = False

    def __init__(self, *args: Any, on_message: "Callable[[bytes, BridgeConnection], None]", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_message = on_message
        self._parts: list[bytes] = []
        self._handshake_tail: bytes | None = b""
        """The end of what came of the handshake's answer, until that is whole: frames may come with its last bytes."""

    async def send_text(self, text: str) -> None:
        """As `send`. Raises ConnectionClosed."""
        if self.protocol.state is not OPEN or self.transport.is_closing():
            await self.send(text)
            return
        self.transport.write(encode_client_frame(text.encode()))
        if self.paused:
            await self.drain()

    def data_received(self, data: bytes) -> None:
        if self._handshake_tail is not None:
            data = self._skip_handshake(self._handshake_tail, data)
        if data:
            self._receive_bytes(data)

    def _skip_handshake(self, previous: bytes, data: bytes) -> bytes:
        """What is left of `data` behind the handshake."""
        end = (previous + data).find(END_OF_HEAD)
        if end < 0:
            self._handshake_tail = (previous + data)[1 - len(END_OF_HEAD) :]
            self._feed(data)
            return b""
        self._handshake_tail = None
        frames = end + len(END_OF_HEAD) - len(previous)
        self._feed(data[:frames])
        return data[frames:]

    def _accepts_frames(self) -> bool:
        return self.protocol.state is OPEN

    def _handle_text(self, data: bytes, begin: int, end: int) -> bool:
        if self._parts:
            return False
        self._on_message(data[begin:end], self)
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
            self._on_message(message, self)
