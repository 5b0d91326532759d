"""The canvas's proxy by itself: for whom it works, what it takes for a request, and what it bounds."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_mcp.node.canvas import forward_proxy
from openclaw_mcp.node.canvas.forward_proxy import ForwardProxy
from openclaw_mcp.node.canvas.urls import WebOrigin, parse_origins
from tests.node.calling import call
from tests.node.canvas.networks import Site, machine, run, serving
from tests.node.canvas.test_canvas import canvas

WAIT = 10.0


class Client:
    """A program of this machine that found the proxy's port, and may know its secret."""

    def __init__(self, proxy: ForwardProxy) -> None:
        self.address = next(one for one in proxy.options() if one.startswith("--proxy-server=")).partition("=")[2]
        reported = proxy.credentials("Proxy", self.address)
        pair = b64encode(f"{reported['username']}:{reported['password']}".encode()).decode()
        self.secret = f"Proxy-Authorization: Basic {pair}\r\n"

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.address.rpartition(":")[2]))
        try:
            async with asyncio.timeout(WAIT):
                yield reader, writer
        finally:
            writer.close()

    async def answer(self, text: str) -> str:
        """All that is sent until the proxy closes."""
        async with self.connected() as (reader, writer):
            writer.write(text.encode("latin-1"))
            with contextlib.suppress(ConnectionResetError):  # it hung up with something unread
                return (await reader.read()).decode("latin-1")
        return ""


@contextlib.asynccontextmanager
async def proxying(trusted: frozenset[WebOrigin] = frozenset()) -> AsyncIterator[Client]:
    proxy = ForwardProxy(lambda: trusted)
    await proxy.start()
    try:
        yield Client(proxy)
    finally:
        await proxy.aclose()


@pytest.mark.parametrize("first", ["GET http://public.example/", "CONNECT public.example:80"])
@pytest.mark.parametrize(
    "header",
    [
        "",
        "Proxy-Authorization: Basic Y2FudmFzOg==\r\n",
        "Proxy-Authorization: Bearer x\r\n",
        "Authorization: {}\r\n",
        "Proxy-Authorization: {}x\r\n",
        "Proxy-Authorization: {}\r\nProxy-Authorization: {}\r\n",
    ],
)
def test_it_does_nothing_for_a_client_without_its_secret(first: str, header: str) -> None:
    async def scenario() -> None:
        site = Site()
        async with serving(site) as machine().public, proxying() as client:
            right = client.secret.partition(": ")[2].strip()
            answer = await client.answer(f"{first} HTTP/1.1\r\n{header.replace('{}', right)}\r\n")
            assert answer.startswith("HTTP/1.1 407 ")
            assert not site.received
            assert "200 OK" in await client.answer(f"GET http://public.example/ HTTP/1.1\r\n{client.secret}\r\n")

    run(scenario())


