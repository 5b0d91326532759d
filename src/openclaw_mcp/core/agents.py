"""Which agents there are. Made from the config by the caretaker, anew after each change."""

import re
from typing import Final

from msgspec import Struct

from .model import Json
from .rpc import RpcError

AGENT_RUNTIMES: Final = ("demo", "openai", "anthropic", "openclaw", "claude", "gemini", "codex", "opencode")
"""Who may answer for an agent."""
AGENT_ID_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class AgentProfile(Struct, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    runtime: str = "demo"
    model: str | None = None
    """`provider/model`."""
    workspace: str | None = None
    settings: Json = {}


class AgentRoster(Struct, frozen=True, kw_only=True):
    agents: tuple[AgentProfile, ...] = (AgentProfile(id="main"),)
    default_id: str = "main"
    main_key: str = "main"

    def get_agent(self, agent_id: str) -> AgentProfile:
        """Raises Fault for an agent nobody set up."""
        for card in self.agents:
            if card.id == agent_id:
                return card
        raise RpcError(f'unknown agent id "{agent_id}"; agents.list names those there are')
