"""`openclaw proxy`: the app-tool proxy over HTTP."""

import argparse
import sys
from pathlib import Path

from ..core.errors import BadRequest
from ..net import listen
from ..net.peers import is_loopback
from ..proxy import settings as configuration
from ..proxy.http.asgi import ProxyAsgi
from ..proxy.settings import ProxySettings
from ..proxy.state import open_proxy
from . import proxy_stdio
from .commands import parse_port
from .logging_setup import log_to_stderr

DEFAULT_PORT = 8000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=parse_port, default=DEFAULT_PORT, help="0 for any free one (default %(default)s)"
    )
    parser.add_argument("--insecure", action="store_true", help="listen beyond this machine even without tokens")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more to stderr")
    proxy_stdio.arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.stdio:
        proxy_stdio.run(options)
        return 0
    settings = configuration.read_settings(folder=Path.cwd(), file=options.env_file)
    log_to_stderr(verbose=options.verbose)
    check_exposure(settings, host=options.host, insecure=options.insecure)
    settings = configuration.place_sessions_file(settings, port=options.port)
    listen.run(serve(settings, host=options.host, port=options.port))
    return 0


def check_exposure(settings: ProxySettings, *, host: str, insecure: bool) -> None:
    """Say what is open, and refuse to open it to other machines unasked. Raises BadRequest."""
    names = {"OPENCLAW_PROXY_APP_TOKEN": settings.app_token, "OPENCLAW_PROXY_OPENCLAW_TOKEN": settings.mcp_token}
    empty = [name for name, token in names.items() if not token]
    if not empty:
        return
    if not is_loopback(host) and not insecure:
        raise BadRequest(f"set {' and '.join(empty)} before listening on {host}, or add --insecure to be open to all")
    where = "this machine" if is_loopback(host) else "everybody who can reach it"
    print(f"proxy: {' and '.join(empty)} not set: open to {where}", file=sys.stderr)


async def serve(settings: ProxySettings, *, host: str, port: int) -> None:
    listener = listen.bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    async with open_proxy(settings) as state:
        app = ProxyAsgi(state)
        await listen.serve(
            app, listener, on_ready=lambda: print(f"proxy: {address}", flush=True), websockets=app.make_socket
        )
