"""How every Python peer serves HTTP: the options our own server uses."""

from collections.abc import Callable
from typing import Any

import uvicorn


def serve(app: Callable[..., Any], *, port: int) -> None:
    """One process on loopback, the fast parser and loop, no access log."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        http="httptools",
        loop="uvloop",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        log_level="warning",
    )
