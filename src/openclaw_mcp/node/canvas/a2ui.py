"""A2UI 0.8: surfaces built from lines of JSON. Pure; `a2ui.html` draws what is kept here."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ...core.errors import ToolArguments
from ...core.model import Json

VERSION: Final = "0.8"
MOST_BYTES: Final = 4 << 20  # of one push
MOST_LINES: Final = 4096  # of one push, blank ones not counted
LONGEST_LINE: Final = 1 << 20  # bytes; a longer one is skipped
MOST_SURFACES: Final = 64  # at once; more than a person can look at
MOST_COMPONENTS: Final = 2000  # of one surface
MOST_ENTRIES: Final = 1024  # of one data model update, nested ones counted
DEEPEST: Final = 32  # maps inside maps

NEWER: Final = {"createSurface", "updateComponents", "updateDataModel"}
SECRET_WORDS: Final = ("password", "secret", "token", "apikey", "api_key", "credential")
VALUES: Final = ("valueString", "valueNumber", "valueBoolean")


class _Bad(Exception):
    """A message that is skipped."""


class Surfaces:
    """Everything shown, by surface. A bad line is skipped; the good ones around it count."""

    def __init__(self) -> None:
        self._surfaces: dict[str, Json] = {}

    def push(self, jsonl: str) -> tuple[int, int]:
        """Take in lines; how many counted and how many were skipped. Raises ToolArguments before any counts."""
        if len(jsonl.encode()) > MOST_BYTES:
            raise ToolArguments(f"jsonl exceeds maximum size of {MOST_BYTES} bytes")
        lines = [line for line in jsonl.splitlines() if line.strip()]
        if len(lines) > MOST_LINES:
            raise ToolArguments(f"jsonl exceeds maximum of {MOST_LINES} lines")
        messages = [_parsed(line) for line in lines]
        newer = next((kind for message in messages if message for kind in NEWER & message.keys()), None)
        if newer:
            raise ToolArguments(f"{newer} belongs to a newer A2UI; this canvas speaks {VERSION}")
        counted = sum(self._take(message) for message in messages)
        return counted, len(messages) - counted

    def reset(self) -> None:
        self._surfaces.clear()

    def drawn(self) -> list[Json]:
        """What the page is to show, in the order the surfaces came."""
        return [{"id": name, **surface} for name, surface in self._surfaces.items()]

    def dump(self) -> Json:
        """What is kept, with the values under secret-sounding names left out."""
        surfaces = {
            name: {
                "root": surface["root"],
                "components": surface["components"],
                "dataModel": _redacted(surface["data"]),
            }
            for name, surface in self._surfaces.items()
        }
        return {"renderer": "web", "a2uiVersion": VERSION, "surfaceCount": len(surfaces), "surfaces": surfaces}

    def _take(self, message: Json | None) -> bool:
        kinds = {
            "surfaceUpdate": self._update,
            "dataModelUpdate": self._data,
            "beginRendering": self._begin,
            "deleteSurface": self._delete,
        }
        found = [kind for kind in kinds if message and isinstance(message.get(kind), dict)]
        if message is None or len(found) != 1:
            return False
        try:
            kinds[found[0]](message[found[0]])
        except _Bad:
            return False
        return True

    def _surface(self, body: Json) -> Json:
        name = body.get("surfaceId")
        if not isinstance(name, str) or not name:
            raise _Bad
        if name not in self._surfaces and len(self._surfaces) >= MOST_SURFACES:
            raise _Bad
        return self._surfaces.setdefault(name, {"root": None, "styles": {}, "components": {}, "data": {}})

    def _update(self, body: Json) -> None:
        components = body.get("components")
        if not isinstance(components, list):
            raise _Bad
        fresh = {entry["id"]: entry for entry in components if _is_component(entry)}
        if len(fresh) != len(components):
            raise _Bad
        surface = self._surface(body)
        merged = {**surface["components"], **fresh}
        if len(merged) > MOST_COMPONENTS:
            raise _Bad
        surface["components"] = merged

    def _data(self, body: Json) -> None:
        contents = body.get("contents")
        if not isinstance(contents, list) or _entries(contents) > MOST_ENTRIES:
            raise _Bad
        fresh = _map(contents, depth=0)
        surface = self._surface(body)
        steps = [step for step in str(body.get("path") or "/").split("/") if step]
        if len(steps) > DEEPEST:
            raise _Bad
        if not steps:
            surface["data"] = {**surface["data"], **fresh}
            return
        place = surface["data"]
        for step in steps[:-1]:
            inner = place.get(step)
            place[step] = place = inner if isinstance(inner, dict) else {}
        place[steps[-1]] = fresh

    def _begin(self, body: Json) -> None:
        root, styles = body.get("root"), body.get("styles")
        if not isinstance(root, str):
            raise _Bad
        surface = self._surface(body)
        surface["root"] = root
        surface["styles"] = styles if isinstance(styles, dict) else {}

    def _delete(self, body: Json) -> None:
        if self._surfaces.pop(str(body.get("surfaceId")), None) is None:
            raise _Bad


def _parsed(line: str) -> Json | None:
    if len(line.encode()) > LONGEST_LINE:
        return None
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_component(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return False
    component = entry.get("component")
    return isinstance(component, dict) and len(component) == 1 and isinstance(next(iter(component.values())), dict)


def _entries(contents: Iterable[Any]) -> int:
    nested = (entry.get("valueMap") for entry in contents if isinstance(entry, dict))
    return sum(1 + _entries(inner if isinstance(inner, list) else ()) for inner in nested)


def _map(contents: list[Any], *, depth: int) -> Json:
    if depth > DEEPEST:
        raise _Bad
    found: Json = {}
    for entry in contents:
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise _Bad
        if isinstance(entry.get("valueMap"), list):
            found[entry["key"]] = _map(entry["valueMap"], depth=depth + 1)
        else:
            found[entry["key"]] = next((entry[kind] for kind in VALUES if kind in entry), None)
    return found


def _redacted(value: Any, name: str = "") -> Any:
    if any(word in name.lower() for word in SECRET_WORDS):
        return "[redacted]"
    return {key: _redacted(inner, key) for key, inner in value.items()} if isinstance(value, dict) else value
