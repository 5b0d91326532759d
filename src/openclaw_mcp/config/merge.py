"""JSON merge patch as the gateway does it: null deletes, objects merge, lists of things with ids merge by id. Pure."""

from collections.abc import Collection
from typing import Any

from ..core.errors import BadRequest
from ..core.model import Json

FORBIDDEN = ("__proto__", "constructor", "prototype")


def merged(base: Any, patch: Any) -> Any:
    if isinstance(patch, dict):
        result: Json = dict(base) if isinstance(base, dict) else {}
        for key, value in patch.items():
            if key in FORBIDDEN:
                continue
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), value)
        return result
    if isinstance(patch, list) and isinstance(base, list) and patch and all(_id(item) for item in [*base, *patch]):
        places = {_id(item): index for index, item in enumerate(base)}
        together = list(base)
        for item in patch:
            if _id(item) in places:
                together[places[_id(item)]] = merged(together[places[_id(item)]], item)
            else:
                together.append(item)
        return together
    return patch


def _id(item: Any) -> str | None:
    found = item.get("id") if isinstance(item, dict) else None
    return found if isinstance(found, str) else None


def refuse_losses(base: Any, result: Any, allowed: Collection[str]) -> None:
    """A patch that shortens a list is nearly always a mistake: the paths it may shorten are to be named."""
    lost = [path for path in _losses(base, result, "") if path not in allowed]
    if lost:
        raise BadRequest(
            f"config.patch would remove entries from array path(s): {', '.join(lost)}. "
            "Pass replacePaths with these paths to replace them on purpose."
        )


def _losses(base: Any, result: Any, path: str) -> list[str]:
    if isinstance(base, dict) and isinstance(result, dict):
        found = []
        for key, value in base.items():
            if key in result:
                found += _losses(value, result[key], f"{path}.{key}" if path else key)
        return found
    if isinstance(base, list) and isinstance(result, list) and any(item not in result for item in base):
        kept = {_id(item) for item in result} - {None}
        if not all(_id(item) in kept for item in base if item not in result):
            return [path]
    return []


def changed_paths(before: Any, after: Any, path: str = "") -> list[str]:
    """Dotted paths of what differs, as deep as objects go."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted({*before, *after}):
            inner = f"{path}.{key}" if path else key
            if key not in before or key not in after:
                found.append(inner)
            else:
                found += changed_paths(before[key], after[key], inner)
        return found
    return [] if before == after else [path]
