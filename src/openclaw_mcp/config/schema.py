"""The config's JSON Schema: what may be written, what a change of it takes. Published for editors."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import jsonschema_rs

from ..core.agents import RUNTIMES
from ..core.model import Json
from ..core.numbers import whole
from .channel_schema import messengers
from .cron_schema import CRON, MESSAGES
from .mcp_schema import MCP
from .schema_parts import Reload, flag, free, number, section, text, texts
from .secret_names import names_many, names_secret
from .text import Path

ID: Final = "https://json-schema.org/draft/2020-12/schema"


MODEL: Final[Json] = {
    "title": "Model, as provider/model",
    "oneOf": [
        text("Model"),
        section("Model with fallbacks", {"primary": text("First choice"), "fallbacks": texts("Others")}),
    ],
}
LIMITS: Final[Json] = section(
    "What one run may use",
    {
        "modelCalls": number("Requests to the model", least=1, default=50),
        "toolCalls": number("Calls of tools", least=0, default=200),
        "parallelTools": number("Calls of tools at once", least=1, most=64, default=8),
        "tokens": number("Tokens, read and written", least=1, default=4_000_000),
        "retries": number("New tries of a request while the trouble may pass", least=0, most=10, default=3),
    },
)
CLI: Final[Mapping[str, Json]] = {
    "runtimeCommand": text("The CLI's program, when it is not on the PATH under its own name", minLength=1),
    "runtimeArgs": texts("Further arguments for the CLI"),
    "runtimeEnv": {
        "type": "object",
        "title": "Further environment of the CLI",
        "additionalProperties": {"type": "string"},
    },
    "runtimeStrict": flag("Leave out the CLI's own MCP servers; false keeps them in the owner's runs", True),
    "runtimeStartupSeconds": number("Seconds a CLI may take to say anything", least=1, default=300),
    "runtimeIdleSeconds": number("Seconds a CLI may say nothing later on", least=1, default=600),
}
"""For an agent whose runtime is claude, gemini, codex or opencode."""
AGENT: Final[Json] = section(
    "One agent",
    {
        "id": text("Id", pattern="^[a-z0-9][a-z0-9_-]{0,63}$"),
        "name": text("Name"),
        "default": flag("The one that answers when none is named"),
        "runtime": text("Who answers; by the model, when it is not set", enum=list(RUNTIMES)),
        **CLI,
        "model": MODEL,
        "workspace": text("Folder the agent works in"),
        "systemPrompt": text("What it is told first"),
        "limits": LIMITS,
        "timeoutSeconds": number("Longest run; 0 for a day", least=0),
        "tools": free("Tools it may use"),
        "identity": free("How it presents itself"),
        "subagents": free("Agents it may start"),
    },
    required=["id"],
)
KEY: Final[Json] = {
    "title": "A key: the text itself, ${A_VARIABLE}, or where it is",
    "oneOf": [
        text("The key, or ${A_VARIABLE} of the environment", minLength=1),
        section(
            "In the environment", {"source": {"const": "env"}, "id": text("The variable", minLength=1)}, open=True,
            required=["source", "id"],
        ),
        section(
            "In a file only its owner may read",
            {
                "source": {"const": "file"},
                "path": text("The file", minLength=1),
                "id": text("In a JSON file, a pointer such as /providers/openai/apiKey"),
            },
            required=["source", "path"],
        ),
        section(
            "In the system's keyring",
            {
                "source": {"const": "keyring"},
                "service": text("The service it is kept under", default="openclaw-mcp"),
                "id": text("The account it is kept under", minLength=1),
            },
            required=["source", "id"],
        ),
    ],
}  # fmt: skip
MODEL_ENTRY: Final[Json] = section(
    "One model",
    {
        "id": text("Its name at the provider", minLength=1),
        "name": text("Its name for people"),
        "contextWindow": number("Tokens it can hold", least=1000, default=128_000),
        "maxTokens": number("Tokens it may answer with", least=1),
        "input": {"type": "array", "title": "What it takes: text, image", "items": {"type": "string"}},
        "reasoning": flag("Whether it can be asked to think harder", False),
        "cost": free("Dollars for a million tokens: input, output, cacheRead, cacheWrite"),
    },
    open=True,
    required=["id"],
)
PROVIDER: Final[Json] = section(
    "One provider of models",
    {
        "api": {
            "enum": [
                "openai", "openai-completions", "openai-responses", "ollama", "anthropic", "anthropic-messages",
                "openclaw",
            ],
            "title": "What it speaks; openclaw is another gateway, whose agents are its models",
        },
        "baseUrl": text("Its address, such as http://127.0.0.1:8000/v1; of a gateway, ws://host:port", minLength=1),
        "apiKey": {
            "title": "Its key, or several to take in turns",
            "oneOf": [*KEY["oneOf"], {"type": "array", "title": "Keys", "items": KEY, "minItems": 1, "maxItems": 64}],
        },
        "headers": {"type": "object", "title": "Further headers", "additionalProperties": {"type": "string"}},
        "timeoutSeconds": number("Seconds it may say nothing", least=1, default=120),
        "models": {"type": "array", "title": "Its models, where more is to be said of them", "items": MODEL_ENTRY},
    },
    open=True,
)  # fmt: skip
AUTH: Final[Json] = section(
    "Who may connect",
    {
        "mode": {"enum": ["token", "password", "none"], "title": "How clients prove themselves", "default": "token"},
        "token": text("Shared token"),
        "password": text("Shared password"),
    },
    reload="restart",
)
ENDPOINTS: Final[Json] = section(
    "HTTP endpoints",
    {
        "chatCompletions": section("POST /v1/chat/completions", {"enabled": flag("Offered", True)}, reload="hot"),
        "responses": section("POST /v1/responses", {"enabled": flag("Offered")}, reload="hot"),
    },
)
GATEWAY: Final[Json] = section(
    "The gateway",
    {
        "mode": {"enum": ["local", "remote"], "title": "Serve here, or use one elsewhere"},
        "port": number("Port", least=0, most=65535, default=18789),
        "bind": {"enum": ["loopback", "lan", "auto", "custom"], "title": "Where to listen", "default": "loopback"},
        "auth": AUTH,
        "http": section("HTTP", {"endpoints": ENDPOINTS}),
        "tools": section("Tools over HTTP and RPC", {"allow": texts("Allowed"), "deny": texts("Denied")}, reload="hot"),
        "remote": section("A gateway elsewhere", {"url": text("Address"), "token": text("Its token")}),
        "reload": section(
            "Changes of this file",
            {"mode": {"enum": ["hybrid", "hot", "restart", "off"], "title": "What a change does", "default": "hybrid"}},
        ),
        "nodes": free("Nodes", reload="hot"),
        "controlUi": free("The control page", reload="restart"),
    },
    reload="restart",
)
SESSION: Final[Json] = section(
    "Sessions",
    {
        "mainKey": text("Name of the main session", default="main", pattern="^[a-z0-9][a-z0-9_-]{0,63}$"),
        "scope": {"enum": ["per-sender", "global"], "title": "Who shares a session"},
        "dmScope": {
            "enum": ["main", "per-peer", "per-channel-peer", "per-account-channel-peer"],
            "title": "How direct chats are told apart",
        },
        "identityLinks": free("One person's ids on several channels, by name"),
        "agentToAgent": free("Agents talking to each other"),
        "sendPolicy": free("Where agents may send"),
    },
)
PEOPLE: Final[Json] = {"type": "array", "items": {"type": ["string", "integer"]}}
CHANNEL_RULES: Final[Json] = {
    "enabled": flag("Used", True),
    "dmPolicy": {"enum": ["pairing", "allowlist", "open", "disabled"], "title": "Who may write directly"},
    "allowFrom": {**PEOPLE, "title": "Who may write; * is everybody, an empty list nobody"},
    "groupPolicy": {"enum": ["allowlist", "open", "disabled"], "title": "Who may write in groups"},
    "groupAllowFrom": {**PEOPLE, "title": "Who may write in groups, when others than allowFrom"},
    "groups": free("Rules for single groups by id; * for the others", reload="hot"),
    "requireMention": flag("In groups, answer only what is said to us", True),
    "replyToMode": {"enum": ["off", "first", "all"], "title": "Whether answers quote the question"},
    "textChunkLimit": number("Characters of one message, when fewer than the channel takes", least=1),
    "mediaMaxMb": {"type": "number", "title": "Megabytes of one file", "exclusiveMinimum": 0},
    "actions": free("Abilities switched off: {pin: false}", reload="hot"),
}
CHANNEL: Final[Json] = section(
    "One channel",
    {
        **CHANNEL_RULES,
        "accounts": {
            "type": "object",
            "title": "Accounts by id",
            "additionalProperties": section("One account", CHANNEL_RULES, open=True, reload="hot"),
        },
        "defaultAccount": text("The account that speaks when none is named"),
    },
    open=True,
    reload="hot",
)
DEFAULTS: Final[Json] = section(
    "What every agent starts with",
    {
        "model": MODEL,
        "systemPrompt": text("What every agent is told first, unless it has its own"),
        "limits": LIMITS,
        "runtime": text("Who answers; by the model, when it is not set", enum=list(RUNTIMES)),
        **CLI,
        "workspace": text("Folder"),
        "timeoutSeconds": number("Longest run; 0 for a day", default=600),
        "maxConcurrent": number("Runs at once", least=1),
        "heartbeat": free("Heartbeat", reload="hot"),
        "subagents": free("Sub-agents"),
    },
)
SECTIONS: Final[Mapping[str, Json]] = {
    "meta": free("Written by programs about this file"),
    "gateway": GATEWAY,
    "agents": section("Agents", {"defaults": DEFAULTS, "list": {"type": "array", "title": "Agents", "items": AGENT}}),
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
        "properties": messengers(CHANNEL_RULES),
        "additionalProperties": CHANNEL,
    },
    "bindings": {
        "type": "array",
        "title": "Which agent answers where",
        "items": {"type": "object"},
        "x-reload": "none",
    },
    "tools": free("What agents may use"),
    "commands": section(
        "Commands people write", {"restart": flag("/restart and config-caused restarts", True)}, open=True
    ),
    "messages": MESSAGES,
    "cron": CRON,
    "hooks": free("Web hooks", reload="hot"),
    "node": free("This machine as a node", reload="restart"),
    "proxy": free("The app-tool proxy", reload="restart"),
    "mcp": MCP,
    "store": section("The database", {"url": text("PostgreSQL URL; without it, SQLite here")}, reload="restart"),
    "logging": section("Logs", {"level": text("Level"), "file": text("File")}, open=True),
    "env": free("Environment of agents"),
    "secrets": free("Where secrets come from"),
    "ui": section("Appearance", {"seamColor": text("Colour"), "assistant": free("Assistant")}),
    "plugins": free("Plugins", reload="restart"),
    "skills": free("Skills"),
    "browser": free("Browser", reload="hot"),
    "talk": free("Speech"),
    "wizard": free("Set-up"),
}


class Blueprint:
    """The whole schema: our sections, and those other rooms bring."""

    def __init__(self, extra: Mapping[str, Json] | None = None) -> None:
        self.schema: Json = {
            "$schema": ID,
            "title": "openclaw.json",
            "type": "object",
            "properties": {"$schema": text("This schema, for editors"), **SECTIONS, **(extra or {})},
            "additionalProperties": False,
        }

    @cached_property
    def _validator(self) -> Any:
        return jsonschema_rs.validator_for(self.schema, mask="the value")

    def issues(self, config: Json) -> list[Json]:
        """What is wrong, by path; values are never repeated, they may be secret."""
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

    def node(self, path: Path) -> Json | None:
        """The schema at a path; None where there is none."""
        node: Json | None = self.schema
        for step in path:
            if node is None:
                return None
            node = _below(node, step)
        return node

    def reload(self, path: Path) -> Reload:
        """What a change there takes: the nearest part that says."""
        kind: Reload = "restart"  # a part nobody described
        node: Json | None = self.schema
        for step in path:
            node = None if node is None else _below(node, step)
            if node is None:
                break
            kind = node.get("x-reload", kind)
        return kind

    def hints(self) -> Json:
        return dict(_hints(self.schema, ""))

    def with_defaults(self, config: Json) -> Json:
        filled: Json = _filled(self.schema, config)
        return filled


def _below(node: Json, step: str | int) -> Json | None:
    if isinstance(step, int) or step in ("*", "[]") or whole(step) is not None:
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
    if names_secret(name) and not names_many(name):
        hint["sensitive"] = True
    return hint


def _hints(node: Json, path: str) -> Any:
    for name, inner in node.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield place, hint_of(name, inner)
        yield from _hints(inner, place)
        if isinstance(inner.get("items"), dict):
            yield from _hints(inner["items"], f"{place}[]")
        if isinstance(inner.get("additionalProperties"), dict):
            yield from _hints(inner["additionalProperties"], f"{place}.*")


def _filled(node: Json, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, inner in node.get("properties", {}).items():
        if name in result:
            result[name] = _filled(inner, result[name])
        elif "default" in inner:
            result[name] = inner["default"]
    return result
