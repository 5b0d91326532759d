"""The server behind `remoteclaw-mcp-server`, loaded while its first answers are already out."""

import asyncio
import os
import sys
from types import ModuleType

# For start-up: to learn its own version, which it only tells servers as a user agent, websockets loads the machinery
# for installed packages, a tenth of all there is to load here.
if "websockets" not in sys.modules:
    sys.modules["websockets.version"] = version = ModuleType("websockets.version")
    vars(version).update(version="", tag="", commit="", released=True)

from ..claw import settings
from ..claw.server import ClawServer
from ..core.claw_methods import WAYS
from ..mcp.server.server import McpServer
from ..mcp.server.stdio import Opened
from ..mcp.server.stdio import serve as serve_pipe
from .remoteclaw import GRANT, menu

LAST_ANSWERS = 5.0  # seconds a call still gets when the agent has closed the pipe: its effect should be written down
NOWHERE = settings.Settings(url="ws://127.0.0.1:1", token=GRANT, session_key="main", effects_file=os.devnull)


def server() -> McpServer:
    """As it is before anything is known of run and gateway: every tool listed."""
    return ClawServer(NOWHERE, frozenset(WAYS)).mcp


def serve_stdio(opened: Opened | None = None) -> None:
    asyncio.run(_serve(opened))


async def _serve(opened: Opened | None) -> None:
    served = ClawServer(settings.from_environment(os.environ), frozenset(menu(os.environ)))
    try:
        await serve_pipe(served.mcp, opened=opened, last_answers=LAST_ANSWERS)
    finally:
        await served.aclose()
