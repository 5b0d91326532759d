"""`agents` of openclaw.json."""

from typing import Annotated, Final, Literal

from ..model import Json
from .keys import ADDRESS, FILES, FREE, LIMIT, MODEL, PERMISSIONS, PROGRAM, SECRET, SENDERS, OpenObject, Section, key
from .tools import AgentToolsConfig

AgentRuntimeName = Literal["demo", "openai", "anthropic", "openclaw", "claude", "gemini", "codex", "opencode"]
NAME_PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,63}$"
Strings = tuple[str, ...]


class ModelFallbacks(Section, frozen=True):
    """Model with fallbacks."""

    primary: Annotated[str | None, key("First choice")] = None
    fallbacks: Annotated[Strings, key("Others")] = ()


ModelSetting = str | ModelFallbacks | None
"""An agent's `model`."""


class ModelRunLimits(Section, frozen=True):
    """What one run may use."""

    model_calls: Annotated[int, key("Requests to the model", LIMIT, ge=1)] = 50  # more: the model runs in circles
    tool_calls: Annotated[int, key("Calls of tools", LIMIT, ge=0)] = 200
    parallel_tools: Annotated[int, key("Calls of tools at once", LIMIT, ge=1, le=64)] = 8
    tokens: Annotated[int, key("Tokens, read and written", LIMIT, ge=1)] = 4_000_000
    retries: Annotated[int, key("New tries of a request after a passing failure", LIMIT, ge=0, le=10)] = 3


class AgentSettings(Section, frozen=True):
    """What an agent's section and `agents.defaults` have in common. The `runtime…` keys below are for a CLI."""

    model: Annotated[ModelSetting, key("Model, as provider/model", MODEL)] = None
    system_prompt: Annotated[str | None, key("First instructions", PERMISSIONS)] = None
    limits: ModelRunLimits = ModelRunLimits()
    runtime: Annotated[
        AgentRuntimeName | None, key("What answers; chosen by the model, when it is not set", PROGRAM)
    ] = None
    runtime_command: (
        Annotated[str, key("The CLI's program, when it is not on the PATH under its own name", PROGRAM, min_length=1)]
        | None
    ) = None
    runtime_args: Annotated[Strings, key("Further arguments for the CLI", PROGRAM)] = ()
    runtime_env: Annotated[dict[str, str], key("Further environment of the CLI", SECRET)] = {}
    runtime_strict: Annotated[
        bool, key("Leave out the CLI's own MCP servers; false keeps them in the owner's runs", PERMISSIONS)
    ] = True
    runtime_startup_seconds: Annotated[
        float, key("Seconds a CLI may take to its first output", LIMIT, whole_seconds=True)
    ] = 300
    runtime_idle_seconds: Annotated[
        float, key("Seconds a CLI may be without output later on", LIMIT, whole_seconds=True)
    ] = 600
    workspace: Annotated[str | None, key("Folder the agent works in", FILES)] = None
    timeout_seconds: Annotated[int, key("Longest run; 0 for a day", LIMIT, ge=0)] = 600
    subagents: Annotated[Json, key("Agents it may start", PERMISSIONS)] = {}


class AgentDefaultsConfig(AgentSettings, frozen=True):
    """What every agent starts with."""

    max_concurrent: Annotated[int, key("Runs at once", LIMIT, unused=True, ge=1)] | None = None
    heartbeat: Annotated[OpenObject, key("Heartbeat", ADDRESS, reload="hot", unused=True)] = OpenObject()


class AgentEntry(AgentSettings, frozen=True, kw_only=True):
    """One agent."""

    id: Annotated[str, key("Id", PERMISSIONS, pattern=NAME_PATTERN)]
    name: Annotated[str | None, key("Name", FREE)] = None
    default: Annotated[bool, key("The one that answers when none is named", SENDERS)] = False
    tools: Annotated[Json, key("Tools it may use", PERMISSIONS, section=AgentToolsConfig)] = {}
    identity: Annotated[OpenObject, key("How it presents itself", FREE, unused=True)] = OpenObject()


class AgentsConfig(Section, frozen=True):
    """Agents."""

    defaults: AgentDefaultsConfig = AgentDefaultsConfig()
    list: Annotated[tuple[AgentEntry, ...], key("Agents")] = ()
    """Each entry holds what `defaults` sets for it (`read_config`)."""
