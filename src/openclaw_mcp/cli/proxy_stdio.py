"""`openclaw proxy --stdio`: one session of a proxy elsewhere, over stdin and stdout."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..core.errors import OpenClawError
from ..core.ports import Toolbox
from ..mcp.server.server import McpServer, McpServerInfo
from ..mcp.server.stdio import StdioHandover
from ..mcp.server.stdio import serve as serve_pipe
from ..net.state_dir import state_dir_path
from ..protocol.bridge import DEFAULT_URL
from ..proxy import settings as configuration
from ..proxy.stdio.remote_session import RemoteSessionTools, SessionSelector
from .locations import find_proxy_url

if TYPE_CHECKING:
    import argparse

MAX_LINE_LENGTH = 32 << 20  # bytes: a result of the largest size a proxy lets through fits


def server(toolbox: Toolbox | None = None) -> McpServer:
    info = McpServerInfo(name="openclaw-proxy", version=__version__, title="OpenClaw app tools")
    return McpServer(info, toolbox or RemoteSessionTools(DEFAULT_URL, "", SessionSelector()))


def serve_stdio(opened: StdioHandover | None = None) -> None:
    # Here for start-up: by now the first answer is out.
    from . import commands

    parser = commands.Parser(prog="openclaw proxy", allow_abbrev=False)
    arguments(parser)
    try:
        run(parser.parse_args(sys.argv[2:]), opened)
    except OpenClawError as exc:
        sys.exit(f"openclaw proxy: {exc}")


def arguments(parser: "argparse.ArgumentParser") -> None:
    parser.add_argument("--stdio", action="store_true", help="forward one session over stdin and stdout instead")
    parser.add_argument("--session", metavar="ID", help="with --stdio: the session (OPENCLAW_PROXY_SESSION_ID)")
    parser.add_argument("--device", metavar="ID", help="with --stdio: the newest session of this device")
    parser.add_argument("--proxy-base-url", metavar="URL", help="with --stdio: where the proxy is")
    parser.add_argument("--env-file", type=Path, metavar="FILE", help="settings to read besides the environment")


def run(options: "argparse.Namespace", opened: StdioHandover | None = None) -> None:
    asyncio.run(serve(options, opened))


async def serve(options: "argparse.Namespace", opened: StdioHandover | None) -> None:
    settings = configuration.read_settings(folder=Path.cwd(), file=options.env_file)
    which = SessionSelector(
        id=options.session or ("" if options.device else settings.session_id),
        device=options.device or "",
        app_token=settings.app_token,
    )
    url = options.proxy_base_url or find_proxy_url(state_dir_path(), settings)
    async with RemoteSessionTools(url, settings.mcp_token, which) as tools:
        await serve_pipe(
            server(tools),
            handover=opened,
            longest_line=MAX_LINE_LENGTH,
            on_initialize=lambda params: tools.bind_session(params.app_session),
        )
