"""The MCP servers of the config as sources of the tool registry. None is started here."""

import logging
from typing import Final, Self

from ...core.model import Json
from ...mcp.client.server import PooledMcpServer
from ...mcp.client.server_pool import McpServerPool
from ...net.tasks import Tasks
from ...tools.registry import ToolRegistry

logger = logging.getLogger(__name__)

END_WAIT: Final = 10.0  # seconds servers that were left out have to end when the gateway itself does


class McpServers:
    """`async with` it: leaving ends every server."""

    def __init__(self, registry: ToolRegistry, entries: Json) -> None:
        self.pool = McpServerPool(entries)
        self._registry = registry
        self._registered: dict[str, PooledMcpServer] = {}
        self._entries = entries
        self._tasks = Tasks("mcp servers")
        self._sync_registry()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.finish(END_WAIT)
        await self._tasks.aclose()
        await self.pool.aclose()

    def update(self, entries: Json) -> None:
        """Change to these servers: calls use them when this returns. Those that are left out end in the background."""
        if entries == self._entries:
            return
        self._entries = entries
        ending = self.pool.reconfigure(entries)
        self._sync_registry()
        self._tasks.spawn(ending, name="ending the servers that are left out")

    def _sync_registry(self) -> None:
        for name, problem in self.pool.errors.items():
            logger.warning("mcp servers: %s can't be used (%s); correct its entry in mcp.servers", name, problem)
        current = self.pool.sources()
        for name, server in list(self._registered.items()):
            if current.get(name) is not server:
                self._registry.remove(name)
                del self._registered[name]
        for name, server in current.items():
            if name not in self._registered:
                self._registry.add(name, server)
                self._registered[name] = server
