"""Other servers' tools behind a door of ours, over stdio: `python -m tests.mcp.client.bridge SERVERS-AS-JSON`."""

import asyncio
import json
import sys

from openclaw_mcp.mcp.client.server_pool import Roster
from openclaw_mcp.mcp.server import stdio
from openclaw_mcp.mcp.server.server import Info, McpServer
from openclaw_mcp.tools.dispatcher import Desk
from openclaw_mcp.tools.registry import Registry


async def main() -> None:
    async with Roster(json.loads(sys.argv[1])) as roster:
        missing = await roster.ready()
        assert not missing, missing
        desk = Desk(Registry(roster.sources()))
        await stdio.serve(McpServer(Info(name="bridge", version="1"), desk))


if __name__ == "__main__":
    asyncio.run(main())
