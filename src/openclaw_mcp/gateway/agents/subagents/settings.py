"""The config's rules for sub-agents and for sessions that see each other. Pure."""

from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from ....core.config.config import Config
from ....core.model import Json
from ....core.providers import has_provider_rules
from ....core.rpc import RpcError

DEEPEST: Final = 5  # spawns under one another, the most the config may allow: each multiplies the work
MAX_CHILDREN: Final = 100  # of one session at once, likewise
MAX_TURNS: Final = 5  # between two agents after a message
PROVIDER_RULES: Final = "(provider rules)"  # a name no config has

Visibility = Literal["self", "tree", "agent", "all"]
Count = Annotated[int, Meta(ge=0)]


class SubagentSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """`agents.defaults.subagents`."""

    max_spawn_depth: Annotated[int, Meta(ge=0, le=DEEPEST)] = 1
    max_children_per_agent: Annotated[int, Meta(ge=0, le=MAX_CHILDREN)] = 5
    allow_agents: tuple[str, ...] = ()
    run_timeout_seconds: Count = 0
    archive_after_minutes: Count = 60
    model: str | None = None


class _SubagentOverrides(Struct, frozen=True, kw_only=True, rename="camel"):
    allow_agents: tuple[str, ...] | None = None
    model: str | None = None


class _Agent(Struct, frozen=True, kw_only=True):
    id: str
    subagents: _SubagentOverrides = _SubagentOverrides()


class _Defaults(Struct, frozen=True, kw_only=True):
    subagents: SubagentSettings = SubagentSettings()


class _Agents(Struct, frozen=True, kw_only=True):
    defaults: _Defaults = _Defaults()
    list: tuple[_Agent, ...] = ()


class _Sessions(Struct, frozen=True, kw_only=True):
    visibility: Visibility = "tree"


class _AgentToAgent(Struct, frozen=True, kw_only=True):
    enabled: bool = False
    allow: tuple[str, ...] = ()


class _Tools(Struct, frozen=True, kw_only=True, rename="camel"):
    sessions: _Sessions = _Sessions()
    agent_to_agent: _AgentToAgent = _AgentToAgent()


class _PingPong(Struct, frozen=True, kw_only=True, rename="camel"):
    max_ping_pong_turns: Annotated[int, Meta(ge=0, le=MAX_TURNS)] = MAX_TURNS


class _Session(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_to_agent: _PingPong = _PingPong()


class DelegationSettings(Struct, frozen=True, kw_only=True):
    agents: _Agents = _Agents()
    tools: _Tools = _Tools()
    session: _Session = _Session()
    provider_rules: bool = field(default=False, name=PROVIDER_RULES)
    """Whether rules about tools go by the model's provider."""

    @property
    def subagents(self) -> SubagentSettings:
        return self.agents.defaults.subagents

    @property
    def visibility(self) -> Visibility:
        return self.tools.sessions.visibility

    @property
    def max_turns(self) -> int:
        return self.session.agent_to_agent.max_ping_pong_turns

    def spawnable_agents(self, agent: str) -> tuple[str, ...]:
        """The agents besides itself that this one may spawn; `*` = any."""
        own = self._overrides(agent).allow_agents
        return tuple(word.strip().lower() for word in (self.subagents.allow_agents if own is None else own))

    def default_model(self, agent: str) -> str | None:
        """The model of a sub-agent of that kind, unless the request names another."""
        return self._overrides(agent).model or self.subagents.model

    def separation_reason(self, one: str, other: str) -> str | None:
        """Why sessions of two agents may not see each other; None = they may."""
        open = self.tools.agent_to_agent
        if one == other:
            return None
        if self.visibility != "all" or not open.enabled:
            return "another agent's sessions need tools.sessions.visibility all and tools.agentToAgent.enabled true"
        closed = [id for id in (one, other) if not any(fnmatchcase(id, word.strip().lower()) for word in open.allow)]
        return f"tools.agentToAgent.allow does not name {' or '.join(closed)}" if closed else None

    def _overrides(self, agent: str) -> _SubagentOverrides:
        return next((entry.subagents for entry in self.agents.list if entry.id == agent), _SubagentOverrides())


def parse_delegation_settings(config: Config) -> DelegationSettings:
    """Raises RpcError when they can't be understood: then no work is handed on."""
    agents = config.agents
    listed = [{"id": agent.id, "subagents": agent.subagents, "tools": agent.tools} for agent in agents.list]
    written: Json = {
        "agents": {"defaults": {"subagents": agents.defaults.subagents}, "list": listed},
        "tools": config.tools,
        "session": {"agentToAgent": config.session.agent_to_agent},
    }
    try:
        return msgspec.convert({**written, PROVIDER_RULES: has_provider_rules(written)}, DelegationSettings)
    except msgspec.ValidationError as exc:
        raise RpcError(
            f"openclaw.json: {exc}; until that is corrected no work is handed on", kind="UNAVAILABLE"
        ) from None