@pytest.mark.parametrize(
    "challenge",
    [
        {"source": "Server", "origin": "ADDRESS"},
        {"source": "Proxy", "origin": "http://proxy.canvas.invalid:1"},
        {"source": "Proxy", "origin": "https://public.example"},
        {},
    ],
)
def test_no_other_challenge_gets_its_secret(challenge: dict[str, str]) -> None:
    async def scenario() -> None:
        proxy = ForwardProxy(frozenset)
        await proxy.start()
        address = Client(proxy).address
        addresses = {name: value.replace("ADDRESS", address) for name, value in challenge.items()}
        assert proxy.credentials(addresses.get("source"), addresses.get("origin")) == {"response": "Default"}
        await proxy.aclose()

    run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: public.example\r\n",  # what a page of another browser can send
        "OPTIONS * HTTP/1.1\r\n",
        "GET https://public.example/ HTTP/1.1\r\n",
        "GET ftp://public.example/ HTTP/1.1\r\n",
        "GET http:///x HTTP/1.1\r\n",
        "GET http://me@public.example/ HTTP/1.1\r\n",
        "GET http://public.example:99999/ HTTP/1.1\r\n",
        "GET http://public.example\\@localhost/ HTTP/1.1\r\n",
        "GET http://public.example?/ HTTP/1.1\r\n",
        "GET http://public\0.example/ HTTP/1.1\r\n",
        "GET  http://public.example/ HTTP/1.1\r\n",
        "get http://public.example/ HTTP/1.1\r\n",
        "GET http://public.example/ HTTP/2\r\n",
        "GET public.example:80 HTTP/1.1\r\n",
        "CONNECT public.example HTTP/1.1\r\n",
        "CONNECT public.example:80/ HTTP/1.1\r\n",
        "CONNECT http://public.example:80 HTTP/1.1\r\n",
        "CONNECT :80 HTTP/1.1\r\n",
        "GET http://public.example/ HTTP/1.1\r\nX : y\r\n",
        "GET http://public.example/ HTTP/1.1\r\nX: y\r\n folded\r\n",
        "GET http://public.example/ HTTP/1.1\r\nX: y\nZ: z\r\n",
        "POST http://public.example/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
        "POST http://public.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        "POST http://public.example/ HTTP/1.1\r\nContent-Length: +1\r\n",
    ],
)
def test_what_is_no_clear_request_to_a_proxy_is_not_answered(head: str) -> None:
    async def scenario() -> None:
        site = Site()
        async with serving(site) as machine().public, proxying() as client:
            assert await client.answer(f"{head}{client.secret}\r\n") == ""
            assert not machine().connected[1:] and not site.received

    run(scenario())


@pytest.mark.parametrize(
    ("trusted", "first", "reached"),
    [
        ("http://localhost:PORT", "GET http://localhost:PORT/", True),
        ("http://LOCALHOST:PORT/", "GET http://localhost:PORT/", True),
        ("http://[::1]:PORT", "GET http://[::1]:PORT/", True),
        ("http://localhost:PORT", "CONNECT localhost:PORT", True),  # a WebSocket
        ("https://localhost:PORT", "CONNECT localhost:PORT", True),
        ("https://localhost:PORT", "GET http://localhost:PORT/", False),
        ("http://localhost", "GET http://localhost:PORT/", False),
        ("http://localhost:1", "CONNECT localhost:PORT", False),
        ("http://localhost:PORT", "GET http://127.0.0.1:PORT/", False),
        ("http://localhost:PORT", "GET http://x.localhost:PORT/", False),
        ("http://localhost:PORT", "GET http://laptop:PORT/", False),
        ("http://public.example:PORT", "GET http://localhost:PORT/", False),
        ("localhost:PORT", "GET http://localhost:PORT/", False),
        ("*", "GET http://localhost:PORT/", False),
    ],
)
def test_an_origin_is_trusted_with_its_scheme_host_and_port(trusted: str, first: str, reached: bool) -> None:
    async def scenario() -> None:
        site = Site()
        async with serving(site) as port, proxying(parse_origins([trusted.replace("PORT", str(port))])) as client:
            request = f"{first.replace('PORT', str(port))} HTTP/1.1\r\n{client.secret}\r\n"
            tunnelled = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" if "CONNECT" in first else ""
            answer = await client.answer(request + tunnelled)
        assert ("hello" in answer) is reached
        assert bool(site.received) is reached

    run(scenario())


def test_a_host_gets_one_request_a_connection_and_nothing_meant_for_the_proxy() -> None:
    async def scenario() -> None:
        received = asyncio.get_running_loop().create_future()

        async def listen(reader: StreamReader, writer: StreamWriter) -> None:
            received.set_result((await reader.read()).decode())
            writer.close()

        async with serving(Site(listen)) as machine().public, proxying() as client:
            first = "POST http://public.example:8080/a?b HTTP/1.1\r\nHost: laptop\r\nX: y\r\n"
            hop = "Proxy-Connection: keep-alive\r\nConnection: keep-alive\r\nUpgrade: h2c\r\nContent-Length: 3\r\n"
            second = f"GET http://laptop/secret HTTP/1.1\r\n{client.secret}\r\n"
            await client.answer(f"{first}{hop}{client.secret}\r\nabc{second}")
            assert (await asyncio.wait_for(received, WAIT)).split("\r\n") == [
                "POST /a?b HTTP/1.1", "Host: public.example:8080", "X: y", "Content-Length: 3", "Connection: close",
                "", "abc",
            ]  # fmt: skip

    run(scenario())


