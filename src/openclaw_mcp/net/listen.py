"""Put an ASGI app on a port: bound before anything else starts, ready means answering."""

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import uvicorn

if sys.platform == "win32":
    from asyncio import new_event_loop
else:
    import resource

    from uvloop import new_event_loop

from ..core.errors import OpenClawError
from .http_limits import BoundedConfig, ConnectionBounds
from .http_protocol import BoundedHttp
from .listening_ports import find_port_owner
from .tasks import Tasks

BACKLOG: Final = 2048
SHUTDOWN_GRACE: Final = 5  # seconds open requests get after a stop was asked for
KEEP_ALIVE: Final = 75  # seconds an idle connection is kept: longer than most clients' pools
GC_THRESHOLDS: Final = (20_000, 20, 20)  # new objects between two collections, and collections between deeper ones
MAX_OPEN_FILES: Final = 65_536  # open files we ask for: a connection each,
RESERVED_FILES: Final = 256  # but so many, or a quarter of all, are kept for what is no connection
UNACKNOWLEDGED_MS: Final = 60_000  # milliseconds what we sent may stay unacknowledged before the connection is given up

T = TypeVar("T")
WebSocketFactory = Callable[..., asyncio.Protocol]
"""Makes the protocol of a connection that asks to become a WebSocket."""


class CannotListen(OpenClawError):
    code = "cannot_listen"


class PortTaken(CannotListen):
    code = "port_taken"


def bind(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A listening socket; port 0 takes any free one. `option` chooses another. Raises PortTaken, CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: the loop turns off Nagle's delay only on sockets that say they are TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Inherited by what we accept: a peer that stopped reading can't hold its connection open for ever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            who = find_port_owner(port)
            taken = f"port {port} on {host} is taken{f' by {who}' if who else ''}"
            raise PortTaken(f"{taken}; stop what holds it or choose another with {option}") from exc
        raise CannotListen(
            f"can't listen on {host}, port {port}: {exc.strerror}; choose what this machine has"
        ) from exc
    listener.setblocking(False)
    return listener


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a server's whole life, on the fastest event loop this platform has, with as many connections as it allows."""
    _raise_file_limit()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def _raise_file_limit() -> None:
    """A process may have far more open files than it is given at first; each connection is one."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_limit() -> int:
    """How many this process can have and still open a file."""
    files = MAX_OPEN_FILES
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else min(soft, MAX_OPEN_FILES)
    return files - min(RESERVED_FILES, files // 4)


async def serve(
    app: Any,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None] | None = None,
    websockets: WebSocketFactory | None = None,
    bounds: ConnectionBounds = ConnectionBounds(),
) -> None:
    """Serve until SIGINT, SIGTERM or cancellation. `on_ready` is called once connections are answered.

    Without `websockets` a request to become a WebSocket is served as the plain one it also is.
    """
    server = _HttpServer(_make_config(app, websockets, bounds), on_ready)
    try:
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        if server.started:
            await server.shutdown(sockets=[listener])
        raise
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def serve_in_background(
    app: Any,
    listener: socket.socket,
    *,
    websockets: WebSocketFactory | None = None,
    bounds: ConnectionBounds = ConnectionBounds(),
) -> AsyncIterator[None]:
    """Answer while the block runs, which a failure of the server ends. Signals are left to the caller. Open requests
    get their grace at the end."""
    ready = asyncio.get_running_loop().create_future()
    server = _NoSignalServer(_make_config(app, websockets, bounds), lambda: ready.set_result(None))
    async with Tasks("web server") as tasks:
        serving = tasks.spawn(server.serve(sockets=[listener]), name="serving", on_failure="crash")
        try:
            await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            server.should_exit = True
            await asyncio.wait((serving,))


def _make_config(app: Any, websockets: WebSocketFactory | None, bounds: ConnectionBounds) -> BoundedConfig:
    return BoundedConfig(
        app,
        bounds=bounds,
        max_connections=connection_limit(),
        http=BoundedHttp,
        ws=websockets or "none",
        lifespan="off",
        proxy_headers=False,  # a header must not make a remote peer look local
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN_GRACE,
    )


class _HttpServer(uvicorn.Server):
    def __init__(self, config: BoundedConfig, on_ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._bounded_config = config
        self._on_ready = on_ready

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._bounded_config.is_closing = True
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What was loaded stays, and a request leaves hardly a cycle behind: collecting less often saves much time.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        if self._on_ready is not None and not self.should_exit:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP end `serve`, and no more than that; one that is ignored stays so.

        uvicorn would raise the signal again once it has stopped, which ends the process before everything is closed.
        """
        if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
            with super().capture_signals():
                yield
            return
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` means it
            numbers.append(signal.SIGHUP)

        def stop(number: signal.Signals) -> None:
            self.handle_exit(number, None)
            for once in numbers:  # the second one kills at once
                loop.remove_signal_handler(once)
                signal.signal(once, signal.SIG_DFL)

        for number in numbers:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


class _NoSignalServer(_HttpServer):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
