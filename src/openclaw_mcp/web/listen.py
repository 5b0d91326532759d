"""Put an ASGI app on a port: bound before anything else starts, ready means answering."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import uvicorn

if sys.platform == "win32":
    new_event_loop = asyncio.new_event_loop
else:
    from uvloop import new_event_loop

from ..core.errors import OpenClawError

BACKLOG: Final = 2048
GRACE: Final = 5  # seconds open requests get after a stop was asked for
KEEP_ALIVE: Final = 75  # seconds an idle connection is kept: longer than most clients' pools

logger = logging.getLogger(__name__)


class PortTaken(OpenClawError):
    code = "port_taken"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises PortTaken, or OSError for an address not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


def run(life: Coroutine[Any, Any, None]) -> None:
    """Run a server's whole life, on the fastest event loop this platform has."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(life)


async def serve(
    app: Any,
    listener: socket.socket,
    *,
    ready: Callable[[], None] | None = None,
    websockets: Callable[..., asyncio.Protocol] | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or cancellation. `ready` is called once connections are answered.

    `websockets` makes the protocol of an upgraded connection; without it WebSockets go to the app.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio" if websockets is None else websockets,  # type: ignore[arg-type]  # any maker will do
        lifespan="off",
        proxy_headers=False,  # who connects is who connects: a header must not make a stranger look local
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        ws_ping_interval=None,
    )
    server = _Server(config, ready)
    try:
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        if server.started:
            await server.shutdown(sockets=[listener])
        raise


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end `serve`, and no more than that.

        uvicorn would raise the signal again once it has stopped, which ends the process before its rooms are closed.
        """
        if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
            with super().capture_signals():
                yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready is not None and not self.should_exit:
            self._ready()
