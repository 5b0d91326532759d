"""What a run may change of the config: little, in every form of the change; and nothing that binds it."""

import asyncio
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from openclaw_mcp.config import merge, parsing, redaction
from openclaw_mcp.config.file import ConfigFile
from openclaw_mcp.config.json_schema import ConfigSchemaNode
from openclaw_mcp.config.key_permissions import class_of, class_of_presence
from openclaw_mcp.config.permission import ABSENT, ConfigChangeDenied, check_run_changes, diff_values, is_person
from openclaw_mcp.config.rpc_methods import ConfigService
from openclaw_mcp.config.schema import ConfigSchema
from openclaw_mcp.core.config.keys import FREE, MODEL, UNKNOWN
from openclaw_mcp.core.model import LOCAL_CALLER, Caller, Grant, Json
from openclaw_mcp.core.rpc import ADMIN, RpcCall, RpcError
from tests.gateway.sessions.gateways import GatewayHarness, TwinLink

CONFIG: Json = {
    "gateway": {"port": 18800, "auth": {"mode": "token", "token": "s3cret-token"}, "tools": {"deny": ["exec"]}},
    "agents": {
        "defaults": {"model": "near/small", "limits": {"toolCalls": 20}},
        "list": [
            {"id": "main", "name": "Claw", "tools": {"deny": ["gateway"]}},
            {"id": "second", "name": "Two", "workspace": "/work/two"},
        ],
    },
    "models": {
        "providers": {"near": {"baseUrl": "http://127.0.0.1:1/v1", "apiKey": "k-near", "headers": {"X-A": "h"}}}
    },
    "session": {"dmScope": "per-peer", "identityLinks": {"ann": ["telegram:1"]}},
    "channels": {
        "telegram": {"botToken": "123:abc", "dmPolicy": "allowlist", "allowFrom": [1, 2], "replyToMode": "first"},
        "local": {},
    },
    "tools": {"deny": ["cron", "exec"], "sessions": {"visibility": "self"}},
    "commands": {"ownerAllowFrom": ["telegram:1"]},
    "cron": {"webhookToken": "hook-token", "webhookSsrfPolicy": {"blockedHostnames": ["metadata.internal"]}},
    "mcp": {"servers": {"notes": {"command": "notes-server", "env": {"NOTES_KEY": "nk"}, "enabled": False}}},
    "messages": {"inbound": {"debounceMs": 10}},
    "ui": {"seamColor": "#ff0000"},
}
ALL = frozenset({ADMIN})
OWNER = Grant(owner=True)
RUN = Caller(kind="agent", name="main", scopes=frozenset({ADMIN}), session="agent:main:main", grant=Grant(owner=True))
RUNS = {
    "a run with the owner's grant": RUN,
    "a program of such a run": Caller(kind="agent", name="x", scopes=ALL, entry_point="mcp", grant=OWNER),
    "a sub-agent": Caller(kind="agent", name="x", scopes=frozenset({ADMIN}), grant=Grant(owner=True, depth=2)),
    "a run without a grant": Caller(kind="agent", name="x", scopes=frozenset({ADMIN})),
    "an operator acting for a person": Caller(kind="operator", name="x", scopes=frozenset({"*"}), grant=OWNER),
    "an app": Caller(kind="app", name="x", scopes=frozenset({ADMIN})),
    "a node": Caller(kind="node", name="x", scopes=frozenset({ADMIN})),
}  # fmt: skip
PERSON = Caller(kind="operator", name="a person", scopes=frozenset({ADMIN}))


class ConfigCaller:
    """A config on disk and the service that guards it; `ask` as any caller."""

    def __init__(self, folder: Path, config: Json | None = None) -> None:
        self.path = folder / "openclaw.json"
        if config is not None:
            self.path.write_text(json.dumps(config))
        gateway = GatewayHarness()
        environment = {"OPENAI_API_KEY": "sk-environment"}
        self.service = ConfigService(ConfigFile(folder, environment=environment), gateway.publish)
        self._methods = {method.name: method for method in self.service.methods()}

    async def ask(self, method: str, caller: Caller, **params: Any) -> Any:
        if method != "config.get" and "baseHash" not in params:
            config = await self.ask("config.get", caller)
            params |= {"baseHash": config["hash"]} if config["exists"] else {}
        link = TwinLink()
        return await self._methods[method].handle(RpcCall(method=method, params=params, caller=caller, peer=link))

    @property
    def stored(self) -> Any:
        return parsing.parse(self.path.read_text())


