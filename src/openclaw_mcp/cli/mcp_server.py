"""`openclaw mcp-server`: order_openclaw over stdin and stdout."""

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import __version__
from ..core.model import LOCAL_CALLER
from ..mcp.server.server import McpServer, McpServerInfo
from ..mcp.server.stdio import StdioHandover
from ..mcp.server.stdio import serve as serve_pipe
from ..net.state_dir import state_dir
from ..order.order_tool import ErrorTextToolbox, OrderTools
from ..order.resources import SessionResources
from ..tools.dispatcher import ToolDispatcher
from ..tools.registry import ToolRegistry
from .order_backend import OrderService

if TYPE_CHECKING:
    import argparse

MAX_LINE_LENGTH = 340 << 20  # ten images and five files of 15 MB each, in base64, in one line
DEFAULT_PORT = 8767
MAX_CONCURRENT_ORDERS = 32  # over HTTP; an order can be 340 MB
SHUTDOWN_GRACE = 30.0  # seconds an order still gets when its client has closed the pipe but may yet read


def server(orders: OrderService) -> McpServer:
    info = McpServerInfo(name="openclaw", version=__version__, title="OpenClaw")
    toolbox = ErrorTextToolbox(ToolDispatcher(ToolRegistry({"order": OrderTools(orders.execute, orders.suspended)})))
    return McpServer(info, toolbox, resources=SessionResources(orders.get_gateway))


def serve_stdio(opened: StdioHandover | None = None) -> None:
    asyncio.run(_serve(opened))


async def _serve(opened: StdioHandover | None) -> None:
    orders = OrderService(state_dir, _print_agent)
    try:
        await serve_pipe(server(orders), handover=opened, longest_line=MAX_LINE_LENGTH, shutdown_grace=SHUTDOWN_GRACE)
    finally:
        await orders.aclose()


def _print_agent(sentence: str) -> None:
    """For the client's log: an MCP client keeps what its servers print on stderr."""
    with suppress(OSError):  # a client may have closed it, and its order is carried out all the same
        print(f"openclaw mcp-server: {sentence}", file=sys.stderr, flush=True)


def arguments(parser: "argparse.ArgumentParser") -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="enable verbose logging, on stderr")
    from .commands import parse_port  # here for start-up: the pipe needs no parser

    parser.add_argument("--http", action="store_true", help="serve HTTP at /mcp, behind the gateway's token")
    port_help = "with --http: the port, 0 for any free one (default %(default)s)"
    parser.add_argument("--port", type=parse_port, default=DEFAULT_PORT, help=port_help)
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
    from ..mcp.server.http_gate import LOOPBACK_HOSTS, HttpAccessRules, bearer_auth
    from ..net import listen
    from .gateway import resolve_token  # here for start-up, as above

    folder = state_dir()
    listener = listen.bind("127.0.0.1", number)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    gate = HttpAccessRules(
        identify=bearer_auth(resolve_token(folder), LOCAL_CALLER),
        loopback_only=True,
        allowed_origins=frozenset(),
        allowed_hosts=LOOPBACK_HOSTS,
        allow_browsers=False,
        json_only=True,
        largest_body=MAX_LINE_LENGTH,
        max_concurrent=MAX_CONCURRENT_ORDERS,
    )

    async def live() -> None:
        orders = OrderService(lambda: folder, _print_agent)
        try:
            endpoint = McpHttp(server(orders), access_rules=gate)
            await listen.serve(endpoint, listener, on_ready=lambda: print(f"mcp-server: {address}", flush=True))
        finally:
            await orders.aclose()

    listen.run(live())
    return 0
