"""Handlers of the gateway tools: its config and its restart. For the owner."""

import json
from typing import Any, Final

from msgspec import Struct

from ..core.errors import ToolArguments
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..core.rpc import RpcError
from .tool_context import ClawContext, bind_handlers

STALE_HASH_ERRORS: Final = ("config base hash required", "config changed since last load")
"""How the error begins with which a gateway reports that the config was changed meanwhile."""


class ConfigArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of all gateway tools; its schema names those that a tool has."""

    reason: str = ""
    key: str = ""
    config: Json = {}
    patches: Json = {}
    replace_paths: list[str] | None = None
    base_hash: str = ""
    note: str = ""


async def _get_config(context: ClawContext, arguments: ConfigArguments) -> Any:
    read = await context.call_repeatable("config.get", {})
    key = arguments.key.strip().strip(".")
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


async def _apply_config(context: ClawContext, arguments: ConfigArguments) -> Any:
    return await _write_config(context, "config.apply", {"raw": _to_text(arguments.config)}, arguments)


async def _patch_config(context: ClawContext, arguments: ConfigArguments) -> Any:
    params = {"raw": _to_text(arguments.patches), "replacePaths": arguments.replace_paths}
    return await _write_config(context, "config.patch", params, arguments)


def _to_text(content: Json) -> str:
    return json.dumps(content, ensure_ascii=False)


async def _write_config(context: ClawContext, method: str, content: Json, arguments: ConfigArguments) -> Any:
    """Write over the present config; when it was changed meanwhile, once more over the changed one.

    With `baseHash` the caller names the config it wants to write over: then a change in between is an error."""
    base_hash = arguments.base_hash.strip()
    params = {**content, "note": arguments.note, "sessionKey": context.settings.session_key}
    try:
        return await context.call_once(method, {**params, "baseHash": base_hash or await _config_hash(context)})
    except RpcError as error:
        if base_hash or not str(error).startswith(STALE_HASH_ERRORS):
            raise
        return await context.call_once(method, {**params, "baseHash": await _config_hash(context)})


async def _config_hash(context: ClawContext) -> str | None:
    read = await context.call_repeatable("config.get", {})
    return read.get("hash") if read.get("exists", True) else None


async def _config_schema(context: ClawContext, arguments: ConfigArguments) -> Any:
    if key := arguments.key.strip():
        return await context.call_repeatable("config.schema.lookup", {"path": key})
    return await context.call_repeatable("config.schema", {})


HANDLERS: Final = bind_handlers(
    ConfigArguments,
    {
        "gateway_restart": lambda context, asked: context.call_once(
            "gateway.restart.request", {"reason": asked.reason}
        ),
        "gateway_config_get": _get_config,
        "gateway_config_apply": _apply_config,
        "gateway_config_patch": _patch_config,
        "gateway_config_schema": _config_schema,
    },
)
