"""The runtimes `openai` and `anthropic`: an agent's turn with whichever of its models answers."""

from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Final

from ....core.agent import AgentEvent, Failed, Turn
from ....core.agents import AgentCard, Roster
from ....core.errors import BadRequest, OpenClawError
from ....core.model import Json
from ....core.providers import may_answer
from ....net.file_access import FileAccess, FileRefused, read_file
from .event_stream import Tell, telling
from .model_clients import Shop
from .settings import Choice, Provider, catalogue, choose, limits_of
from .turn_loop import Loop

LONGEST_INSTRUCTIONS: Final = 60_000  # characters of a workspace's own instructions
LARGEST_INSTRUCTIONS: Final = 4 << 20  # bytes of their file; a larger one holds something else
INSTRUCTIONS: Final = "AGENTS.md"
"""What a workspace tells every agent that works in it."""


class ModelRuntime:
    """An `AgentRuntime`. `config` and `roster` are asked at each turn: a changed file counts from the next one on."""

    takes: tuple[str, ...] = ("image/",)

    def __init__(self, id: str, shop: Shop, *, config: Callable[[], Json], roster: Callable[[], Roster]) -> None:
        self.id = id
        self._shop = shop
        self._config = config
        self._roster = roster
        self._seen: tuple[Json, Mapping[str, Provider]] | None = None

    async def run(self, turn: Turn) -> AsyncGenerator[AgentEvent, None]:
        async def work(tell: Tell) -> AgentEvent:
            card = self._roster().card(turn.agent_id)
            try:
                choices, limits = self._choices(turn, card), limits_of(card.settings)
                return await Loop(turn, self._shop, choices, limits, system=_system(turn, card), tell=tell).go()
            except OpenClawError as exc:
                return Failed(message=f"The agent {card.id} can't answer: {exc}.")

        events = telling(work)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def _providers(self) -> Mapping[str, Provider]:
        config = self._config()
        if self._seen is None or self._seen[0] is not config:
            self._seen = config, catalogue(config)
        return self._seen[1]

    def _choices(self, turn: Turn, card: AgentCard) -> list[Choice]:
        """Those the run is judged by; where nobody judges, the session's model or the agent's, and its fallbacks."""
        providers = self._providers()
        words = turn.models or may_answer(self.id, card.settings.get("model"), providers, turn.model)
        if not words:
            raise BadRequest(f"it has no model; set agents.defaults.model, such as {self.id}/MODEL")
        choices = [choose(word, providers) for word in words]
        for choice in choices:
            if choice.provider.api == "openclaw":
                raise BadRequest(f"{choice.name} is another gateway, which only an agent of its own can ask")
        return choices


def _system(turn: Turn, card: AgentCard) -> str:
    parts = [card.settings.get("systemPrompt"), turn.system_prompt]
    workspace = turn.cwd or card.workspace
    if workspace:
        folder = Path(workspace).expanduser()
        parts.append(f"Your workspace is the folder {folder}.")
        parts.append(_instructions(folder))
    return "\n\n".join(part.strip() for part in parts if part and part.strip())


def _instructions(folder: Path) -> str:
    """The workspace's own words. A link in it that leads out of it is not followed: they go to the model, and with its
    answers to whoever asked."""
    try:
        found = read_file(INSTRUCTIONS, FileAccess(folders=(folder,)), most=LARGEST_INSTRUCTIONS)
    except FileRefused:
        return ""
    text = found.data.decode("utf-8", "replace")[:LONGEST_INSTRUCTIONS]
    return f"<{INSTRUCTIONS}>\n{text}\n</{INSTRUCTIONS}>"
