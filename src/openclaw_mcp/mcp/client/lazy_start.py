"""A toolbox that starts the servers of the roster when somebody first needs their tools."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ...core.errors import OpenClawError, ToolNotFound, ToolUnavailable
from ...core.model import Caller, ToolCall, ToolResult, ToolSpec
from ...core.ports import Toolbox
from ...core.signal import Bell
from .names import BETWEEN
from .server_pool import READY_WAIT, Roster

GLANCE: Final = 1.0  # seconds a client at a door waits for servers that start; a change of the list tells it the rest


class Menu(Protocol):
    def offers(self) -> Mapping[str, object]: ...


class Waking:
    """A `Toolbox` in front of the desk. Without a roster it is the desk."""

    def __init__(self, desk: Toolbox, menu: Menu) -> None:
        self._desk = desk
        self._menu = menu
        self.roster: Roster | None = None
        self.main = "main"
        """The agent of callers whose session names none."""

    @property
    def changed(self) -> Bell[None]:
        return self._desk.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        """An agent waits for its servers: a model is told its tools once a turn."""
        if self.roster is not None:
            sources = self.roster.sources(self._agent(caller))
            if any(not server.connected and not server.resting for server in sources.values()):
                wait = READY_WAIT if caller.kind == "agent" else GLANCE
                await self.roster.ready(self._agent(caller), wait=wait)
        return await self._desk.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        # A server that runs, or ran once, is on the menu; what is not may be one that nobody needed before.
        if self.roster is None or BETWEEN not in call.name or call.name in self._menu.offers():
            return await self._desk.call(call)
        reason = await self._start(self.roster, call)
        try:
            return await self._desk.call(call)
        except ToolNotFound:
            if reason is None:
                raise
            raise ToolUnavailable(reason) from None

    async def _start(self, roster: Roster, call: ToolCall) -> str | None:
        """Start the server whose tool this would be; why it can't be started."""
        for server in roster.sources(self._agent(call.caller)).values():
            if call.name.startswith(server.prefix + BETWEEN):
                try:
                    await server.ready()
                except OpenClawError as exc:
                    return str(exc)
        return None

    def _agent(self, caller: Caller) -> str:
        if caller.grant is not None and caller.grant.agent:
            return caller.grant.agent
        parts = (caller.session or "").split(":")
        return parts[1] if parts[0] == "agent" and len(parts) > 2 else self.main
