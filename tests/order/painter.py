"""An MCP server whose tool makes things of a size: what an agent may send back, and what is too much."""

import asyncio
from typing import Final

from openclaw_mcp.core.model import Audio, ContentBlock, Contents, Embedded, Image, ToolCall, ToolResult, ToolSpec
from openclaw_mcp.mcp.server import stdio
from openclaw_mcp.mcp.server.server import McpServer
from tests.conversation import Tools, serving

PAINT: Final = ToolSpec(
    name="paint",
    input_schema={
        "type": "object",
        "properties": {"kind": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "integer"}}},
        "required": ["kind", "sizes"],
    },
)


def make_block(kind: str, size: int, number: int) -> ContentBlock:
    """Bytes unlike those of any other number."""
    data = bytes([number]) * size
    match kind.partition("/")[0]:
        case "image":
            return Image(data, kind)
        case "audio":
            return Audio(data, kind)
    return Embedded(Contents(uri=f"file:///made/{number}.pdf", mime_type=kind, blob=data))


async def paint(call: ToolCall) -> ToolResult:
    sizes = enumerate(call.arguments["sizes"], 1)
    return ToolResult(tuple(make_block(call.arguments["kind"], size, number) for number, size in sizes))


def server() -> McpServer:
    tools = Tools()
    tools.add(PAINT, paint)
    return serving(tools)


if __name__ == "__main__":
    asyncio.run(stdio.serve(server()))
