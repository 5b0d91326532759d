"""Every server named in `mcp.servers`: one of each, shared by all callers, all gone when the roster is left."""

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from ...core.errors import OpenClawError
from ...net.orphan_reaper import OrphanReaper
from .entry import BadServerEntry, ServerEntry, read_entry
from .names import server_names
from .server import PooledMcpServer

logger = logging.getLogger(__name__)

START_WAIT: Final = 30.0  # seconds a run waits for its servers before it begins without those that are late

SOURCE_PREFIX: Final = "mcp/"
"""Sources of the registry that are servers of the roster are called `mcp/<name>`; policy can name them so."""


class McpServerPool:
    """`async with Roster(servers) as roster:` ends every server with the block. Nothing starts by itself."""

    def __init__(self, servers: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
        """`servers` is the config's own object. An entry that can't be used is in `faults`, and spoils no other."""
        self.errors: dict[str, str] = {}
        self._reaper = OrphanReaper()
        self._servers: dict[str, PooledMcpServer] = {}
        self._load_servers(servers, environ)

    async def reconfigure(self, servers: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
        """Go over to another config: who is named as before lives on, others end or come. `sources` is new then."""
        leaving = self._load_servers(servers, environ)
        await asyncio.gather(*(server.aclose() for server in leaving))

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
                self._servers[name] = PooledMcpServer(entry, prefix=prefixes[name], reaper=self._reaper)
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

        A late one goes on starting; its tools come onto the menu when it is there.
        """
        sources = self.sources(agent)
        tasks = {name.removeprefix(SOURCE_PREFIX): asyncio.ensure_future(s.start()) for name, s in sources.items()}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=wait)
        except asyncio.CancelledError:
            for task in tasks.values():
                task.cancel()
            raise
        missing = {}
        for name, task in tasks.items():
            if not task.done():
                task.cancel()  # only the waiting: the start itself is shared and goes on
                missing[name] = f"{name} is still starting after {wait:g} s"
            elif (exc := task.exception()) is not None:
                missing[name] = _failure_reason(name, exc)
        return missing

    async def __aenter__(self) -> "McpServerPool":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every server, all at once; their process groups are gone when this returns."""
        try:
            await asyncio.gather(*(server.aclose() for server in self._servers.values()))
        finally:
            await asyncio.get_running_loop().run_in_executor(None, self._reaper.close)


def _failure_reason(name: str, exc: BaseException) -> str:
    """Why a server is not there. A fault of ours is one server's too: it is logged, and spoils no other."""
    if isinstance(exc, OpenClawError):
        return str(exc)
    logger.error("MCP server %s can't be used", name, exc_info=exc)
    return f"{name} can't be used: {type(exc).__name__}"
