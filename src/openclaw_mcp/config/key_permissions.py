"""Who may change which key of the config: one table for the whole schema. Pure.

`openclaw.json` holds the rules that bind agents. So a run, whoever started it, may change only what is `FREE` here; for
every other key the class says why it needs a person. `*` is a name of the user's, `[]` an entry of a list, `**` all
that stands below. What the table does not name needs a person too; a test walks the schema: every key is named.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from ..core.model import Json

if TYPE_CHECKING:
    from .text import ConfigPath

FREE: Final = "free"
MODEL: Final = "free within a provider, while no rules go by provider"
PROGRAM: Final = "starts programs"
PERMISSIONS: Final = "decides what agents may do"
SENDERS: Final = "decides who is heard, as whom"
SECRET: Final = "holds a secret"
ADDRESS: Final = "decides where secrets and messages go"
ACCESS: Final = "opens or guards a way in"
FILES: Final = "decides which files are read or written"
LIMIT: Final = "bounds what is used"
HISTORY: Final = "decides what people see of it later"
UNKNOWN: Final = "is read by others than this table knows"

LIST_ENTRY: Final = "[]"
ANY_NAME: Final = "*"
ANY_BELOW: Final = "**"


def _prefix_paths(prefix: str, keys: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{key}": why for key, why in keys.items()}


_MODEL: Final = {"model": MODEL, "model.primary": MODEL, "model.fallbacks[]": MODEL}
_KEY: Final = {
    f"apiKey{entry}{part}": SECRET for entry in ("", LIST_ENTRY)
    for part in ("", ".source", ".id", ".path", ".service", ".**")
}  # fmt: skip
_AGENT: Final = {
    **_MODEL,
    "systemPrompt": PERMISSIONS,  # the rules an agent is told
    "limits.modelCalls": LIMIT,
    "limits.toolCalls": LIMIT,
    "limits.parallelTools": LIMIT,
    "limits.tokens": LIMIT,
    "limits.retries": LIMIT,
    "runtime": PROGRAM,
    "runtimeCommand": PROGRAM,
    "runtimeArgs[]": PROGRAM,
    "runtimeEnv.*": SECRET,
    "runtimeStrict": PERMISSIONS,
    "runtimeStartupSeconds": LIMIT,
    "runtimeIdleSeconds": LIMIT,
    "workspace": FILES,
    "timeoutSeconds": LIMIT,
    "subagents.**": PERMISSIONS,
}
_CHANNEL: Final = {
    "enabled": ACCESS,
    "dmPolicy": SENDERS,
    "allowFrom[]": SENDERS,
    "groupPolicy": SENDERS,
    "groupAllowFrom[]": SENDERS,
    "groups.**": SENDERS,
    "requireMention": SENDERS,
    "replyToMode": FREE,
    "textChunkLimit": FREE,
    "mediaMaxMb": LIMIT,
    "actions.**": PERMISSIONS,
}
_MATRIX: Final = {
    "homeserver": ADDRESS,
    "userId": SENDERS,
    "accessToken": SECRET,
    "accessTokenFile": SECRET,
    "password": SECRET,
    "passwordFile": SECRET,
    "deviceName": FREE,
    "encryption": ACCESS,
    "autoJoin": SENDERS,
    "autoJoinAllowlist[]": SENDERS,
}
_TELEGRAM: Final = {
    "botToken": SECRET,
    "tokenFile": SECRET,
    "baseUrl": ADDRESS,
    "webhookUrl": ADDRESS,
    "webhookSecret": SECRET,
    "webhookSecretFile": SECRET,
    "linkPreview": FREE,
}


def _channel_classes(name: str, own: Mapping[str, str]) -> dict[str, str]:
    rules = {**_CHANNEL, **own}
    several = _prefix_paths(f"channels.{name}.accounts.*", rules)
    return {**_prefix_paths(f"channels.{name}", rules), **several, f"channels.{name}.defaultAccount": ADDRESS}


CLASS_BY_PATH: Final[Mapping[str, str]] = {
    "$schema": ADDRESS,  # editors fetch it
    "meta.**": FREE,
    **_prefix_paths(
        "gateway",
        {
            "mode": ACCESS,
            "port": ACCESS,
            "bind": ACCESS,
            "auth.mode": ACCESS,
            "auth.token": SECRET,
            "auth.password": SECRET,
            "http.endpoints.chatCompletions.enabled": ACCESS,
            "http.endpoints.responses.enabled": ACCESS,
            "tools.allow[]": PERMISSIONS,
            "tools.deny[]": PERMISSIONS,
            "remote.url": ADDRESS,
            "remote.token": SECRET,
            "reload.mode": ACCESS,
            "nodes.**": PERMISSIONS,
            "controlUi.**": ACCESS,
        },
    ),
    **_prefix_paths("agents.defaults", _AGENT),
    **_prefix_paths("agents.defaults", {"maxConcurrent": LIMIT, "heartbeat.**": ADDRESS}),
    **_prefix_paths("agents.list[]", _AGENT),
    **_prefix_paths(
        "agents.list[]",
        {"id": PERMISSIONS, "name": FREE, "default": SENDERS, "tools.**": PERMISSIONS, "identity.**": FREE},
    ),
    "models.mode": ADDRESS,
    **_prefix_paths(
        "models.providers.*",
        {
            "api": ADDRESS,
            "baseUrl": ADDRESS,
            **_KEY,
            "headers.*": SECRET,
            "timeoutSeconds": LIMIT,
            "**": UNKNOWN,
        },
    ),
    **_prefix_paths(
        "models.providers.*.models[]",
        {
            "id": ADDRESS,
            "name": LIMIT,
            "contextWindow": LIMIT,
            "maxTokens": LIMIT,
            "input[]": LIMIT,
            "reasoning": LIMIT,
            "cost.**": HISTORY,
            "**": UNKNOWN,
        },
    ),
    **_prefix_paths(
        "session",
        {
            "mainKey": SENDERS,
            "scope": SENDERS,
            "dmScope": SENDERS,
            "identityLinks.**": SENDERS,
            "agentToAgent.**": PERMISSIONS,
            "sendPolicy.**": PERMISSIONS,
        },
    ),
    **_channel_classes("matrix", _MATRIX),
    **_channel_classes("telegram", _TELEGRAM),
    **_channel_classes("*", {"**": UNKNOWN}),
    "bindings[].**": SENDERS,
    "tools.**": PERMISSIONS,
    "commands.restart": PERMISSIONS,
    "commands.**": SENDERS,  # ownerAllowFrom among them
    "messages.inbound.debounceMs": FREE,
    "messages.inbound.byChannel.*": FREE,
    "messages.**": UNKNOWN,
    **_prefix_paths(
        "cron",
        {
            "enabled": PERMISSIONS,
            "maxConcurrentRuns": LIMIT,
            "skipMissedJobs": FREE,
            "sessionRetention": HISTORY,
            "runLog.keepLines": HISTORY,
            "webhookToken": SECRET,
            "webhookSsrfPolicy.allowedHostnames[]": ADDRESS,
            "webhookSsrfPolicy.blockedHostnames[]": ADDRESS,
            "webhookSsrfPolicy.dangerouslyAllowPrivateNetwork": ADDRESS,
            "failureAlert.enabled": HISTORY,
            "failureAlert.after": HISTORY,
            "failureAlert.cooldownMs": HISTORY,
            "failureAlert.includeSkipped": HISTORY,
            "failureAlert.mode": ADDRESS,
            "failureAlert.channel": ADDRESS,
            "failureAlert.to": ADDRESS,
            "failureAlert.accountId": ADDRESS,
            "triggers.enabled": PROGRAM,
        },
    ),
    "hooks.**": ACCESS,
    "node.**": PERMISSIONS,
    "proxy.**": ACCESS,
    **_prefix_paths(
        "mcp.servers.*",
        {
            "command": PROGRAM,
            "args[]": PROGRAM,
            "env.*": SECRET,
            "cwd": PROGRAM,
            "workingDirectory": PROGRAM,
            "url": ADDRESS,
            "headers.*": SECRET,
            "transport": ADDRESS,
            "protocol": ADDRESS,
            "enabled": PROGRAM,
            "agents[]": PERMISSIONS,
            "toolFilter.include[]": PERMISSIONS,
            "toolFilter.exclude[]": PERMISSIONS,
            "toolFilter.**": UNKNOWN,
            "connectionTimeoutMs": LIMIT,
            "requestTimeoutMs": LIMIT,
            "**": UNKNOWN,
        },
    ),
    "mcp.**": UNKNOWN,
    "store.url": ADDRESS,
    "logging.level": FREE,
    "logging.file": FILES,
    "logging.**": UNKNOWN,
    "env.**": SECRET,
    "secrets.**": SECRET,
    "ui.seamColor": FREE,
    "ui.assistant.**": FREE,
    "plugins.**": PROGRAM,
    "skills.**": PROGRAM,
    "browser.**": UNKNOWN,
    "talk.**": UNKNOWN,
    "wizard.**": UNKNOWN,
}


def schema_paths(node: Json, path: str = "") -> Iterator[str]:
    """Every place of a schema that holds a value, as the table writes it; some come twice."""
    choices = node.get("oneOf") or node.get("anyOf") or node.get("allOf") or ()
    for choice in choices:
        yield from schema_paths(choice, path)
    if node.get("type") == "object" or "properties" in node or "additionalProperties" in node:
        for name, below in node.get("properties", {}).items():
            yield from schema_paths(below, f"{path}.{name}" if path else name)
        yield from _open_paths(node.get("additionalProperties", True), f"{path}.{ANY_NAME}", f"{path}.{ANY_BELOW}")
    elif node.get("type") == "array" or "items" in node:
        yield from _open_paths(node.get("items", True), f"{path}{LIST_ENTRY}", f"{path}{LIST_ENTRY}.{ANY_BELOW}")
    elif not choices:
        yield path


def _open_paths(below: Any, item_path: str, wildcard_path: str) -> Iterator[str]:
    if isinstance(below, dict) and below:
        yield from schema_paths(below, item_path)
    elif below is not False:
        yield wildcard_path


class _ClassNode(Struct):
    """A place of the table: its own class, and what stands below."""

    own_class: str | None = None
    children: dict[str, "_ClassNode"] = field(default_factory=dict)
    any_name: "_ClassNode | None" = None
    list_entry: "_ClassNode | None" = None
    below_class: str | None = None

    def child(self, step: str) -> "_ClassNode":
        if step == ANY_NAME:
            self.any_name = self.any_name or _ClassNode()
            return self.any_name
        if step == LIST_ENTRY:
            self.list_entry = self.list_entry or _ClassNode()
            return self.list_entry
        return self.children.setdefault(step, _ClassNode())

    def all_classes(self) -> Iterator[str]:
        yield from (why for why in (self.own_class, self.below_class) if why is not None)
        for place in (*self.children.values(), self.any_name, self.list_entry):
            if place is not None:
                yield from place.all_classes()


def _build_tree(classes: Mapping[str, str]) -> _ClassNode:
    root = _ClassNode()
    for path, why in classes.items():
        place = root
        *steps, last = path.replace(LIST_ENTRY, f".{LIST_ENTRY}").split(".")
        for step in steps:
            place = place.child(step)
        if last == ANY_BELOW:
            place.below_class = why
        else:
            place.child(last).own_class = why
    return root


_ROOT: Final = _build_tree(CLASS_BY_PATH)


def class_of(path: "ConfigPath") -> str:
    """The class of a value at this place; of an object or a list, the strictest of all that may stand in it."""
    found = _find_node(path)
    if isinstance(found, str):
        return found
    classes = set(found.all_classes())
    return next((why for why in sorted(classes) if why not in (FREE, MODEL)), FREE if FREE in classes else MODEL)


def class_of_presence(path: "ConfigPath") -> str:
    """The class of there being such an object at all: one of a list or under a name of the user's starts to work by
    being there, and any other is no more than what it holds."""
    place = _find_node(path[:-1]) if path else UNKNOWN
    if isinstance(place, str):
        return place
    named = isinstance(path[-1], int) or place.any_name is not None
    return class_of(path) if named else FREE


def _find_node(path: "ConfigPath") -> _ClassNode | str:
    place, rest = _ROOT, None
    for step in path:
        rest = place.below_class
        below = place.list_entry if isinstance(step, int) else place.children.get(step, place.any_name)
        if below is None:
            return rest or UNKNOWN
        place = below
    return place if any(True for _ in place.all_classes()) else UNKNOWN
