"""Put an ASGI app on a port: bound before anything else starts, ready means answering."""

import asyncio
import errno
import gc
import logging
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if sys.platform == "win32":
    new_event_loop = asyncio.new_event_loop
else:
    from uvloop import new_event_loop

from ..core.errors import OpenClawError

BACKLOG: Final = 2048
GRACE: Final = 5  # seconds open requests get after a stop was asked for
KEEP_ALIVE: Final = 75  # seconds an idle connection is kept: longer than most clients' pools

LARGEST_MESSAGE: Final = 16 << 20  # bytes of one WebSocket message
MOST_FILES: Final = 65_536  # open files we ask for: a connection each
ENOUGH: Final = 64 << 10  # bytes gathered before they are written at once: flow control must see them
LOOK_FOR_CYCLES: Final = (20_000, 20, 20)  # new objects between two looks, and looks between two deeper ones
DEAD_PEER: Final = 60_000  # milliseconds what we sent may stay unacknowledged before the connection is given up

logger = logging.getLogger(__name__)


class PortTaken(OpenClawError):
    code = "port_taken"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises PortTaken, or OSError for an address not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: the loop turns off Nagle's delay only on sockets that say they are TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Inherited by what we accept: a peer that stopped reading can't hold its connection open for ever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} on {host} is taken; stop what holds it or choose another with --port"
            ) from exc
        raise
    listener.setblocking(False)
    return listener


async def serve(
    app: Any,
    listener: socket.socket,
    *,
    ready: Callable[[], None] | None = None,
    largest_message: int = LARGEST_MESSAGE,
) -> None:
    """Serve until SIGINT, SIGTERM or cancellation. `ready` is called once connections are answered."""
    config = uvicorn.Config(
        app,
        http=_Http,
        ws=_WebSocket,
        lifespan="off",
        proxy_headers=False,  # who connects is who connects: a header must not make a stranger look local
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        ws_ping_interval=None,
        ws_max_size=largest_message,
        ws_per_message_deflate=False,  # costs each connection a window of memory, and each message more than it saves
    )
    server = _Server(config, ready)
    try:
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        if server.started:
            await server.shutdown([listener])
        raise
    finally:
        listener.close()


def run(life: Coroutine[Any, Any, None]) -> None:
    """Run a server's whole life: on the fastest loop this platform has, with as many connections as it allows."""
    _allow_connections()
    # What was loaded stays, and a request leaves hardly a cycle behind: looking for garbage less often is felt.
    gc.freeze()
    gc.set_threshold(*LOOK_FOR_CYCLES)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(life)


def _allow_connections() -> None:
    """A process may have far more open files than it is given at first; each connection is one."""
    if sys.platform == "win32":
        return
    import resource  # here for start-up: what only binds a port needs no limits, and Windows has no such module

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Http(HttpToolsProtocol):
    """uvicorn's own, with the head and the body of an answer sent in one write."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(_corked(transport, self.loop))


class _WebSocket(WebSocketsSansIOProtocol):
    """uvicorn's own, with all frames of one turn of the loop sent in one write."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(_corked(transport, self.loop))


class _Cork:
    """A transport that gathers what is written until the loop comes round, or until there is enough of it."""

    __slots__ = ("_loop", "_pieces", "_size", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > ENOUGH:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _corked(transport: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Transport:
    """A WebSocket begins as HTTP: what is corked already stays as it is."""
    return cast(asyncio.Transport, transport if isinstance(transport, _Cork) else _Cork(transport, loop))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready is not None and not self.should_exit:
            self._ready()