PATCHES: list[tuple[str, Any, str]] = [
    # starts programs
    ("a server's program", {"mcp": {"servers": {"notes": {"command": "/tmp/x"}}}}, "mcp.servers.notes.command"),
    ("its arguments", {"mcp": {"servers": {"notes": {"args": ["-c", "id"]}}}}, "mcp.servers.notes.args"),
    ("its environment", {"mcp": {"servers": {"notes": {"env": {"LD_PRELOAD": "x"}}}}}, "mcp.servers.notes.env"),
    ("its folder", {"mcp": {"servers": {"notes": {"cwd": "/tmp"}}}}, "mcp.servers.notes.cwd"),
    ("switching it on", {"mcp": {"servers": {"notes": {"enabled": True}}}}, "mcp.servers.notes.enabled"),
    ("switching it on by leaving it out", {"mcp": {"servers": {"notes": {"enabled": None}}}}, "notes.enabled"),
    ("a server of its own", {"mcp": {"servers": {"mine": {"url": "https://evil.example"}}}}, "mcp.servers.mine"),
    ("an odd key of a server", {"mcp": {"servers": {"notes": {"Command": "/tmp/x"}}}}, "mcp.servers.notes.Command"),
    ("a server of a strange name", {"mcp": {"servers": {"__x\u202e": {"command": "x"}}}}, r"mcp.servers.\*"),
    ("a runtime that is a program", {"agents": {"defaults": {"runtime": "claude"}}}, "agents.defaults.runtime"),
    ("a runtime's program", {"agents": {"defaults": {"runtimeCommand": "/tmp/x"}}}, "runtimeCommand"),
    ("a runtime's arguments", {"agents": {"list": [{"id": "main", "runtimeArgs": ["--yolo"]}]}}, "runtimeArgs"),
    ("a runtime's environment", {"agents": {"list": [{"id": "main", "runtimeEnv": {"A": "b"}}]}}, "runtimeEnv"),
    ("plugins", {"plugins": {"entries": {"x": {"path": "/tmp/x"}}}}, "plugins"),
    ("skills", {"skills": {"load": {"extraDirs": ["/tmp"]}}}, "skills"),
    ("streams", {"cron": {"triggers": {"enabled": False}}}, "cron.triggers.enabled"),
    # widens power
    ("a deny list emptied", {"tools": {"deny": []}}, "tools.deny"),
    ("a deny list removed", {"tools": {"deny": None}}, "tools.deny"),
    ("all rules removed", {"tools": None}, "tools"),
    ("all rules replaced by none", {"tools": {"deny": None, "sessions": None}}, "tools.deny"),
    ("a deny list that loses one", {"tools": {"deny": ["exec"]}}, "tools.deny"),
    ("a deny list in another order", {"tools": {"deny": ["exec", "cron"]}}, "tools.deny"),
    ("who sees which session", {"tools": {"sessions": {"visibility": "all"}}}, "tools.sessions.visibility"),
    ("more tools", {"tools": {"alsoAllow": ["exec"]}}, "tools.alsoAllow"),
    ("elevated tools", {"tools": {"elevated": {"enabled": True}}}, "tools.elevated"),
    ("tools by provider", {"tools": {"byProvider": {"near": {"profile": "full"}}}}, "tools.byProvider"),
    ("tools over HTTP", {"gateway": {"tools": {"allow": ["exec"]}}}, "gateway.tools.allow"),
    ("tools over HTTP again", {"gateway": {"tools": {"deny": None}}}, "gateway.tools.deny"),
    ("an agent's tools", {"agents": {"list": [{"id": "main", "tools": {"deny": None}}]}}, "agents.list.0.tools"),
    ("an agent's tools, all", {"agents": {"list": [{"id": "main", "tools": None}]}}, "agents.list.0.tools"),
    ("another agent's tools", {"agents": {"list": [{"id": "second", "tools": {"profile": "full"}}]}}, "list.1.tools"),
    ("a new agent without rules", {"agents": {"list": [{"id": "fresh"}]}}, "agents.list.2"),
    ("another default agent", {"agents": {"list": [{"id": "second", "default": True}]}}, "agents.list.1.default"),
    ("agents it may start", {"agents": {"list": [{"id": "main", "subagents": {"allowAgents": ["*"]}}]}}, "subagents"),
    ("sub-agents of all", {"agents": {"defaults": {"subagents": {"maxSpawnDepth": 9}}}}, "subagents"),
    ("no agents at all", {"agents": None}, "agents"),
    ("its own limits", {"agents": {"defaults": {"limits": {"toolCalls": 100000}}}}, "limits.toolCalls"),
    ("its own limits, removed", {"agents": {"defaults": {"limits": None}}}, "limits.toolCalls"),
    ("its own time", {"agents": {"defaults": {"timeoutSeconds": 0}}}, "timeoutSeconds"),
    ("its first instructions", {"agents": {"defaults": {"systemPrompt": "obey"}}}, "systemPrompt"),
    ("a workspace", {"agents": {"list": [{"id": "second", "workspace": "/"}]}}, "agents.list.1.workspace"),
    ("everybody's workspace", {"agents": {"defaults": {"workspace": "/"}}}, "agents.defaults.workspace"),
    ("strictness", {"agents": {"list": [{"id": "main", "runtimeStrict": False}]}}, "runtimeStrict"),
    ("node commands", {"gateway": {"nodes": {"commands": {"allow": ["system.run"]}}}}, "gateway.nodes"),
    ("the node", {"node": {"exec": {"security": "full"}}}, "node"),
    ("agents talking", {"session": {"agentToAgent": {"enabled": True}}}, "session.agentToAgent"),
    ("where agents send", {"session": {"sendPolicy": {"default": "allow"}}}, "session.sendPolicy"),
    ("an ability switched on", {"channels": {"telegram": {"actions": {"delete": True}}}}, "telegram.actions"),
    # who may write, as whom
    ("who is owner", {"commands": {"ownerAllowFrom": ["telegram:666"]}}, "commands.ownerAllowFrom"),
    ("one more owner", {"commands": {"ownerAllowFrom": ["telegram:1", "telegram:666"]}}, "commands.ownerAllowFrom.1"),
    ("no owner", {"commands": None}, "commands"),
    ("owners, oddly spelt", {"commands": {"OwnerAllowFrom": ["telegram:666"]}}, "commands.OwnerAllowFrom"),
    ("who may write", {"channels": {"telegram": {"allowFrom": [1, 2, "*"]}}}, "channels.telegram.allowFrom"),
    ("how one may write", {"channels": {"telegram": {"dmPolicy": "open"}}}, "channels.telegram.dmPolicy"),
    ("how one may write, removed", {"channels": {"telegram": {"dmPolicy": None}}}, "channels.telegram.dmPolicy"),
    ("groups", {"channels": {"telegram": {"groups": {"*": {"toolsBySender": {}}}}}}, "channels.telegram.groups"),
    ("an account", {"channels": {"telegram": {"accounts": {"b": {"allowFrom": ["*"]}}}}}, "accounts.b"),
    ("an account by a free key", {"channels": {"telegram": {"accounts": {"b": {"replyToMode": "all"}}}}}, "accounts.b"),
    ("a channel by a free key", {"channels": {"matrix": {"replyToMode": "all"}}}, "channels.matrix"),
    ("a channel by nothing", {"channels": {"matrix": {}}}, "channels.matrix"),
    ("a channel gone", {"channels": {"local": None}}, "channels.local"),
    ("a channel switched off", {"channels": {"telegram": {"enabled": False}}}, "channels.telegram.enabled"),
    ("rules of all channels", {"channels": {"defaults": {"dmPolicy": "open"}}}, "channels.defaults"),
    ("whose chats are one", {"session": {"dmScope": "main"}}, "session.dmScope"),
    ("who is who", {"session": {"identityLinks": {"ann": ["telegram:1", "telegram:666"]}}}, "session.identityLinks"),
    ("the main session", {"session": {"mainKey": "other"}}, "session.mainKey"),
    ("which agent answers", {"bindings": [{"agentId": "main", "match": {"channel": "telegram"}}]}, "bindings"),
    # where secrets and messages go
    ("a provider's address", {"models": {"providers": {"near": {"baseUrl": "https://evil.example"}}}}, "near.baseUrl"),
    ("its address with its key", {"models": {"providers": {"near": {"baseUrl": "https://evil.example",
        "apiKey": redaction.REDACTED}}}}, "baseUrl|address beside"),
    ("a known provider's address", {"models": {"providers": {"openai": {"baseUrl": "https://e.example"}}}}, "openai"),
    ("a provider's headers", {"models": {"providers": {"near": {"headers": {"X-A": None}}}}}, "near.headers"),
    ("a provider's key", {"models": {"providers": {"near": {"apiKey": "another"}}}}, "near.apiKey"),
    ("a key out of a file", {"models": {"providers": {"near": {"apiKey": {"source": "file", "path": "/etc/shadow"}}}}},
     "near.apiKey"),
    ("a key out of the environment", {"models": {"providers": {"near": {"apiKey": {"source": "env", "id": "HOME"}}}}},
     "near.apiKey"),
    ("what a provider speaks", {"models": {"providers": {"near": {"api": "openclaw"}}}}, "near.api"),
    ("a server's address", {"mcp": {"servers": {"notes": {"url": "https://evil.example"}}}}, "notes.url"),
    ("a server's headers", {"mcp": {"servers": {"notes": {"headers": {"A": "b"}}}}}, "notes.headers"),
    ("a homeserver", {"channels": {"matrix": {"homeserver": "https://evil.example"}}}, "channels.matrix"),
    ("the Bot API", {"channels": {"telegram": {"baseUrl": "https://evil.example"}}}, "telegram.baseUrl"),
    ("a webhook", {"channels": {"telegram": {"webhookUrl": "https://evil.example"}}}, "telegram.webhookUrl"),
    ("hooks", {"hooks": {"enabled": True, "token": "t"}}, "hooks"),
    ("where webhooks may go", {"cron": {"webhookSsrfPolicy": {"dangerouslyAllowPrivateNetwork": True}}}, "cron"),
    ("a blocked host", {"cron": {"webhookSsrfPolicy": {"blockedHostnames": None}}}, "cron.webhookSsrfPolicy"),
    ("the webhooks' token", {"cron": {"webhookToken": None}}, "cron.webhookToken"),
    ("who hears of failures", {"cron": {"failureAlert": {"mode": "webhook", "to": "https://e.example"}}}, "Alert"),
    ("a heartbeat", {"agents": {"defaults": {"heartbeat": {"to": "telegram:666"}}}}, "heartbeat"),
    ("another gateway", {"gateway": {"remote": {"url": "ws://evil.example"}}}, "gateway.remote.url"),
    ("the database", {"store": {"url": "postgresql://evil.example/x"}}, "store.url"),
    ("an editor's schema", {"$schema": "https://evil.example"}, r"\$schema"),
    # ways in
    ("the gateway's token", {"gateway": {"auth": {"token": "mine"}}}, "gateway.auth.token"),
    ("the gateway's token, removed", {"gateway": {"auth": None}}, "gateway.auth"),
    ("where it listens", {"gateway": {"bind": "lan"}}, "gateway.bind"),
    ("its port", {"gateway": {"port": None}}, "gateway.port"),
    ("the control page", {"gateway": {"controlUi": {"allowedOrigins": ["*"]}}}, "gateway.controlUi"),
    ("an endpoint", {"gateway": {"http": {"endpoints": {"responses": {"enabled": True}}}}}, "responses"),
    ("the whole gateway", {"gateway": None}, "gateway"),
    ("the proxy", {"proxy": {"cors": "*"}}, "proxy"),
    # files, records, keys without a declaration
    ("the log file", {"logging": {"file": "/etc/cron.d/x"}}, "logging.file"),
    ("what is logged", {"logging": {"redactSensitive": "off"}}, "logging.redactSensitive"),
    ("the log of runs", {"cron": {"runLog": {"keepLines": 1}}}, "cron.runLog"),
    ("the environment", {"env": {"vars": {"PATH": "/tmp"}}}, "env"),
    ("secrets", {"secrets": {"providers": {}}}, "secrets"),
    ("a key without a declaration", {"messages": {"x": 1}}, "messages.x"),
    ("the browser", {"browser": {"cdpUrl": "http://evil.example"}}, "browser"),
    # free keys with more in them than they look
    ("the environment in a name", {"agents": {"list": [{"id": "main", "name": "${OPENAI_API_KEY}"}]}}, "name"),
    ("hidden in a longer text", {"ui": {"seamColor": "a${OPENAI_API_KEY}b"}}, "ui.seamColor"),
    ("in a part that is passed on", {"meta": {"x": [{"y": "${OPENAI_API_KEY}"}]}}, "meta.x"),
    ("in an identity", {"agents": {"list": [{"id": "main", "identity": {"name": "${OPENAI_API_KEY}"}}]}}, "identity"),
    ("in a model's name", {"agents": {"defaults": {"model": "${OPENAI_API_KEY}"}}}, "agents.defaults.model"),
    ("an option as a model", {"agents": {"defaults": {"model": "--dangerously-skip-permissions"}}}, "defaults.model"),
    ("an option among others", {"agents": {"defaults": {"model": {"primary": "near/a", "fallbacks": ["-c x"]}}}},
     "fallbacks"),
    ("one free and one not", {"ui": {"seamColor": "#000"}, "tools": {"profile": "full"}}, "tools.profile"),
]  # fmt: skip


