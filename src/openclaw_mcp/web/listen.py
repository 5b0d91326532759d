"""Put an ASGI app on a port: bound before anything else starts, ready means answering."""

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Callable, Coroutine
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


async def serve(app: Any, listener: socket.socket, *, ready: Callable[[], None] | None = None) -> None:
    """Serve until SIGINT, SIGTERM or cancellation. `ready` is called once connections are answered."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
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
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready is not None and not self.should_exit:
            self._ready()
