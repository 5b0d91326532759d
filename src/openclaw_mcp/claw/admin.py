"""Handlers of the gateway tools: its config and its restart. For the owner."""

import json
from typing import Any, Final

from ..core.errors import ToolArguments
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..core.rpc import RpcError
from .tool_context import ClawContext, ToolHandler, require_text

STALE_HASH_ERRORS: Final = ("config base hash required", "config changed since last load")
"""How the error begins with which a gateway reports that the config was changed meanwhile."""


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
    """Whether there is a value at a dotted path, and the value; `[0]` and `.0` name an entry of a list."""
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


async def _write_config(context: ClawContext, method: str, content: Json, arguments: Json) -> Any:
    """Write over the present config; when it was changed meanwhile, once more over the changed one.

    With `baseHash` the caller names the config it wants to write over: then a change in between is an error."""
    raw = json.dumps(content, ensure_ascii=False)
    base_hash = (arguments.get("baseHash") or "").strip()
    params = {"raw": raw, "note": arguments.get("note"), "sessionKey": context.settings.session_key}
    if method == "config.patch":
        params["replacePaths"] = arguments.get("replacePaths")
    try:
        return await context.call_once(method, {**params, "baseHash": base_hash or await _config_hash(context)})
    except RpcError as error:
        if base_hash or not str(error).startswith(STALE_HASH_ERRORS):
            raise
        return await context.call_once(method, {**params, "baseHash": await _config_hash(context)})


async def _config_hash(context: ClawContext) -> str | None:
    read = await context.call_repeatable("config.get", {})
    return read.get("hash") if read.get("exists", True) else None


async def _config_schema(context: ClawContext, arguments: Json) -> Any:
    if (arguments.get("key") or "").strip():
        return await context.call_repeatable("config.schema.lookup", {"path": require_text(arguments, "key").strip()})
    return await context.call_repeatable("config.schema", {})


HANDLERS: Final[dict[str, ToolHandler]] = {
    "gateway_restart": _restart,
    "gateway_config_get": _get_config,
    "gateway_config_apply": _apply_config,
    "gateway_config_patch": _patch_config,
    "gateway_config_schema": _config_schema,
}
