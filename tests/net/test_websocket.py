"""Sockets receive what was sent, however its bytes were cut."""

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from openclaw_mcp.net.websocket import WebSocket
from openclaw_mcp.net.websocket_server import AcceptedWebSocket, make_untrusted_pool

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        return

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def resume_reading(self) -> None:
        return

    def pause_reading(self) -> None:
        return


class Recorder:
    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.received: list[tuple[bytes, bool]] = []
        self.ended: tuple[int, str] | None = None

    def on_open(self) -> None:
        return

    def on_message(self, message: bytes) -> None:
        self.received.append((message, self.socket.is_text))

    def on_close(self, code: int, reason: str) -> None:
        self.ended = code, reason


class Open(AcceptedWebSocket):
    def __init__(self) -> None:
        super().__init__(ServerProtocol(max_size=1 << 20), set(), make_untrusted_pool())
        self.recorder = Recorder(self)
        self.wire = Wire()
        self.connection_made(self.wire)
        self.data_received(UPGRADE)
        self.wire.written = b""

    def _handle_handshake(self, event: Any) -> None:
        assert isinstance(event, Request)
        self.send_handshake(self._server_codec.accept(event))
        self.set_listener(self.recorder)
        self.trust()


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


@st.composite
def talk(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bool]]]:
    """What a client sends, and what is to be received of it."""
    sent, expected = b"", []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["text", "binary", "pieces", "ping"]))
        size = draw(st.sampled_from([0, 1, 5, 125, 126, 127, 200, 70_000]))
        data = bytes([draw(st.integers(32, 126))]) * size
        if kind == "text":
            sent += frame(Opcode.TEXT, data)
        elif kind == "binary":
            sent += frame(Opcode.BINARY, data)
        elif kind == "ping":
            sent += frame(Opcode.PING, data[:100])
            continue
        else:
            middle = frame(Opcode.PING, b"") if draw(st.booleans()) else b""
            sent += frame(Opcode.TEXT, data[: size // 2], fin=False) + middle
            sent += frame(Opcode.CONT, data[size // 2 :])
        expected.append((data, kind != "binary"))
    return sent, expected


class OpenToCodec(Open):
    """Gives every frame to the codec."""

    def _is_whole_text(self, payload: int, end: int) -> bool:
        return False


ODD_FRAMES = {
    "not masked": Frame(Opcode.TEXT, b"x").serialize(mask=False),
    "too large": frame(Opcode.TEXT, b"x" * ((1 << 20) + 1)),
    "just not too large": frame(Opcode.TEXT, b"x" * (1 << 20)),
    "a reserved bit": bytes([0xC1]) + frame(Opcode.TEXT, b"x")[1:],
    "no end of the pieces": frame(Opcode.TEXT, b"x", fin=False) + frame(Opcode.TEXT, b"y"),
    "the rest of nothing": frame(Opcode.CONT, b"x"),
    "not UTF-8": frame(Opcode.TEXT, b"\xff"),
    "a length in too many bytes": bytes([0x81, 0x80 | 127]) + (5).to_bytes(8) + bytes(4) + b"hello",
    "a length beyond all": bytes([0x81, 0xFF]) + b"\xff" * 12,
    "a close": frame(Opcode.CLOSE, Close(1000, "").serialize()),
}


@given(talk(), talk(), st.sampled_from(list(ODD_FRAMES)), st.integers(1, 100_000))
def test_a_whole_text_is_handled_as_the_codec_would_also_beside_odd_frames(
    before: tuple[bytes, Any], behind: tuple[bytes, Any], odd: str, size: int
) -> None:
    async def compare() -> None:
        sent = before[0] + ODD_FRAMES[odd] + behind[0]
        outcomes = []
        for socket in (Open(), OpenToCodec()):
            step = max(size, len(sent) // 500)
            for begin in range(0, len(sent), step):
                socket.data_received(sent[begin : begin + step])
            await asyncio.sleep(0)  # frames beyond a turn's
            outcomes.append((socket.recorder.received, socket.recorder.ended, socket.wire.written, socket.is_open))
            socket.connection_lost(None)
        assert outcomes[0] == outcomes[1]

    asyncio.run(compare())


@given(talk(), st.data())
def test_every_message_is_received_however_its_bytes_come(
    case: tuple[bytes, list[tuple[bytes, bool]]], data: st.DataObject
) -> None:
    async def listening() -> None:
        sent, expected = case
        cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=12).map(sorted))
        socket = Open()
        for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            if begin < end:
                socket.data_received(sent[begin:end])
        assert socket.recorder.received == expected
        assert socket.is_open

    asyncio.run(listening())


def test_a_message_may_come_byte_by_byte() -> None:
    async def listening() -> None:
        socket = Open()
        for byte in frame(Opcode.TEXT, b"x" * 300) + frame(Opcode.TEXT, b"end"):
            socket.data_received(bytes([byte]))
        assert socket.recorder.received == [(b"x" * 300, True), (b"end", True)]

    asyncio.run(listening())


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 200_000])
def test_what_is_sent_is_a_frame_as_the_codec_reads_it(size: int) -> None:
    async def talking() -> bytes:
        socket = Open()
        socket.send(b"y" * size)
        return socket.wire.written

    assert asyncio.run(talking()) == Frame(Opcode.TEXT, b"y" * size).serialize(mask=False)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Frame(Opcode.TEXT, b"not masked").serialize(mask=False), 1002),
        (b"\xc1\x80mask", 1002),  # a reserved bit
        (b"\x83\x80mask", 1002),  # no such opcode
        (b"\x81\xff\x00\x00\x00\x00\x7f\xff\xff\xffmask", 1009),  # larger than we take
        (frame(Opcode.CONT, b"of nothing"), 1002),
    ],
    ids=["unmasked", "reserved bit", "unknown kind", "too large", "no beginning"],
)
def test_a_frame_against_the_rules_ends_it_and_nothing_behind_it_is_handled(bad: bytes, code: int) -> None:
    async def listening() -> None:
        socket = Open()
        socket.data_received(frame(Opcode.TEXT, b"first") + bad + frame(Opcode.TEXT, b"behind"))
        assert socket.recorder.received == [(b"first", True)]
        assert not socket.is_open
        assert socket.recorder.ended is not None
        assert socket.recorder.ended[0] == code
        socket.connection_lost(None)

    asyncio.run(listening())