@pytest.mark.parametrize(("patch", "named"), [row[1:] for row in PATCHES], ids=[row[0] for row in PATCHES])
def test_a_run_changes_nothing_that_binds_it(tmp_path: Path, patch: Any, named: str) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        everything = [parsing.join_path(path) for path, _ in parsing.walk_values(CONFIG)]
        paths = [*everything, *(path.rpartition(".")[0] for path in everything)]
        with pytest.raises(RpcError, match=named) as refused:
            await service.ask("config.patch", RUN, raw=json.dumps(patch), replacePaths=paths[:256])
        assert refused.value.kind == "FORBIDDEN" or "address beside" in str(refused.value)
        whole = merge.merge_patch(
            CONFIG, redaction.restore_secrets(patch, CONFIG) if "REDACTED" in str(patch) else patch
        )
        for method in ("config.apply", "config.set"):
            with pytest.raises(RpcError):
                await service.ask(method, RUN, raw=json.dumps(whole))
        assert service.stored == CONFIG

    asyncio.run(scenario())


@pytest.mark.parametrize("caller", RUNS.values(), ids=RUNS)
def test_a_caller_that_acts_for_another_is_a_run(tmp_path: Path, caller: Caller) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        for method in ("config.patch", "config.apply", "config.set"):
            raw = {"tools": {"profile": "full"}} if method == "config.patch" else {**CONFIG, "tools": {}}
            with pytest.raises(RpcError, match=r"an agent's run may not change tools.*openclaw config set"):
                await service.ask(method, caller, raw=json.dumps(raw))
        assert service.stored == CONFIG
        assert (await service.ask("config.patch", PERSON, raw='{"tools": {"profile": "full"}}'))["ok"]

    asyncio.run(scenario())
    assert is_person(LOCAL_CALLER)


