"""`openclaw node`: this machine's capabilities over MCP and over a gateway; checks, set-up, token and key."""

import asyncio
import signal
import sys
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..mcp.server.server import McpServer
from ..mcp.server.stdio import StdioHandover
from ..mcp.server.stdio import serve as serve_pipe
from ..net.state_dir import state_dir_path
from ..node.host import LocalNode, NodeHost
from ..node.settings import NodeSettings
from .logging_setup import log_to_stderr

if TYPE_CHECKING:
    import argparse


def serve_stdio(opened: StdioHandover | None = None, *, folder: str | None = None) -> None:
    asyncio.run(_serve_stdio(opened, folder))


async def _serve_stdio(opened: StdioHandover | None, folder: str | None) -> None:
    node = LocalNode(state_dir_path(folder))
    async with node.open():
        node.follow_settings()
        await serve_pipe(node.create_mcp_server(), handover=opened)


def default_server() -> McpServer:
    """The server with default settings, as it introduces itself on any machine."""
    return LocalNode(state_dir_path(), NodeSettings()).create_mcp_server()


def arguments(parser: "argparse.ArgumentParser") -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("doctor", "setup", "token", "key"),
        help="doctor: which capabilities work here, and why the others do not; setup: answer a few questions; "
        "token: which file holds the token; key: store the ElevenLabs key, asked for here or read from a pipe",
    )
    parser.add_argument("--stdio", action="store_true", help="serve MCP on stdin and stdout instead")
    parser.add_argument("--port", help="a number, 0 for any free one (default 8765, or the next free one)")
    parser.add_argument(
        "--state-dir", help="where the node keeps its files (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)"
    )
    parser.add_argument("--json", action="store_true", help="with doctor: answer as JSON")
    parser.add_argument("--yes", action="store_true", help="with setup: take every default without asking")
    parser.add_argument("--reset", action="store_true", help="with token: create a new one")
    parser.add_argument("--forget", action="store_true", help="with key: delete it")
    parser.add_argument("-v", "--verbose", action="store_true", help="log each call")


def run(options: "argparse.Namespace") -> int:
    log_to_stderr(verbose=options.verbose)
    if options.action is not None:
        from . import node_setup  # here for start-up: a server needs none of it

        return node_setup.run(options)
    if options.stdio:
        serve_stdio(folder=options.state_dir)
        return 0
    from ..net import listen  # here for start-up: the pipe needs no web server

    listen.run(_serve(options))
    return 0


async def _serve(options: "argparse.Namespace") -> None:
    stop = asyncio.Event()
    if sys.platform != "win32":  # there Ctrl-C cancels, as without handlers
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` means it
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, stop.set)
    node = LocalNode(state_dir_path(options.state_dir))
    host = NodeHost(node, port=options.port, gateway=_gateway_link, announce=_announce)
    await host.run(stop)


def _gateway_link(node: LocalNode) -> AbstractAsyncContextManager[str]:
    from ..node.gateway_link import make_gateway_connector  # here for start-up: most nodes serve only MCP

    return make_gateway_connector(_announce)(node)


def _announce(message: str) -> None:
    print(message, flush=True)
