"""WebSockets of peers not authenticated yet: they keep no client out, and make a server hold next to nothing."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Close, Frame, Opcode

from openclaw_mcp.net import websocket_server
from openclaw_mcp.proxy.settings import ProxySettings

from ..gateway.rpc.gateways import CONNECT, running, within
from ..proxy.proxies import proxy
from .servers import Served, program
from .test_hosts import FOREIGN, OURS, PAGES
from .test_websocket import Open

WAIT = 30.0
MANY = 24 << 20
KERNEL = 12 << 20  # bytes two ends of a connection may keep without being read
HEAD = "GET {path} HTTP/1.1\r\n{headers}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
LOCAL = [("host", "localhost")]


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


def encode_frame(**frame: Any) -> bytes:
    return masked(Opcode.TEXT, json.dumps(frame).encode())


class RawPeer:
    """A connection that has asked to become a WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0

    async def answered(self) -> int:
        async with asyncio.timeout(WAIT):
            head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    async def frame(self) -> tuple[int, bytes]:
        """The next one's kind and payload."""
        async with asyncio.timeout(WAIT):
            first, size = await self.reader.readexactly(2)
            if size >= 126:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
            return first & 15, await self.reader.readexactly(size)

    async def goodbye(self) -> Close:
        while True:
            kind, payload = await self.frame()
            if kind == Opcode.CLOSE:
                return Close.parse(payload)

    async def pour(self, most: int = MANY) -> int:
        """Bytes it gets rid of before the server hangs up or stops reading for good."""
        sent, piece = 0, b"x" * 65_536
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WAIT):
                while sent < most and not self.writer.transport.is_closing():
                    self.writer.write(piece)
                    sent += len(piece)
                    await self.writer.drain()
        return sent


@contextlib.asynccontextmanager
async def raw_peer(port: int, path: str, headers: list[tuple[str, str]] = LOCAL) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        writer.write((HEAD.format(path=path, headers=lines) + KEY).encode("latin-1"))
        peer = RawPeer(reader, writer)
        peer.status = await peer.answered()
        yield peer
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def open_entry_point(name: str, folder: Path) -> AsyncIterator[tuple[int, str]]:
    """A server of this process: its port, and where its WebSocket is."""
    if name == "gateway":
        async with running(folder) as gateway:
            yield gateway.port, "/"
    else:
        async with proxy(ProxySettings(audit="off", app_token="token")) as served:
            id = served.state.engine and "nobody"
            yield int(served.address.rpartition(":")[2]), f"/v1/chat/sessions/{id}/bridge"


ENTRY_POINTS = ("gateway", "proxy")
STRANGERS: dict[str, Callable[[], bytes]] = {
    "silent": lambda: b"",
    "with half a head of a frame": lambda: b"\x81",
    "with half a frame": lambda: masked(Opcode.TEXT, b"x" * 1000)[:500],
    "with half a message": lambda: masked(Opcode.TEXT, b"{", fin=False),
    "that ping": lambda: masked(Opcode.PING, b"?"),
    "that pong": lambda: masked(Opcode.PONG, b""),
}


# ---- who keeps others out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_give_way_to_newcomers_oldest_first(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_server, "MAX_UNTRUSTED_PER_PEER", 40)

    async def main() -> None:
        async with running(tmp_path) as gateway, contextlib.AsyncExitStack() as stack:
            held = []
            for _ in range(40):
                held.append(await stack.enter_async_context(raw_peer(gateway.port, "/")))
                assert held[-1].status == 101
                held[-1].writer.write(STRANGERS[kind]())
            async with gateway.raw() as peer:
                assert (await peer.ask("health"))["ok"]
            assert (await held[0].goodbye()).code == 1013
            again = await stack.enter_async_context(raw_peer(gateway.port, "/"))
            assert again.status == 101
            held[2].writer.write(encode_frame(type="req", id="c", method="connect", params=CONNECT))
            if kind in ("silent", "that ping", "that pong"):
                while b'"id":"c"' not in (await held[2].frame())[1]:
                    pass

    within(main())


def test_strangers_of_many_addresses_give_way_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_server, "MAX_UNTRUSTED_TOTAL", 10)

    async def main() -> None:
        async with running(tmp_path) as gateway, contextlib.AsyncExitStack() as stack:
            held = [await stack.enter_async_context(raw_peer(gateway.port, "/")) for _ in range(10)]
            async with gateway.raw() as peer:
                assert (await peer.ask("health"))["ok"]
                assert (await held[0].goodbye()).code == 1013
                assert not [each for each in held[1:] if each.reader.at_eof()]

    within(main())


