"""A machine between an attacker's name server and the internet, both of them played here."""

import asyncio
import contextlib
import hashlib
import socket
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

PUBLIC = "93.184.216.34"
LOOPBACK = ("127.0.0.1", "::1")

NAMES: dict[str, list[list[str]]] = {
    "localhost": [["127.0.0.1"]],
    "x.localhost": [["127.0.0.1"]],
    "laptop": [["127.0.0.1"]],
    socket.gethostname().lower(): [["127.0.0.1"]],
    "ip6-localhost": [["::1"]],
    "rebound.example": [[PUBLIC], ["127.0.0.1"]],  # once public, then ours
    "both.example": [["127.0.0.1", PUBLIC]],
    "neighbour.example": [["10.0.0.7"]],
    "metadata.example": [["169.254.169.254"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "public.example": [[PUBLIC]],
}
"""A name server's answers, one after the other; the last one stays."""

WORKER = """onmessage = ({data, ports: [talk]}) =>
    fetch(data, {mode: 'no-cors'}).finally(() => talk.postMessage(1))"""
PAGES = {
    "/image": ("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>"),
    "/script": ("text/javascript", ""),
    "/worker.js": ("text/javascript", WORKER),
    "/events": ("text/event-stream", "data: x\n\n"),
}


class Machine(asyncio.SelectorEventLoop):
    """A loop on a machine whose name server is the attacker's. Public addresses are played by `public` of this one."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """As if it had not been used yet."""
        self.names = {name: list(answers) for name, answers in NAMES.items()}
        self.slow: set[str] = set()
        """Names that are never answered for."""
        self.public = 0
        self.connected: list[str] = []

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if host in self.slow:
            await asyncio.Event().wait()
        answers = self.names.get(host)
        if answers is None:  # addresses, and names that no host has
            return await super().getaddrinfo(host, port, **options, flags=socket.AI_NUMERICHOST)
        found = answers[0] if len(answers) == 1 else answers.pop(0)
        return [(0, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if host is not None:
            self.connected.append(host)
            if host == PUBLIC:
                host, port = "127.0.0.1", self.public
            elif host not in LOOPBACK:
                raise ConnectionRefusedError
        return await super().create_connection(factory, host, port, **options)


ServeConnection = Callable[[StreamReader, StreamWriter], Coroutine[Any, Any, None]]


class Site:
    """A web site that remembers each connection, by the beginning of what came over it."""

    def __init__(self, serve: ServeConnection | None = None) -> None:
        """`serve` answers a connection instead."""
        self.received: list[str] = []
        self._serve_connection = serve or self._serve
        self._writers: list[StreamWriter] = []
        self._is_closed = False

    def accept(self, reader: StreamReader, writer: StreamWriter) -> Coroutine[Any, Any, None] | None:
        if self._is_closed:  # a browser opens connections beforehand: this one came as the server closed
            writer.transport.abort()
            return None
        self._writers.append(writer)
        return self._serve_connection(reader, writer)

    def close(self) -> None:
        """End its connections: a task that is cancelled before it begins closes nothing."""
        self._is_closed = True
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.closing(writer):
            place = len(self.received)
            self.received.append("")
            if (first := await reader.read(1)) in (b"\x16", b""):  # TLS, or no client
                self.received[place] = repr(first)
                return
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
            self.received[place] = head
            writer.write(self._answer(head).encode())

    def _answer(self, head: str) -> str:
        path = head.split(" ")[1]
        if "\r\nUpgrade: websocket" in head:
            key = head.partition("Sec-WebSocket-Key: ")[2].partition("\r\n")[0]
            proof = b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
            return (
                "HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {proof}\r\n\r\n"
            )
        if path.startswith("/redirect?"):
            return f"HTTP/1.1 302 There\r\nLocation: {path.removeprefix('/redirect?')}\r\nContent-Length: 0\r\n\r\n"
        kind, body = PAGES.get(path, ("text/html", "<body>hello"))
        return (
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nAccess-Control-Allow-Origin: *\r\n"
            f"Cache-Control: no-store\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )


@contextlib.asynccontextmanager
async def serving(site: Site) -> AsyncIterator[int]:
    """On both addresses of the loopback, with the same port."""
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(await asyncio.start_server(site.accept, "127.0.0.1", 0))
        port = first.sockets[0].getsockname()[1]
        await stack.enter_async_context(await asyncio.start_server(site.accept, "::1", port))
        stack.callback(site.close)
        yield port


def run(scene: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=Machine) as runner:
        runner.run(scene)


def machine() -> Machine:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Machine)
    return loop
