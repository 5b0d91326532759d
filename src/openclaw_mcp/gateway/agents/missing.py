"""The runtime of an agent whose configured runtime does not exist: its answer names those there are."""

from collections.abc import AsyncGenerator, Iterable

from ...core.agent import AgentEvent, Turn, TurnFailed


class UnconfiguredRuntime:
    """An `AgentRuntime`. The config's schema refuses such a name; a roster made otherwise may still hold one."""

    media_types: tuple[str, ...] = ()

    def __init__(self, id: str, configured: Iterable[str]) -> None:
        self.id = id
        self._configured = ", ".join(configured)

    async def run(self, turn: Turn) -> AsyncGenerator[AgentEvent, None]:
        problem = f"has the runtime {self.id!r}, which is not set up; choose one of {self._configured}"
        yield TurnFailed(message=f"The agent {turn.agent_id} {problem}.")
