"""What answers for an agent whose runtime nobody set up: one sentence that says so, and nothing else."""

from collections.abc import AsyncGenerator, Iterable

from ...core.agent import AgentEvent, Failed, Turn


class Missing:
    """An `AgentRuntime`. The config's schema refuses such a name; a roster made otherwise may still hold one."""

    takes: tuple[str, ...] = ()

    def __init__(self, id: str, known: Iterable[str]) -> None:
        self.id = id
        self._known = ", ".join(known)

    async def run(self, turn: Turn) -> AsyncGenerator[AgentEvent, None]:
        words = f"has the runtime {self.id!r}, which nobody set up; choose one of {self._known}"
        yield Failed(message=f"The agent {turn.agent_id} {words}.")
