"""The MCP servers of the config as sources of the tool registry. None is started here."""

import asyncio
import logging
from typing import Self

from ...core.model import Json
from ...mcp.client.server import PooledMcpServer
from ...mcp.client.server_pool import McpServerPool
from ...net.tasks import Tasks
from ...tools.registry import ToolRegistry

logger = logging.getLogger(__name__)


class McpServers:
    """`async with` it: leaving ends every server."""

    def __init__(self, registry: ToolRegistry, entries: Json) -> None:
        self.pool = McpServerPool(entries)
        self._registry = registry
        self._registered: dict[str, PooledMcpServer] = {}
        self._entries = entries
        self._changed = asyncio.Event()
        self._tasks = Tasks("mcp servers")
        self._sync_registry()

    async def __aenter__(self) -> Self:
        self._tasks.loop(self._follow, name="config change", on_failure="restart")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        await self.pool.aclose()

    def update(self, entries: Json) -> None:
        """Change to these servers, one change after the other; only the last entries count."""
        if entries != self._entries:
            self._entries = entries
            self._changed.set()

    async def _follow(self) -> None:
        await self._changed.wait()
        self._changed.clear()
        try:
            await self.pool.reconfigure(self._entries)
        finally:  # also when a server that was dropped could not be ended: the pool itself has changed
            self._sync_registry()

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
