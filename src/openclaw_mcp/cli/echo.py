"""`openclaw echo`: an MCP server with one tool. The smallest server, and the measure of the benchmarks."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import __version__
from ..core.model import ToolCall, ToolResult, ToolSpec, text_result
from ..core.signal import Signal
from ..mcp.server.server import McpServer, McpServerInfo
from ..mcp.server.stdio import StdioHandover
from ..mcp.server.stdio import serve as serve_pipe
from ..tools.dispatcher import ToolDispatcher
from ..tools.registry import ToolRegistry

if TYPE_CHECKING:
    import argparse

DEFAULT_PORT = 8766

ECHO = ToolSpec(
    name="echo",
    title="Echo",
    description="Answers with the text it is given.",
    input_schema={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What to say back."}},
        "required": ["text"],
    },
    annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
)


class EchoTools:
    """One tool, no effect."""

    def __init__(self) -> None:
        self.changed: Signal[None] = Signal()

    def specs(self) -> Sequence[ToolSpec]:
        return (ECHO,)

    async def call(self, call: ToolCall) -> ToolResult:
        return text_result(call.arguments["text"])


def server() -> McpServer:
    info = McpServerInfo(name="openclaw-echo", version=__version__, title="OpenClaw echo")
    return McpServer(info, ToolDispatcher(ToolRegistry({"echo": EchoTools()})))


def serve_stdio(opened: StdioHandover | None = None) -> None:
    asyncio.run(serve_pipe(server(), handover=opened))


def arguments(parser: "argparse.ArgumentParser") -> None:
    from .commands import parse_port  # here for start-up: the pipe needs no parser

    parser.add_argument("--http", action="store_true", help="serve HTTP at /mcp instead of stdin and stdout")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=parse_port, default=DEFAULT_PORT, help="0 for any free one (default %(default)s)"
    )


def run(options: "argparse.Namespace") -> int:
    if not options.http:
        serve_stdio()
        return 0
    # Here for start-up: the pipe needs no web server.
    from ..mcp.server.http import McpHttp
    from ..net import listen

    listener = listen.bind(options.host, options.port)
    host, port = listener.getsockname()[:2]
    endpoint = McpHttp(server())
    listen.run(listen.serve(endpoint, listener, on_ready=lambda: print(f"echo: http://{host}:{port}/mcp", flush=True)))
    return 0
