"""`openclaw up`: gateway, node and proxy in one process, on this machine alone."""

import argparse
import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from ..core.errors import OpenClawError
from ..gateway.wiring.assembly import Plan
from ..gateway.wiring.assembly import serve as serve_gateway
from ..net import listen
from ..net.files import open_new
from ..net.state_dir import state_dir
from ..node.gateway_link import gateway_link
from ..node.host import Node, NodeHost
from ..node.settings import DEFAULT_PORT as NODE_PORT
from ..node.token import TokenFile
from ..proxy import settings as proxy_settings
from ..proxy.http.asgi import Front
from ..proxy.state import House
from . import run_state
from .address import DEFAULT_PORT, port_of, told_hosts
from .commands import need_a_place, port
from .gateway import token_file, token_of
from .log_file import log_to
from .proxy import DEFAULT_PORT as PROXY_PORT
from .run_state import OFF, Surface

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
GATEWAY_USE: Final = "sessions, config and tools, over MCP and WebSocket"
COMPLAINT_FILE: Final = "up.err"
START_LIMIT: Final = 60.0  # seconds a detached start may take before it is given up


class AlreadyUp(OpenClawError):
    code = "already_up"


def arguments(parser: argparse.ArgumentParser) -> None:
    words = f"the gateway's port, 0 for any free one (default $OPENCLAW_GATEWAY_PORT, the config's, {DEFAULT_PORT})"
    parser.add_argument("--gateway-port", type=port, default=os.environ.get("OPENCLAW_GATEWAY_PORT"), help=words)
    words = f"the node's port, 0 for any free one (default $OPENCLAW_MCP_PORT, node.json's mcpPort, {NODE_PORT})"
    parser.add_argument("--node-port", type=port, help=words)
    words = "the proxy's port, 0 for any free one (default %(default)s)"
    parser.add_argument("--proxy-port", type=port, default=PROXY_PORT, help=words)
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")
    parser.add_argument("-d", "--detach", action="store_true", help="go on in the background; openclaw down stops it")
    parser.add_argument("-v", "--verbose", action="store_true", help="log to stderr as well, and more")


def run(options: argparse.Namespace) -> int:
    need_a_place()
    folder = state_dir(options.state_dir)
    found = run_state.read(folder)
    if found is not None:
        raise AlreadyUp(f"it is up already, as process {found.pid}; openclaw down stops it")
    if options.detach:
        return _detach(options, folder)
    log_to(folder, verbose=options.verbose)
    try:
        listen.run(_live(options, folder))
    finally:
        run_state.forget(folder)
    return 0


def _detach(options: argparse.Namespace, folder: Path) -> int:
    """Start it again without a terminal, and wait until it answers or says why it can't."""
    complaint = folder / COMPLAINT_FILE
    with os.fdopen(open_new(complaint), "wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "openclaw_mcp", *_attached(options, folder)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and child.poll() is None:
        found = run_state.read(folder)
        if found is not None and found.pid == child.pid:
            _say(found.surfaces, folder, "openclaw logs -f shows what it does; openclaw down stops it.")
            return 0
        time.sleep(0.05)
    if child.poll() is None:
        child.terminate()
    reason = complaint.read_text(errors="replace").strip().splitlines()
    print(reason[-1] if reason else f"it did not answer within {START_LIMIT:g} s; see openclaw logs", file=sys.stderr)
    return 1


def _attached(options: argparse.Namespace, folder: Path) -> list[str]:
    """The same order without the wish to detach: made from what was understood, since that can be written many ways."""
    words = ["up", "--state-dir", str(folder), *(["--verbose"] if options.verbose else [])]
    ports = {"gateway": options.gateway_port, "node": options.node_port, "proxy": options.proxy_port}
    return words + [f"--{name}-port={number}" for name, number in ports.items() if number is not None]


async def _live(options: argparse.Namespace, folder: Path) -> None:
    """Open the doors one by one; the gateway's is the last, and stopping it closes the house."""
    async with AsyncExitStack() as stack:
        listener, again = _bound("gateway", port_of(options.gateway_port, folder)), False
        stack.callback(listener.close)
        # Made now: the node needs it before the gateway asks for it.
        token = str(token_file(folder) or "$OPENCLAW_GATEWAY_TOKEN")
        number = listener.getsockname()[1]
        house, proxy = await stack.enter_async_context(_proxy(options.proxy_port))
        near = f"ws://{HOST}:{number}"
        surfaces = (proxy, await stack.enter_async_context(_node(folder, options.node_port, near)))
        while True:
            gateway = Surface(name="gateway", address=f"http://{HOST}:{number}/mcp", token=token, use=GATEWAY_USE)
            again = await _gateway(folder, listener, (*surfaces, gateway), house, again=again)
            if not again:
                return
            listener = _bound("gateway", number)


def _bound(surface: str, number: int) -> socket.socket:
    return listen.bind(HOST, number, option=f"--{surface}-port")


@asynccontextmanager
async def _proxy(number: int) -> AsyncIterator[tuple[House, Surface]]:
    settings = proxy_settings.read()
    listener = _bound("proxy", number)
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(House(settings))
        front = Front(house)
        await stack.enter_async_context(listen.serving(front, listener, websockets=front.socket))
        token = "$OPENCLAW_PROXY_OPENCLAW_TOKEN" if settings.mcp_token else "none: this machine only"
        use = "an app lends its tools: POST /v1/chat/sessions"
        yield house, Surface(name="proxy", address=address, token=token, use=use)


@asynccontextmanager
async def _node(folder: Path, number: int | None, near: str) -> AsyncIterator[Surface]:
    node, stop = Node(folder), asyncio.Event()
    opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def announce(news: str) -> None:
        logger.info("node: %s", news)
        door, _, address = news.partition(": ")
        if not opened.done() and (door == "mcp" or not node.settings.enable_mcp_server):
            opened.set_result(address if door == "mcp" else "")
        elif door == "mcp" and not stop.is_set():  # somebody changed the settings
            run_state.moved(folder, "node", "" if address == "closed" else address)

    link = gateway_link(announce, near=near)
    host = NodeHost(
        node, port=None if number is None else str(number), gateway=link, announce=announce, option="--node-port"
    )
    living = asyncio.ensure_future(host.run(stop))
    try:
        await asyncio.wait((living, opened), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await living
            raise OpenClawError("the node ended before it was ready")
        token = str(TokenFile(folder).path)
        yield Surface(name="node", address=opened.result(), token=token, use="this machine's tools, over MCP")
    finally:
        stop.set()
        await living


async def _gateway(
    folder: Path, listener: socket.socket, surfaces: tuple[Surface, ...], house: House, *, again: bool
) -> bool:
    def ready() -> None:
        if not again:
            run_state.write(folder, surfaces)
            _say(surfaces, folder, "Stop with Ctrl-C.")

    plan = Plan(folder=folder, token=token_of(folder), hosts=told_hosts(), apps=house, again=again)
    return await serve_gateway(plan, listener, ready=ready)


def _say(surfaces: tuple[Surface, ...], folder: Path, then: str) -> None:
    rows = [("surface", "address", "token", "for")]
    rows += [(s.name, s.address or OFF, s.token if s.address else "-", s.use) for s in surfaces]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) + f"  {row[3]}")
    print(f"\nState is in {folder}. {then}")
    print(
        "Next: openclaw demo shows it at work; openclaw connect CLIENT gives it to Claude Code, Cursor, …", flush=True
    )
