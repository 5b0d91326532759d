"""Other servers' tools behind a server of ours, over stdio: `python -m tests.mcp.client.bridge SERVERS-AS-JSON`."""

import asyncio
import json
import sys

from openclaw_mcp.mcp.client.server_pool import McpServerPool
from openclaw_mcp.mcp.server import stdio
from openclaw_mcp.mcp.server.server import McpServer, McpServerInfo
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry


async def main() -> None:
    async with McpServerPool(json.loads(sys.argv[1])) as pool:
        missing = await pool.start()
        assert not missing, missing
        dispatcher = ToolDispatcher(ToolRegistry(pool.sources()))
        await stdio.serve(McpServer(McpServerInfo(name="bridge", version="1"), dispatcher))


if __name__ == "__main__":
    asyncio.run(main())
