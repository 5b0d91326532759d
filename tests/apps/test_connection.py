"""The app's end of the bridge hears every message whole and in order, however the bytes are cut."""

import asyncio
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from openclaw_mcp.apps.connection import BridgeConnection

WAIT = 20.0

Message = list[bytes]
"""In the pieces it is sent in."""


class Server:
    """Shakes hands and then sends these bytes, so many at a time; hears what is said to it."""

    def __init__(self, data: bytes, cut: int) -> None:
        self.said, self.cut = data, cut
        self.received: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        codec = ServerProtocol()
        greeted = False
        while data := await reader.read(1 << 16):
            codec.receive_data(data)
            for event in codec.events_received():
                if isinstance(event, Request):
                    codec.send_response(codec.accept(event))
                elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                    self.received.append(bytes(event.data))
            answer = b"".join(codec.data_to_send())
            if not greeted:
                greeted, answer = True, answer + self.said
                for start in range(0, len(answer), self.cut):
                    writer.write(answer[start : start + self.cut])
                    await writer.drain()
                    await asyncio.sleep(0)
            else:
                writer.write(answer)
            if codec.close_expected():
                break
        writer.close()


def frames(messages: list[Message]) -> bytes:
    """The messages, a ping after each, and a goodbye."""
    written = []
    for pieces in messages:
        for place, piece in enumerate(pieces):
            kind = Opcode.TEXT if place == 0 else Opcode.CONT
            written.append(Frame(kind, piece, fin=place == len(pieces) - 1).serialize(mask=False))
        written.append(Frame(Opcode.PING, b"there?").serialize(mask=False))
    written.append(Frame(Opcode.CLOSE, Close(4410, "deleted").serialize()).serialize(mask=False))
    return b"".join(written)


async def visit(server: Server, words: list[str]) -> tuple[list[bytes], Any]:
    received: list[bytes] = []
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    make: Any = partial(BridgeConnection, on_message=lambda message, _: received.append(message))
    async with listening, asyncio.timeout(WAIT):
        dial = connect(f"ws://127.0.0.1:{port}", proxy=None, compression=None, create_connection=make)
        async with dial as socket:
            assert isinstance(socket, BridgeConnection)
            for word in words:
                await socket.send_text(word)
            if not words:
                await socket.wait_closed()
        return received, (socket.close_code, socket.close_reason)


SIZES = st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536, 200_000])


@given(
    sizes=st.lists(st.lists(SIZES, min_size=1, max_size=3), max_size=4),
    cut=st.sampled_from([1, 7, 1000, 65_536, 1 << 20]),
)
def test_messages_arrive_whole_and_in_order_however_they_are_cut(sizes: list[list[int]], cut: int) -> None:
    messages = [[b"abc"[place : place + 1] * size for place, size in enumerate(pieces)] for pieces in sizes]
    data = frames(messages)
    received, ended = asyncio.run(visit(Server(data, max(cut, len(data) // 2000)), []))

    assert received == [b"".join(pieces) for pieces in messages]
    assert ended == (4410, "deleted")


def test_messages_of_an_app_are_masked_and_read_as_sent() -> None:
    words = ["", "ä", "x" * 125, "y" * 126, "z" * 65_535, "w" * 70_000]

    server = Server(b"", 1 << 16)
    asyncio.run(visit(server, words))

    assert server.received == [word.encode() for word in words]
