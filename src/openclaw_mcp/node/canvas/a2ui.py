"""A2UI 0.8: surfaces built from lines of JSON. Pure; `a2ui.html` draws what is kept here."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core.errors import ToolArguments
from ...core.fields import NonEmptyStr
from ...core.model import Json

VERSION: Final = "0.8"
MAX_BYTES: Final = 4 << 20  # of one push
MAX_LINES: Final = 4096  # of one push, blank ones not counted
MAX_LINE_LENGTH: Final = 1 << 20  # bytes; a longer one is skipped
MAX_SURFACES: Final = 64  # at once; more than a person can look at
MAX_COMPONENTS: Final = 2000  # of one surface
MAX_ENTRIES: Final = 1024  # of one data model update, nested ones counted
DEEPEST: Final = 32  # maps inside maps

NEWER_MESSAGES: Final = {"createSurface", "updateComponents", "updateDataModel"}
SECRET_WORDS: Final = ("password", "secret", "token", "apikey", "api_key", "credential")
VALUE_KEYS: Final = ("valueString", "valueNumber", "valueBoolean")


class _InvalidMessage(Exception):
    """A message that is skipped."""


class _SurfaceUpdate(Struct, frozen=True, rename="camel"):
    surface_id: NonEmptyStr
    components: list[Any]


class _DataModelUpdate(Struct, frozen=True, rename="camel"):
    surface_id: NonEmptyStr
    contents: list[Any]
    path: Any = None


class _BeginRendering(Struct, frozen=True, rename="camel"):
    surface_id: NonEmptyStr
    root: str
    styles: Any = None


class _DeleteSurface(Struct, frozen=True, rename="camel"):
    surface_id: Any = None


_MESSAGES: Final = {
    "surfaceUpdate": _SurfaceUpdate,
    "dataModelUpdate": _DataModelUpdate,
    "beginRendering": _BeginRendering,
    "deleteSurface": _DeleteSurface,
}


class A2uiSurface(Struct):
    """A surface as `a2ui.html` draws it."""

    id: str
    root: str | None = None
    styles: Json = {}
    components: dict[str, Any] = {}
    data: Json = {}


class Surfaces:
    """Everything shown, by surface. A bad line is skipped; the good ones around it count."""

    def __init__(self) -> None:
        self._surfaces: dict[str, A2uiSurface] = {}

    def push(self, jsonl: str) -> tuple[int, int]:
        """Take in lines; how many counted and how many were skipped. Raises ToolArguments before any counts."""
        if len(jsonl.encode()) > MAX_BYTES:
            raise ToolArguments(f"jsonl exceeds maximum size of {MAX_BYTES} bytes")
        lines = [line for line in jsonl.splitlines() if line.strip()]
        if len(lines) > MAX_LINES:
            raise ToolArguments(f"jsonl exceeds maximum of {MAX_LINES} lines")
        messages = [_parse_line(line) for line in lines]
        newer = next((kind for message in messages for kind in NEWER_MESSAGES & message.keys()), None)
        if newer:
            raise ToolArguments(f"{newer} belongs to a newer A2UI; this canvas speaks {VERSION}")
        counted = sum(self._apply_message(message) for message in messages)
        return counted, len(messages) - counted

    def reset(self) -> None:
        self._surfaces.clear()

    def to_page(self) -> list[A2uiSurface]:
        """What the page is to show, in the order the surfaces came."""
        return list(self._surfaces.values())

    def dump(self) -> Json:
        """What is kept, with the values under secret-sounding names left out."""
        surfaces = {
            name: {"root": kept.root, "components": kept.components, "dataModel": _redact_secrets(kept.data)}
            for name, kept in self._surfaces.items()
        }
        return {"renderer": "web", "a2uiVersion": VERSION, "surfaceCount": len(surfaces), "surfaces": surfaces}

    def _apply_message(self, message: Json) -> bool:
        found = [kind for kind in _MESSAGES if isinstance(message.get(kind), dict)]
        if len(found) != 1:
            return False
        try:
            match msgspec.convert(message[found[0]], _MESSAGES[found[0]]):
                case _SurfaceUpdate() as update:
                    self._update_components(update)
                case _DataModelUpdate() as update:
                    self._update_data(update)
                case _BeginRendering(surface_id=name, root=root, styles=styles):
                    surface = self._get_surface(name)
                    surface.root, surface.styles = root, styles if isinstance(styles, dict) else {}
                case _DeleteSurface(surface_id=name):
                    return self._surfaces.pop(str(name), None) is not None
        except (_InvalidMessage, msgspec.ValidationError):
            return False
        return True

    def _get_surface(self, name: str) -> A2uiSurface:
        if name not in self._surfaces and len(self._surfaces) >= MAX_SURFACES:
            raise _InvalidMessage
        return self._surfaces.setdefault(name, A2uiSurface(name))

    def _update_components(self, update: _SurfaceUpdate) -> None:
        fresh = {entry["id"]: entry for entry in update.components if _is_component(entry)}
        if len(fresh) != len(update.components):
            raise _InvalidMessage
        surface = self._get_surface(update.surface_id)
        merged = {**surface.components, **fresh}
        if len(merged) > MAX_COMPONENTS:
            raise _InvalidMessage
        surface.components = merged

    def _update_data(self, update: _DataModelUpdate) -> None:
        if _count_entries(update.contents) > MAX_ENTRIES:
            raise _InvalidMessage
        fresh = _parse_map(update.contents, depth=0)
        surface = self._get_surface(update.surface_id)
        steps = [step for step in str(update.path or "/").split("/") if step]
        if len(steps) > DEEPEST:
            raise _InvalidMessage
        if not steps:
            surface.data = {**surface.data, **fresh}
            return
        place = surface.data
        for step in steps[:-1]:
            inner = place.get(step)
            place[step] = place = inner if isinstance(inner, dict) else {}
        place[steps[-1]] = fresh


def _parse_line(line: str) -> Json:
    """The message in a line; empty, which is skipped, when there is none."""
    if len(line.encode()) > MAX_LINE_LENGTH:
        return {}
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_component(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return False
    component = entry.get("component")
    return isinstance(component, dict) and len(component) == 1 and isinstance(next(iter(component.values())), dict)


def _count_entries(contents: Iterable[Any]) -> int:
    nested = (entry.get("valueMap") for entry in contents if isinstance(entry, dict))
    return sum(1 + _count_entries(inner if isinstance(inner, list) else ()) for inner in nested)


def _parse_map(contents: list[Any], *, depth: int) -> Json:
    if depth > DEEPEST:
        raise _InvalidMessage
    found: Json = {}
    for entry in contents:
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise _InvalidMessage
        if isinstance(entry.get("valueMap"), list):
            found[entry["key"]] = _parse_map(entry["valueMap"], depth=depth + 1)
        else:
            found[entry["key"]] = next((entry[kind] for kind in VALUE_KEYS if kind in entry), None)
    return found


def _redact_secrets(value: Any, name: str = "") -> Any:
    if any(word in name.lower() for word in SECRET_WORDS):
        return "[redacted]"
    return {key: _redact_secrets(inner, key) for key, inner in value.items()} if isinstance(value, dict) else value
