"""An ASGI app that is served for as long as a block runs, beside others in one process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from .listen import GRACE, KEEP_ALIVE


@asynccontextmanager
async def serving(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    """Answer while the block runs; signals are the caller's affair. Leaving gives open requests their grace."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        proxy_headers=False,  # a header must not make a stranger look local
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    ready = asyncio.Event()
    server = _Server(config, ready.set)
    work = asyncio.ensure_future(server.serve(sockets=[listener]))
    opening = asyncio.ensure_future(ready.wait())
    try:
        await asyncio.wait((work, opening), return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        opening.cancel()
        server.should_exit = True
        await work


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
