"""The server behind `remoteclaw-mcp-server`, loaded after its first replies."""

import asyncio
import os

from ..claw import settings
from ..claw.server import ClawServer
from ..core.claw_methods import METHODS_BY_TOOL
from ..mcp.server.server import McpServer
from ..mcp.server.stdio import StdioHandover
from ..mcp.server.stdio import serve as serve_pipe
from .remoteclaw import GRANT_PREFIX, select_tools

SHUTDOWN_GRACE = 5.0  # seconds a call still gets when the agent has closed the pipe: its effect should be recorded
PLACEHOLDER_SETTINGS = settings.ClawSettings(
    url="ws://127.0.0.1:1", token=GRANT_PREFIX, session_key="main", effects_file=os.devnull
)


def server() -> McpServer:
    """The server before run and gateway are known: every tool is listed."""
    return ClawServer(PLACEHOLDER_SETTINGS, frozenset(METHODS_BY_TOOL)).mcp


def serve_stdio(opened: StdioHandover | None = None) -> None:
    asyncio.run(_serve(opened))


async def _serve(opened: StdioHandover | None) -> None:
    served = ClawServer(settings.from_environment(os.environ), frozenset(select_tools(os.environ)))
    try:
        await serve_pipe(served.mcp, handover=opened, shutdown_grace=SHUTDOWN_GRACE)
    finally:
        await served.aclose()
