"""A request for another protocol is one request: what comes with it is never read as the next one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from .servers import NAMES, Served, program, status

INNER = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATHS = {"gateway": "/mcp", "node": "/", "proxy": "/v1/chat/sessions"}
WISHES = {
    "another protocol": "Connection: upgrade\r\nUpgrade: foo\r\n",
    "HTTP/2": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "one of two": "Connection: keep-alive, Upgrade\r\nUpgrade: websocket, foo\r\n",
    "a protocol twice": "Connection: upgrade\r\nUpgrade: foo\r\nUpgrade: bar\r\n",
    "nothing": "Connection: upgrade\r\nUpgrade: \r\n",
    "a WebSocket": "Connection: upgrade\r\nUpgrade: websocket\r\n",
    "a WebSocket in capitals": "CONNECTION: UPGRADE\r\nUPGRADE: WebSocket\r\n",
    "a WebSocket for good": "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
}
FRAMES = {
    "a length": (b"Content-Length: %d\r\n\r\n" % len(INNER), INNER),
    "chunks": (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)),
    "line ends first": (b"Content-Length: %d\r\n\r\n" % (6000 + len(INNER)), b"\r\n" * 3000 + INNER),
}


@pytest.fixture(scope="module", params=NAMES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Served]]:
    with program(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield request.param, running


async def answers(served: Served, *pieces: bytes) -> list[int]:
    """The statuses of all that comes back before the server falls silent."""
    peer = await served.dial()
    received = b""
    try:
        for piece in pieces:
            peer.say(piece)
            try:
                async with asyncio.timeout(0.15):
                    while data := await peer.reader.read(65_536):
                        received += data
            except (TimeoutError, ConnectionError):
                continue
        return [status(b"HTTP/1.1 " + part) for part in received.split(b"HTTP/1.1 ")[1:]]
    finally:
        peer.close()


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("frame", FRAMES)
def test_its_body_is_never_another_request(served: tuple[str, Served], method: str, frame: str) -> None:
    name, server = served

    async def main() -> None:
        head, body = FRAMES[frame]
        tried = []
        for headers in WISHES.values():
            start = server.head(method, PATHS[name], Content_Type="application/json") + headers.encode() + head
            tried += [(start, body), (start + body,), (start + body[:20], body[20:])]
        found = await asyncio.gather(*(answers(server, *pieces) for pieces in tried))
        assert [pieces for pieces, each in zip(tried, found, strict=True) if len(each) != 1] == []

    asyncio.run(main())


def test_a_tunnel_is_refused_and_nothing_behind_it_is_read(served: tuple[str, Served]) -> None:
    async def main() -> None:
        head = b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for pieces in ((head, INNER), (head + INNER,)):
            assert await answers(served[1], *pieces) == [400]

    asyncio.run(main())


@pytest.mark.parametrize("wish", ["another protocol", "HTTP/2", "one of two"])
@pytest.mark.parametrize("at_once", [True, False])
def test_its_body_is_read_and_the_connection_kept(tmp_path: Path, wish: str, at_once: bool) -> None:
    body = b'{"device_id": "d"}'

    async def main(server: Served) -> None:
        head = server.head("POST", "/v1/chat/sessions", Content_Type="application/json", Content_Length=str(len(body)))
        head += WISHES[wish].encode() + b"\r\n"
        pieces = (head + body, INNER) if at_once else (head, body, INNER)
        assert await answers(server, *pieces) == [200, 200]
        assert await answers(server, head + body + INNER) == [200, 200]

    with program("proxy", tmp_path) as server:
        asyncio.run(main(server))