APPLIED: list[tuple[str, str]] = [
    ("nothing", "{}"),
    ("a comment alone", "{/* nothing */}"),
    ("the rules twice, the last one counts", "rules twice"),
    ("the rules twice, behind a comment", "rules twice // and a comment"),
    ("one rule twice", "rule twice"),
    ("everything but one deny", "without tools.deny"),
    ("agents in another order", "agents turned round"),
    ("one agent twice", "an agent twice"),
    ("texts for numbers", "allowFrom as texts"),
]


@pytest.mark.parametrize("how", [row[1] for row in APPLIED], ids=[row[0] for row in APPLIED])
def test_a_whole_config_is_judged_by_what_it_changes(tmp_path: Path, how: str) -> None:
    config = copy.deepcopy(CONFIG)
    if how == "without tools.deny":
        del config["tools"]["deny"]
    elif how == "agents turned round":
        config["agents"]["list"].reverse()
    elif how == "an agent twice":
        config["agents"]["list"].append({"id": "main"})
    elif how == "allowFrom as texts":
        config["channels"]["telegram"]["allowFrom"] = ["1", "2"]
    raw = how if how.startswith("{") else json.dumps(config)
    if how.startswith("rules twice"):
        raw = raw[:-1] + ', "tools": {}' + how.removeprefix("rules twice") + "\n}"
    elif how == "rule twice":
        raw = raw.replace('"sessions": {', '"deny": [], "sessions": {')

    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        with pytest.raises(RpcError):
            await service.ask("config.apply", RUN, raw=raw)
        assert service.stored == CONFIG

    asyncio.run(scenario())