REFUSED: dict[str, bytes] = {
    "no JSON": masked(Opcode.TEXT, b"what?"),
    "no request": encode_frame(type="event"),
    "another method first": encode_frame(type="req", id="1", method="health"),
    "a wrong token": encode_frame(
        type="req", id="1", method="connect", params=CONNECT | {"auth": {"token": "wrong"}, "device": None}
    ),
    "a frame against the rules": Frame(Opcode.TEXT, b"not masked").serialize(mask=False),
    "a frame too large": b"\x82\xff" + MANY.to_bytes(8) + b"mask",
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_was_refused_and_stays_counts_until_it_is_gone(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_server, "MAX_UNTRUSTED_PER_PEER", 10)

    async def main() -> None:
        async with running(tmp_path) as gateway, contextlib.AsyncExitStack() as stack:
            for _ in range(30):
                held = await stack.enter_async_context(raw_peer(gateway.port, "/"))
                held.writer.write(REFUSED[name])
                await held.goodbye()
            assert len(gateway.gateway.rpc_server.untrusted) <= 10
            async with gateway.raw() as peer:
                assert (await peer.ask("health"))["ok"]

    within(main())


def test_apps_that_are_refused_and_stay_count_until_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_server, "MAX_UNTRUSTED_PER_PEER", 10)

    async def main() -> None:
        async with proxy(ProxySettings(audit="off")) as served, contextlib.AsyncExitStack() as stack:
            port = int(served.address.rpartition(":")[2])
            for _ in range(30):
                held = await stack.enter_async_context(raw_peer(port, "/v1/chat/sessions/nope/bridge"))
                assert (await held.goodbye()).code == 4404
            assert len(served.state.unauthenticated) <= 10
            id = (await served.create())["mcpSessionId"]
            async with served.app(id):
                assert len(served.state.unauthenticated) <= 10

    asyncio.run(main())


