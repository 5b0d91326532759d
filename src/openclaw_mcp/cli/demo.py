"""`openclaw demo`: shows the four surfaces of the running system, over the real protocol."""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from ..apps.client import AppTools
from ..core.errors import OpenClawError
from ..core.model import Image, Json, Text, ToolResult
from ..mcp.client.client import McpClient
from ..mcp.client.server_pool import McpServerPool
from ..net.files import write_atomic
from ..net.state_dir import find_gateway_token, state_dir
from ..node.token import TokenFile
from . import run_state
from .commands import require_cwd
from .connect import script_path
from .run_state import UpState

SCREENSHOT_FILE: Final = "demo-screen.png"
TOOLS_SHOWN: Final = 4  # tools of each surface
MAX_ANSWER_CHARS: Final = 100  # characters of each answer
ANY_PORT_ARGS: Final = ("--gateway-port", "0", "--node-port", "0", "--proxy-port", "0")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    require_cwd()
    with _ensure_system(state_dir(options.state_dir)) as (folder, found):
        return asyncio.run(_run_demo(folder, found))


@contextlib.contextmanager
def _ensure_system(folder: Path) -> Iterator[tuple[Path, UpState]]:
    """The running system; without one, a temporary system for as long as the demo lasts."""
    found = run_state.read(folder)
    if found is not None:
        yield folder, found
        return
    print("openclaw is not up, so one is started for the demo and stopped after it.\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="openclaw-demo-") as temporary:
        program = (sys.executable, "-P", "-m", "openclaw_mcp")  # -P: imports nothing from the folder we are in
        state = ("--state-dir", temporary)
        subprocess.run([*program, "up", "--detach", *ANY_PORT_ARGS, *state], stdout=subprocess.DEVNULL, check=True)
        try:
            started = run_state.read(Path(temporary))
            if started is None:
                raise OpenClawError("the system stopped right after it started; try openclaw up to see why")
            yield Path(temporary), started
        finally:
            subprocess.run([*program, "down", *state], stdout=subprocess.DEVNULL, check=False)


class SurfaceOff(Exception):
    """A surface that is switched off."""


async def _run_demo(folder: Path, running: UpState) -> int:
    failed = off = 0
    for step in (_show_node, _show_order, _show_tools, _show_app):
        try:
            await step(folder, running)
        except OpenClawError as exc:
            failed += 1
            print(f"   failed: {exc}")
        except SurfaceOff:
            off += 1
            print(f"   left out: it is {run_state.OFF_LABEL}")
        print(flush=True)
    fine = "All four surfaces work." if not off else "The other three surfaces work."
    print(fine if not failed else f"{failed} of the four surfaces failed.")
    print("Give them to a client of yours: openclaw connect CLIENT")
    return 1 if failed else 0


async def _show_node(folder: Path, running: UpState) -> None:
    print("1. This machine: an MCP client drives it over HTTP")
    address = running.surface("node").address
    if not address:
        raise SurfaceOff
    token = TokenFile(folder).current_token() or ""
    entry = {"url": address, "headers": {"Authorization": f"Bearer {token}"}}
    async with _connect_client("node", entry) as client:
        names = _show_tool_list(client)
        await _call_tool(client, "device.info", {})
        if "screen.snapshot" not in names:
            print("   there is no screen here, so no picture of it; openclaw node doctor names what is missing")
            return
        result = await _call_tool(client, "screen.snapshot", {"format": "png"})
        for block in result.content:
            if isinstance(block, Image):
                picture = Path.cwd() / SCREENSHOT_FILE
                write_atomic(picture, block.data)
                print(f"   a picture of the screen is in {picture}")


async def _show_order(folder: Path, running: UpState) -> None:
    print("2. The agent: an MCP client gives it orders over stdio (openclaw mcp-server)")
    settings = {"OPENCLAW_STATE_DIR": str(folder), "OPENCLAW_GATEWAY_URL": _gateway_url(running)}
    entry = {"command": script_path("openclaw"), "args": ["mcp-server"], "env": settings}
    async with _connect_client("order", entry) as client:
        _show_tool_list(client)
        await _call_tool(client, "order_openclaw", {"message": "Hello! Who are you?", "sessionKey": "demo"})


async def _show_tools(folder: Path, running: UpState) -> None:
    print("3. The gateway's tools: what a CLI agent has when it works for you (remoteclaw-mcp-server)")
    with tempfile.TemporaryDirectory(prefix="openclaw-demo-") as place:
        settings = {
            "REMOTECLAW_GATEWAY_URL": _gateway_url(running),
            "REMOTECLAW_GATEWAY_TOKEN": find_gateway_token(folder) or "",
            "REMOTECLAW_SESSION_KEY": "demo",
            "REMOTECLAW_SIDE_EFFECTS_FILE": str(Path(place) / "side-effects.ndjson"),
            "REMOTECLAW_CHANNEL": "local",
            "REMOTECLAW_TO": "demo",
            "REMOTECLAW_SENDER_IS_OWNER": "true",
        }
        entry = {"command": script_path("remoteclaw-mcp-server"), "env": settings}
        async with _connect_client("tools", entry) as client:
            _show_tool_list(client)
            await _call_tool(client, "sessions_list", {"limit": 3})
            await _call_tool(client, "message_send", {"target": "demo", "message": "The demo was here."})
            await _call_tool(client, "message_read", {"channelId": "demo", "limit": 1})


async def _show_app(folder: Path, running: UpState) -> None:
    print("4. An app: it lends a function, and an MCP client calls it through the proxy")
    app = AppTools(running.surface("proxy").address, device="demo")

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers, inside the app."""
        return a + b

    async with app:
        token = os.environ.get("OPENCLAW_PROXY_OPENCLAW_TOKEN", "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with _connect_client("app", {"url": app.session.mcp_url, "headers": headers}) as client:
            _show_tool_list(client)
            await _call_tool(client, "add", {"a": 2, "b": 3})


def _gateway_url(running: UpState) -> str:
    return running.surface("gateway").address.replace("http", "ws", 1).removesuffix("/mcp")


@contextlib.asynccontextmanager
async def _connect_client(name: str, entry: Json) -> AsyncIterator[McpClient]:
    """Our own MCP client, connected like any other."""
    async with McpServerPool({name: entry}) as pool:
        yield await pool.find(name).start()


def _show_tool_list(client: McpClient) -> list[str]:
    """Print the tools; their names."""
    names = [spec.name for spec in client.tools]
    more = f", and {len(names) - TOOLS_SHOWN} more" if len(names) > TOOLS_SHOWN else ""
    print(f"   tools/list: {', '.join(names[:TOOLS_SHOWN])}{more}")
    return names


async def _call_tool(client: McpClient, name: str, arguments: Json) -> ToolResult:
    begun = time.perf_counter()
    result = await client.call(name, arguments)
    took = (time.perf_counter() - begun) * 1000
    text = " ".join(" ".join(block.text for block in result.content if isinstance(block, Text)).split())
    text = text if len(text) <= MAX_ANSWER_CHARS else text[:MAX_ANSWER_CHARS] + " …"
    if result.failed:
        raise OpenClawError(f"{name}: {text}")
    print(f"   tools/call {name} ({took:.0f} ms): {text}")
    return result