ALLOWED: list[tuple[str, Any]] = [
    ("a model", {"agents": {"defaults": {"model": "near/large"}}}),
    ("a name", {"agents": {"list": [{"id": "main", "name": "Neue Klaue - 100 $ {}"}]}}),
    ("an identity", {"agents": {"list": [{"id": "main", "identity": {"emoji": "🦞", "theme": {"a": [1]}}}]}}),
    ("the wait for the next message", {"messages": {"inbound": {"debounceMs": 500, "byChannel": {"local": 1}}}}),
    ("no wait", {"messages": None}),
    ("a colour", {"ui": {"seamColor": None, "assistant": {"name": "x"}}}),
    ("quoting", {"channels": {"telegram": {"replyToMode": "off", "textChunkLimit": 100}}}),
    ("the log's level", {"logging": {"level": "DEBUG"}}),
    ("notes of programs", {"meta": {"lastTouchedVersion": "1", "x": {}}}),
    ("missed jobs", {"cron": {"skipMissedJobs": True}}),
    ("what holds anyway", {"cron": {"enabled": True, "maxConcurrentRuns": 8}, "gateway": {"bind": "loopback"}}),
    ("nothing at all", {}),
]


@pytest.mark.parametrize("patch", [row[1] for row in ALLOWED], ids=[row[0] for row in ALLOWED])
def test_a_run_of_the_owner_may_change_what_is_free(tmp_path: Path, patch: Any) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        assert (await service.ask("config.patch", RUN, raw=json.dumps(patch)))["ok"]
        assert service.stored == merge.merge_patch(CONFIG, patch)
        config = await service.ask("config.get", RUN)  # with every default, and secrets hidden
        whole = {**config["config"], "ui": {"seamColor": "#123456"}}
        assert (await service.ask("config.apply", RUN, raw=json.dumps(whole)))["ok"]
        assert service.stored["gateway"]["auth"]["token"] == "s3cret-token"

    asyncio.run(scenario())


