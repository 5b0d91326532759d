"""All of openclaw.json, and how a file is read into it."""

from typing import Annotated, Any

import msgspec
from msgspec import field

from ..model import Json
from .agents import AgentsConfig
from .channels import MatrixChannelConfig, OtherChannel, TelegramChannelConfig
from .cron import CronSettings, check_cron_settings
from .gateway import (
    CommandsConfig,
    GatewayConfig,
    McpConfig,
    MessagesConfig,
    SessionConfig,
    StoreConfig,
)
from .keys import ACCESS, ADDRESS, FILES, FREE, PERMISSIONS, PROGRAM, SECRET, SENDERS, UNKNOWN, Section, key
from .models import ModelsConfig
from .tools import MediaSettings


class LoggingConfig(Section, frozen=True):
    """Logs."""

    is_open = True
    level: Annotated[str | None, key("Level", FREE)] = None
    file: Annotated[str | None, key("File", FILES)] = None


class AppearanceConfig(Section, frozen=True):
    """Appearance."""

    seam_color: Annotated[str | None, key("Colour", FREE)] = None
    assistant: Annotated[Json, key("Assistant", FREE)] = {}


class Config(Section, frozen=True):
    """openclaw.json."""

    schema: Annotated[str | None, key("This schema, for editors", ADDRESS)] = field(default=None, name="$schema")
    meta: Annotated[Json, key("Written by programs about this file", FREE)] = {}
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
    tools: Annotated[Json, key("What agents may use", PERMISSIONS)] = {}
    commands: Annotated[CommandsConfig, key(agents=SENDERS)] = CommandsConfig()
    messages: Annotated[MessagesConfig, key(agents=UNKNOWN)] = MessagesConfig()
    cron: Annotated[CronSettings, key(reload="hot")] = CronSettings()
    hooks: Annotated[Json, key("Web hooks", ACCESS, reload="hot", unused=True)] = {}
    node: Annotated[Json, key("This machine as a node", PERMISSIONS, reload="restart", unused=True)] = {}
    proxy: Annotated[Json, key("The app-tool proxy", ACCESS, reload="restart", unused=True)] = {}
    mcp: Annotated[McpConfig, key(agents=UNKNOWN)] = McpConfig()
    store: Annotated[StoreConfig, key(reload="restart")] = StoreConfig()
    logging: Annotated[LoggingConfig, key(agents=UNKNOWN, unused=True)] = LoggingConfig()
    env: Annotated[Json, key("Environment of agents", SECRET, unused=True)] = {}
    secrets: Annotated[Json, key("Where secrets come from", SECRET, unused=True)] = {}
    ui: Annotated[AppearanceConfig, key(unused=True)] = AppearanceConfig()
    plugins: Annotated[Json, key("Plugins", PROGRAM, reload="restart", unused=True)] = {}
    skills: Annotated[Json, key("Skills", PROGRAM, unused=True)] = {}
    browser: Annotated[Json, key("Browser", UNKNOWN, reload="hot", unused=True)] = {}
    talk: Annotated[Json, key("Speech", UNKNOWN, unused=True)] = {}
    wizard: Annotated[Json, key("Set-up", UNKNOWN, unused=True)] = {}

    @property
    def media(self) -> MediaSettings:
        """`tools.media`. Raises ValidationError: the schema accepts everything below `tools`."""
        return msgspec.convert(self.tools.get("media", {}), MediaSettings)


def read_config(resolved: Json) -> Config:
    """The config of a file that the schema accepts, `${NAME}` replaced. Every agent holds what `agents.defaults` sets
    for it; what neither sets has the default declared here."""
    written: Json = _whole_numbers(resolved)
    config = msgspec.convert({**written, "agents": _merge_agents(written.get("agents", {}))}, Config)
    return msgspec.structs.replace(config, cron=check_cron_settings(config.cron))


def _merge_agents(agents: Json) -> Json:
    defaults: Json = agents.get("defaults", {})
    limits: Json = defaults.get("limits", {})
    listed = [
        {**defaults, **entry, "limits": {**limits, **entry.get("limits", {})}} for entry in agents.get("list", ())
    ]
    return {"defaults": defaults, "list": listed}


def _whole_numbers(value: Any) -> Any:
    """JSON has one kind of number: for the schema 5.0 is an integer too."""
    if isinstance(value, dict):
        return {name: _whole_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
