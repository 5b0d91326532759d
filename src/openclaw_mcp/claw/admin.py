"""Gateway tools: its config and its restart. For the owner."""

import json
from typing import Any, Final

from ..core.errors import ToolArguments
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..core.rpc import RpcError
from .tool_context import (
    ClawContext,
    ToolTraits,
    define_tool,
    drop_empty,
    object_parameter,
    parameter_aliases,
    require_text,
    text_parameter,
)

STALE_HASH_ERRORS: Final = ("config base hash required", "config changed since last load")
"""How a gateway says that somebody else wrote the config meanwhile."""


async def _restart(context: ClawContext, arguments: Json) -> Any:
    return await context.call_once("gateway.restart.request", {"reason": arguments.get("reason")})


async def _get_config(context: ClawContext, arguments: Json) -> Any:
    read = await context.call_repeatable("config.get", {})
    key = (arguments.get("key") or "").strip().strip(".")
    config = read.get("config")
    if not key:
        names = ("path", "exists", "valid", "hash", "issues", "warnings")
        return {"config": config, **{name: read.get(name) for name in names}}
    found, value = _value_at(config, key)
    if not found:
        raise ToolArguments(f"the config has no {key}; gateway_config_schema says what there may be")
    return {"key": key, "value": value, "hash": read.get("hash")}


def _value_at(value: Any, key: str) -> tuple[bool, Any]:
    """What stands at a dotted path; `[0]` and `.0` name an entry of a list."""
    for step in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and (index := parse_whole_number(step, maximum=len(value) - 1)) is not None:
            value = value[index]
        else:
            return False, None
    return True, value


async def _apply_config(context: ClawContext, arguments: Json) -> Any:
    return await _write_config(context, "config.apply", arguments["config"], arguments)


async def _patch_config(context: ClawContext, arguments: Json) -> Any:
    return await _write_config(context, "config.patch", arguments["patches"], arguments)


def _merge_patches(arguments: Json) -> Json:
    """Several patches, one after another, are one."""
    patches = arguments.get("patches")
    if not isinstance(patches, list) or not all(isinstance(patch, dict) for patch in patches):
        return arguments
    merged: Json = {}
    for patch in patches:
        _merge_into(merged, patch)
    return {**arguments, "patches": merged}


def _merge_into(target: Json, patch: Json) -> None:
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge_into(target[name], value)
        else:
            target[name] = value


async def _write_config(context: ClawContext, method: str, content: Json, arguments: Json) -> Any:
    """Write on top of what is there now; when somebody was faster, once more on top of that.

    With `baseHash` the caller has named what it wants to write on: then a change in between is its affair."""
    raw = json.dumps(content, ensure_ascii=False)
    own = (arguments.get("baseHash") or "").strip()
    params = {
        "note": arguments.get("note"),
        "sessionKey": context.settings.session_key,
        "replacePaths": arguments.get("replacePaths"),
    }
    if method == "config.apply":
        del params["replacePaths"]
    try:
        return await context.call_once(method, {**params, "raw": raw, "baseHash": own or await _config_hash(context)})
    except RpcError as fault:
        if own or not str(fault).startswith(STALE_HASH_ERRORS):
            raise
        return await context.call_once(method, {**params, "raw": raw, "baseHash": await _config_hash(context)})


async def _config_hash(context: ClawContext) -> str | None:
    read = await context.call_repeatable("config.get", {})
    return read.get("hash") if read.get("exists", True) else None


async def _config_schema(context: ClawContext, arguments: Json) -> Any:
    if (arguments.get("key") or "").strip():
        return await context.call_repeatable(
            "config.schema.lookup", drop_empty({"path": require_text(arguments, "key").strip()})
        )
    return await context.call_repeatable("config.schema", {})


OWNER_READ_TRAITS: Final = ToolTraits(owner_only=True)
_NOTE_PARAMETER: Final = {"note": text_parameter("Why, for the history.")}
_BASE_HASH_PARAMETER: Final = {
    "baseHash": text_parameter("Write only if the config still has this hash (from gateway_config_get).")
}

TOOLS = (
    define_tool(
        "gateway_restart",
        "Restart the gateway once running work has ended. Connections drop for a moment and come back by themselves.",
        _restart,
        title="Restart the gateway",
        parameters={"reason": text_parameter("Why, for the log.")},
        traits=ToolTraits(effect="run", destructive=True, owner_only=True),
    ),
    define_tool(
        "gateway_config_get",
        "Read the gateway's config, or the part at `key`. Secrets are hidden; written back unchanged they stay.",
        _get_config,
        title="Read the config",
        parameters={"key": text_parameter("A dotted path, for instance `agents.defaults.model` or `agents.list.0`.")},
        aliases=parameter_aliases(key="path"),
        traits=OWNER_READ_TRAITS,
    ),
    define_tool(
        "gateway_config_apply",
        "Replace the whole config. What you leave out is gone: prefer gateway_config_patch. Checked before it is "
        "written; keys that need a restart cause one.",
        _apply_config,
        title="Replace the config",
        parameters={"config": object_parameter("The whole config."), **_BASE_HASH_PARAMETER, **_NOTE_PARAMETER},
        required=("config",),
        aliases=parameter_aliases(config="raw"),
        traits=ToolTraits(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    define_tool(
        "gateway_config_patch",
        "Change parts of the config: objects are merged, null deletes a key, lists are replaced. Checked before it is "
        "written; keys that need a restart cause one.",
        _patch_config,
        title="Change the config",
        parameters={
            "patches": object_parameter("What changes, as an object laid over the config."),
            "replacePaths": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Dotted paths of lists that may lose entries.",
            },
            **_BASE_HASH_PARAMETER,
            **_NOTE_PARAMETER,
        },
        required=("patches",),
        aliases=parameter_aliases(patches="patch raw config updates"),
        repair_arguments=_merge_patches,
        traits=ToolTraits(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    define_tool(
        "gateway_config_schema",
        "The JSON Schema of the config, or of the part at `key` with its children. The whole is large: prefer a key.",
        _config_schema,
        title="Config schema",
        parameters={"key": text_parameter("A dotted path, for instance `agents.defaults`.")},
        aliases=parameter_aliases(key="path"),
        traits=OWNER_READ_TRAITS,
    ),
)