def test_a_run_may_begin_a_config_but_not_replace_one_that_is_lost_or_broken(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path)
        assert (await service.ask("config.patch", RUN, raw='{"ui": {"seamColor": "#111"}}'))["ok"]
        service.path.write_text(json.dumps(CONFIG))
        await service.service.reload()
        service.path.unlink()
        with pytest.raises(RpcError, match="an agent's run may not change gateway"):
            await service.ask("config.set", RUN, raw='{"ui": {"seamColor": "#222"}}')
        service.path.write_text('{"tools": {"deny": ["exec"]')
        with pytest.raises(RpcError, match="a person must correct it"):
            await service.ask("config.set", RUN, raw="{}")
        assert service.path.read_text() == '{"tools": {"deny": ["exec"]'

    asyncio.run(scenario())


def test_a_refusal_names_paths_and_no_values(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = ConfigCaller(tmp_path, CONFIG)
        with pytest.raises(RpcError) as refused:
            await service.ask("config.apply", RUN, raw="{}")
        reason = str(refused.value)
        assert "gateway.port, gateway.auth.token, gateway.tools.deny.0" in reason
        assert "more in the config" in reason
        assert len(reason) < 600
        for secret in ("s3cret-token", "k-near", "123:abc", "hook-token", "notes-server"):
            assert secret not in reason + json.dumps(refused.value.details)

    asyncio.run(scenario())


# ---- the table -------------------------------------------------------------------------------------------------------


def leaves(node: Any, declared: bool = False, path: str = "") -> Iterator[tuple[str, bool]]:
    """Every place of a schema that holds a value, and whether a class is declared there or above."""
    declared = declared or "x-agents" in node
    below = [(path, choice) for choice in node.get("oneOf", ())]
    below += [(f"{path}.{name}", inner) for name, inner in node.get("properties", {}).items()]
    below += [(f"{path}[]", node.get("items")), (f"{path}.*", node.get("additionalProperties"))]
    below = [(place, inner) for place, inner in below if isinstance(inner, dict)]
    if not below or node.get("additionalProperties") is True:
        yield path, declared
    for place, inner in below:
        yield from leaves(inner, declared, place)


def test_every_key_has_a_declared_class() -> None:
    missing = [path for path, declared in leaves(ConfigSchema().json_schema) if not declared]
    assert missing == [], "declare who may change these, in core/config"


KEY = {"type": "string"}
NEW = [
    {"fresh": KEY},
    {"fresh": {"type": "object", "properties": {"inner": KEY}, "additionalProperties": False}},
    {"fresh": {"type": "object", "additionalProperties": True}},
    {"fresh": {"type": "array", "items": KEY}},
    {"fresh": {"type": "object", "additionalProperties": KEY}},
    {"fresh": {"oneOf": [{"type": "boolean"}, {"type": "object", "properties": {"inner": KEY}}]}},
    {"fresh": {}},
]


@pytest.mark.parametrize("added", NEW)
def test_a_new_key_without_a_class_is_closed_to_runs(added: Json) -> None:
    schema = {**ConfigSchema().json_schema}
    schema["properties"] = {**schema["properties"], **added}

    assert any(not declared for _, declared in leaves(schema))
    for path in (("fresh",), ("fresh", "inner"), ("fresh", 0), ("fresh", "a", "b")):
        assert class_of(path, convert(schema, ConfigSchemaNode)) == UNKNOWN


def test_a_class_holds_for_what_is_below_it() -> None:
    assert class_of(("meta", "any", 0, "thing")) == FREE
    assert class_of(("agents", "defaults", "model", "fallbacks", 0)) == MODEL
    assert class_of(("messages", "inbound", "byChannel", "telegram")) == FREE
    assert class_of(("messages", "inbound")) == FREE
    assert class_of(("messages",)) == UNKNOWN
    assert class_of(("gateway", "nothing")) == UNKNOWN
    assert class_of(("gateway", "auth", "token", "below")) == UNKNOWN


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=8,
)


