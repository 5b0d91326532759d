"""A toolbox that starts the servers of the pool when their tools are first needed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from ...core.errors import OpenClawError, ToolNotFound, ToolUnavailable
from ...core.model import Caller, ToolCall, ToolResult, ToolSpec
from ...core.ports import Toolbox
from ...core.signal import Signal
from ...core.tool_naming import SEPARATOR
from .server_pool import START_WAIT, McpServerPool

CLIENT_START_WAIT: Final = 1.0  # seconds a client waits for servers that start; a list change announces the rest


class ToolIndex(Protocol):
    def tools_by_name(self) -> Mapping[str, object]: ...


class LazyServerStart:
    """A `Toolbox` in front of another one."""

    def __init__(
        self, toolbox: Toolbox, tool_index: ToolIndex, pool: McpServerPool, *, default_agent: Callable[[], str]
    ) -> None:
        """`default_agent`: the agent of callers whose session names none."""
        self._toolbox = toolbox
        self._tool_index = tool_index
        self._pool = pool
        self._default_agent = default_agent

    @property
    def changed(self) -> Signal[None]:
        return self._toolbox.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        """An agent waits for its servers: a model gets its tools once a turn."""
        sources = self._pool.sources(self._agent_of(caller))
        if any(not server.is_connected and not server.is_backing_off for server in sources.values()):
            wait = START_WAIT if caller.kind == "agent" else CLIENT_START_WAIT
            await self._pool.start(self._agent_of(caller), wait=wait)
        return await self._toolbox.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        # The tools of a server that runs, or ran once, are listed; others may be of one that was not needed before.
        if SEPARATOR not in call.name or call.name in self._tool_index.tools_by_name():
            return await self._toolbox.call(call)
        reason = await self._start_server(call)
        try:
            return await self._toolbox.call(call)
        except ToolNotFound:
            if reason is None:
                raise
            raise ToolUnavailable(reason) from None

    async def _start_server(self, call: ToolCall) -> str | None:
        """Start the server whose tool this would be; why it can't be started."""
        for server in self._pool.sources(self._agent_of(call.caller)).values():
            if call.name.startswith(server.prefix + SEPARATOR):
                try:
                    await server.start()
                except OpenClawError as exc:
                    return str(exc)
        return None

    def _agent_of(self, caller: Caller) -> str:
        if caller.grant is not None and caller.grant.agent:
            return caller.grant.agent
        parts = (caller.session or "").split(":")
        return parts[1] if parts[0] == "agent" and len(parts) > 2 else self._default_agent()
