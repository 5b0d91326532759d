"""The tools an app registers: read, checked, and shared between sessions that register the same."""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import BadRequest, OpenClawError
from ...core.json_nesting import TOO_DEEP_MESSAGE, decode_json
from ...core.model import Json, ToolSpec
from .frames import short_reason

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # what every MCP client takes, and `/` for apps that use paths
CACHED_SCHEMAS: Final = 1024  # distinct schemas kept parsed; equal ones are one object
MAX_SHARED_BYTES: Final = 4 << 10  # bytes of a schema worth keeping for others; parsed it takes some ten times as many

SchemaCheck = Callable[[Json], object]
"""Raises OpenClawError when the schema can't be used."""


logger = logging.getLogger(__name__)


class BadTools(BadRequest):
    code = "bad_tools"


class ToolManifest(Struct, frozen=True, weakref=True):
    raw: bytes
    """The list as the app wrote it, unknown fields included."""
    specs: tuple[ToolSpec, ...]
    is_camel_case: bool | None = None
    """Whether its schemas are called `inputSchema`, all of them; None when there are none."""


class _Tool(Struct, frozen=True):
    name: str
    title: str | None = None
    description: str | None = None
    input_schema: Raw | UnsetType = UNSET
    camel_input_schema: Raw | UnsetType = field(default=UNSET, name="inputSchema")
    output_schema: Raw | UnsetType = UNSET
    camel_output_schema: Raw | UnsetType = field(default=UNSET, name="outputSchema")
    annotations: Json | None = None
    icons: list[Json] | None = None
    meta: Json | None = field(default=None, name="_meta")


_decode_tools = msgspec.json.Decoder(list[_Tool]).decode
_manifests: WeakValueDictionary[bytes, ToolManifest] = WeakValueDictionary()
"""Every manifest in use, by its text: sessions of one app share one."""


def parse_manifest(raw: bytes, *, most: int, check: SchemaCheck) -> ToolManifest:
    """The tools in a JSON list. Raises BadTools naming the first mistake."""
    manifest = _manifests.get(raw)
    if manifest is not None and len(manifest.specs) <= most:
        return manifest
    try:
        tools = _decode_tools(raw)
    except RecursionError:
        raise BadTools(f"tools: {TOO_DEEP_MESSAGE}") from None
    except ValueError as exc:
        raise BadTools(f"tools: {short_reason(exc)}") from None
    if len(tools) > most:
        raise BadTools(f"tools: {len(tools)} are too many; a session may have {most}")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if not TOOL_NAME.fullmatch(tool.name):
            raise BadTools(f"tools[{index}].name: use 1 to 128 letters, digits, `_`, `-`, `.` or `/`")
        if tool.name in seen:
            raise BadTools(f"tools[{index}].name: {tool.name!r} is there twice; names must be unique in a session")
        seen.add(tool.name)
    manifest = ToolManifest(
        raw, tuple(_tool_spec(tool, index, check) for index, tool in enumerate(tools)), _is_camel_case(tools)
    )
    try:
        decode_json(raw)  # all of it, known or not: all of it is kept and shown again
    except ValueError as exc:
        raise BadTools(f"tools: {short_reason(exc)}") from None
    _manifests[raw] = manifest
    return manifest


EMPTY_MANIFEST: Final = ToolManifest(b"[]", ())


def parse_stored_manifest(raw: bytes, *, max_tools: int) -> ToolManifest:
    """One that was checked when it was registered; the dispatcher checks a schema again before its first use."""
    try:
        return parse_manifest(raw, most=max_tools, check=lambda _: None)
    except BadTools as exc:  # of another version, which took more
        logger.warning("proxy engine: the tools of a stored session can't be used (%s), it has none", exc)
        return EMPTY_MANIFEST


def _is_camel_case(tools: list[_Tool]) -> bool | None:
    if any(isinstance(tool.input_schema, Raw) for tool in tools):
        return False
    return True if any(isinstance(tool.camel_input_schema, Raw) for tool in tools) else None


def _tool_spec(tool: _Tool, index: int, check: SchemaCheck) -> ToolSpec:
    given = tool.input_schema if isinstance(tool.input_schema, Raw) else tool.camel_input_schema
    output = tool.output_schema if isinstance(tool.output_schema, Raw) else tool.camel_output_schema
    return ToolSpec(
        name=tool.name,
        title=tool.title,
        description=tool.description or "",
        input_schema=_parse_schema(given, f"tools[{index}].input_schema", check) or {"type": "object"},
        output_schema=_parse_schema(output, f"tools[{index}].output_schema", check),
        annotations=tool.annotations,
        icons=tool.icons,
        meta=tool.meta,
        effect="run",
    )


def _parse_schema(raw: Raw | UnsetType, where: str, check: SchemaCheck) -> Json | None:
    if not isinstance(raw, Raw):
        return None
    text = bytes(raw)
    if text == b"null":
        return None
    try:
        schema = _decode_schema_cached(text) if len(text) <= MAX_SHARED_BYTES else _decode_schema(text)
    except ValueError as exc:
        raise BadTools(f"{where}: {short_reason(exc)}") from None
    if type(schema) is not dict:
        raise BadTools(f"{where}: must be a JSON Schema object")
    if schema["type"] != "object":
        raise BadTools(f'{where}: its `type` must be "object"')
    try:
        check(schema)
    except OpenClawError as exc:
        raise BadTools(f"{where}: {exc}") from None
    return schema


def _decode_schema(raw: bytes) -> Any:
    """A schema without `type` gets it: clients refuse a whole list for one such tool."""
    schema = decode_json(raw)
    if type(schema) is dict:
        schema.setdefault("type", "object")
    return schema


_decode_schema_cached = lru_cache(maxsize=CACHED_SCHEMAS)(_decode_schema)
