"""`openclaw up`: every surface this machine can serve, in one process."""

import argparse

from ..mcp.http import McpHttp
from ..web import listen
from . import echo
from .commands import port


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=port, default=echo.DEFAULT_PORT, help="the echo server's (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    listener = listen.bind(options.host, options.port)
    address = f"http://{options.host}:{listener.getsockname()[1]}/mcp"

    def ready() -> None:
        print(f"echo   {address}\nTry it: claude mcp add --transport http openclaw-echo {address}", flush=True)

    listen.run(listen.serve(McpHttp(echo.server()), listener, ready=ready))
    return 0
