"""`tools` of openclaw.json, and an agent's `tools`. The rules are read by `tools/policy_rules.py`, the rest by single
tools; a key that is not declared here is accepted, and has no effect."""

from typing import Annotated, Literal

from ..model import Json
from .keys import Section, key

Strings = tuple[str, ...]
ToolProfile = Literal["minimal", "coding", "messaging", "full"]


class ToolLists(Section, frozen=True):
    """Lists of tools."""

    allow: Annotated[Strings | None, key("Only these: names, group:names, patterns with *")] = None
    also_allow: Annotated[Strings | None, key("These besides the profile's; not together with allow")] = None
    deny: Annotated[Strings | None, key("Not these, whatever else allows them")] = None


class ProviderToolLists(ToolLists, frozen=True):
    """Rules for the models of one provider, or for one model."""

    profile: Annotated[ToolProfile | None, key("Where to start")] = None


class AgentToolsConfig(Section, frozen=True):
    """What an agent may use."""

    is_open = True
    profile: Annotated[ToolProfile | None, key("Where to start")] = None
    allow: Annotated[Strings | None, key("Only these: names, group:names, patterns with *")] = None
    also_allow: Annotated[Strings | None, key("These besides the profile's; not together with allow")] = None
    deny: Annotated[Strings | None, key("Not these, whatever else allows them")] = None
    by_provider: Annotated[dict[str, ProviderToolLists], key("Rules by provider, or provider/model")] = {}
    tools_by_sender: Annotated[dict[str, ToolLists], key("Rules by the id of who wrote the message")] = {}


class SubagentToolsConfig(Section, frozen=True):
    """What sub-agents may use."""

    is_open = True
    tools: ToolLists = ToolLists()


class AudioSettings(Section, frozen=True):
    """How speech in messages becomes text: by the first of `models` that can."""

    is_open = True
    enabled: Annotated[bool, key("Whether it does")] = True
    models: Annotated[tuple[Json, ...], key("Programs and services, tried in this order")] = ()


class MediaSettings(Section, frozen=True):
    """How files that come with a message are read."""

    is_open = True
    audio: AudioSettings = AudioSettings()


class BroadcastConfig(Section, frozen=True):
    """One message to many conversations."""

    is_open = True
    enabled: Annotated[bool, key("Allowed")] = True


class OriginMarkerConfig(Section, frozen=True):
    """Text around a message from another conversation."""

    is_open = True
    enabled: Annotated[bool, key("Added")] = False
    prefix: Annotated[str, key("Before it; {channel} is where it comes from")] = "[from {channel}] "
    suffix: Annotated[str, key("After it")] = ""


class CrossContextConfig(Section, frozen=True):
    """Messages to other conversations than the run's own."""

    is_open = True
    allow_within_provider: Annotated[bool, key("On the same channel")] = True
    allow_across_providers: Annotated[bool, key("On another channel")] = False
    marker: OriginMarkerConfig = OriginMarkerConfig()


class MessageToolConfig(Section, frozen=True):
    """The tool `message`."""

    is_open = True
    broadcast: BroadcastConfig = BroadcastConfig()
    cross_context: CrossContextConfig = CrossContextConfig()
    allow_cross_context_send: Annotated[bool, key("Everywhere: the older form of crossContext")] = False


class SessionToolsConfig(Section, frozen=True):
    """The tools that read and use sessions."""

    is_open = True
    visibility: Annotated[Literal["self", "tree", "agent", "all"], key("Which sessions an agent sees")] = "tree"


class AgentToAgentConfig(Section, frozen=True):
    """Agents that use each other's sessions."""

    is_open = True
    enabled: Annotated[bool, key("Allowed, with tools.sessions.visibility all")] = False
    allow: Annotated[Strings, key("The agents it concerns; * is any part of a name")] = ()


class AppToolsConfig(Section, frozen=True):
    """Tools of apps connected to the proxy."""

    is_open = True
    sessions: Annotated[str | None, key("all: every session has them, not only the one each app names")] = None


class ToolsConfig(AgentToolsConfig, frozen=True):
    """What agents may use."""

    subagents: SubagentToolsConfig = SubagentToolsConfig()
    media: MediaSettings = MediaSettings()
    message: MessageToolConfig = MessageToolConfig()
    sessions: SessionToolsConfig = SessionToolsConfig()
    agent_to_agent: AgentToAgentConfig = AgentToAgentConfig()
    apps: AppToolsConfig = AppToolsConfig()
