"""Peers that ask and do not read, or say much in little: others get their turn, and nothing piles up."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from openclaw_mcp.core.rpc import READ, RpcCall, RpcMethod
from openclaw_mcp.net.peers import PendingBytes
from openclaw_mcp.proxy.engine.limits import BridgeLimits
from openclaw_mcp.proxy.settings import ProxySettings

from ..gateway.rpc.gateways import CONNECT, running, within
from ..proxy.proxies import proxy

UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WAIT = 30.0
ENDLESS = 256 << 20


class Counting:
    """A module whose one method takes no time at all, and remembers for whom it was called."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.all_called = asyncio.Event()

    def methods(self) -> Sequence[RpcMethod]:
        return (RpcMethod("note", READ, self._note),)

    async def _note(self, call: RpcCall) -> int:
        self.called.append(call.params.get("who"))
        if len(self.called) == 2001:
            self.all_called.set()
        return len(self.called)


class Bare:
    """A WebSocket by hand: what it sends leaves in one piece, and it reads on request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, *messages: Any) -> None:
        self.writer.write(b"".join(text(message) for message in messages))

    def deaf(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def hear(self) -> Any:
        """The next message."""
        async with asyncio.timeout(WAIT):
            _, size = await self.reader.readexactly(2)
            if size >= 126:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
            return json.loads(await self.reader.readexactly(size))

    async def pour(self, piece: bytes) -> int:
        """Send it again and again until the other end hangs up: how many bytes that took."""
        sent = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WAIT):
                while sent < ENDLESS and not self.writer.transport.is_closing():
                    self.writer.write(piece)
                    sent += len(piece)
                    await self.writer.drain()
        return sent


@contextlib.asynccontextmanager
async def dialled(port: int, path: str = "/") -> AsyncIterator[Bare]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(UPGRADE.format(path=path).encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        yield Bare(reader, writer)
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Bare]:
    """A connection the gateway has accepted."""
    async with dialled(port) as peer:
        assert (await peer.hear())["event"] == "connect.challenge"
        peer.say({"type": "req", "id": "hello", "method": "connect", "params": CONNECT})
        while (await peer.hear()).get("id") != "hello":
            pass
        yield peer


def text(message: Any) -> bytes:
    return Frame(Opcode.TEXT, json.dumps(message).encode()).serialize(mask=True)


def note(who: str, id: int) -> Any:
    return {"type": "req", "id": f"{who}{id}", "method": "note", "params": {"who": who}}


def test_two_thousand_requests_at_once_let_others_have_their_turn(tmp_path: Path) -> None:
    module = Counting()

    async def main() -> None:
        async with (
            running(tmp_path, modules=[module]) as gateway,
            connected(gateway.port) as many,
            connected(gateway.port) as one,
        ):
            many.deaf()
            many.say(*(note("many", number) for number in range(2000)))
            one.say(note("one", 0))
            while (await one.hear()).get("id") != "one0":
                pass
            assert module.called.index("one") < 100, "the others' requests went first"
            async with asyncio.timeout(WAIT):
                await module.all_called.wait()

    within(main())


def test_what_comes_in_one_piece_is_answered_in_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, modules=[Counting()]) as gateway, connected(gateway.port) as peer:
            peer.say(*(note("me", number) for number in range(500)))
            received = [frame async for frame in answers(peer, 500)]
            assert [frame["payload"] for frame in received] == list(range(1, 501))

    within(main())


async def answers(peer: Bare, count: int) -> AsyncIterator[Any]:
    while count:
        frame = await peer.hear()
        if frame["type"] == "res":
            count -= 1
            yield frame


PING = Frame(Opcode.PING, b"p" * 125).serialize(mask=True) * 400


def test_a_gateway_sends_no_endless_pongs_to_who_does_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as gateway, connected(gateway.port) as peer, connected(gateway.port) as other:
            peer.deaf()
            assert await peer.pour(PING) < ENDLESS
            other.say({"type": "req", "id": "1", "method": "health"})
            while (await other.hear()).get("id") != "1":
                pass

    within(main())


def test_a_proxy_sends_no_endless_pongs_to_who_does_not_read() -> None:
    async def main() -> None:
        async with proxy() as served:
            id = (await served.create())["mcpSessionId"]
            port = int(served.address.rpartition(":")[2])
            async with dialled(port, f"/v1/chat/sessions/{id}/bridge") as app:
                app.deaf()
                assert await app.pour(PING) < ENDLESS
            assert (await served.send("GET", "/health")).status == 200

    asyncio.run(main())


@pytest.mark.parametrize("message", ["not JSON", '{"type":"ping"}', '{"type":"what is this"}', "[]"])
def test_a_bridge_ends_when_the_app_makes_it_talk_and_does_not_read(message: str) -> None:
    async def main() -> None:
        settings = ProxySettings(audit="off", bridge=BridgeLimits(unsent=256 << 10, ping=600.0))
        async with proxy(settings) as served:
            id = (await served.create())["mcpSessionId"]
            port = int(served.address.rpartition(":")[2])
            async with dialled(port, f"/v1/chat/sessions/{id}/bridge") as app:
                app.deaf()
                frame = Frame(Opcode.TEXT, message.encode()).serialize(mask=True)
                assert await app.pour(frame * 1000) < ENDLESS
            assert (await served.send("GET", "/health")).status == 200

    asyncio.run(main())


def test_half_a_message_of_many_apps_takes_so_much_memory_and_no_more() -> None:
    """A large one gives way, and the others finish what they say."""

    async def main() -> None:
        async with proxy() as served, contextlib.AsyncExitStack() as stack:
            served.state.partial_messages = PendingBytes(max_bytes=1 << 20)
            port = int(served.address.rpartition(":")[2])
            apps = []
            for size in (300_000, 600_000, 200_000):
                id = (await served.create())["mcpSessionId"]
                apps.append(await stack.enter_async_context(dialled(port, f"/v1/chat/sessions/{id}/bridge")))
                apps[-1].writer.write(Frame(Opcode.TEXT, b"x" * 700_000).serialize(mask=True)[:size])
            async with asyncio.timeout(WAIT):
                assert (await apps[0].reader.readexactly(1))[0] & 15 == Opcode.CLOSE
            for app, size in ((apps[1], 600_000), (apps[2], 200_000)):
                app.writer.write(b"x" * (700_014 - size))
                assert (await app.hear())["type"] == "error"

    asyncio.run(main())


def test_a_read_full_of_small_frames_from_an_app_lets_others_have_their_turn() -> None:
    async def main() -> None:
        async with proxy() as served:
            id = (await served.create())["mcpSessionId"]
            port = int(served.address.rpartition(":")[2])
            async with dialled(port, f"/v1/chat/sessions/{id}/bridge") as app:
                app.say({"type": "ping"})
                assert (await app.hear())["type"] == "pong"
                bridge = served.state.engine.sessions[id].bridge
                assert bridge is not None
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                app.say(*("x" for _ in range(20_000)))
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert b" 200 " in await reader.readline()
                assert bridge.bad_frames < 5000
                writer.transport.abort()
                for _ in range(20_000):
                    assert (await app.hear())["type"] == "error"

    asyncio.run(main())
