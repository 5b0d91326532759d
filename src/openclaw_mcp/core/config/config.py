"""All of openclaw.json, and how a file is read into it."""

from typing import Annotated, Any

import msgspec
from msgspec import field

from ..model import Json
from ..providers import uses_default_model
from .agents import AgentsConfig
from .channels import MatrixChannelConfig, OtherChannel, TelegramChannelConfig
from .cron import CronSettings, check_cron_settings
from .gateway import CommandsConfig, GatewayConfig, McpConfig, MessagesConfig, SessionConfig, StoreConfig
from .keys import ACCESS, ADDRESS, FILES, FREE, PERMISSIONS, PROGRAM, SECRET, SENDERS, UNKNOWN, OpenObject, Section, key
from .models import ModelsConfig
from .tools import MediaSettings, ToolsConfig


class LoggingConfig(Section, frozen=True):
    """Logs."""

    is_open = True
    level: Annotated[str | None, key("Level", FREE)] = None
    file: Annotated[str | None, key("File", FILES)] = None


class AppearanceConfig(Section, frozen=True):
    """Appearance."""

    seam_color: Annotated[str | None, key("Colour", FREE)] = None
    assistant: Annotated[OpenObject, key("Assistant", FREE)] = OpenObject()


class Config(Section, frozen=True):
    """openclaw.json."""

    schema: Annotated[str | None, key("This schema, for editors", ADDRESS)] = field(default=None, name="$schema")
    meta: Annotated[OpenObject, key("Written by programs about this file", FREE)] = OpenObject()
    gateway: Annotated[GatewayConfig, key(reload="restart")] = GatewayConfig()
    agents: AgentsConfig = AgentsConfig()
    models: ModelsConfig = ModelsConfig()
    session: SessionConfig = SessionConfig()
    channels: Annotated[
        dict[str, Json],
        key(
            "Channels by name",
            UNKNOWN,
            reload="hot",
            entries={"matrix": MatrixChannelConfig, "telegram": TelegramChannelConfig, "*": OtherChannel},
        ),
    ] = {}
    bindings: Annotated[tuple[Json, ...], key("Which agent answers where", SENDERS, reload="none")] = ()
    tools: Annotated[Json, key("What agents may use", PERMISSIONS, section=ToolsConfig)] = {}
    commands: Annotated[CommandsConfig, key(agents=SENDERS)] = CommandsConfig()
    messages: Annotated[MessagesConfig, key(agents=UNKNOWN)] = MessagesConfig()
    cron: Annotated[CronSettings, key(reload="hot")] = CronSettings()
    hooks: Annotated[OpenObject, key("Web hooks", ACCESS, reload="hot", unused=True)] = OpenObject()
    node: Annotated[OpenObject, key("This machine as a node", PERMISSIONS, reload="restart", unused=True)] = (
        OpenObject()
    )
    proxy: Annotated[OpenObject, key("The app-tool proxy", ACCESS, reload="restart", unused=True)] = OpenObject()
    mcp: Annotated[McpConfig, key(agents=UNKNOWN)] = McpConfig()
    store: Annotated[StoreConfig, key(reload="restart")] = StoreConfig()
    logging: Annotated[LoggingConfig, key(agents=UNKNOWN, unused=True)] = LoggingConfig()
    env: Annotated[OpenObject, key("Environment of agents", SECRET, unused=True)] = OpenObject()
    secrets: Annotated[OpenObject, key("Where secrets come from", SECRET, unused=True)] = OpenObject()
    ui: Annotated[AppearanceConfig, key(unused=True)] = AppearanceConfig()
    plugins: Annotated[OpenObject, key("Plugins", PROGRAM, reload="restart", unused=True)] = OpenObject()
    skills: Annotated[OpenObject, key("Skills", PROGRAM, unused=True)] = OpenObject()
    browser: Annotated[OpenObject, key("Browser", UNKNOWN, reload="hot", unused=True)] = OpenObject()
    talk: Annotated[OpenObject, key("Speech", UNKNOWN, unused=True)] = OpenObject()
    wizard: Annotated[OpenObject, key("Set-up", UNKNOWN, unused=True)] = OpenObject()

    @property
    def media(self) -> MediaSettings:
        """`tools.media`. Raises ValidationError: the schema accepts everything below `tools`."""
        return msgspec.convert(self.tools.get("media", {}), MediaSettings)


def read_config(resolved: Json) -> Config:
    """The config of a file that the schema accepts, `${NAME}` replaced. Every agent holds what `agents.defaults` sets
    for it; what neither sets has the default declared here."""
    written = _whole_numbers(resolved)
    agents = written.get("agents", {})
    defaults = agents.get("defaults", {})
    limits = defaults.get("limits", {})
    inherited = {name: value for name, value in defaults.items() if name != "model"}
    listed = [
        {
            **(defaults if uses_default_model(entry.get("runtime"), defaults.get("runtime")) else inherited),
            **entry,
            "limits": {**limits, **entry.get("limits", {})},
        }
        for entry in agents.get("list", ())
    ]
    config = msgspec.convert({**written, "agents": {"defaults": defaults, "list": listed}}, Config)
    return msgspec.structs.replace(config, cron=check_cron_settings(config.cron))


def _whole_numbers(value: Any) -> Any:
    """JSON has one kind of number: for the schema 5.0 is an integer too."""
    if isinstance(value, dict):
        return {name: _whole_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
