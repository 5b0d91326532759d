"""The config's JSON Schema: what may be written, what a change of it takes. Published for editors."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import jsonschema_rs

from ..core.agents import AGENT_RUNTIMES
from ..core.model import Json
from ..core.numbers import parse_whole_number
from .channel_schema import messenger_sections
from .cron_schema import CRON, MESSAGES
from .mcp_schema import MCP
from .schema_parts import ReloadKind, boolean, integer, open_object, section, string, strings
from .secret_names import is_plural_name, is_secret_name
from .text import ConfigPath

JSON_SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


MODEL: Final[Json] = {
    "title": "Model, as provider/model",
    "oneOf": [
        string("Model"),
        section("Model with fallbacks", {"primary": string("First choice"), "fallbacks": strings("Others")}),
    ],
}
LIMITS: Final[Json] = section(
    "What one run may use",
    {
        "modelCalls": integer("Requests to the model", minimum=1, default=50),
        "toolCalls": integer("Calls of tools", minimum=0, default=200),
        "parallelTools": integer("Calls of tools at once", minimum=1, maximum=64, default=8),
        "tokens": integer("Tokens, read and written", minimum=1, default=4_000_000),
        "retries": integer("New tries of a request while the trouble may pass", minimum=0, maximum=10, default=3),
    },
)
CLI_RUNTIME: Final[Mapping[str, Json]] = {
    "runtimeCommand": string("The CLI's program, when it is not on the PATH under its own name", minLength=1),
    "runtimeArgs": strings("Further arguments for the CLI"),
    "runtimeEnv": {
        "type": "object",
        "title": "Further environment of the CLI",
        "additionalProperties": {"type": "string"},
    },
    "runtimeStrict": boolean("Leave out the CLI's own MCP servers; false keeps them in the owner's runs", True),
    "runtimeStartupSeconds": integer("Seconds a CLI may take to say anything", minimum=1, default=300),
    "runtimeIdleSeconds": integer("Seconds a CLI may say nothing later on", minimum=1, default=600),
}
"""For an agent whose runtime is claude, gemini, codex or opencode."""
AGENT: Final[Json] = section(
    "One agent",
    {
        "id": string("Id", pattern="^[a-z0-9][a-z0-9_-]{0,63}$"),
        "name": string("Name"),
        "default": boolean("The one that answers when none is named"),
        "runtime": string("Who answers; by the model, when it is not set", enum=list(AGENT_RUNTIMES)),
        **CLI_RUNTIME,
        "model": MODEL,
        "workspace": string("Folder the agent works in"),
        "systemPrompt": string("What it is told first"),
        "limits": LIMITS,
        "timeoutSeconds": integer("Longest run; 0 for a day", minimum=0),
        "tools": open_object("Tools it may use"),
        "identity": open_object("How it presents itself"),
        "subagents": open_object("Agents it may start"),
    },
    required=["id"],
)
API_KEY: Final[Json] = {
    "title": "A key: the text itself, ${A_VARIABLE}, or where it is",
    "oneOf": [
        string("The key, or ${A_VARIABLE} of the environment", minLength=1),
        section(
            "In the environment",
            {"source": {"const": "env"}, "id": string("The variable", minLength=1)},
            allow_extra=True,
            required=["source", "id"],
        ),
        section(
            "In a file only its owner may read",
            {
                "source": {"const": "file"},
                "path": string("The file", minLength=1),
                "id": string("In a JSON file, a pointer such as /providers/openai/apiKey"),
            },
            required=["source", "path"],
        ),
        section(
            "In the system's keyring",
            {
                "source": {"const": "keyring"},
                "service": string("The service it is kept under", default="openclaw-mcp"),
                "id": string("The account it is kept under", minLength=1),
            },
            required=["source", "id"],
        ),
    ],
}
MODEL_ENTRY: Final[Json] = section(
    "One model",
    {
        "id": string("Its name at the provider", minLength=1),
        "name": string("Its name for people"),
        "contextWindow": integer("Tokens it can hold", minimum=1000, default=128_000),
        "maxTokens": integer("Tokens it may answer with", minimum=1),
        "input": {"type": "array", "title": "What it takes: text, image", "items": {"type": "string"}},
        "reasoning": boolean("Whether it can be asked to think harder", False),
        "cost": open_object("Dollars for a million tokens: input, output, cacheRead, cacheWrite"),
    },
    allow_extra=True,
    required=["id"],
)
PROVIDER: Final[Json] = section(
    "One provider of models",
    {
        "api": {
            "enum": [
                "openai",
                "openai-completions",
                "openai-responses",
                "ollama",
                "anthropic",
                "anthropic-messages",
                "openclaw",
            ],
            "title": "What it speaks; openclaw is another gateway, whose agents are its models",
        },
        "baseUrl": string("Its address, such as http://127.0.0.1:8000/v1; of a gateway, ws://host:port", minLength=1),
        "apiKey": {
            "title": "Its key, or several to take in turns",
            "oneOf": [
                *API_KEY["oneOf"],
                {"type": "array", "title": "Keys", "items": API_KEY, "minItems": 1, "maxItems": 64},
            ],
        },
        "headers": {"type": "object", "title": "Further headers", "additionalProperties": {"type": "string"}},
        "timeoutSeconds": integer("Seconds it may say nothing", minimum=1, default=120),
        "models": {"type": "array", "title": "Its models, where more is to be said of them", "items": MODEL_ENTRY},
    },
    allow_extra=True,
)
AUTH: Final[Json] = section(
    "Who may connect",
    {
        "mode": {"enum": ["token", "password", "none"], "title": "How clients prove themselves", "default": "token"},
        "token": string("Shared token"),
        "password": string("Shared password"),
    },
    reload="restart",
)
ENDPOINTS: Final[Json] = section(
    "HTTP endpoints",
    {
        "chatCompletions": section("POST /v1/chat/completions", {"enabled": boolean("Offered", True)}, reload="hot"),
        "responses": section("POST /v1/responses", {"enabled": boolean("Offered")}, reload="hot"),
    },
)
GATEWAY: Final[Json] = section(
    "The gateway",
    {
        "mode": {"enum": ["local", "remote"], "title": "Serve here, or use one elsewhere"},
        "port": integer("Port", minimum=0, maximum=65535, default=18789),
        "bind": {"enum": ["loopback", "lan", "auto", "custom"], "title": "Where to listen", "default": "loopback"},
        "auth": AUTH,
        "http": section("HTTP", {"endpoints": ENDPOINTS}),
        "tools": section(
            "Tools over HTTP and RPC", {"allow": strings("Allowed"), "deny": strings("Denied")}, reload="hot"
        ),
        "remote": section("A gateway elsewhere", {"url": string("Address"), "token": string("Its token")}),
        "reload": section(
            "Changes of this file",
            {"mode": {"enum": ["hybrid", "hot", "restart", "off"], "title": "What a change does", "default": "hybrid"}},
        ),
        "nodes": open_object("Nodes", reload="hot"),
        "controlUi": open_object("The control page", reload="restart"),
    },
    reload="restart",
)
SESSION: Final[Json] = section(
    "Sessions",
    {
        "mainKey": string("Name of the main session", default="main", pattern="^[a-z0-9][a-z0-9_-]{0,63}$"),
        "scope": {"enum": ["per-sender", "global"], "title": "Who shares a session"},
        "dmScope": {
            "enum": ["main", "per-peer", "per-channel-peer", "per-account-channel-peer"],
            "title": "How direct chats are told apart",
        },
        "identityLinks": open_object("One person's ids on several channels, by name"),
        "agentToAgent": open_object("Agents talking to each other"),
        "sendPolicy": open_object("Where agents may send"),
    },
)
SENDER_LIST: Final[Json] = {"type": "array", "items": {"type": ["string", "integer"]}}
CHANNEL_RULES: Final[Json] = {
    "enabled": boolean("Used", True),
    "dmPolicy": {"enum": ["pairing", "allowlist", "open", "disabled"], "title": "Who may write directly"},
    "allowFrom": {**SENDER_LIST, "title": "Who may write; * is everybody, an empty list nobody"},
    "groupPolicy": {"enum": ["allowlist", "open", "disabled"], "title": "Who may write in groups"},
    "groupAllowFrom": {**SENDER_LIST, "title": "Who may write in groups, when others than allowFrom"},
    "groups": open_object("Rules for single groups by id; * for the others", reload="hot"),
    "requireMention": boolean("In groups, answer only what is said to us", True),
    "replyToMode": {"enum": ["off", "first", "all"], "title": "Whether answers quote the question"},
    "textChunkLimit": integer("Characters of one message, when fewer than the channel takes", minimum=1),
    "mediaMaxMb": {"type": "number", "title": "Megabytes of one file", "exclusiveMinimum": 0},
    "actions": open_object("Abilities switched off: {pin: false}", reload="hot"),
}
CHANNEL: Final[Json] = section(
    "One channel",
    {
        **CHANNEL_RULES,
        "accounts": {
            "type": "object",
            "title": "Accounts by id",
            "additionalProperties": section("One account", CHANNEL_RULES, allow_extra=True, reload="hot"),
        },
        "defaultAccount": string("The account that speaks when none is named"),
    },
    allow_extra=True,
    reload="hot",
)
AGENT_DEFAULTS: Final[Json] = section(
    "What every agent starts with",
    {
        "model": MODEL,
        "systemPrompt": string("What every agent is told first, unless it has its own"),
        "limits": LIMITS,
        "runtime": string("Who answers; by the model, when it is not set", enum=list(AGENT_RUNTIMES)),
        **CLI_RUNTIME,
        "workspace": string("Folder"),
        "timeoutSeconds": integer("Longest run; 0 for a day", default=600),
        "maxConcurrent": integer("Runs at once", minimum=1),
        "heartbeat": open_object("Heartbeat", reload="hot"),
        "subagents": open_object("Sub-agents"),
    },
)
SECTIONS: Final[Mapping[str, Json]] = {
    "meta": open_object("Written by programs about this file"),
    "gateway": GATEWAY,
    "agents": section(
        "Agents", {"defaults": AGENT_DEFAULTS, "list": {"type": "array", "title": "Agents", "items": AGENT}}
    ),
    "models": section(
        "Models",
        {
            "mode": {"enum": ["merge", "replace"], "title": "With the built-in list"},
            "providers": {
                "type": "object",
                "title": "Providers by name; openai, anthropic and ollama are known without an entry",
                "additionalProperties": PROVIDER,
            },
        },
    ),
    "session": SESSION,
    "channels": {
        "type": "object",
        "title": "Channels by name",
        "x-reload": "hot",
        "properties": messenger_sections(CHANNEL_RULES),
        "additionalProperties": CHANNEL,
    },
    "bindings": {
        "type": "array",
        "title": "Which agent answers where",
        "items": {"type": "object"},
        "x-reload": "none",
    },
    "tools": open_object("What agents may use"),
    "commands": section(
        "Commands people write", {"restart": boolean("/restart and config-caused restarts", True)}, allow_extra=True
    ),
    "messages": MESSAGES,
    "cron": CRON,
    "hooks": open_object("Web hooks", reload="hot"),
    "node": open_object("This machine as a node", reload="restart"),
    "proxy": open_object("The app-tool proxy", reload="restart"),
    "mcp": MCP,
    "store": section("The database", {"url": string("PostgreSQL URL; without it, SQLite here")}, reload="restart"),
    "logging": section("Logs", {"level": string("Level"), "file": string("File")}, allow_extra=True),
    "env": open_object("Environment of agents"),
    "secrets": open_object("Where secrets come from"),
    "ui": section("Appearance", {"seamColor": string("Colour"), "assistant": open_object("Assistant")}),
    "plugins": open_object("Plugins", reload="restart"),
    "skills": open_object("Skills"),
    "browser": open_object("Browser", reload="hot"),
    "talk": open_object("Speech"),
    "wizard": open_object("Set-up"),
}


class ConfigSchema:
    """The whole schema: our sections, and those other rooms bring."""

    def __init__(self, extra: Mapping[str, Json] | None = None) -> None:
        self.json_schema: Json = {
            "$schema": JSON_SCHEMA_DIALECT,
            "title": "openclaw.json",
            "type": "object",
            "properties": {"$schema": string("This schema, for editors"), **SECTIONS, **(extra or {})},
            "additionalProperties": False,
        }

    @cached_property
    def _validator(self) -> Any:
        return jsonschema_rs.validator_for(self.json_schema, mask="the value")

    def find_issues(self, config: Json) -> list[Json]:
        """What is wrong, by path; values are never repeated, they may be secret."""
        if not config:
            return []  # no key is required; the validator takes 4 MiB, which a gateway without a config can spare
        found: list[Json] = []
        for error in self._validator.iter_errors(config):
            path = ".".join(str(step) for step in error.instance_path)
            unexpected = getattr(error.kind, "unexpected", None)
            if unexpected:
                found += [{"path": path, "message": f'Unrecognized key: "{key}"'} for key in unexpected]
            elif options := getattr(error.kind, "options", None):
                found.append({"path": path, "message": f"must be one of {', '.join(map(str, options))}"})
            else:
                found.append({"path": path, "message": str(error.message)[:300]})
        return found

    def find_node(self, path: ConfigPath) -> Json | None:
        """The schema at a path; None where there is none."""
        node: Json | None = self.json_schema
        for step in path:
            if node is None:
                return None
            node = _child_node(node, step)
        return node

    def reload_kind(self, path: ConfigPath) -> ReloadKind:
        """What a change there takes: the nearest part that says."""
        kind: ReloadKind = "restart"  # a part nobody described
        node: Json | None = self.json_schema
        for step in path:
            node = None if node is None else _child_node(node, step)
            if node is None:
                break
            kind = node.get("x-reload", kind)
        return kind

    def ui_hints(self) -> Json:
        return dict(_iter_hints(self.json_schema, ""))

    def fill_defaults(self, config: Json) -> Json:
        filled: Json = _fill_defaults(self.json_schema, config)
        return filled


def _child_node(node: Json, step: str | int) -> Json | None:
    if isinstance(step, int) or step in ("*", "[]") or parse_whole_number(step) is not None:
        items = node.get("items")
        if isinstance(items, dict):
            return items
    found = node.get("properties", {}).get(step)
    if found is not None:
        inner: Json = found
        return inner
    others = node.get("additionalProperties")
    if isinstance(others, dict):
        return others
    return {} if others is True else None


def hint_of(name: str, node: Json) -> Json:
    hint: Json = {"label": node.get("title", name)}
    if is_secret_name(name) and not is_plural_name(name):
        hint["sensitive"] = True
    return hint


def _iter_hints(node: Json, path: str) -> Any:
    for name, inner in node.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield place, hint_of(name, inner)
        yield from _iter_hints(inner, place)
        if isinstance(inner.get("items"), dict):
            yield from _iter_hints(inner["items"], f"{place}[]")
        if isinstance(inner.get("additionalProperties"), dict):
            yield from _iter_hints(inner["additionalProperties"], f"{place}.*")


def _fill_defaults(node: Json, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, inner in node.get("properties", {}).items():
        if name in result:
            result[name] = _fill_defaults(inner, result[name])
        elif "default" in inner:
            result[name] = inner["default"]
    return result