def test_a_close_frame_is_answered_and_nothing_behind_it_is_handled() -> None:
    async def listening() -> None:
        socket = Open()
        goodbye = frame(Opcode.CLOSE, Close(1000, "done").serialize())
        socket.data_received(frame(Opcode.TEXT, b"last") + goodbye + frame(Opcode.TEXT, b"behind"))
        assert socket.recorder.received == [(b"last", True)]
        assert socket.recorder.ended == (1000, "done")
        assert socket.wire.written.startswith(b"\x88")
        socket.send(b"too late")
        assert b"too late" not in socket.wire.written
        socket.connection_lost(None)

    asyncio.run(listening())


def test_a_pause_holds_back_what_came_in_the_same_piece_and_keeps_its_order() -> None:
    async def main() -> None:
        socket = Open()
        expected = [b"%d" % number for number in range(100)]

        def record(message: bytes) -> None:
            socket.recorder.received.append((message, True))
            if message == b"5":
                socket.pause()

        socket.recorder.on_message = record  # type: ignore[method-assign]
        socket.data_received(b"".join(frame(Opcode.TEXT, each) for each in expected))
        await turns()
        assert [message for message, _ in socket.recorder.received] == expected[:6]
        socket.resume()
        await turns()
        assert [message for message, _ in socket.recorder.received] == expected

    asyncio.run(main())


def test_so_many_messages_of_one_piece_are_handled_before_others_get_their_turn() -> None:
    async def main() -> None:
        socket = Open()
        socket.data_received(frame(Opcode.TEXT, b"x") * 400)
        assert len(socket.recorder.received) == 128
        socket.data_received(frame(Opcode.TEXT, b"y"))
        await turns()
        assert [message for message, _ in socket.recorder.received] == [b"x"] * 400 + [b"y"]

    asyncio.run(main())


def test_what_waits_for_its_turn_is_handled_before_the_end() -> None:
    async def main() -> None:
        socket = Open()
        socket.data_received(frame(Opcode.TEXT, b"x") * 400)
        socket.eof_received()
        assert len(socket.recorder.received) == 400

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"", b"a", b"ab"])
def test_a_message_in_very_many_fragments_takes_the_memory_of_its_bytes(data: bytes) -> None:
    async def main() -> None:
        socket = Open()
        socket.data_received(frame(Opcode.TEXT, b"<", fin=False))
        for _ in range(200):
            socket.data_received(frame(Opcode.CONT, data, fin=False) * 100)
            await turns()
        assert socket._fragments is not None
        assert sys.getsizeof(socket._fragments) < 1000 + 2 * 20_000 * len(data)
        socket.data_received(frame(Opcode.CONT, b">"))
        assert socket.recorder.received == [(b"<" + data * 20_000 + b">", True)]

    asyncio.run(main())


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
