"""What a connection may do before its request is whole, at each of the three servers."""

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.net import listen
from openclaw_mcp.net.flow_control import TurnQueue
from openclaw_mcp.net.http_limits import ConnectionBounds
from openclaw_mcp.net.peers import PendingBytes

from .servers import NAMES, WAIT, Served, here, program, status

ENDLESS = 96 << 20  # bytes a test would send if the server did not stop it; far more than the kernel keeps on the way
FILL = b"a" * 65_536
MIB = 1 << 20


@pytest.fixture(scope="module", params=NAMES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with program(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


def test_the_bounds_are_what_the_docs_say() -> None:
    bounds = ConnectionBounds()
    assert (bounds.head_bytes, bounds.max_headers, bounds.head_seconds) == (65_536, 256, 15.0)
    assert (bounds.body_seconds, bounds.body_rate, bounds.max_dropped_bytes) == (30.0, 32_768, 16_777_216)
    assert (bounds.silent_per_peer, bounds.heads_per_peer, bounds.heads_total, bounds.bodies_per_peer) == (
        4096,
        256,
        1024,
        2048,
    )
    assert (bounds.body_bytes, bounds.unread_seconds) == (134_217_728, 10.0)


# ---- size ------------------------------------------------------------------------------------------------------------

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
TOO_LARGE = {
    "an endless header": (b"X-Long: ", FILL),
    "an endless name of a header": (b"X-", FILL),
    "headers without end": (b"", b"X-Many: 1\r\n" * 6000),
    "headers without end, large ones": (b"", b"X-Many: " + b"a" * 2000 + b"\r\n"),
    "the shortest headers without end": (b"", b"x:\r\n" * 16_000),
    "an endless cookie": (b"Cookie: ", b"a=b; " * 13_000),
    "an endless host, given twice": (b"Host: ", FILL),
    "spaces before a value without end": (b"X:", b" " * 65_536),
}
ENDLESS_FRAMES = {
    "a chunk's extension without end": (b"5;", FILL),
    "a chunk's extension of many": (b"5", b";a=b" * 16_000),
    "a quoted extension without end": (b'5;a="', FILL),
    "a chunk's size with zeros without end": (b"", b"0" * 65_536),
    "an endless trailer": (b"1\r\na\r\n0\r\nX: ", FILL),
    "trailers without end": (b"1\r\na\r\n0\r\n", b"X: 1\r\n" * 10_000),
    "a trailer behind a large body": (b"8000\r\n" + b"a" * 32_768 + b"\r\n0\r\nX: ", FILL),
}


@pytest.mark.parametrize("form", TOO_LARGE)
def test_a_head_without_end_is_refused_and_others_are_answered(served: Served, form: str) -> None:
    first, more = TOO_LARGE[form]

    async def attack() -> None:
        before = served.memory
        peer = await served.dial()
        peer.say(served.head("GET", "/") + first)
        sent, received = await peer.pour(more, ENDLESS)
        peer.close()
        await served.answers_others()
        assert status(received) == 431, received[:200]
        assert sent < ENDLESS
        assert served.memory < before + 32 * MIB

    asyncio.run(attack())


def test_an_endless_address_is_refused(served: Served) -> None:
    async def attack() -> None:
        peer = await served.dial()
        peer.say(b"GET /")
        sent, received = await peer.pour(FILL, ENDLESS)
        peer.close()
        await served.answers_others()
        assert (status(received), sent < ENDLESS) == (431, True)

    asyncio.run(attack())


def test_line_ends_before_a_request_are_not_read_for_ever(served: Served) -> None:
    async def attack() -> None:
        peer = await served.dial()
        sent, received = await peer.pour(b"\r\n" * 32_768, ENDLESS)
        peer.close()
        await served.answers_others()
        assert (status(received), sent < ENDLESS) == (431, True)

    asyncio.run(attack())


@pytest.mark.parametrize("form", ENDLESS_FRAMES)
def test_what_frames_a_chunked_body_has_an_end(served: Served, form: str) -> None:
    """Whether an answer came before depends on who listens there; the connection ends either way."""
    first, more = ENDLESS_FRAMES[form]

    async def attack() -> None:
        before = served.memory
        peer = await served.dial()
        peer.say(served.head("POST", "/", Content_Type="application/json") + CHUNKED + first)
        sent, _ = await peer.pour(more, ENDLESS)
        peer.close()
        await served.answers_others()
        assert sent < ENDLESS
        assert served.memory < before + 32 * MIB

    asyncio.run(attack())


@pytest.mark.parametrize(("more", "wanted"), [(0, 200), (1, 431)])
@pytest.mark.parametrize("kept_alive", [False, True])
def test_a_head_of_64_kib_is_served_and_one_of_a_byte_more_is_not(
    served: Served, more: int, wanted: int, kept_alive: bool
) -> None:
    async def ask() -> None:
        peer = await served.dial()
        if kept_alive:
            assert await peer.ask(served.polite) == 200
        prefix = served.polite[:-2] + b"X: "
        head = prefix + b"a" * (65_536 + more - len(prefix) - 4) + b"\r\n\r\n"
        assert len(head) == 65_536 + more
        assert await peer.ask(head) == wanted
        peer.close()

    asyncio.run(ask())


@pytest.mark.parametrize(("count", "wanted"), [(256, 200), (257, 431)])
def test_a_request_has_256_headers_at_most(served: Served, count: int, wanted: int) -> None:
    async def ask() -> None:
        own = served.polite.count(b"\r\n") - 2
        peer = await served.dial()
        assert await peer.ask(served.polite[:-2] + b"X: 1\r\n" * (count - own) + b"\r\n") == wanted
        peer.close()

    asyncio.run(ask())


def test_many_requests_sent_at_once_are_all_answered_and_wait_outside(served: Served) -> None:
    """As many as one read brings must not hold the others up, nor be kept as more than bytes."""
    count = 20_000

    async def ask() -> None:
        before = served.memory
        peer = await served.dial()
        asking = asyncio.ensure_future(peer.pour(served.polite * count, 1))
        await served.answers_others()
        assert served.memory < before + 32 * MIB
        peer.writer.write_eof()
        peer.close()
        await asking

    asyncio.run(ask())


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    async def ask() -> None:
        peer = await served.dial()
        peer.say(served.polite * 3000)
        for _ in range(3000):
            assert await peer.ask(b"") == 200
        peer.close()

    asyncio.run(ask())


def test_unread_answers_are_not_piled_up(served: Served) -> None:
    async def attack() -> None:
        before = served.memory
        peers = [await served.dial() for _ in range(20)]
        for peer in peers:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.say(served.polite * 20_000)
        for _ in range(50):
            await served.answers_others()
        assert served.memory < before + 48 * MIB
        for peer in peers:
            peer.close()

    asyncio.run(attack())


def test_a_large_head_of_many_connections_costs_little(served: Served) -> None:
    async def attack() -> None:
        before = served.memory
        peers = [await served.dial() for _ in range(300)]
        for peer in peers:
            peer.say(served.head("GET", "/") + b"X: " + b"a" * 60_000)
        for peer in peers:
            await peer.writer.drain()
        await served.answers_others()
        assert served.memory < before + 64 * MIB
        for peer in peers:
            peer.close()
        await served.answers_others()

    asyncio.run(attack())


# ---- time ------------------------------------------------------------------------------------------------------------

SHORT = ConnectionBounds(head_seconds=0.4, body_seconds=0.4, body_rate=1 << 20)
LATE_HEADS = {
    "half a request line": b"GET /hea",
    "a request line": b"GET / HTTP/1.1\r\n",
    "half a header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Ha",
    "half a header's value": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: hal",
    "headers without their end": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "headers but for the last byte": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r",
    "half an upgrade": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("behind", ["", "an answer", "a whole request"])
@pytest.mark.parametrize("drips", [False, True])
def test_half_a_head_is_refused_when_its_time_is_up(tmp_path: Path, name: str, behind: str, drips: bool) -> None:
    async def attack(served: Served, form: str, beginning: bytes) -> None:
        peer = await served.dial()
        if behind == "an answer":
            assert await peer.ask(served.polite) == 200
        peer.say(served.polite + beginning if behind == "a whole request" else beginning)
        if behind == "a whole request":
            assert await peer.ask(b"") == 200
        await served.answers_others()
        can_drip = drips and not beginning.endswith((b"\r", b"\n"))
        received = await (peer.drip(b"a", 0.05) if can_drip else peer.until_closed())
        assert status(received) == 408, (form, received)
        assert b"0.4 s" in received
        peer.close()

    async def attacks() -> None:
        async with here(name, tmp_path, SHORT) as served:
            await asyncio.gather(*(attack(served, form, beginning) for form, beginning in LATE_HEADS.items()))

    asyncio.run(attacks())


@pytest.mark.parametrize("name", NAMES)
def test_who_says_nothing_is_not_waited_for(tmp_path: Path, name: str) -> None:
    async def attack() -> None:
        async with here(name, tmp_path, SHORT) as served:
            silent, blank = await served.dial(), await served.dial()
            assert await silent.until_closed() == b""
            assert await blank.drip(b"\r\n", 0.05) == b""
            silent.close()
            blank.close()

    asyncio.run(attack())


@pytest.mark.parametrize("name", NAMES)
def test_who_has_been_answered_may_be_silent_for_longer(tmp_path: Path, name: str) -> None:
    """A kept-alive connection has its own, longer time."""

    async def rest() -> None:
        async with here(name, tmp_path, SHORT) as served:
            busy, silent = await served.dial(), await served.dial()
            assert await busy.ask(served.polite) == 200
            assert await silent.until_closed() == b""
            assert await busy.ask(served.polite) == 200
            busy.close()
            silent.close()

    asyncio.run(rest())


LATE_BODIES = {
    "a length and no body": b"Content-Length: 1000000\r\n\r\n",
    "a length and a byte": b"Content-Length: 900\r\n\r\n{",
    "chunks that never begin": CHUNKED,
    "half a chunk": CHUNKED + b"1f4\r\n{",
    "half a chunk's size": CHUNKED + b"5",
    "chunks without their end": CHUNKED + b"2\r\n{}\r\n",
    "half a trailer": CHUNKED + b"2\r\n{}\r\n0\r\nX: ",
}
ENTRANCES = {"gateway": "/mcp", "node": "/", "proxy": "/v1/chat/sessions"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("drips", [False, True])
def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, name: str, drips: bool) -> None:
    """Also where the client does not read it: an answer that came before does not keep the connection."""

    token = {"Authorization": "Bearer token"} if name == "gateway" else {}

    async def attack(served: Served, path: str, form: str, body: bytes) -> None:
        peer = await served.dial()
        peer.say(served.head("POST", path, Content_Type="application/json", **token) + body)
        await served.answers_others()
        received = await (peer.drip(b"1", 0.05) if drips else peer.until_closed())
        assert received.count(b"HTTP/1.1 ") == 1, received
        assert (status(received) == 408) is (path != "/nothing" or name == "node"), (form, received)
        peer.close()

    async def attacks() -> None:
        async with here(name, tmp_path, SHORT) as served:
            await asyncio.gather(
                *(
                    attack(served, path, form, body)
                    for form, body in LATE_BODIES.items()
                    for path in (ENTRANCES[name], "/nothing")
                )
            )

    asyncio.run(attacks())


@pytest.mark.parametrize("name", NAMES)
def test_a_body_that_comes_slowly_but_steadily_is_taken(tmp_path: Path, name: str) -> None:
    async def send() -> None:
        bounds = ConnectionBounds(body_seconds=0.3, body_rate=64)
        async with here(name, tmp_path, bounds) as served:
            body = b'{"jsonrpc":"2.0","id":1,"method":"ping"' + b" " * 2000 + b"}"
            token = {"Authorization": "Bearer token"} if name == "gateway" else {}
            peer = await served.dial()
            head = served.head(
                "POST", ENTRANCES[name], Content_Type="application/json", Content_Length=str(len(body)), **token
            )
            peer.say(head + b"\r\n")
            for at in range(0, len(body), 256):  # some 0.9 s in all
                peer.say(body[at : at + 256])
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await asyncio.Event().wait()
            assert await peer.ask(b"") == 200
            peer.close()

    asyncio.run(send())


# ---- how many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("partial", [False, True])
def test_one_waiting_connection_too_many_ends_the_oldest(tmp_path: Path, name: str, partial: bool) -> None:
    """A newcomer is never kept out: others of the same address would be kept out with it."""

    async def attack() -> None:
        async with here(name, tmp_path, ConnectionBounds(silent_per_peer=4, heads_per_peer=4)) as served:
            half = len(served.polite) // 2 if partial else 0
            peers = []
            for _ in range(6):
                peers.append(await served.dial())
                peers[-1].say(served.polite[:half])
                await served.answers_others()  # so that it is seen before the next
            for peer in peers[:2]:
                assert status(await peer.until_closed()) == 0
            for peer in peers[3:]:
                assert await peer.ask(served.polite[half:]) == 200
            for peer in peers:
                peer.close()

    asyncio.run(attack())


def _half_body(served: Served, frame: str) -> bytes:
    path = {"gateway": "/v1/models", "node": "/", "proxy": "/v1/chat/sessions"}[served.name]
    return served.head("POST", path, Content_Type="application/json") + frame.encode()


HELD: dict[str, Callable[[Served], bytes]] = {
    "silent": lambda served: b"",
    "with half a head": lambda served: served.polite[:20],
    "with half a body": lambda served: _half_body(served, "Content-Length: 1000000\r\n\r\n{"),
    "with half a chunked body": lambda served: _half_body(served, "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"),
    "with no byte of a body": lambda served: _half_body(served, "Content-Length: 1000000\r\n\r\n"),
    "with a refused body": lambda served: b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{",
    "with a WebSocket": lambda served: (
        served.head("GET", "/v1/chat/sessions/x/bridge" if served.name == "proxy" else "/")
        + b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", HELD)
def test_connections_that_wait_for_their_peers_keep_no_peer_out(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "connection_limit", lambda: 30)

    async def attack() -> None:
        async with here(name, tmp_path, ConnectionBounds()) as served:
            served.name = name
            peers = []
            for _ in range(60):
                peers.append(await served.dial())
                peers[-1].say(HELD[kind](served))
                await asyncio.sleep(0)
            for _ in range(5):
                await served.answers_others()
            for peer in peers:
                peer.close()

    asyncio.run(attack())


@pytest.mark.parametrize("name", NAMES)
def test_one_half_sent_body_too_many_ends_the_oldest(tmp_path: Path, name: str) -> None:
    async def attack() -> None:
        async with here(name, tmp_path, ConnectionBounds(bodies_per_peer=4)) as served:
            served.name = name
            peers = []
            for _ in range(6):
                peers.append(await served.dial())
                peers[-1].say(HELD["with half a body"](served))
                await served.answers_others()
            for peer in peers[:2]:
                await peer.until_closed()
            for peer in peers:
                peer.close()

    asyncio.run(attack())


def _begun_body(served: Served, length: int) -> bytes:
    """The head of a request whose body is read before anything is answered."""
    path = {"gateway": "/tools/invoke", "node": "/", "proxy": "/v1/chat/sessions"}[served.name]
    credential = {"Authorization": "Bearer token"} if served.name == "gateway" else {}
    head = served.head("POST", path, Content_Type="application/json", **credential)
    return head + f"Content-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize("name", NAMES)
def test_bodies_that_have_begun_take_so_many_bytes_in_all(tmp_path: Path, name: str) -> None:
    """A large one gives way; what is small and comes in pieces is answered."""

    async def attack() -> None:
        async with here(name, tmp_path, ConnectionBounds(body_bytes=2 << 20)) as served:
            served.name = name
            small, *large = [await served.dial() for _ in range(4)]
            small.say(_begun_body(served, 4) + b"{")
            await served.answers_others()
            for peer in large:
                peer.say(_begun_body(served, 3_000_000) + b"{" + b" " * 900_000)
            received = {asyncio.create_task(peer.until_closed()) for peer in large}
            done, _ = await asyncio.wait(received, timeout=WAIT, return_when=asyncio.FIRST_COMPLETED)
            assert done
            assert await small.ask(b"}  ") in (200, 400, 401)
            for peer in (small, *large):
                peer.close()
            await asyncio.wait(received)

    asyncio.run(attack())


def test_unread_answers_keep_no_peer_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "connection_limit", lambda: 30)

    async def attack() -> None:
        async with here("gateway", tmp_path, ConnectionBounds(unread_seconds=0.0)) as served:
            peers = [await _deaf(served) for _ in range(30)]
            for _ in range(5):
                await served.answers_others()
            for peer in peers:
                peer.close()

    asyncio.run(attack())


async def _deaf(served: Served) -> socket.socket:
    """Asks for more than it can hold, and does not read."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, ("127.0.0.1", served.port))
    ask = served.head("GET", "/metrics") + b"\r\n"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await loop.sock_sendall(peer, ask * 2000)
    return peer


def test_streams_keep_no_peer_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "connection_limit", lambda: 30)

    async def attack() -> None:
        async with here("proxy", tmp_path, ConnectionBounds()) as served:
            first = await served.dial()
            registered = await first.answer(served.head("POST", "/v1/chat/sessions") + b"Content-Length: 2\r\n\r\n{}")
            id = json.loads(registered)["mcpSessionId"]
            peers = [await served.dial() for _ in range(40)]
            for peer in peers:
                peer.say(served.head("GET", f"/v1/mcp/{id}", Accept="text/event-stream") + b"\r\n")
                await asyncio.sleep(0)
            for _ in range(5):
                await served.answers_others()
            for peer in (first, *peers):
                peer.close()

    asyncio.run(attack())


# ---- turns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [True, False], ids=["read", "behind a refusal"])
def test_a_read_full_of_tiny_chunks_lets_others_go_first(served: Served, token: bool) -> None:
    """One after another as the server parses them they take many times as long as a request."""

    async def attack() -> None:
        head = served.head("POST", "/v1/chat/sessions" if token else "/mcp", Content_Type="application/json")
        flood = b"1\r\n \r\n" * 40_000
        peers = [await served.dial() for _ in range(5)]
        for peer in peers:
            peer.say(head + CHUNKED)
        pours = [asyncio.ensure_future(peer.pour(flood, 4 << 20)) for peer in peers]
        waits = []
        for _ in range(10):
            start = time.perf_counter()
            await served.answers_others()
            waits.append(time.perf_counter() - start)
        for peer in peers:
            peer.close()
        for pour in pours:
            pour.cancel()
        await asyncio.wait(pours)
        assert sorted(waits)[5] < 0.25, waits

    asyncio.run(attack())


def test_the_connection_ends_where_an_answer_did_not_wait_for_chunks(served: Served) -> None:
    async def attack() -> None:
        peer = await served.dial()
        peer.say(b"POST /nothing HTTP/1.1\r\nHost: evil.example\r\n" + CHUNKED + b"1\r\na\r\n")
        assert status(await peer.until_closed()) in (401, 403, 404)
        peer.close()

    asyncio.run(attack())


def test_a_body_nobody_wants_is_dropped_and_the_connection_goes_on(served: Served) -> None:
    """More of it than is dropped as it comes: what is beyond waits for its turn, and is read to its end."""

    async def attack() -> None:
        peer = await served.dial()
        refused = await peer.ask(b"POST /nothing HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2097152\r\n\r\n")
        assert refused in (401, 403, 404)
        assert await peer.ask(b"a" * 2_097_152 + served.polite) == 200
        peer.close()

    asyncio.run(attack())


def test_unwanted_bodies_are_dropped_one_after_another() -> None:
    """One of them in each pause, however many there are, even if one fails; one that was added twice has one turn."""

    class Connection:
        has_held_input = False

        def __init__(self, name: str) -> None:
            self.name = name
            self.loop = asyncio.get_running_loop()
            self.done = asyncio.Event()

    async def drop() -> list[str]:
        closed: list[str] = []

        def go_on(connection: Connection) -> None:
            closed.append(connection.name)
            connection.done.set()
            if connection.name == "b":
                raise ValueError(connection.name)

        turns = TurnQueue(go_on, pause=0.001)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        connections = [Connection(name) for name in "abcd"]
        for connection in (*connections, *connections):
            turns.add(connection)
        turns.discard(connections[2])
        await asyncio.sleep(0)
        assert closed == []
        for connection in (connections[0], connections[1], connections[3]):
            await connection.done.wait()
            assert closed[-1] == connection.name
        return closed

    assert asyncio.run(drop()) == ["a", "b", "d"]


# ---- many requests on one connection ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _toy(bounds: ConnectionBounds | None = None) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """An app behind our server: `/…slow` waits for the event, `/read…` reads its body. Each answers with its path."""
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path.startswith("/read"):
            while (await receive()).get("more_body"):
                pass
        if "slow" in path:
            await go.wait()
        received = path.encode()
        headers = [(b"content-length", str(len(received)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": received})

    listening = listen.bind("127.0.0.1", 0)
    serving = asyncio.ensure_future(listen.serve(app, listening, bounds=bounds or ConnectionBounds()))
    try:
        yield listening.getsockname()[1], go
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


def _asks(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", "")).encode()


UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: " + "A" * 22 + "==",
)
LONG = 700 << 10
MIXED: dict[str, tuple[bytes, list[str]]] = {
    "two bodies": (
        2 * (_asks("POST", "/readslow1", "Content-Length: 2000") + b"a" * 2000),
        ["/readslow1", "/readslow1"],
    ),
    "a body that is long": (
        2 * (_asks("POST", "/readslow1", "Content-Length: 200000") + b"a" * 200_000) + _asks("GET", "/fast2"),
        ["/readslow1", "/readslow1", "/fast2"],
    ),
    "chunks": (
        _asks("POST", "/readslow1", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n"
        + _asks("GET", "/fast2")
        + _asks("POST", "/readfast3", "Transfer-Encoding: chunked")
        + 3 * (b"1000\r\n" + b"x" * 4096 + b"\r\n") + b"0\r\n\r\n",
        ["/readslow1", "/fast2", "/readfast3"],
    ),
    "behind a body nobody wants": (
        _asks("POST", "/early1", f"Content-Length: {LONG}") + b"x" * LONG
        + _asks("GET", "/slow2") + _asks("GET", "/fast3"),
        ["/early1", "/slow2", "/fast3"],
    ),
    "an upgrade": (
        _asks("POST", "/readslow1", "Content-Length: 3") + b"abc" + _asks("GET", "/fast2", *UPGRADE),
        ["/readslow1", "/fast2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", MIXED)
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_every_request_of_a_connection_is_answered_in_its_order(form: str, pieces: int) -> None:
    received, wanted = MIXED[form]

    async def ask() -> list[str]:
        async with _toy() as (port, go):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answers: list[str] = []
            size = -(-len(received) // pieces)
            for at in range(0, len(received), size):
                writer.write(received[at : at + size])
                await asyncio.sleep(0.01)
            async with asyncio.timeout(WAIT):
                while len(answers) < len(wanted):
                    if len(answers) == next(at for at, path in enumerate(wanted) if "slow" in path):
                        go.set()
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"content-length: ([0-9]+)", head)
                    assert length is not None
                    answers.append((await reader.readexactly(int(length[1]))).decode())
            writer.transport.abort()
            return answers

    assert asyncio.run(ask()) == wanted


BEHIND: dict[str, bytes] = {
    "no request": b"\x00\x01 nonsense\r\n\r\n",
    "a tunnel": _asks("CONNECT", "127.0.0.1:1"),
    "too many headers": _asks("GET", "/fast2", *(f"X{n}: y" for n in range(300))),
    "an endless header": _asks("GET", "/fast2", "X: " + "a" * 100_000),
    "a request, and half of one": _asks("GET", "/fast2") + b"GET /fast3 HTTP/1.1\r\nHost: 127",
}


@pytest.mark.parametrize("form", BEHIND)
def test_what_is_wrong_behind_a_request_does_not_take_its_answer(form: str) -> None:
    async def ask() -> bytes:
        async with _toy(ConnectionBounds(head_seconds=0.1)) as (port, go):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_asks("GET", "/slow1") + BEHIND[form])
            await asyncio.sleep(0.5)  # longer than the head may take
            go.set()
            async with asyncio.timeout(WAIT):
                received = await reader.readuntil(b"/slow1")
            writer.transport.abort()
            return received

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_head_may_be_cut_anywhere_before_a_long_body(cut: int) -> None:
    async def ask() -> bytes:
        async with _toy() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = _asks("POST", "/readfast", f"Content-Length: {LONG}")
            writer.write(head[:-cut])
            await asyncio.sleep(0.05)
            writer.write(head[-cut:] + b"y" * LONG)
            async with asyncio.timeout(WAIT):
                received = await reader.readuntil(b"/readfast")
            writer.transport.abort()
            return received

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 200 ")


# ---- whose bytes give way --------------------------------------------------------------------------------------------


class _Begun:
    """A connection that has begun to say something."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.ended = False

    def evict(self) -> None:
        self.ended = True


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ([("a", 50), ("b", 30), ("b", 30)], 1),  # the peer with most
        ([("a", 60), ("b", 30), ("b", 20)], 0),
        ([("a", 1), ("a", 30), ("a", 80)], 1),  # nothing small
        ([("a", 16), ("a", 40), ("a", 47)], 1),
        ([("a", 18), ("a", 40), ("a", 47)], 0),  # of those as large as others, the first
        ([("a", 40), ("a", 40), ("a", 40)], 0),
        ([("a", 40), ("a", 40), ("b", 21)], 0),
    ],
)  # fmt: skip
def test_who_holds_most_gives_way_first(sizes: list[tuple[str, int]], ends: int) -> None:
    pending = PendingBytes(max_bytes=100)
    connections = [_Begun(peer) for peer, _ in sizes]
    for connection, (_, size) in zip(connections, sizes, strict=True):
        pending.set(connection, size)

    assert [connection.ended for connection in connections] == [at == ends for at in range(len(sizes))]


def test_an_honest_upload_is_done_among_many_that_hold_what_they_sent() -> None:
    pending = PendingBytes(max_bytes=128 << 20)
    holding = [_Begun("here") for _ in range(600)]
    honest = _Begun("here")
    for number, connection in enumerate(holding):
        pending.set(connection, 300_000)
        if number > 300:
            pending.set(honest, (number - 300) * 10_000)

    assert not honest.ended


@pytest.mark.parametrize("name", NAMES)
def test_bodies_that_are_dropped_do_not_count(tmp_path: Path, name: str) -> None:
    async def attack() -> None:
        async with here(name, tmp_path, ConnectionBounds(body_bytes=1 << 20)) as served:
            served.name = name
            honest = await served.dial()
            honest.say(_begun_body(served, 500_004) + b"{" + b" " * 500_000)
            await served.answers_others()
            unwanted = []
            for _ in range(8):
                peer = await served.dial()
                head = b"POST /nothing HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 16000000\r\n\r\n"
                assert await peer.ask(head) in (401, 403, 404)
                peer.say(b"x" * 200_000)
                await peer.writer.drain()
                unwanted.append(peer)
            await served.answers_others()
            assert await honest.ask(b"}  ") in (200, 400, 401)
            for peer in (honest, *unwanted):
                peer.close()

    asyncio.run(attack())
