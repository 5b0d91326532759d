"""The arguments of a call in the one shape its schema describes, from every name and form that agents use."""

import json
from collections.abc import Callable
from typing import Any, Final

from ..core.claw_tool import ClawTool
from ..core.model import Json

JOB_FIELDS: Final = (
    "name", "schedule", "payload", "sessionTarget", "wakeMode", "delivery", "enabled", "description", "agentId",
    "sessionKey", "deleteAfterRun", "failureAlert",
)  # fmt: skip


def normalize_arguments(tool: ClawTool, arguments: Json) -> Json:
    """The arguments under the names the schema has; nulls are left out. A name of the schema is never an alias."""
    properties = tool.spec.input_schema["properties"]
    found: Json = {}
    for given_name, value in arguments.items():
        name = given_name if given_name in properties else tool.aliases.get(given_name, given_name)
        if value is None or (name != given_name and (name in arguments or name in found)):
            continue
        found[name] = _repair_value(value, properties.get(name, {}).get("type"))
    repair = REPAIRS.get(tool.name)
    return found if repair is None else repair(tool, found)


def _repair_value(value: Any, kind: Any) -> Any:
    """Agents sometimes give an object or a list as its JSON text, and a list of one as that one."""
    if not isinstance(value, str) or kind not in ("object", "array"):
        return value
    try:
        read = json.loads(value)
    except ValueError:
        read = None
    if isinstance(read, dict | list):
        return read
    return [value] if kind == "array" else value


def _collect_job(_: ClawTool, arguments: Json) -> Json:
    """Agents sometimes give a job's parts side by side instead of in `job`."""
    parts = {name: arguments[name] for name in JOB_FIELDS if name in arguments}
    return arguments if "job" in arguments or not parts else {"job": parts}


def _merge_patches(_: ClawTool, arguments: Json) -> Json:
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


def _unwrap_params(tool: ClawTool, arguments: Json) -> Json:
    """`params` holds the same parameters once more; those in it count, but for the action itself."""
    inner = arguments.get("params")
    if not isinstance(inner, dict):
        return arguments
    inner = normalize_arguments(tool, {name: value for name, value in inner.items() if name != "params"})
    outer = {name: value for name, value in arguments.items() if name != "params"}
    return {**outer, **inner, **({"action": outer["action"]} if "action" in outer else {})}


REPAIRS: Final[dict[str, Callable[[ClawTool, Json], Json]]] = {
    "cron_add": _collect_job,
    "gateway_config_patch": _merge_patches,
    "subagents": _unwrap_params,
}
"""Tools whose arguments agents give in other forms as well."""
