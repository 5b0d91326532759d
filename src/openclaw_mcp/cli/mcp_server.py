"""`openclaw mcp-server`: order_openclaw over stdin and stdout."""

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from .. import __version__
from ..mcp.server import Info, McpServer
from ..mcp.stdio import Opened
from ..mcp.stdio import serve as serve_pipe
from ..order.shelf import SessionShelf
from ..order.tools import OrderTools, Spoken
from ..orders import Orders
from ..state import state_dir
from ..tools.desk import Desk
from ..tools.registry import Registry

if TYPE_CHECKING:
    import argparse

LONGEST_LINE = 340 << 20  # ten images and five files of 15 MB each, in base64, in one line
LAST_ANSWERS = 30.0  # seconds an order still gets when its client has closed the pipe but may yet read


def server(orders: Orders) -> McpServer:
    info = Info(name="openclaw", version=__version__, title="OpenClaw")
    toolbox = Spoken(Desk(Registry({"order": OrderTools(orders.carry)})))
    return McpServer(info, toolbox, resources=SessionShelf(orders.gateway))


def serve_stdio(opened: Opened | None = None) -> None:
    asyncio.run(_serve(opened))


async def _serve(opened: Opened | None) -> None:
    orders = Orders(state_dir())
    try:
        await serve_pipe(server(orders), opened=opened, longest_line=LONGEST_LINE, last_answers=LAST_ANSWERS)
    finally:
        await orders.aclose()


def arguments(parser: "argparse.ArgumentParser") -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="enable verbose logging, on stderr")
    parser.add_argument("--version", action="version", version=f"openclaw-mcp {__version__}")


def run(options: "argparse.Namespace") -> int:
    if options.verbose:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    serve_stdio()
    return 0
