"""`openclaw up`: gateway, node and proxy in one process, on this machine alone."""

import argparse
import asyncio
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from ..core.errors import OpenClawError
from ..net import listen
from ..net.files import open_new, read_if_exists
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT
from ..net.processes import popen_group
from ..net.state_dir import LOG_FILE, state_dir
from ..net.tasks import STOP_TIMEOUT, Tasks
from ..node.gateway_link import make_gateway_connector
from ..node.host import LocalNode, NodeHost
from ..node.settings import DEFAULT_PORT as NODE_PORT
from ..node.token import TokenFile
from ..proxy import settings as proxy_settings
from ..proxy.http.asgi import ProxyAsgi
from ..proxy.state import ProxyState, open_proxy
from . import run_state
from .commands import parse_port, require_cwd
from .gateway import ensure_token_file, resolve_token
from .gateway_connection import hosts_from_env, resolve_host, resolve_port
from .logging_setup import log_to_file
from .proxy import DEFAULT_PORT as PROXY_PORT
from .run_state import OFF_LABEL, Surface

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
GATEWAY_USE: Final = "sessions, config and tools, over MCP and WebSocket"
ERROR_FILE: Final = "up.err"
LOG_LINES: Final = 3  # last lines of the log that are shown for a start that failed without a word
START_TIMEOUT: Final = 60.0  # seconds a detached start may take before it is given up


def arguments(parser: argparse.ArgumentParser) -> None:
    port_arguments(parser)
    parser.set_defaults(gateway_port=os.environ.get("OPENCLAW_GATEWAY_PORT"), proxy_port=PROXY_PORT)
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")
    parser.add_argument("-d", "--detach", action="store_true", help="go on in the background; openclaw down stops it")
    parser.add_argument("-v", "--verbose", action="store_true", help="also log to stderr, with debug messages")