def test_a_name_is_reached_at_the_next_of_its_addresses_when_one_does_not_answer() -> None:
    async def scenario() -> None:
        machine().names["many.example"] = [["1.1.1.1", "93.184.216.34"]]
        site = Site()
        async with serving(site) as machine().public, proxying() as client:
            assert "hello" in await client.answer(f"GET http://many.example/ HTTP/1.1\r\n{client.secret}\r\n")
        assert machine().connected[1:] == ["1.1.1.1", "93.184.216.34"]

    run(scenario())


@pytest.mark.parametrize(
    ("bound", "sent", "answered"),
    [
        ("HEAD_WAIT", "GET http://public.example/ HTTP/1.1\r\nX: ", ""),
        ("HEAD_WAIT", "", ""),
        ("IDLE_WAIT", "CONNECT public.example:80 HTTP/1.1\r\nSECRET\r\n", "HTTP/1.1 200 "),
        ("CONNECT_WAIT", "CONNECT slow.example:80 HTTP/1.1\r\nSECRET\r\n", "HTTP/1.1 403 "),
        ("CONNECT_WAIT", "GET http://slow.example/ HTTP/1.1\r\nSECRET\r\n", ""),
    ],
)
def test_who_takes_too_long_is_hung_up_on(
    bound: str, sent: str, answered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_proxy, bound, 0.05)

    async def scenario() -> None:
        machine().slow.add("slow.example")
        async with serving(Site()) as machine().public, proxying() as client:
            answer = await client.answer(sent.replace("SECRET\r\n", f"{client.secret}\r\n"))
            assert answer.startswith(answered) and bool(answer) is bool(answered)

    run(scenario())


def test_headers_and_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_proxy, "MAX_CONNECTIONS", 2)

    async def scenario() -> None:
        async with serving(Site()) as machine().public, proxying() as client:
            request = f"GET http://public.example/ HTTP/1.1\r\n{client.secret}"
            assert await client.answer(f"{request}X: {'x' * forward_proxy.MAX_HEAD}\r\n\r\n") == ""
            assert await client.answer(f"{request}X:{' ' * 60_000}\0\r\n\r\n") == ""  # read in one pass
            tunnel = f"CONNECT public.example:80 HTTP/1.1\r\n{client.secret}\r\n"
            async with client.connected() as (one, to_one), client.connected() as (two, to_two):
                for reader, writer in ((one, to_one), (two, to_two)):
                    writer.write(tunnel.encode())
                    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                assert await client.answer(f"{request}\r\n") == ""
                to_two.close()
                while not await client.answer(f"{request}\r\n"):
                    assert not one.at_eof()

    run(scenario())


def test_it_ends_with_its_browser(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with canvas(tmp_path) as capability:
            await call(capability, "canvas.present", html="x")
            browser = capability._page._browser
            assert browser is not None
            proxy = browser.proxy
            client = Client(proxy)
            async with client.connected() as (reader, _):
                os.kill(capability.browser_pid or 0, signal.SIGKILL)
                assert await reader.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await client.answer("")
            await call(capability, "canvas.eval", script="1")
            second = Client(capability._page._browser.proxy if capability._page._browser else proxy)
            assert second.secret != client.secret
            await call(capability, "canvas.hide")
            with pytest.raises(ConnectionRefusedError):
                await second.answer("")
            assert len(asyncio.all_tasks()) == 1

    run(scenario())


def test_a_node_that_shows_no_page_does_not_load_it() -> None:
    look = "import openclaw_mcp.node.host, sys; print('openclaw_mcp.node.canvas.forward_proxy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)

    assert found.stdout.strip() == "False"
