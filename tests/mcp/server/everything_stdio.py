"""The conformance server over stdio, with one more tool that tries to spoil the wire."""

import asyncio
import os
import signal
import subprocess
import sys

from openclaw_mcp.core.model import ToolCall, ToolResult, text_result
from openclaw_mcp.mcp.server import stdio
from openclaw_mcp.mcp.server.server import McpServer, McpServerInfo
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry
from tests.conformance.everything import Book, Everything, Shelf, Words


async def prints(call: ToolCall) -> ToolResult:
    print("from print", flush=True)
    # The pipe, not the loop, is what is being tried here
    subprocess.run([sys.executable, "-c", "print('from a child process')"], check=True)  # noqa: ASYNC221
    os.write(1, b"from descriptor one\n")
    return text_result("printed")


async def is_interrupted(call: ToolCall) -> ToolResult:
    """Its process gets a signal as soon as it runs."""
    signal.raise_signal(signal.Signals[call.arguments["signal"]])
    try:
        await asyncio.sleep(600)
    finally:
        print("the call was ended", file=sys.stderr, flush=True)
    return text_result("never")


def server() -> McpServer:
    tools = Everything()
    tools.add("prints", prints)
    tools.add("is_interrupted", is_interrupted)
    return McpServer(
        McpServerInfo(name="openclaw-everything", version="1.0.0"),
        ToolDispatcher(ToolRegistry({"suite": tools})),
        resources=Shelf(),
        prompts=Book(tools.prompts_changed),
        completer=Words(),
    )


if __name__ == "__main__":
    first_line = os.environ.get("FIRST_LINE")
    handover = stdio.StdioHandover(stdio.claim_output(), first_line.encode() + b"\n") if first_line else None
    asyncio.run(stdio.serve(server(), handover=handover))
