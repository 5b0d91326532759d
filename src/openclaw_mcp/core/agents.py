"""Which agents there are: made from the config, again after each change."""

import re
from typing import Final

from msgspec import Struct

from .config.agents import AgentSettings
from .rpc import RpcError

AGENT_ID_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class AgentProfile(Struct, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    runtime: str = "demo"
    model: str | None = None
    """`provider/model`."""
    context_tokens: int | None = None
    """Tokens its model can hold; None where the config does not say."""
    workspace: str | None = None
    settings: AgentSettings = AgentSettings()


class AgentRoster(Struct, frozen=True, kw_only=True):
    agents: tuple[AgentProfile, ...] = (AgentProfile(id="main"),)
    default_id: str = "main"
    main_key: str = "main"
    providers: frozenset[str] | None = None
    """Of models; None: not known."""

    def get_agent(self, agent_id: str) -> AgentProfile:
        """Raises RpcError for an agent that is not configured."""
        for agent in self.agents:
            if agent.id == agent_id:
                return agent
        raise RpcError(f'unknown agent id "{agent_id}"; agents.list lists the agents')