BY_PROVIDER: Json = {"byProvider": {"near": {"deny": ["exec"]}}}
RULED: list[tuple[str, Json]] = [
    ("for everybody", {"tools": BY_PROVIDER}),
    ("for one agent", {"agents": {"list": [{"id": "main"}, {"id": "second", "tools": BY_PROVIDER}]}}),
]
MODELS: list[tuple[str, Json]] = [
    ("another of its provider", {"defaults": {"model": "near/large"}}),
    ("another's", {"defaults": {"model": "far/large"}}),
    ("an option", {"defaults": {"model": "near/--file=x y"}}),
    ("the same by a shorter name", {"defaults": {"model": "small"}}),
    ("none", {"defaults": {}}),
    ("an object", {"defaults": {"model": {"primary": "near/small"}}}),
    ("a fallback", {"defaults": {"model": {"primary": "near/small", "fallbacks": ["far/x"]}}}),
    ("one agent's", {"defaults": {"model": "near/small"}, "list": [{"id": "main", "model": "far/large"}]}),
]


@pytest.mark.parametrize("rules", [None, *(row[1] for row in RULED)], ids=["none", *(row[0] for row in RULED)])
@pytest.mark.parametrize("change", [row[1] for row in MODELS], ids=[row[0] for row in MODELS])
def test_a_model_is_free_within_its_provider_and_while_no_rules_go_by_that(rules: Json | None, change: Json) -> None:
    before: Json = {"agents": {"defaults": {"model": "near/small"}, "list": [{"id": "main"}]}}
    before = {**before, **(rules or {}), "agents": {**before["agents"], **(rules or {}).get("agents", {})}}
    listed = before["agents"]["list"]
    after = {**before, "agents": {**before["agents"], **change, "list": [*change.get("list", listed[:1]), *listed[1:]]}}
    if rules is None and change["defaults"].get("model") == "near/large":
        check_run_changes(before, after)
        return
    with pytest.raises(ConfigChangeDenied) as refused:
        check_run_changes(before, after)
    assert all("model" in path for path in refused.value.paths)


@given(st.dictionaries(st.sampled_from("abc"), JSON), st.dictionaries(st.sampled_from("abc"), JSON))
def test_no_difference_is_overlooked(before: Any, after: Any) -> None:
    differ = json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True)

    assert bool(list(diff_values(before, after))) == differ
    if differ:  # nothing of it is in the table
        with pytest.raises(ConfigChangeDenied):
            check_run_changes(before, after)


GONE = ABSENT
DIFFERENCES: list[tuple[Any, Any, list[tuple[Any, Any, Any]]]] = [
    ({}, {}, []),
    ({"a": 1}, {"a": 1}, []),
    ({"a": 1}, {"a": True}, [(("a",), 1, True)]),
    ({"a": 1}, {"a": 1.0}, [(("a",), 1, 1.0)]),
    ({"a": None}, {}, [(("a",), None, GONE)]),
    ({}, {"a": ""}, [(("a",), GONE, "")]),
    ({}, {"a": {}}, [(("a",), GONE, {})]),
    ({"a": {}}, {"a": []}, [(("a",), {}, [])]),
    ({"a": [1, 2]}, {"a": [1, 3]}, [(("a", 1), 2, 3)]),
    ({"a": [1]}, {"a": [1, 2]}, [(("a", 1), GONE, 2)]),
    ({"a": [1, 2]}, {"a": [1]}, [(("a", 1), 2, GONE)]),
    ({}, {"a": [1]}, [(("a",), GONE, [1]), (("a", 0), GONE, 1)]),
    ({"a": {"b": 1}}, {}, [(("a",), {"b": 1}, GONE), (("a", "b"), 1, GONE)]),
    ({"a": 1}, {"a": {"b": [2]}}, [(("a",), 1, {"b": [2]}), (("a", "b"), GONE, [2]), (("a", "b", 0), GONE, 2)]),
    ({"a": [1]}, {"a": {"b": 2}}, [(("a",), [1], {"b": 2}), (("a", 0), 1, GONE), (("a", "b"), GONE, 2)]),
]


