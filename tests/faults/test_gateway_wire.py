"""Hostile and unlucky peers, in numbers, against a gateway in a process of its own."""

import asyncio
import contextlib
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from .. import web_client
from ..effort import often
from ..gateway.rpc.gateways import CONNECT, within
from ..gateway.wiring.test_gateway import Served, serving

BAD_HANDSHAKES = 10_000
IDLE = 2_000
AT_ONCE = 24  # below the number of strangers one address may be
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state")) as served:
        yield served


def memory(served: Served) -> float:
    """MiB the gateway holds."""
    for line in Path(f"/proc/{served.child.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def open_files(served: Served) -> int:
    return len(list(Path(f"/proc/{served.child.pid}/fd").iterdir()))


def hello(served: Served, **over: Any) -> str:
    params = CONNECT | {"auth": {"token": served.token}} | over
    return json.dumps({"type": "req", "id": "1", "method": "connect", "params": params})


def frame(payload: bytes, *, opcode: int = 1, fin: bool = True) -> bytes:
    """A client's frame, with a mask of zeros."""
    head = bytes([(0x80 if fin else 0) | opcode])
    size = len(payload)
    if size < 126:
        return head + bytes([0x80 | size]) + b"\0\0\0\0" + payload
    if size < 1 << 16:
        return head + b"\xfe" + struct.pack("!H", size) + b"\0\0\0\0" + payload
    return head + b"\xff" + struct.pack("!Q", size) + b"\0\0\0\0" + payload


async def still_serves(served: Served) -> None:
    async with asyncio.timeout(20), connect(served.ws, compression=None, proxy=None) as client:
        await client.recv()
        await client.send(hello(served))
        assert json.loads(await client.recv())["ok"]
        await client.send('{"type":"req","id":"2","method":"health"}')
        assert json.loads(await client.recv())["ok"]


BAD_OPENINGS = [
    frame(b"garbage"),
    frame(b"[]"),
    frame(b'{"type":"req","id":"1","method":"health"}'),
    frame(json.dumps({"type": "req", "id": "1", "method": "connect", "params": {}}).encode()),
    frame(
        json.dumps(
            {"type": "req", "id": "1", "method": "connect", "params": CONNECT | {"auth": {"token": "no"}}}
        ).encode()
    ),
    frame(b"x" * 70_000),
    frame(b"", opcode=8),
    b"\x00\xff\xff\xff not a frame at all",
    b"",
]


def test_ten_thousand_bad_handshakes_leave_nothing_behind(gateway: Served) -> None:
    async def test() -> None:
        await still_serves(gateway)
        await flood(500)  # the first ones fill caches
        before, files = memory(gateway), open_files(gateway)
        await flood(BAD_HANDSHAKES)
        await still_serves(gateway)
        async with asyncio.timeout(20):
            while open_files(gateway) > files + 2:  # noqa: ASYNC110 - another process's files
                await asyncio.sleep(0.1)
        assert memory(gateway) - before < 16

    async def flood(number: int) -> None:
        left = iter(range(number))

        async def one_after_another() -> None:
            for index in left:
                await bad_handshake(BAD_OPENINGS[index % len(BAD_OPENINGS)])

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))

    async def bad_handshake(opening: bytes) -> None:
        port = int(gateway.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(UPGRADE)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(opening)
            data = b"" if opening else b"\x88"
            while b"\x88" not in data:  # until the gateway closes: the first byte of a close frame
                data = await reader.read(1 << 16) or b"\x88"
        writer.transport.abort()

    within(test())


def test_two_thousand_idle_connections_are_light_and_all_hear_the_news(gateway: Served) -> None:
    async def test() -> None:
        await still_serves(gateway)
        before = memory(gateway)
        gate = asyncio.Semaphore(AT_ONCE)

        async def idle() -> Any:
            async with gate:
                client = await connect(gateway.ws, compression=None, proxy=None, ping_interval=None)
                await client.recv()
                await client.send(hello(gateway))
                assert json.loads(await client.recv())["ok"]
                return client

        async def receives_presence(client: ClientConnection) -> None:
            while (event := json.loads(await client.recv())["event"]) != "presence":
                assert event in ("tick", "health")

        clients = await asyncio.gather(*(idle() for _ in range(IDLE)))
        try:
            each = (memory(gateway) - before) * 1024 / IDLE
            assert each < 32, f"{each:.0f} KiB a connection"
            await still_serves(gateway)
            client = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}
            async with connect(gateway.ws, compression=None, proxy=None) as newcomer:
                await newcomer.recv()
                await newcomer.send(hello(gateway, client=client))
                async with asyncio.timeout(30):
                    await asyncio.gather(*(receives_presence(client) for client in clients))
        finally:
            for client in clients:
                client.transport.abort()
            await asyncio.gather(*(client.wait_closed() for client in clients))

    within(test())


FUZZED = st.lists(
    st.one_of(
        st.binary(max_size=64),
        st.builds(
            frame,
            st.binary(max_size=200) | st.text(max_size=100).map(str.encode),
            opcode=st.integers(0, 15),
            fin=st.booleans(),
        ),
        st.sampled_from(
            [
                frame(b'{"type":"req","id":"1","method":"health"}'),
                frame(b'{"type":"req","id":"1","method":"tools.invoke","params":{"name":[]}}'),
                frame(b'{"type":"req","id":"1","method":"logs.tail","params":{"limit":-1}}'),
                frame(b'{"type":"req","id":"\\ud800","method":"\\u0000"}'),
                frame(b'{"type":"req","id":"1","method":"connect","params":{"client":{"id":"\\ud800"}}}'),
                frame(b"[" * 60_000),
            ]
        ),
    ),
    max_size=8,
)


@settings(
    max_examples=often(100, 1000), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(chunks=FUZZED, known=st.booleans(), seed=st.integers(0, 1 << 30))
def test_no_bytes_a_peer_can_send_bring_the_gateway_down(
    gateway: Served, chunks: list[bytes], known: bool, seed: int
) -> None:
    async def test() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.port))
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        if known:
            writer.write(frame(hello(gateway).encode()))
        data = b"".join(chunks)
        chance = random.Random(seed)
        while data:  # cut anywhere, also in the middle of a frame
            cut = chance.randint(1, len(data))
            writer.write(data[:cut])
            data = data[cut:]
            await asyncio.sleep(0)
        writer.transport.abort()
        if seed % 10 == 0:
            await still_serves(gateway)

    within(test())
    assert gateway.child.poll() is None


def test_a_reader_that_stops_costs_only_itself(gateway: Served) -> None:
    """Answers pile up for a peer that asks and never reads; at the limit it is cut off."""

    async def test() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.port))
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame(hello(gateway).encode()))
        await reader.readuntil(b"hello-ok")
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
        ask = frame(b'{"type":"req","id":"1","method":"config.schema"}')  # a short question with a long answer
        with contextlib.suppress(ConnectionError, ConnectionClosed):
            async with asyncio.timeout(60):
                while not writer.transport.is_closing():
                    writer.write(ask * 50)
                    await writer.drain()
        await still_serves(gateway)
        assert memory(gateway) < 300
        metrics = await asyncio.to_thread(web_client.send, gateway.http + "/metrics", "GET")
        assert b"openclaw_slow_consumers_total 1\n" in metrics.body
        writer.transport.abort()

    within(test())


def test_nothing_of_all_that_was_an_error_of_ours(gateway: Served) -> None:
    """Runs last, on the same gateway."""
    within(still_serves(gateway))
    log = (gateway.folder / "gateway.log").read_text()
    assert "Traceback" not in log
    assert gateway.token not in log
