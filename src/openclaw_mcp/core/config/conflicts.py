"""What the schema can't say: parts of a config that contradict each other, or that must not be ignored. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..model import Json

LIST_CONFLICT: Final = "has both allow and alsoAllow; put the names into one of them"
AUTH_REMEDY: Final = "this gateway always asks for a token; remove it, and use gateway.auth.token"

Conflict = tuple[str, str]
"""The path, and what is wrong there."""


def find_conflicts(config: Json) -> list[Conflict]:
    """Of a config that the schema accepts. With any of these it is not used: the gateway would do another thing than
    the file says, refuse every tool, or ask for another credential."""
    return [
        *((path, LIST_CONFLICT) for path in find_list_conflicts(config)),
        *_find_repeated_agents(config),
        *_find_unserved_credentials(config),
    ]


def find_list_conflicts(config: Json) -> Iterator[str]:
    """Every scope with both `allow` and `alsoAllow`, which contradict each other there."""
    for scope, rules in _tool_scopes(config):
        if rules.get("allow") and rules.get("alsoAllow"):
            yield scope
        for provider, lists in _object(rules.get("byProvider")).items():
            if _object(lists).get("allow") and _object(lists).get("alsoAllow"):
                yield f"{scope}.byProvider.{provider}"


def _tool_scopes(config: Json) -> Iterator[tuple[str, Mapping[str, Any]]]:
    agents = _object(config.get("agents"))
    yield "tools", _object(config.get("tools"))
    yield "agents.defaults.tools", _object(_object(agents.get("defaults")).get("tools"))
    for entry in map(_object, agents.get("list") or ()):
        yield f"agents.list[{entry.get('id', '')}].tools", _object(entry.get("tools"))
    for id, entry in _object(agents.get("entries")).items():
        yield f"agents.entries.{id}.tools", _object(_object(entry).get("tools"))


def _find_repeated_agents(config: Json) -> Iterator[Conflict]:
    listed = _object(config.get("agents")).get("list") or ()
    for id, count in Counter(entry["id"] for entry in listed).items():
        if count > 1:
            yield "agents.list", f'{count} agents have the id "{id}"; give each its own'


def _find_unserved_credentials(config: Json) -> Iterator[Conflict]:
    auth = _object(_object(config.get("gateway")).get("auth"))
    if auth.get("mode", "token") != "token":
        yield "gateway.auth.mode", f"{auth['mode']} is not offered: {AUTH_REMEDY}"
    if "password" in auth:
        yield "gateway.auth.password", f"a password is not offered: {AUTH_REMEDY}"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
