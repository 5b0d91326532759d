"""Every server named in `mcp.servers`: one of each, shared by all callers, all ended when the pool is closed."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from ...core.errors import OpenClawError
from ...net.orphan_reaper import OrphanReaper
from ...net.tasks import run_all
from .entry import BadServerEntry, ServerEntry, read_entry
from .names import server_names
from .server import PooledMcpServer

logger = logging.getLogger(__name__)

START_WAIT: Final = 30.0  # seconds a run waits for its servers before it begins without those that are late

REMOVED: Final = "was removed from mcp.servers"
CHANGED: Final = "was changed in mcp.servers; call it again"

SOURCE_PREFIX: Final = "mcp/"
"""Sources of the registry that are servers of the pool are called `mcp/<name>`; policy can name them so."""


class McpServerPool:
    """`async with McpServerPool(servers) as pool:` ends every server with the block. Nothing starts by itself."""

    def __init__(self, servers: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
        """`servers` is the config's own object. An entry that can't be used is in `errors`, and affects no other."""
        self.errors: dict[str, str] = {}
        self._reaper = OrphanReaper()
        self._servers: dict[str, PooledMcpServer] = {}
        self._load_servers(servers, environ)

    def reconfigure(
        self, servers: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Change to another config: servers named as before run on, others end or are added. `sources` is new when this
        returns; what it returns ends the servers that are not on the new list as they were, and must be awaited."""
        ending = self._load_servers(servers, environ)
        reasons = {server: CHANGED if server.entry.name in servers else REMOVED for server in ending}
        return run_all(server.aclose(reason) for server, reason in reasons.items())

    def _load_servers(self, servers: Mapping[str, Any], environ: Mapping[str, str] | None) -> list[PooledMcpServer]:
        """The servers that are not on the new list as they were."""
        before, self._servers, self.errors = self._servers, {}, {}
        prefixes = server_names(servers)
        for name, value in servers.items():
            entry = self._read_entry(name, value, environ)
            if entry is None or not entry.enabled:
                continue
            old = before.get(name)
            if old is not None and old.entry == entry and old.prefix == prefixes[name]:
                self._servers[name] = before.pop(name)
            else:
                self._servers[name] = PooledMcpServer(
                    entry, prefix=prefixes[name], reaper=self._reaper, predecessor=old
                )
        return list(before.values())

    def _read_entry(self, name: str, value: Any, environ: Mapping[str, str] | None) -> ServerEntry | None:
        try:
            return read_entry(name, value, environ)
        except BadServerEntry as exc:
            self.errors[name] = str(exc)
            return None

    def sources(self, agent: str | None = None) -> dict[str, PooledMcpServer]:
        """Every enabled server as a source for the registry, by `mcp/<name>`; with `agent`, only what it may use."""
        return {
            SOURCE_PREFIX + name: server
            for name, server in self._servers.items()
            if agent is None or server.entry.allows_agent(agent)
        }

    def find(self, name: str) -> PooledMcpServer:
        """Raises BadEntry when there is no such server, or it can't be used, or it is disabled."""
        server = self._servers.get(name)
        if server is not None:
            return server
        known = ", ".join(sorted(self._servers)) or "none"
        raise BadServerEntry(
            self.errors.get(name) or f"no server {name!r} is enabled in mcp.servers; there are: {known}"
        )

    async def start(self, agent: str | None = None, *, wait: float = START_WAIT) -> dict[str, str]:
        """Start what `agent` may use, all at once. Returns by name why any is not there after `wait` seconds.

        A late one continues to start; its tools are listed when it is there.
        """
        missing: dict[str, str] = {}

        async def start(server: PooledMcpServer) -> None:
            name = server.entry.name
            try:
                async with asyncio.timeout(wait) as timeout:
                    await server.start()  # only the waiting ends with the time: the start itself is shared
            except Exception as exc:  # noqa: BLE001  one server's failure must not keep the others from starting
                late = f"{name} is still starting after {wait:g} s"
                missing[name] = late if timeout.expired() else _failure_reason(name, exc)

        async with asyncio.TaskGroup() as group:
            for server in self.sources(agent).values():
                group.create_task(start(server))
        return missing

    async def __aenter__(self) -> "McpServerPool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every server, all at once; their process groups are gone when this returns."""
        try:
            await run_all(server.aclose() for server in self._servers.values())
        finally:
            await asyncio.get_running_loop().run_in_executor(None, self._reaper.close)


def _failure_reason(name: str, exc: BaseException) -> str:
    """Why a server is not there. An error of ours is one server's too: it is logged, and affects no other."""
    if isinstance(exc, OpenClawError):
        return str(exc)
    logger.error("MCP server %s can't be used", name, exc_info=exc)
    return f"{name} can't be used: {type(exc).__name__}"