def port_arguments(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """The ports of the surfaces. `default` says which each has otherwise."""
    defaults = {
        "gateway": f"$OPENCLAW_GATEWAY_PORT, the config's, {DEFAULT_GATEWAY_PORT}",
        "node": f"$OPENCLAW_MCP_PORT, node.json's mcpPort, {NODE_PORT}",
        "proxy": str(PROXY_PORT),
    }
    for name, usual in defaults.items():
        text = f"the {name}'s port, 0 for any free one (default {default or usual})"
        parser.add_argument(f"--{name}-port", type=parse_port, help=text)


def run(options: argparse.Namespace) -> int:
    require_cwd()
    folder = state_dir(options.state_dir)
    run_state.require_down(folder)
    if options.detach:
        return _detach(options, folder)
    with run_state.claim(folder):
        log_to_file(folder, verbose=options.verbose)
        try:
            listen.run(_serve_all(options, folder))
        finally:
            run_state.remove(folder)
    return 0


def _detach(options: argparse.Namespace, folder: Path) -> int:
    """Start it again without a terminal, and wait until it answers or reports why it can't."""
    error_file = folder / ERROR_FILE
    with os.fdopen(open_new(error_file), "w+b") as stderr:
        # -P: it must not import what lies in the folder it is started in.
        argv = [sys.executable, "-P", "-m", "openclaw_mcp", *_foreground_args(options, folder)]
        child = popen_group(argv, stderr=stderr)
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and child.poll() is None:
            found = run_state.read(folder)
            if found is not None and found.pid == child.pid:
                _print_surfaces(found.surfaces, folder, "openclaw logs -f shows what it does; openclaw down stops it.")
                return 0
            time.sleep(0.05)
        if child.poll() is None:
            child.terminate()
        stderr.seek(0)  # of this start: another one may have replaced the file
        printed = stderr.read().decode(errors="replace")
    print(_failure_reason(folder, printed, child.returncode), file=sys.stderr)
    return 1


def _failure_reason(folder: Path, printed: str, status: int | None) -> str:
    """Why a detached start failed: its own sentence, else what it printed or logged last. `status` None: no answer."""
    lines = printed.strip().splitlines()
    if any("Traceback (most recent call last)" in line for line in lines):
        error = next((line for line in reversed(lines) if line.strip(" |+-")), "")
        place = f"all of it is in {folder / ERROR_FILE}"
        return f"openclaw up: it failed with an unexpected error: {error.strip(' |')}\n({place})"
    if lines:
        return lines[-1]
    logged = (read_if_exists(folder / LOG_FILE) or b"").decode(errors="replace").splitlines()[-LOG_LINES:]
    ended = f"did not answer within {START_TIMEOUT:g} s" if status is None else f"ended with status {status}"
    if shutil.disk_usage(folder).free == 0:
        ended += f" on a full disk, where it could not say why; make room in {folder}"
    return "\n".join([f"openclaw up: it {ended}; openclaw logs shows more{':' if logged else ''}", *logged])


def _foreground_args(options: argparse.Namespace, folder: Path) -> list[str]:
    """The same command without --detach: made from the parsed options, which can be written in many ways."""
    args = ["up", "--state-dir", str(folder), *(["--verbose"] if options.verbose else [])]
    ports = {"gateway": options.gateway_port, "node": options.node_port, "proxy": options.proxy_port}
    return args + [f"--{name}-port={number}" for name, number in ports.items() if number is not None]


async def _serve_all(options: argparse.Namespace, folder: Path) -> None:
    """Open the surfaces one by one; the gateway is the last, and stopping it stops them all."""
    async with AsyncExitStack() as stack:
        listener, is_restart = _bind_gateway(folder, resolve_port(options.gateway_port, folder)), False
        stack.callback(listener.close)
        # Made now: the node needs it before the gateway asks for it.
        token = str(ensure_token_file(folder) or "$OPENCLAW_GATEWAY_TOKEN")
        number = listener.getsockname()[1]
        proxy_state, proxy = await stack.enter_async_context(_serve_proxy(folder, options.proxy_port))
        gateway_url = f"ws://{HOST}:{number}"
        node = await stack.enter_async_context(_serve_node(folder, options.node_port, gateway_url))
        gateway = Surface(name="gateway", address=f"http://{HOST}:{number}/mcp", token=token, use=GATEWAY_USE)
        while await _serve_gateway(folder, listener, (proxy, node, gateway), proxy_state, is_restart=is_restart):
            listener, is_restart = _bind_gateway(folder, number), True


def _bind_gateway(folder: Path, number: int) -> socket.socket:
    """The gateway alone may be reached from other machines: as the config's gateway.bind says."""
    return listen.bind(resolve_host(None, folder), number, option="--gateway-port")


def _bind(surface: str, number: int) -> socket.socket:
    return listen.bind(HOST, number, option=f"--{surface}-port")


@asynccontextmanager
async def _serve_proxy(folder: Path, number: int) -> AsyncIterator[tuple[ProxyState, Surface]]:
    settings = proxy_settings.place_sessions_file(proxy_settings.read_settings(), port=number, folder=str(folder))
    listener = _bind("proxy", number)
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(open_proxy(settings))
        app = ProxyAsgi(state)
        await stack.enter_async_context(listen.serve_in_background(app, listener, websockets=app.make_socket))
        token = "$OPENCLAW_PROXY_OPENCLAW_TOKEN" if settings.mcp_token else "none: this machine only"
        use = "an app lends its tools: POST /v1/chat/sessions"
        yield state, Surface(name="proxy", address=address, token=token, use=use)


@asynccontextmanager
async def _serve_node(folder: Path, number: int | None, gateway_url: str) -> AsyncIterator[Surface]:
    """This machine's node. One that ends by itself ends the block, and `up` with it."""
    node, stop = LocalNode(folder), asyncio.Event()
    opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def announce(news: str) -> None:
        logger.info("node: %s", news)
        surface, _, address = news.partition(": ")
        if not opened.done() and (surface == "mcp" or not node.settings.enable_mcp_server):
            opened.set_result(address if surface == "mcp" else "")
        elif surface == "mcp" and not stop.is_set():  # the settings were changed
            run_state.update_address(folder, "node", "" if address == "closed" else address)

    link = make_gateway_connector(announce, default_url=gateway_url)
    host = NodeHost(
        node, port=None if number is None else str(number), gateway=link, announce=announce, port_option="--node-port"
    )

    async def run_host() -> None:
        await host.run(stop)
        if not stop.is_set():
            raise OpenClawError("the node ended by itself; see openclaw logs")

    async with Tasks("up") as tasks:
        tasks.spawn(run_host(), name="node", on_failure="crash")
        address = await opened
        try:
            token = str(TokenFile(folder).path)
            yield Surface(name="node", address=address, token=token, use="this machine's tools, over MCP")
        finally:
            stop.set()
            await tasks.finish(STOP_TIMEOUT)


async def _serve_gateway(
    folder: Path, listener: socket.socket, surfaces: tuple[Surface, ...], proxy_state: ProxyState, *, is_restart: bool
) -> bool:
    # Here for start-up: a detached start and one that finds a port taken need no gateway.
    from ..gateway.wiring.assembly import GatewayOptions, serve

    def ready() -> None:
        if not is_restart:
            run_state.write(folder, surfaces)
            _print_surfaces(surfaces, folder, "Stop with Ctrl-C.")

    plan = GatewayOptions(
        folder=folder,
        token=resolve_token(folder),
        hosts=hosts_from_env(),
        accepts_remote=listener.getsockname()[0] != HOST,
        apps=proxy_state,
        is_restart=is_restart,
    )
    return await serve(plan, listener, ready=ready)


def _print_surfaces(surfaces: tuple[Surface, ...], folder: Path, hint: str) -> None:
    rows = [("surface", "address", "token", "for")]
    rows += [(s.name, s.address or OFF_LABEL, s.token if s.address else "-", s.use) for s in surfaces]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) + f"  {row[3]}")
    print(f"\nState is in {folder}. {hint}")
    print(
        "Next: openclaw demo shows it at work; openclaw connect CLIENT gives it to Claude Code, Cursor, …", flush=True
    )
