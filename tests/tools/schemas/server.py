"""A stdio MCP server with one tool, `t`, whose schema is a bomb: `python -m tests.tools.schemas.server NAME`."""

import asyncio
import sys

from openclaw_mcp.core.model import ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.mcp.server.stdio import serve
from tests.conversation import Tools, serving

from .bombs import BOMBS


async def answer(call: ToolCall) -> ToolResult:
    return text_result("called")


if __name__ == "__main__":
    tools = Tools()
    tools.add(ToolSpec(name="t", input_schema=BOMBS[sys.argv[1]].schema()), answer)
    asyncio.run(serve(serving(tools)))
