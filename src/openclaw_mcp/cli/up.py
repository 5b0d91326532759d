"""`openclaw up`: gateway, node and proxy in one process, on this machine alone."""

import argparse
import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from ..assembly import Plan
from ..assembly import serve as serve_gateway
from ..core.errors import OpenClawError
from ..node.token import TokenFile
from ..nodehost import Node, NodeHost
from ..proxy import settings as proxy_settings
from ..proxy.front import Front
from ..proxy.house import House
from ..state import TOKEN_FILE, gateway_token, state_dir
from ..web import listen
from .commands import port
from .proxy import DEFAULT_PORT as PROXY_PORT
from .proxy import HARD_LIMIT

HOST: Final = "127.0.0.1"
GATEWAY_PORT: Final = 18789
NODE_PORT: Final = 8765


class Surface(NamedTuple):
    name: str
    address: str
    token: str
    use: str


def arguments(parser: argparse.ArgumentParser) -> None:
    for name, default in (("gateway", GATEWAY_PORT), ("node", NODE_PORT), ("proxy", PROXY_PORT)):
        words = f"the {name}'s port, 0 for any free one (default %(default)s)"
        parser.add_argument(f"--{name}-port", type=port, default=default, help=words)
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    listen.run(_live(options, state_dir(options.state_dir)))
    return 0


async def _live(options: argparse.Namespace, folder: Path) -> None:
    """Open the doors one by one; the gateway's is the last, and stopping it closes the house."""
    async with AsyncExitStack() as stack:
        house, proxy = await stack.enter_async_context(_proxy(options.proxy_port))
        surfaces = [proxy, await stack.enter_async_context(_node(folder, options.node_port))]
        number, again = options.gateway_port, False
        while True:
            listener = listen.bind(HOST, number)
            number = listener.getsockname()[1]
            surfaces[2:] = [Surface("gateway", f"http://{HOST}:{number}/mcp", str(folder / TOKEN_FILE), _GATEWAY_USE)]
            again = await _gateway(folder, listener, surfaces, house, again=again)
            if not again:
                return


@asynccontextmanager
async def _proxy(number: int) -> AsyncIterator[tuple[House, Surface]]:
    settings = proxy_settings.read()
    listener = listen.bind(HOST, number)
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    largest = HARD_LIMIT * settings.bridge.result
    async with House(settings) as house, listen.serving(Front(house), listener, largest_message=largest):
        token = "$OPENCLAW_PROXY_OPENCLAW_TOKEN" if settings.mcp_token else "none: this machine only"
        yield house, Surface("proxy", address, token, "an app lends its tools: POST /v1/chat/sessions")


@asynccontextmanager
async def _node(folder: Path, number: int) -> AsyncIterator[Surface]:
    node, stop = Node(folder), asyncio.Event()
    opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def announce(news: str) -> None:
        if not opened.done():
            opened.set_result(news.partition(": ")[2])

    living = asyncio.ensure_future(NodeHost(node, port=str(number), announce=announce).run(stop))
    try:
        await asyncio.wait((living, opened), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await living
            raise OpenClawError("the node ended before it was ready")
        yield Surface("node", opened.result(), str(TokenFile(folder).path), "this machine's tools, over MCP")
    finally:
        stop.set()
        await living


async def _gateway(
    folder: Path, listener: socket.socket, surfaces: list[Surface], house: House, *, again: bool
) -> bool:
    token = os.environ.get("OPENCLAW_GATEWAY_TOKEN") or gateway_token(folder)
    plan = Plan(folder=folder, token=token, apps=house, again=again)
    return await serve_gateway(plan, listener, ready=lambda: None if again else _say(surfaces, folder))


_GATEWAY_USE: Final = "sessions, config and tools, over MCP and WebSocket"


def _say(surfaces: list[Surface], folder: Path) -> None:
    rows = [("surface", "address", "token", "for"), *surfaces]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) + f"  {row[3]}")
    print(
        f"\nState is in {folder}. Order the agent from an MCP client: openclaw mcp-server. Stop with Ctrl-C.",
        flush=True,
    )
