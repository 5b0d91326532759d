"""The server behind `remoteclaw-mcp-server`, loaded after its first replies."""

import asyncio
import os
from functools import partial
from pathlib import Path

import msgspec

from ..claw import settings
from ..claw.server import ClawServer
from ..core.claw_methods import METHODS_BY_TOOL
from ..mcp.server.server import McpServer
from ..mcp.server.stdio import StdioHandover
from ..mcp.server.stdio import serve as serve_pipe
from ..net.gateway_client.handshake import Credentials
from ..net.state_dir import state_dir_path
from .locations import find_gateway
from .remoteclaw import GRANT_PREFIX, STATE_DIR, further_tools, select_tools

SHUTDOWN_GRACE = 5.0  # seconds a call still gets when the agent has closed the pipe: its effect should be recorded
PLACEHOLDER_SETTINGS = settings.ClawSettings(
    url="ws://127.0.0.1:1", token=GRANT_PREFIX, session_key="main", effects_file=os.devnull
)


def server() -> McpServer:
    """The server before run and gateway are known: every tool is listed."""
    return ClawServer(PLACEHOLDER_SETTINGS, frozenset(METHODS_BY_TOOL)).mcp


def serve_stdio(opened: StdioHandover | None = None) -> None:
    asyncio.run(_serve(opened))


def _locate_gateway(folder: Path, url: str) -> tuple[str, Credentials]:
    """The gateway of this state directory, or the one at `url`."""
    place = find_gateway(folder, url=url, token=os.environ.get("REMOTECLAW_GATEWAY_TOKEN"))
    return place.url, Credentials(token=place.token)


async def _serve(opened: StdioHandover | None) -> None:
    given, folder = settings.from_environment(os.environ), os.environ.get(STATE_DIR)
    locate = None
    if folder:
        locate = partial(_locate_gateway, state_dir_path(folder), given.url)
        url, credentials = locate()
        given = msgspec.structs.replace(given, url=url, token=given.token or credentials.token or "")
    served = ClawServer(given, frozenset(select_tools(os.environ)), further_tools(os.environ), locate=locate)
    try:
        await serve_pipe(served.mcp, handover=opened, shutdown_grace=SHUTDOWN_GRACE)
    finally:
        await served.aclose()
