"""The rules about tools: the parts of openclaw.json that decide who may use which tool. Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from ..core.config.agents import ModelSetting
from ..core.config.conflicts import LIST_CONFLICT, find_list_conflicts
from ..core.model import Json
from ..core.providers import candidate_models, provider_apis, runtime_for, uses_default_model

DEFAULT_AGENT: Final = "main"

NameList = tuple[str, ...] | None
IdList = tuple[str | int, ...] | None


class AllowDenyLists(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One scope's lists. A misspelt key is refused: a deny list that is not read protects nothing."""

    allow: NameList = None
    also_allow: NameList = None
    deny: NameList = None


class ProviderLists(AllowDenyLists, frozen=True, kw_only=True):
    profile: str | None = None


class ToolRules(Struct, frozen=True, kw_only=True, rename="camel"):
    """`tools`, or an agent's `tools`. Keys for other readers (exec, web, media ...) are not checked here."""

    profile: str | None = None
    allow: NameList = None
    also_allow: NameList = None
    deny: NameList = None
    by_provider: dict[str, ProviderLists] = {}
    tools_by_sender: dict[str, AllowDenyLists] = {}


class SubagentTools(Struct, frozen=True, kw_only=True):
    tools: AllowDenyLists = AllowDenyLists()


class GlobalTools(ToolRules, frozen=True, kw_only=True):
    subagents: SubagentTools = SubagentTools()


class SubagentLimits(Struct, frozen=True, kw_only=True, rename="camel"):
    max_spawn_depth: int = 1


class AgentToolRules(Struct, frozen=True, kw_only=True):
    id: str = ""
    default: bool = False
    runtime: str | None = None
    model: ModelSetting | UnsetType = UNSET
    tools: ToolRules | None = None


class AgentDefaults(Struct, frozen=True, kw_only=True):
    runtime: str | None = None
    model: ModelSetting = None
    tools: ToolRules | None = None
    subagents: SubagentLimits = SubagentLimits()


class AgentsSection(Struct, frozen=True, kw_only=True):
    list: tuple[AgentToolRules, ...] = ()
    entries: dict[str, AgentToolRules] = {}
    defaults: AgentDefaults = AgentDefaults()


class GroupToolRules(Struct, frozen=True, kw_only=True, rename="camel"):
    tools: AllowDenyLists | None = None
    tools_by_sender: dict[str, AllowDenyLists] = {}
    allow_from: IdList = None


class GuildToolRules(GroupToolRules, frozen=True, kw_only=True):
    channels: dict[str, GroupToolRules] = {}


class AccountToolRules(Struct, frozen=True, kw_only=True, rename="camel"):
    """A channel, or one account of it. What an account does not set, its channel sets for it."""

    groups: dict[str, GroupToolRules] | None = None
    channels: dict[str, GroupToolRules] | None = None
    guilds: dict[str, GuildToolRules] | None = None
    allow_from: IdList = None
    group_allow_from: IdList = None
    dm_policy: str | None = None
    group_policy: str | None = None


class ChannelToolRules(AccountToolRules, frozen=True, kw_only=True):
    accounts: dict[str, AccountToolRules] = {}


class CommandsSection(Struct, frozen=True, kw_only=True, rename="camel"):
    owner_allow_from: IdList = None


class HttpToolRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow: NameList = None
    deny: NameList = None


class GatewaySection(Struct, frozen=True, kw_only=True):
    tools: HttpToolRules = HttpToolRules()


class ServerToolRules(Struct, frozen=True, kw_only=True):
    agents: NameList = None


class McpSection(Struct, frozen=True, kw_only=True):
    servers: dict[str, ServerToolRules] = {}


class ModelsSection(Struct, frozen=True, kw_only=True):
    providers: dict[str, Any] = {}


class PolicyRules(Struct, frozen=True, kw_only=True):
    """`problem`: why the rules can't be read; then every tool is refused."""

    tools: GlobalTools = GlobalTools()
    agents: AgentsSection = AgentsSection()
    channels: dict[str, ChannelToolRules] = {}
    commands: CommandsSection = CommandsSection()
    gateway: GatewaySection = GatewaySection()
    mcp: McpSection = McpSection()
    models: ModelsSection = ModelsSection()
    problem: str | None = field(default=None, name="(problem)")  # a name no config has

    def agent_rules(self, id: str) -> ToolRules | None:
        """An agent's own rules; those of the defaults only where no agents are listed."""
        if not self.agents.list and not self.agents.entries:
            return self.agents.defaults.tools
        found = self._find_agent(id)
        return found.tools if found else None

    def possible_models(self, id: str, requested_model: str | None = None) -> tuple[str, ...]:
        """The models that may answer for an agent, as its runtime will ask them; `requested_model` is the run's own.
        Rules that can't be read need none."""
        if self.problem is not None:
            return ()
        own, defaults = self._find_agent(id) or AgentToolRules(), self.agents.defaults
        model = own.model
        if model is UNSET:
            model = defaults.model if uses_default_model(own.runtime, defaults.runtime) else None
        providers = self.models.providers
        apis = provider_apis({name: e.get("api") if isinstance(e, dict) else None for name, e in providers.items()})
        return candidate_models(
            own.runtime or defaults.runtime or runtime_for(model, apis), model, apis, requested_model
        )

    def providers_with_rules(self, id: str) -> tuple[str, ...]:
        """Every provider, or model of one, that has rules of its own for this agent."""
        return tuple(
            name for rules in (self.tools, self.agent_rules(id)) if rules is not None for name in rules.by_provider
        )

    def has_agent(self, id: str) -> bool:
        """Whether the gateway runs such an agent: one that is listed, or the one there is where none are."""
        return self._find_agent(id) is not None or id == self.default_agent

    def _find_agent(self, id: str) -> AgentToolRules | None:
        for agent in self.agents.list:
            if agent.id.strip().lower() == id:
                return agent
        return next((agent for name, agent in self.agents.entries.items() if name.strip().lower() == id), None)

    @property
    def default_agent(self) -> str:
        listed = [(agent.id, agent) for agent in self.agents.list] + list(self.agents.entries.items())
        chosen = [id for id, agent in listed if agent.default] or [id for id, _ in listed]
        return chosen[0].strip().lower() if chosen else DEFAULT_AGENT


def from_config(config: Json) -> PolicyRules:
    """The rules in a configuration already decoded."""
    try:
        rules = msgspec.convert(config, PolicyRules)
    except msgspec.ValidationError as exc:
        return refuse_everything(str(exc))
    scope = next(find_list_conflicts(config), None)
    return rules if scope is None else refuse_everything(f"{scope} {LIST_CONFLICT}")


def refuse_everything(reason: str) -> PolicyRules:
    """Rules that refuse every tool, and why."""
    return PolicyRules(problem=reason)
