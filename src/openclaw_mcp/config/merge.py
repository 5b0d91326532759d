"""JSON merge patch as the gateway does it: null deletes, objects merge, lists of things with ids merge by id. Pure."""

from collections.abc import Collection
from typing import Any

from ..core.errors import BadRequest
from ..core.model import Json

FORBIDDEN_KEYS = ("__proto__", "constructor", "prototype")


def merge_patch(base: Any, patch: Any, path: str = "") -> Any:
    if isinstance(patch, dict):
        result: Json = dict(base) if isinstance(base, dict) else {}
        for key, value in patch.items():
            if key in FORBIDDEN_KEYS:
                continue
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merge_patch(result.get(key), value, f"{path}.{key}" if path else key)
        return result
    if _has_ids(patch):
        return _merge_entries(base if _has_ids(base) else [], patch, path)
    return patch


def _merge_entries(base: list[Any], patch: list[Any], path: str) -> list[Any]:
    entries = list(base)
    places = {_entry_id(item): index for index, item in enumerate(base)}
    named = set()
    for item in patch:
        entry_id = _entry_id(item)
        if entry_id in named:
            raise BadRequest(f"invalid config: {path or 'the list'}: the id {entry_id!r} is there twice")
        named.add(entry_id)
        if entry_id in places:
            entries[places[entry_id]] = merge_patch(entries[places[entry_id]], item, path)
        else:
            entries.append(merge_patch(None, item, path))
    return entries


def _has_ids(value: Any) -> bool:
    """Whether it is a list of things with ids."""
    return isinstance(value, list) and bool(value) and all(_entry_id(item) for item in value)


def _entry_id(item: Any) -> str | None:
    found = item.get("id") if isinstance(item, dict) else None
    return found if isinstance(found, str) else None


def refuse_entry_loss(base: Any, result: Any, allowed: Collection[str]) -> None:
    """A patch that shortens a list is nearly always a mistake: the paths it may shorten are to be named."""
    lost = [path for path in _find_entry_losses(base, result, "") if path not in allowed]
    if lost:
        raise BadRequest(
            f"config.patch would remove entries from array path(s): {', '.join(lost)}. "
            "Pass replacePaths with these paths to replace them on purpose."
        )


def _find_entry_losses(base: Any, result: Any, path: str) -> list[str]:
    if isinstance(base, dict) and isinstance(result, dict):
        found = []
        for key, value in base.items():
            if key in result:
                found += _find_entry_losses(value, result[key], f"{path}.{key}" if path else key)
        return found
    if isinstance(base, list) and isinstance(result, list) and any(item not in result for item in base):
        kept = {_entry_id(item) for item in result} - {None}
        if not all(_entry_id(item) in kept for item in base if item not in result):
            return [path]
    return []


def diff_paths(before: Any, after: Any, path: str = "") -> list[str]:
    """Dotted paths of what differs, as deep as objects go."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted({*before, *after}):
            inner = f"{path}.{key}" if path else key
            if key not in before or key not in after:
                found.append(inner)
            else:
                found += diff_paths(before[key], after[key], inner)
        return found
    return [] if before == after else [path]
