"""`openclaw mcp-server`: order_openclaw over stdin and stdout."""

import asyncio
from typing import TYPE_CHECKING

from .. import __version__
from ..core.model import LOCAL
from ..mcp.server.server import Info, McpServer
from ..mcp.server.stdio import Opened
from ..mcp.server.stdio import serve as serve_pipe
from ..net.state_dir import state_dir
from ..order.order_tool import OrderTools, Spoken
from ..order.resources import SessionShelf
from ..tools.dispatcher import Desk
from ..tools.registry import Registry
from .order_backend import Orders

if TYPE_CHECKING:
    import argparse

LONGEST_LINE = 340 << 20  # ten images and five files of 15 MB each, in base64, in one line
DEFAULT_PORT = 8767
ORDERS_AT_ONCE = 32  # over HTTP; an order can be 340 MB
LAST_ANSWERS = 30.0  # seconds an order still gets when its client has closed the pipe but may yet read


def server(orders: Orders) -> McpServer:
    info = Info(name="openclaw", version=__version__, title="OpenClaw")
    toolbox = Spoken(Desk(Registry({"order": OrderTools(orders.carry)})))
    return McpServer(info, toolbox, resources=SessionShelf(orders.gateway))


def serve_stdio(opened: Opened | None = None) -> None:
    asyncio.run(_serve(opened))


async def _serve(opened: Opened | None) -> None:
    orders = Orders(state_dir)
    try:
        await serve_pipe(server(orders), opened=opened, longest_line=LONGEST_LINE, last_answers=LAST_ANSWERS)
    finally:
        await orders.aclose()


def arguments(parser: "argparse.ArgumentParser") -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="enable verbose logging, on stderr")
    from .commands import port  # here for start-up: the pipe needs no parser

    parser.add_argument("--http", action="store_true", help="serve HTTP at /mcp, behind the gateway's token")
    words = "with --http: the port, 0 for any free one (default %(default)s)"
    parser.add_argument("--port", type=port, default=DEFAULT_PORT, help=words)
    parser.add_argument("--version", action="version", version=f"openclaw-mcp {__version__}")


def run(options: "argparse.Namespace") -> int:
    if options.verbose:
        from .logging_setup import log_to_stderr  # here for start-up: unasked, nothing is logged

        log_to_stderr(verbose=True)
    if options.http:
        return _serve_http(options.port)
    serve_stdio()
    return 0


def _serve_http(number: int) -> int:
    # Here for start-up: the pipe needs no web server.
    from ..mcp.server.http import McpHttp
    from ..mcp.server.http_gate import LOOPBACK_HOSTS, Gate, bearer
    from ..net import listen
    from .gateway import token_of  # here for start-up, as above

    folder = state_dir()
    listener = listen.bind("127.0.0.1", number)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    gate = Gate(
        identify=bearer(token_of(folder), LOCAL), loopback_peers=True, origins=frozenset(), hosts=LOOPBACK_HOSTS,
        browsers=False, json_only=True, largest_body=LONGEST_LINE, slots=ORDERS_AT_ONCE,
    )  # fmt: skip

    async def live() -> None:
        orders = Orders(lambda: folder)
        try:
            endpoint = McpHttp(server(orders), gate=gate)
            await listen.serve(endpoint, listener, ready=lambda: print(f"mcp-server: {address}", flush=True))
        finally:
            await orders.aclose()

    listen.run(live())
    return 0