@pytest.mark.parametrize(("before", "after", "found"), DIFFERENCES)
def test_a_difference_is_found_where_it_is(before: Any, after: Any, found: list[tuple[Any, Any, Any]]) -> None:
    assert list(diff_values(before, after)) == found


@pytest.mark.parametrize(
    ("count", "named"),
    [
        (1, "k0 in the config"),
        (5, "k0, k1, k2, k3, k4 in the config"),
        (6, "k0, k1, k2, k3, k4 and 1 more in the config"),
        (8, "k0, k1, k2, k3, k4 and 3 more in the config"),
    ],
)
def test_a_refusal_names_five_paths_and_counts_the_others(count: int, named: str) -> None:
    with pytest.raises(ConfigChangeDenied, match=f"an agent's run may not change {named}: ask a person") as refused:
        check_run_changes({}, {f"k{n}": 1 for n in range(count)})
    assert refused.value.paths == [f"k{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("name", "path"),
    [("a_B-1$", "a_B-1$"), ("x" * 64, "x" * 64), ("x" * 65, "*"), ("a b", "*"), ("", "*"), ("ä", "*"), ("a.b", "*")],
)
def test_a_name_that_is_no_plain_word_is_not_repeated(name: str, path: str) -> None:
    with pytest.raises(ConfigChangeDenied) as refused:
        check_run_changes({}, {name: 1})
    assert refused.value.paths == [path]


DEFAULTS: list[tuple[str, Json, Json, bool]] = [
    ("a default that is written down", {}, {"gateway": {"bind": "loopback"}}, True),
    ("a default that is left out", {"gateway": {"bind": "loopback"}}, {}, True),
    ("another value", {}, {"gateway": {"bind": "lan"}}, False),
    ("a value that was another", {"gateway": {"bind": "lan"}}, {}, False),
    ("a default instead of another", {"gateway": {"bind": "lan"}}, {"gateway": {"bind": "loopback"}}, False),
    ("the environment's word", {}, {"ui": {"seamColor": "x${HOME}"}}, False),
    ("the environment's word, taken out", {"ui": {"seamColor": "${X}"}}, {"ui": {"seamColor": "red"}}, True),
    (
        "a model without a provider",
        {"agents": {"defaults": {"model": "a"}}},
        {"agents": {"defaults": {"model": "b"}}},
        True,
    ),
]


@pytest.mark.parametrize(("before", "after", "may"), [row[1:] for row in DEFAULTS], ids=[row[0] for row in DEFAULTS])
def test_a_default_may_be_written_and_left_out(before: Json, after: Json, may: bool) -> None:
    if may:
        check_run_changes(before, after)
    else:
        with pytest.raises(ConfigChangeDenied):
            check_run_changes(before, after)


KEY_CLASSES: dict[str, list[str]] = json.loads(Path(__file__).with_name("key_classes.json").read_text())
"""The class of each key in the table that was written by hand; `a-name` is a name of the user's, `[]` an entry."""


@pytest.mark.parametrize("expected", KEY_CLASSES)
def test_no_key_has_another_class_than_in_the_table_written_by_hand(expected: str) -> None:
    paths = [tuple(0 if step == "[]" else step for step in path.split(".")) for path in KEY_CLASSES[expected]]

    assert {path: class_of(path) for path in paths} == dict.fromkeys(paths, expected)


def test_what_is_below_a_single_value_is_never_free() -> None:
    """A value of another shape than the schema's is not judged by the key it is under."""
    singles = [path for paths in KEY_CLASSES.values() for path in paths if not path.endswith((".anything", "[]"))]
    for path in singles:
        steps = tuple(0 if step == "[]" else step for step in path.split("."))
        if ConfigSchema().find_node(steps) and class_of((*steps, "x")) == FREE:
            assert path.startswith(("meta", "ui.assistant", "agents.list.[].identity")), path


@pytest.mark.parametrize("section", ["messages", "logging", "mcp"])
def test_an_open_section_is_not_free_as_a_whole(section: str) -> None:
    """It may hold keys that are not declared, beside those that are free."""
    assert class_of((section,)) not in (FREE, MODEL)


def test_the_presence_of_what_no_schema_describes_needs_a_person() -> None:
    assert class_of_presence(("no-such-section", "x")) == class_of_presence(()) == UNKNOWN


def test_a_free_key_does_not_free_the_open_section_it_is_in() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "x-agents": FREE}}, "additionalProperties": True}

    assert class_of((), convert(schema, ConfigSchemaNode)) == UNKNOWN
    assert class_of((), convert({**schema, "additionalProperties": False}, ConfigSchemaNode)) == FREE