# ---- from where ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/ws", "/nothing"])
def test_the_gateways_websocket_asks_the_gate_before_it_opens(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with running(tmp_path) as gateway:
            for name, headers in FOREIGN.items():
                async with raw_peer(gateway.port, path, headers) as peer:
                    assert peer.status == 403, name
            for name, headers in {**OURS, **PAGES}.items():
                async with raw_peer(gateway.port, path, headers) as peer:
                    assert peer.status == (404 if path == "/nothing" else 101), name
            async with raw_peer(gateway.port, path, [*LOCAL, ("origin", "http://\xe9vil.example")]) as peer:
                assert peer.status == 403

    within(main())


def test_a_bridge_asks_the_gate_before_it_opens() -> None:
    async def main() -> None:
        async with proxy(ProxySettings(audit="off", origins=frozenset({"https://app.example.com"}))) as served:
            port = int(served.address.rpartition(":")[2])
            id = (await served.create())["mcpSessionId"]
            for path in (f"/v1/chat/sessions/{id}/bridge", "/v1/chat/sessions/nope/bridge"):
                for name, headers in FOREIGN.items():
                    async with raw_peer(port, path, headers) as peer:
                        assert peer.status == 403, name
            allowed = {"an allowed page": [*LOCAL, ("origin", "https://app.example.com")]}
            for name, headers in {**OURS, **PAGES, **allowed}.items():
                async with raw_peer(port, "/v1/chat/sessions/nope/bridge", headers) as peer:
                    assert peer.status == 101, name

    asyncio.run(main())


# ---- what a server holds for them ----------------------------------------------------------------------------------

BEGINNINGS: dict[str, bytes] = {
    "a text": b"\x81\xff" + MANY.to_bytes(8) + b"mask",
    "bytes": b"\x82\xff" + MANY.to_bytes(8) + b"mask",
    "a first fragment": b"\x02\xff" + MANY.to_bytes(8) + b"mask",
    "a second fragment": masked(Opcode.BINARY, b"x", fin=False) + b"\x00\xff" + MANY.to_bytes(8) + b"mask",
    "more than we ever take": b"\x82\xff" + (1 << 60).to_bytes(8) + b"mask",
    "a close frame that is none": b"\x88\xff" + MANY.to_bytes(8) + b"mask",
    "many frames": masked(Opcode.BINARY, b"x" * 60_000) * 3,
    "small fragments": masked(Opcode.BINARY, b"x", fin=False) + masked(Opcode.CONT, b"", fin=False) * 20_000,
    "behind a refusal": masked(Opcode.TEXT, b"what?") + b"\x82\xff" + MANY.to_bytes(8) + b"mask",
    "behind a goodbye": masked(Opcode.CLOSE, Close(1000, "").serialize()) + b"\x82\xff" + MANY.to_bytes(8) + b"mask",
}


@pytest.mark.parametrize("name", ENTRY_POINTS)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_stranger_is_not_read_for_long(tmp_path: Path, name: str, beginning: str) -> None:
    async def main() -> None:
        async with open_entry_point(name, tmp_path) as (port, path), raw_peer(port, path) as peer:
            assert peer.status == 101
            peer.writer.write(BEGINNINGS[beginning])
            assert await peer.pour(4 * KERNEL) < KERNEL

    within(main())


@pytest.mark.parametrize(("path", "headers"), [("/nothing", LOCAL), ("/", [("host", "evil.example")])])
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_who_is_refused_with_a_status_is_not_read_for_long(
    tmp_path: Path, name: str, path: str, headers: list[tuple[str, str]]
) -> None:
    async def main() -> None:
        async with open_entry_point(name, tmp_path) as (port, _), raw_peer(port, path, headers) as peer:
            assert peer.status in (403, 404)
            assert await peer.pour(4 * KERNEL) < KERNEL

    within(main())


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_stranger_still_reads_why_it_was_refused(tmp_path: Path, beginning: str) -> None:
    async def main() -> None:
        async with running(tmp_path) as gateway, raw_peer(gateway.port, "/") as peer:
            peer.writer.write(BEGINNINGS[beginning] + b"x" * 300_000)
            codes = (1000,) if beginning == "many frames" or "behind" in beginning else (1009, 1008, 1002)
            assert (await peer.goodbye()).code in codes

    within(main())


FLOODS: dict[str, bytes] = {
    "pings": masked(Opcode.PING, b""),
    "pongs": masked(Opcode.PONG, b""),
    "pings with words": masked(Opcode.PING, b"p" * 100),
    "empty fragments": masked(Opcode.CONT, b"", fin=False),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_stranger_has_only_so_many_frames_read(tmp_path: Path, flood: str) -> None:
    async def main() -> None:
        async with running(tmp_path) as gateway, raw_peer(gateway.port, "/") as peer:
            begin = masked(Opcode.TEXT, b"{", fin=False) if flood == "empty fragments" else b""
            peer.writer.write(begin + FLOODS[flood] * 500)
            assert (await peer.goodbye()).code == 1008

    within(main())


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("known", [False, True])
def test_what_came_of_a_connection_that_is_gone_is_not_read(flood: str, known: bool) -> None:
    async def main() -> None:
        peer = Open()
        if not known:
            peer.trusted = False
        begin = masked(Opcode.TEXT, b"{", fin=False) if flood == "empty fragments" else b""
        peer.data_received(begin + FLOODS[flood] * 9000)
        peer.connection_lost(None)
        written, frames = peer.wire.written, peer._untrusted_frames
        for _ in range(50):
            await asyncio.sleep(0)
        assert (peer.wire.written, peer._untrusted_frames, peer._input) == (written, frames, b"")

    asyncio.run(main())


def test_much_sent_early_waits_until_its_sender_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as gateway, raw_peer(gateway.port, "/") as peer:
            await peer.frame()
            peer.writer.write(encode_frame(type="req", id="c", method="connect", params=CONNECT))
            for number in range(5):
                peer.writer.write(
                    encode_frame(type="req", id=f"r{number}", method="health", params={"x": "y" * 20_000})
                )
                await peer.writer.drain()
                await asyncio.sleep(0)
            found: set[str] = set()
            while len(found) < 6:
                message = json.loads((await peer.frame())[1])
                found |= {message["id"]} if message["type"] == "res" else set()

    within(main())


PROGRAMS = {"gateway": "/", "proxy": "/v1/chat/sessions/nope/bridge"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_strangers_sent_is_not_kept(tmp_path: Path, name: str) -> None:
    async def attack(served: Served) -> None:
        async with contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(raw_peer(served.port, PROGRAMS[name])) for _ in range(12)]
            for peer in peers:
                peer.writer.write(BEGINNINGS["bytes"])
            await asyncio.gather(*(each.pour(16 << 20) for each in peers))
            assert served.memory < before + (64 << 20)
        await served.answers_others()

    with program(name, tmp_path) as served:
        asyncio.run(served.answers_others())
        before = served.memory
        asyncio.run(attack(served))


def test_what_a_known_peer_sent_is_freed_with_the_connection(tmp_path: Path) -> None:
    """Not at the next garbage collection: on a quiet server that is hardly ever."""

    async def attack(served: Served) -> None:
        before = served.memory
        for _ in range(6):
            created = await asyncio.open_connection("127.0.0.1", served.port)
            created[1].write(
                served.head("POST", "/v1/chat/sessions", Content_Length="2", Content_Type=JSON) + b"\r\n{}"
            )
            head = await created[0].readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split()[0])
            id = json.loads(await created[0].readexactly(size))["mcpSessionId"]
            created[1].transport.abort()
            async with raw_peer(served.port, f"/v1/chat/sessions/{id}/bridge") as peer:
                reset = struct.pack("ii", 1, 0)  # leave without a word, as a lost line does
                peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                peer.writer.write(masked(Opcode.BINARY, b"x", fin=False) + BEGINNINGS["a second fragment"][-14:])
                assert await peer.pour(20 << 20) == 20 << 20
                assert served.memory > before + (8 << 20)
        async with asyncio.timeout(WAIT):
            while served.memory > before + (32 << 20):  # noqa: ASYNC110 - another process has to notice
                await asyncio.sleep(0.05)

    with program("proxy", tmp_path) as served:
        asyncio.run(attack(served))


JSON = "application/json"
