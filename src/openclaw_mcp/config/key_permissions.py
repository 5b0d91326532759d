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
    from .text import Path

FREE: Final = "free"
MODEL: Final = "free within a provider, while no rules go by provider"
PROGRAM: Final = "starts programs"
POWER: Final = "decides what agents may do"
PEOPLE: Final = "decides who is heard, as whom"
SECRET: Final = "holds a secret"  # noqa: S105 - a class, not a secret
ADDRESS: Final = "decides where secrets and messages go"
DOOR: Final = "opens or guards a way in"
FILES: Final = "decides which files are read or written"
LIMIT: Final = "bounds what is used"
RECORD: Final = "decides what people see of it later"
OTHERS: Final = "is read by others than this table knows"

ENTRY: Final = "[]"
ANY: Final = "*"
REST: Final = "**"


def _under(place: str, keys: Mapping[str, str]) -> dict[str, str]:
    return {f"{place}.{key}": why for key, why in keys.items()}


_MODEL: Final = {"model": MODEL, "model.primary": MODEL, "model.fallbacks[]": MODEL}
_KEY: Final = {
    f"apiKey{entry}{part}": SECRET for entry in ("", ENTRY)
    for part in ("", ".source", ".id", ".path", ".service", ".**")
}  # fmt: skip
_AGENT: Final = {
    **_MODEL,
    "systemPrompt": POWER,  # the rules an agent is told
    "limits.modelCalls": LIMIT,
    "limits.toolCalls": LIMIT,
    "limits.parallelTools": LIMIT,
    "limits.tokens": LIMIT,
    "limits.retries": LIMIT,
    "runtime": PROGRAM,
    "runtimeCommand": PROGRAM,
    "runtimeArgs[]": PROGRAM,
    "runtimeEnv.*": SECRET,
    "runtimeStrict": POWER,
    "runtimeStartupSeconds": LIMIT,
    "runtimeIdleSeconds": LIMIT,
    "workspace": FILES,
    "timeoutSeconds": LIMIT,
    "subagents.**": POWER,
}
_CHANNEL: Final = {
    "enabled": DOOR,
    "dmPolicy": PEOPLE,
    "allowFrom[]": PEOPLE,
    "groupPolicy": PEOPLE,
    "groupAllowFrom[]": PEOPLE,
    "groups.**": PEOPLE,
    "requireMention": PEOPLE,
    "replyToMode": FREE,
    "textChunkLimit": FREE,
    "mediaMaxMb": LIMIT,
    "actions.**": POWER,
}
_MATRIX: Final = {
    "homeserver": ADDRESS,
    "userId": PEOPLE,
    "accessToken": SECRET,
    "accessTokenFile": SECRET,
    "password": SECRET,
    "passwordFile": SECRET,
    "deviceName": FREE,
    "encryption": DOOR,
    "autoJoin": PEOPLE,
    "autoJoinAllowlist[]": PEOPLE,
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


def _channel(name: str, own: Mapping[str, str]) -> dict[str, str]:
    rules = {**_CHANNEL, **own}
    several = _under(f"channels.{name}.accounts.*", rules)
    return {**_under(f"channels.{name}", rules), **several, f"channels.{name}.defaultAccount": ADDRESS}


CLASSES: Final[Mapping[str, str]] = {
    "$schema": ADDRESS,  # editors fetch it
    "meta.**": FREE,
    **_under("gateway", {
        "mode": DOOR, "port": DOOR, "bind": DOOR, "auth.mode": DOOR, "auth.token": SECRET, "auth.password": SECRET,
        "http.endpoints.chatCompletions.enabled": DOOR, "http.endpoints.responses.enabled": DOOR,
        "tools.allow[]": POWER, "tools.deny[]": POWER, "remote.url": ADDRESS, "remote.token": SECRET,
        "reload.mode": DOOR, "nodes.**": POWER, "controlUi.**": DOOR,
    }),
    **_under("agents.defaults", _AGENT),
    **_under("agents.defaults", {"maxConcurrent": LIMIT, "heartbeat.**": ADDRESS}),
    **_under("agents.list[]", _AGENT),
    **_under("agents.list[]", {"id": POWER, "name": FREE, "default": PEOPLE, "tools.**": POWER, "identity.**": FREE}),
    "models.mode": ADDRESS,
    **_under("models.providers.*", {
        "api": ADDRESS, "baseUrl": ADDRESS, **_KEY, "headers.*": SECRET, "timeoutSeconds": LIMIT, "**": OTHERS,
    }),
    **_under("models.providers.*.models[]", {
        "id": ADDRESS, "name": LIMIT, "contextWindow": LIMIT, "maxTokens": LIMIT, "input[]": LIMIT, "reasoning": LIMIT,
        "cost.**": RECORD, "**": OTHERS,
    }),
    **_under("session", {
        "mainKey": PEOPLE, "scope": PEOPLE, "dmScope": PEOPLE, "identityLinks.**": PEOPLE, "agentToAgent.**": POWER,
        "sendPolicy.**": POWER,
    }),
    **_channel("matrix", _MATRIX),
    **_channel("telegram", _TELEGRAM),
    **_channel("*", {"**": OTHERS}),
    "bindings[].**": PEOPLE,
    "tools.**": POWER,
    "commands.restart": POWER,
    "commands.**": PEOPLE,  # ownerAllowFrom among them
    "messages.inbound.debounceMs": FREE,
    "messages.inbound.byChannel.*": FREE,
    "messages.**": OTHERS,
    **_under("cron", {
        "enabled": POWER, "maxConcurrentRuns": LIMIT, "skipMissedJobs": FREE, "sessionRetention": RECORD,
        "runLog.keepLines": RECORD, "webhookToken": SECRET, "webhookSsrfPolicy.allowedHostnames[]": ADDRESS,
        "webhookSsrfPolicy.blockedHostnames[]": ADDRESS,
        "webhookSsrfPolicy.dangerouslyAllowPrivateNetwork": ADDRESS, "failureAlert.enabled": RECORD,
        "failureAlert.after": RECORD, "failureAlert.cooldownMs": RECORD, "failureAlert.includeSkipped": RECORD,
        "failureAlert.mode": ADDRESS, "failureAlert.channel": ADDRESS, "failureAlert.to": ADDRESS,
        "failureAlert.accountId": ADDRESS, "triggers.enabled": PROGRAM,
    }),
    "hooks.**": DOOR,
    "node.**": POWER,
    "proxy.**": DOOR,
    **_under("mcp.servers.*", {
        "command": PROGRAM, "args[]": PROGRAM, "env.*": SECRET, "cwd": PROGRAM, "workingDirectory": PROGRAM,
        "url": ADDRESS, "headers.*": SECRET, "transport": ADDRESS, "protocol": ADDRESS, "enabled": PROGRAM,
        "agents[]": POWER, "toolFilter.include[]": POWER, "toolFilter.exclude[]": POWER, "toolFilter.**": OTHERS,
        "connectionTimeoutMs": LIMIT, "requestTimeoutMs": LIMIT, "**": OTHERS,
    }),
    "mcp.**": OTHERS,
    "store.url": ADDRESS,
    "logging.level": FREE,
    "logging.file": FILES,
    "logging.**": OTHERS,
    "env.**": SECRET,
    "secrets.**": SECRET,
    "ui.seamColor": FREE,
    "ui.assistant.**": FREE,
    "plugins.**": PROGRAM,
    "skills.**": PROGRAM,
    "browser.**": OTHERS,
    "talk.**": OTHERS,
    "wizard.**": OTHERS,
}  # fmt: skip


def schema_paths(node: Json, place: str = "") -> Iterator[str]:
    """Every place of a schema that holds a value, as the table writes it; some come twice."""
    choices = node.get("oneOf") or node.get("anyOf") or node.get("allOf") or ()
    for choice in choices:
        yield from schema_paths(choice, place)
    if node.get("type") == "object" or "properties" in node or "additionalProperties" in node:
        for name, below in node.get("properties", {}).items():
            yield from schema_paths(below, f"{place}.{name}" if place else name)
        yield from _open(node.get("additionalProperties", True), f"{place}.{ANY}", f"{place}.{REST}")
    elif node.get("type") == "array" or "items" in node:
        yield from _open(node.get("items", True), f"{place}{ENTRY}", f"{place}{ENTRY}.{REST}")
    elif not choices:
        yield place


def _open(below: Any, one: str, all_below: str) -> Iterator[str]:
    if isinstance(below, dict) and below:
        yield from schema_paths(below, one)
    elif below is not False:
        yield all_below


class _Place(Struct):
    """A place of the table: its own class, and what stands below."""

    why: str | None = None
    names: dict[str, "_Place"] = field(default_factory=dict)
    any: "_Place | None" = None
    entry: "_Place | None" = None
    rest: str | None = None

    def below(self, step: str) -> "_Place":
        if step == ANY:
            self.any = self.any or _Place()
            return self.any
        if step == ENTRY:
            self.entry = self.entry or _Place()
            return self.entry
        return self.names.setdefault(step, _Place())

    def every(self) -> Iterator[str]:
        yield from (why for why in (self.why, self.rest) if why is not None)
        for place in (*self.names.values(), self.any, self.entry):
            if place is not None:
                yield from place.every()


def _tree(classes: Mapping[str, str]) -> _Place:
    root = _Place()
    for path, why in classes.items():
        place = root
        *steps, last = path.replace(ENTRY, f".{ENTRY}").split(".")
        for step in steps:
            place = place.below(step)
        if last == REST:
            place.rest = why
        else:
            place.below(last).why = why
    return root


_ROOT: Final = _tree(CLASSES)


def class_of(path: "Path") -> str:
    """The class of a value at this place; of an object or a list, the strictest of all that may stand in it."""
    found = _find(path)
    if isinstance(found, str):
        return found
    classes = set(found.every())
    return next((why for why in sorted(classes) if why not in (FREE, MODEL)), FREE if FREE in classes else MODEL)


def class_of_entry(path: "Path") -> str:
    """The class of there being such an object at all: one of a list or under a name of the user's starts to work by
    being there, and any other is no more than what it holds."""
    place = _find(path[:-1]) if path else OTHERS
    if isinstance(place, str):
        return place
    named = isinstance(path[-1], int) or place.any is not None
    return class_of(path) if named else FREE


def _find(path: "Path") -> _Place | str:
    place, rest = _ROOT, None
    for step in path:
        rest = place.rest
        below = place.entry if isinstance(step, int) else place.names.get(step, place.any)
        if below is None:
            return rest or OTHERS
        place = below
    return place if any(True for _ in place.every()) else OTHERS
