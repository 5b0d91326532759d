"""`openclaw demo`: a walk through the four surfaces of the running system, by the real protocol."""

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
from ..mcp.client.client import Client
from ..mcp.client.server_pool import Roster
from ..net.files import write_whole
from ..net.state_dir import known_gateway_token, state_dir
from ..node.token import TokenFile
from . import run_state
from .commands import need_a_place
from .connect import script
from .run_state import Standing

PICTURE: Final = "demo-screen.png"
SOME: Final = 4  # tools that are named
WIDEST: Final = 100  # characters of an answer that are shown
ANY_PORT: Final = ("--gateway-port", "0", "--node-port", "0", "--proxy-port", "0")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    need_a_place()
    with _house(state_dir(options.state_dir)) as (folder, found):
        return asyncio.run(_walk(folder, found))


@contextlib.contextmanager
def _house(folder: Path) -> Iterator[tuple[Path, Standing]]:
    """The system that runs; one of our own, for as long as the demo lasts, when none does."""
    found = run_state.read(folder)
    if found is not None:
        yield folder, found
        return
    print("openclaw is not up, so one is started for the demo and stopped after it.\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="openclaw-demo-") as place:
        program = (sys.executable, "-m", "openclaw_mcp")
        where = ("--state-dir", place)
        subprocess.run([*program, "up", "--detach", *ANY_PORT, *where], stdout=subprocess.DEVNULL, check=True)
        try:
            started = run_state.read(Path(place))
            if started is None:
                raise OpenClawError("the system stopped right after it started; try openclaw up to see why")
            yield Path(place), started
        finally:
            subprocess.run([*program, "down", *where], stdout=subprocess.DEVNULL, check=False)


class Off(Exception):
    """A surface that nobody switched on."""


async def _walk(folder: Path, found: Standing) -> int:
    failed = off = 0
    for step in (_node, _order, _tools, _app):
        try:
            await step(folder, found)
        except OpenClawError as exc:
            failed += 1
            print(f"   failed: {exc}")
        except Off:
            off += 1
            print(f"   left out: it is {run_state.OFF}")
        print(flush=True)
    fine = "All four surfaces work." if not off else "The other three surfaces work."
    print(fine if not failed else f"{failed} of the four surfaces failed.")
    print("Give them to a client of yours: openclaw connect CLIENT")
    return 1 if failed else 0


async def _node(folder: Path, found: Standing) -> None:
    print("1. This machine: an MCP client drives it over HTTP")
    address = found.surface("node").address
    if not address:
        raise Off
    token = TokenFile(folder).current() or ""
    entry = {"url": address, "headers": {"Authorization": f"Bearer {token}"}}
    async with _client("node", entry) as client:
        names = _listed(client)
        await _call(client, "device.info", {})
        if "screen.snapshot" not in names:
            print("   there is no screen here, so no picture of it; openclaw node doctor says what is missing")
            return
        result = await _call(client, "screen.snapshot", {"format": "png"})
        for block in result.content:
            if isinstance(block, Image):
                picture = Path.cwd() / PICTURE
                write_whole(picture, block.data)
                print(f"   a picture of the screen is in {picture}")


async def _order(folder: Path, found: Standing) -> None:
    print("2. The agent: an MCP client orders it about over stdio (openclaw mcp-server)")
    settings = {"OPENCLAW_STATE_DIR": str(folder), "OPENCLAW_GATEWAY_URL": _gateway(found)}
    async with _client("order", {"command": script("openclaw"), "args": ["mcp-server"], "env": settings}) as client:
        _listed(client)
        await _call(client, "order_openclaw", {"message": "Hello! Who are you?", "sessionKey": "demo"})


async def _tools(folder: Path, found: Standing) -> None:
    print("3. The gateway's tools: what a CLI agent has when it works for you (remoteclaw-mcp-server)")
    with tempfile.TemporaryDirectory(prefix="openclaw-demo-") as place:
        settings = {
            "REMOTECLAW_GATEWAY_URL": _gateway(found),
            "REMOTECLAW_GATEWAY_TOKEN": known_gateway_token(folder) or "",
            "REMOTECLAW_SESSION_KEY": "demo",
            "REMOTECLAW_SIDE_EFFECTS_FILE": str(Path(place) / "side-effects.ndjson"),
            "REMOTECLAW_CHANNEL": "local",
            "REMOTECLAW_TO": "demo",
            "REMOTECLAW_SENDER_IS_OWNER": "true",
        }
        async with _client("tools", {"command": script("remoteclaw-mcp-server"), "env": settings}) as client:
            _listed(client)
            await _call(client, "sessions_list", {"limit": 3})
            await _call(client, "message_send", {"target": "demo", "message": "The demo was here."})
            await _call(client, "message_read", {"channelId": "demo", "limit": 1})


async def _app(folder: Path, found: Standing) -> None:
    print("4. An app: it lends a function, and an MCP client calls it through the proxy")
    app = AppTools(found.surface("proxy").address, device="demo")

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers, inside the app."""
        return a + b

    async with app:
        token = os.environ.get("OPENCLAW_PROXY_OPENCLAW_TOKEN", "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with _client("app", {"url": app.session.mcp_url, "headers": headers}) as client:
            _listed(client)
            await _call(client, "add", {"a": 2, "b": 3})


def _gateway(found: Standing) -> str:
    return found.surface("gateway").address.replace("http", "ws", 1).removesuffix("/mcp")


@contextlib.asynccontextmanager
async def _client(name: str, entry: Json) -> AsyncIterator[Client]:
    """Our own MCP client, connected as any other would be."""
    async with Roster({name: entry}) as roster:
        yield await roster.find(name).ready()


def _listed(client: Client) -> list[str]:
    """The names of the tools there are."""
    names = [spec.name for spec in client.tools]
    more = f", and {len(names) - SOME} more" if len(names) > SOME else ""
    print(f"   tools/list: {', '.join(names[:SOME])}{more}")
    return names


async def _call(client: Client, name: str, arguments: Json) -> ToolResult:
    begun = time.perf_counter()
    result = await client.call(name, arguments)
    took = (time.perf_counter() - begun) * 1000
    words = " ".join(block.text for block in result.content if isinstance(block, Text))
    said = " ".join(words.split())
    shown = said if len(said) <= WIDEST else said[:WIDEST] + " …"
    if result.failed:
        raise OpenClawError(f"{name}: {shown}")
    print(f"   tools/call {name} ({took:.0f} ms): {shown}")
    return result
