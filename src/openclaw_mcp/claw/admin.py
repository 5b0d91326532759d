"""Gateway tools: its config and its restart. For the owner."""

import json
from typing import Any, Final

from ..core.errors import ToolArguments
from ..core.model import Json
from ..core.numbers import whole
from ..core.rpc import Fault
from .tool_context import Nature, Seat, also, given, some, text, thing, tool

STALE: Final = ("config base hash required", "config changed since last load")
"""How a gateway says that somebody else wrote the config meanwhile."""


async def _restart(seat: Seat, asked: Json) -> Any:
    return await seat.tell("gateway.restart.request", {"reason": asked.get("reason")})


async def _get(seat: Seat, asked: Json) -> Any:
    read = await seat.ask("config.get", {})
    key = (asked.get("key") or "").strip().strip(".")
    config = read.get("config")
    if not key:
        names = ("path", "exists", "valid", "hash", "issues", "warnings")
        return {"config": config, **{name: read.get(name) for name in names}}
    found, value = _at(config, key)
    if not found:
        raise ToolArguments(f"the config has no {key}; gateway_config_schema says what there may be")
    return {"key": key, "value": value, "hash": read.get("hash")}


def _at(value: Any, key: str) -> tuple[bool, Any]:
    """What stands at a dotted path; `[0]` and `.0` name an entry of a list."""
    for step in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and (index := whole(step, most=len(value) - 1)) is not None:
            value = value[index]
        else:
            return False, None
    return True, value


async def _apply(seat: Seat, asked: Json) -> Any:
    return await _write(seat, "config.apply", asked["config"], asked)


async def _patch(seat: Seat, asked: Json) -> Any:
    return await _write(seat, "config.patch", asked["patches"], asked)


def _one_patch(asked: Json) -> Json:
    """Several patches, one after another, are one."""
    patches = asked.get("patches")
    if not isinstance(patches, list) or not all(isinstance(patch, dict) for patch in patches):
        return asked
    merged: Json = {}
    for patch in patches:
        _lay(merged, patch)
    return {**asked, "patches": merged}


def _lay(under: Json, over: Json) -> None:
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(under.get(name), dict):
            _lay(under[name], value)
        else:
            under[name] = value


async def _write(seat: Seat, method: str, content: Json, asked: Json) -> Any:
    """Write on top of what is there now; when somebody was faster, once more on top of that.

    With `baseHash` the caller has named what it wants to write on: then a change in between is its affair."""
    raw = json.dumps(content, ensure_ascii=False)
    own = (asked.get("baseHash") or "").strip()
    params = {"note": asked.get("note"), "sessionKey": seat.run.session_key, "replacePaths": asked.get("replacePaths")}
    if method == "config.apply":
        del params["replacePaths"]
    try:
        return await seat.tell(method, {**params, "raw": raw, "baseHash": own or await _hash(seat)})
    except Fault as fault:
        if own or not str(fault).startswith(STALE):
            raise
        return await seat.tell(method, {**params, "raw": raw, "baseHash": await _hash(seat)})


async def _hash(seat: Seat) -> str | None:
    read = await seat.ask("config.get", {})
    return read.get("hash") if read.get("exists", True) else None


async def _schema(seat: Seat, asked: Json) -> Any:
    if (asked.get("key") or "").strip():
        return await seat.ask("config.schema.lookup", given({"path": some(asked, "key").strip()}))
    return await seat.ask("config.schema", {})


OWNERS_READ: Final = Nature(owner_only=True)
_NOTE: Final = {"note": text("Why, for the history.")}
_BASE: Final = {"baseHash": text("Write only if the config still has this hash (from gateway_config_get).")}

TOOLS = (
    tool(
        "gateway_restart",
        "Restart the gateway once running work has ended. Connections drop for a moment and come back by themselves.",
        _restart,
        title="Restart the gateway",
        parameters={"reason": text("Why, for the log.")},
        nature=Nature(effect="run", destructive=True, owner_only=True),
    ),
    tool(
        "gateway_config_get",
        "Read the gateway's config, or the part at `key`. Secrets are hidden; written back unchanged they stay.",
        _get,
        title="Read the config",
        parameters={"key": text("A dotted path, for instance `agents.defaults.model` or `agents.list.0`.")},
        aliases=also(key="path"),
        nature=OWNERS_READ,
    ),
    tool(
        "gateway_config_apply",
        "Replace the whole config. What you leave out is gone: prefer gateway_config_patch. Checked before it is "
        "written; keys that need a restart cause one.",
        _apply,
        title="Replace the config",
        parameters={"config": thing("The whole config."), **_BASE, **_NOTE},
        required=("config",),
        aliases=also(config="raw"),
        nature=Nature(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    tool(
        "gateway_config_patch",
        "Change parts of the config: objects are merged, null deletes a key, lists are replaced. Checked before it is "
        "written; keys that need a restart cause one.",
        _patch,
        title="Change the config",
        parameters={
            "patches": thing("What changes, as an object laid over the config."),
            "replacePaths": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Dotted paths of lists that may lose entries.",
            },
            **_BASE,
            **_NOTE,
        },
        required=("patches",),
        aliases=also(patches="patch raw config updates"),
        mend=_one_patch,
        nature=Nature(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    tool(
        "gateway_config_schema",
        "The JSON Schema of the config, or of the part at `key` with its children. The whole is large: prefer a key.",
        _schema,
        title="Config schema",
        parameters={"key": text("A dotted path, for instance `agents.defaults`.")},
        aliases=also(key="path"),
        nature=OWNERS_READ,
    ),
)
