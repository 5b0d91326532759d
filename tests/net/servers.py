"""The three servers that listen, as programs and in this process, and a peer that says exactly what a test says."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.net import listen
from openclaw_mcp.net.http_limits import ConnectionBounds
from openclaw_mcp.node.host import LocalNode, PortChoice, serve_mcp_http

from ..gateway.wiring.test_gateway import serving as gateway_program
from ..node.running import running_node
from ..proxy.proxies import proxy as proxy_here
from ..running import OPENCLAW, READY_WAIT, process, read_line

WAIT = 30.0
NAMES = ("gateway", "node", "proxy")


class Served:
    """A server on a port, and the path that answers a well-formed request."""

    def __init__(self, port: int, *, pid: int = 0, token: str = "") -> None:
        self.port = port
        self.name = ""
        self.pid = pid
        self.token = token

    @property
    def polite(self) -> bytes:
        """A request that is answered with 200."""
        return self.head("GET", "/health" if not self.token else "/") + b"\r\n"

    def head(self, method: str, path: str, **headers: str) -> bytes:
        all_headers = {"Host": f"127.0.0.1:{self.port}", **headers}
        if self.token:
            all_headers["Authorization"] = f"Bearer {self.token}"
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name.replace('_', '-')}: {value}" for name, value in all_headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n").encode()

    @property
    def memory(self) -> int:
        """Resident bytes of the program."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def dial(self) -> "Peer":
        return Peer(*await asyncio.open_connection("127.0.0.1", self.port))

    async def answers_others(self) -> None:
        """A proper request of another client is answered."""
        other = await self.dial()
        try:
            assert await other.ask(self.polite) == 200
        finally:
            other.close()


class Peer:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes) -> int:
        """The status of the next answer; its body is read too, if it says how long it is."""
        self.say(data)
        async with asyncio.timeout(WAIT):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            for line in head.split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await self.reader.readexactly(int(line.partition(b":")[2]))
        return int(head.split(b" ", 2)[1])

    async def answer(self, data: bytes) -> bytes:
        """The body of the next answer."""
        self.say(data)
        async with asyncio.timeout(WAIT):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            return await self.reader.readexactly(int(length.partition(b":")[2]))

    async def until_closed(self) -> bytes:
        """All that the server still says, to the end of the connection."""
        received = b""
        async with asyncio.timeout(WAIT):
            with contextlib.suppress(ConnectionError):
                while data := await self.reader.read(1 << 16):
                    received += data
        return received

    async def pour(self, piece: bytes, most: int) -> tuple[int, bytes]:
        """Send `piece` again and again until the server hangs up: how much was sent, and what the server sent."""
        sent = 0

        async def send() -> None:
            nonlocal sent
            with contextlib.suppress(ConnectionError):
                while sent < most:
                    self.writer.write(piece)
                    sent += len(piece)
                    await self.writer.drain()

        sending = asyncio.ensure_future(send())
        try:
            return sent, await self.until_closed()
        finally:
            sending.cancel()
            await asyncio.wait((sending,))

    async def drip(self, byte: bytes, every: float) -> bytes:
        """Send a byte now and then until the server hangs up: what it sent."""
        received = b""
        async with asyncio.timeout(WAIT):
            while True:
                try:
                    async with asyncio.timeout(every):
                        data = await self.reader.read(1 << 16)
                except TimeoutError:
                    self.writer.write(byte)
                    continue
                except ConnectionError:
                    return received
                if not data:
                    return received
                received += data

    def close(self) -> None:
        self.writer.transport.abort()


def status(received: bytes) -> int:
    """Of an answer; 0 when there is none."""
    return int(received.split(b" ", 2)[1]) if received.startswith(b"HTTP/1.1 ") else 0


@contextlib.contextmanager
def program(name: str, folder: Path) -> Iterator[Served]:
    """One of the three as users start it."""
    if name == "gateway":
        with gateway_program(folder) as gateway:
            yield Served(int(gateway.port), pid=gateway.child.pid)
    elif name == "node":
        with running_node(folder) as node:
            port = int(node.address.rstrip("/").rpartition(":")[2])
            yield Served(port, pid=node.child.pid, token=node.token)
    else:
        with process(OPENCLAW, "proxy", "--port", "0", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            address = read_line(child, READY_WAIT).decode().split()[-1]
            yield Served(int(address.rpartition(":")[2]), pid=child.pid)


@contextlib.asynccontextmanager
async def here(name: str, folder: Path, bounds: ConnectionBounds) -> AsyncIterator[Served]:
    """One of the three in this process, with bounds that a test can wait for."""
    servers: dict[str, Callable[[Path, ConnectionBounds], contextlib.AbstractAsyncContextManager[Served]]] = {
        "gateway": _gateway, "node": _node, "proxy": _proxy,
    }  # fmt: skip
    async with servers[name](folder, bounds) as served:
        yield served


@contextlib.asynccontextmanager
async def _gateway(folder: Path, bounds: ConnectionBounds) -> AsyncIterator[Served]:
    listener, ready = listen.bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(GatewayServer(folder, "token").serve(listener, ready=ready.set, bounds=bounds))
    try:
        async with asyncio.timeout(WAIT):
            await ready.wait()
        yield Served(listener.getsockname()[1])
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


@contextlib.asynccontextmanager
async def _node(folder: Path, bounds: ConnectionBounds) -> AsyncIterator[Served]:
    async with serve_mcp_http(LocalNode(folder), PortChoice(0), bounds=bounds) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        yield Served(port, token=(folder / "mcp-token.txt").read_text())


@contextlib.asynccontextmanager
async def _proxy(_: Path, bounds: ConnectionBounds) -> AsyncIterator[Served]:
    async with proxy_here(bounds=bounds) as running:
        yield Served(int(running.address.rpartition(":")[2]))
