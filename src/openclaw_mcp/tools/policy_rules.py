"""The rule book: those parts of the configuration that decide about tools, in the product's own spelling. Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from ..core.model import Json
from ..core.providers import apis_of, may_answer, runtime_for

DEFAULT_AGENT: Final = "main"

Words = tuple[str, ...] | None
Ids = tuple[str | int, ...] | None


class Lists(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One scope's lists. A misspelt key is refused: a deny list nobody reads protects nobody."""

    allow: Words = None
    also_allow: Words = None
    deny: Words = None


class ProviderLists(Lists, frozen=True, kw_only=True):
    profile: str | None = None


class ToolRules(Struct, frozen=True, kw_only=True, rename="camel"):
    """`tools`, or an agent's `tools`. Keys for other rooms (exec, web, media ...) are left to them."""

    profile: str | None = None
    allow: Words = None
    also_allow: Words = None
    deny: Words = None
    by_provider: dict[str, ProviderLists] = {}
    tools_by_sender: dict[str, Lists] = {}


class SubagentTools(Struct, frozen=True, kw_only=True):
    tools: Lists = Lists()


class GlobalTools(ToolRules, frozen=True, kw_only=True):
    subagents: SubagentTools = SubagentTools()


class Spawning(Struct, frozen=True, kw_only=True, rename="camel"):
    max_spawn_depth: int = 1


Model = str | dict[str, Any] | None
"""As the config has it: a name, or an object of `primary` and `fallbacks`."""


class Agent(Struct, frozen=True, kw_only=True):
    id: str = ""
    default: bool = False
    runtime: str | None = None
    model: Model | UnsetType = UNSET
    tools: ToolRules | None = None


class AgentDefaults(Struct, frozen=True, kw_only=True):
    runtime: str | None = None
    model: Model = None
    tools: ToolRules | None = None
    subagents: Spawning = Spawning()


class Agents(Struct, frozen=True, kw_only=True):
    list: tuple[Agent, ...] = ()
    entries: dict[str, Agent] = {}
    defaults: AgentDefaults = AgentDefaults()


class Group(Struct, frozen=True, kw_only=True, rename="camel"):
    tools: Lists | None = None
    tools_by_sender: dict[str, Lists] = {}
    allow_from: Ids = None


class Guild(Group, frozen=True, kw_only=True):
    channels: dict[str, Group] = {}


class Place(Struct, frozen=True, kw_only=True, rename="camel"):
    """A channel, or one account of it. What an account does not say, its channel says for it."""

    groups: dict[str, Group] | None = None
    channels: dict[str, Group] | None = None
    guilds: dict[str, Guild] | None = None
    allow_from: Ids = None
    group_allow_from: Ids = None
    dm_policy: str | None = None
    group_policy: str | None = None


class Channel(Place, frozen=True, kw_only=True):
    accounts: dict[str, Place] = {}


class Commands(Struct, frozen=True, kw_only=True, rename="camel"):
    owner_allow_from: Ids = None


class HttpTools(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow: Words = None
    deny: Words = None


class GatewayRules(Struct, frozen=True, kw_only=True):
    tools: HttpTools = HttpTools()


class Server(Struct, frozen=True, kw_only=True):
    agents: Words = None


class Mcp(Struct, frozen=True, kw_only=True):
    servers: dict[str, Server] = {}


class Models(Struct, frozen=True, kw_only=True):
    providers: dict[str, Any] = {}


class RuleBook(Struct, frozen=True, kw_only=True):
    """`problem` is why the book can't be read: then it refuses everything."""

    tools: GlobalTools = GlobalTools()
    agents: Agents = Agents()
    channels: dict[str, Channel] = {}
    commands: Commands = Commands()
    gateway: GatewayRules = GatewayRules()
    mcp: Mcp = Mcp()
    models: Models = Models()
    problem: str | None = field(default=None, name="(problem)")  # a name no config has

    def agent(self, id: str) -> ToolRules | None:
        """An agent's own rules. The defaults' stand in only where no agents are listed."""
        if not self.agents.list and not self.agents.entries:
            return self.agents.defaults.tools
        found = self._find(id)
        return found.tools if found else None

    def may_answer(self, id: str, asked: str | None = None) -> tuple[str, ...]:
        """The models that may answer for an agent, as its runtime will ask them; `asked` is the run's own. A book that
        can't be read knows of none, and needs none."""
        if self.problem is not None:
            return ()
        own, defaults = self._find(id) or Agent(), self.agents.defaults
        model = defaults.model if own.model is UNSET else own.model
        apis = apis_of(self.models.providers)
        return may_answer(own.runtime or defaults.runtime or runtime_for(model, apis), model, apis, asked)

    def providers(self, id: str) -> tuple[str, ...]:
        """Every provider, or model of one, that has rules of its own for this agent."""
        return tuple(name for rules in (self.tools, self.agent(id)) if rules is not None for name in rules.by_provider)

    def has_agent(self, id: str) -> bool:
        """Whether the gateway runs such an agent: one that is listed, or the one there is where none are."""
        return self._find(id) is not None or id == self.default_agent

    def _find(self, id: str) -> Agent | None:
        for agent in self.agents.list:
            if agent.id.strip().lower() == id:
                return agent
        return next((agent for name, agent in self.agents.entries.items() if name.strip().lower() == id), None)

    @property
    def default_agent(self) -> str:
        listed = [(agent.id, agent) for agent in self.agents.list] + list(self.agents.entries.items())
        chosen = [id for id, agent in listed if agent.default] or [id for id, _ in listed]
        return chosen[0].strip().lower() if chosen else DEFAULT_AGENT


def from_config(config: Json) -> RuleBook:
    """The rules in a configuration already decoded."""
    try:
        book = msgspec.convert(config, RuleBook)
    except msgspec.ValidationError as exc:
        return unreadable(str(exc))
    scope = _torn(book)
    if scope is not None:
        return unreadable(f"{scope} has both allow and alsoAllow; put the names into one of them")
    return book


def unreadable(why: str) -> RuleBook:
    """A book that refuses everything, and says why."""
    return RuleBook(problem=why)


def _torn(book: RuleBook) -> str | None:
    """The first scope with both `allow` and `alsoAllow`, which contradict each other there."""
    scopes: dict[str, ToolRules | None] = {"tools": book.tools, "agents.defaults.tools": book.agents.defaults.tools}
    scopes |= {f"agents.list[{agent.id}].tools": agent.tools for agent in book.agents.list}
    scopes |= {f"agents.entries.{id}.tools": agent.tools for id, agent in book.agents.entries.items()}
    for scope, rules in scopes.items():
        if rules is None:
            continue
        if rules.allow and rules.also_allow:
            return scope
        for provider, lists in rules.by_provider.items():
            if lists.allow and lists.also_allow:
                return f"{scope}.byProvider.{provider}"
    return None
