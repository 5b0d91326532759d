"""The runtimes `openai` and `anthropic`: an agent's turn with whichever of its models answers."""

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from ....core.agent import AgentEvent, Turn, TurnFailed
from ....core.agents import AgentProfile, AgentRoster
from ....core.config.config import Config
from ....core.errors import BadRequest, OpenClawError
from ....core.providers import candidate_models
from ....net.file_access import FileAccess, FileRefused, read_file
from .event_stream import EmitEvent, stream_events
from .model_clients import ModelClients
from .settings import ModelChoice, ModelProvider, choose_model, read_providers
from .turn_loop import AgentLoop

MAX_INSTRUCTIONS_LENGTH: Final = 60_000  # characters of a workspace's own instructions
MAX_INSTRUCTIONS_BYTES: Final = 4 << 20  # bytes of their file; a larger one holds something else
INSTRUCTIONS: Final = "AGENTS.md"
"""The file of a workspace with instructions for every agent that works in it."""


class ModelRuntime:
    """An `AgentRuntime`. `config` and `roster` are asked at each turn: a changed file counts from the next one on."""

    media_types: tuple[str, ...] = ("image/",)

    def __init__(
        self, id: str, clients: ModelClients, *, config: Callable[[], Config], roster: Callable[[], AgentRoster]
    ) -> None:
        self.id = id
        self._clients = clients
        self._config = config
        self._roster = roster
        self._provider_cache: tuple[Config, Mapping[str, ModelProvider]] | None = None

    def run(self, turn: Turn) -> AsyncGenerator[AgentEvent, None]:
        return stream_events(partial(self._run_turn, turn))

    async def _run_turn(self, turn: Turn, emit: EmitEvent) -> AgentEvent:
        profile = self._roster().get_agent(turn.agent_id)
        try:
            choices, system = self._choices(turn, profile), _system_prompt(turn, profile)
            loop = AgentLoop(turn, self._clients, choices, profile.settings.limits, system=system, emit=emit)
            return await loop.run()
        except OpenClawError as exc:
            return TurnFailed(message=f"The agent {profile.id} can't answer: {exc}.")

    def _providers(self) -> Mapping[str, ModelProvider]:
        config = self._config()
        if self._provider_cache is None or self._provider_cache[0] is not config:
            self._provider_cache = config, read_providers(config.models)
        return self._provider_cache[1]

    def _choices(self, turn: Turn, profile: AgentProfile) -> list[ModelChoice]:
        """Those whose rules hold for the run; without such, the session's model or the agent's, and its fallbacks."""
        providers = self._providers()
        names = turn.candidate_models or candidate_models(self.id, profile.settings.model, providers, turn.model)
        if not names:
            raise BadRequest(f"it has no model; set agents.defaults.model, such as {self.id}/MODEL")
        choices = [choose_model(name, providers) for name in names]
        for choice in choices:
            if choice.provider.api == "openclaw":
                raise BadRequest(f"{choice.name} is another gateway, which only an agent of its own can ask")
        return choices


def _system_prompt(turn: Turn, profile: AgentProfile) -> str:
    parts = [profile.settings.system_prompt, turn.system_prompt]
    workspace = turn.cwd or profile.workspace
    if workspace:
        folder = Path(workspace).expanduser()
        parts.append(f"Your workspace is the folder {folder}.")
        parts.append(_workspace_instructions(folder))
    return "\n\n".join(part.strip() for part in parts if part and part.strip())


def _workspace_instructions(folder: Path) -> str:
    """The workspace's own instructions. A link in it that leads out of it is not followed: its target would reach the
    model, and with its answers the person who asked."""
    try:
        found = read_file(INSTRUCTIONS, FileAccess(folders=(folder,)), max_bytes=MAX_INSTRUCTIONS_BYTES)
    except FileRefused:
        return ""
    text = found.data.decode("utf-8", "replace")[:MAX_INSTRUCTIONS_LENGTH]
    return f"<{INSTRUCTIONS}>\n{text}\n</{INSTRUCTIONS}>"
