"""The echo server on the official Python SDK's low-level server, its fastest public layer."""

from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ECHO = types.Tool(name="echo", description="Echo text", input_schema=SCHEMA)

Context = ServerRequestContext[Any]


async def _list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[ECHO])


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    text = str((params.arguments or {})["text"])
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


def echo_server() -> Server[Any]:
    """With `get_tool_input_schema`, without which every modern call would list all tools first."""
    return Server(
        "echo",
        version="1",
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        get_tool_input_schema={"echo": SCHEMA}.get,
    )
