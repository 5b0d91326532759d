"""The tools of an agent's turn: offered under names its model takes, called as the agent, their results reported."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ....core import model
from ....core.agent import ToolOutcome, ToolUpdate, ToolUse, Turn
from ....core.errors import OpenClawError
from ....core.json_nesting import decode_json
from ....core.model import Json, ToolCall, ToolResult, ToolSpec, text_result
from ....core.ports import LogLevel, NullCallContext
from .event_stream import EmitEvent
from .lru import LruCache
from .messages import ImagePart, ModelTool, TextPart, ToolCallPart, ToolResultPart
from .tool_names import api_tool_names

logger = logging.getLogger(__name__)

UPDATE_INTERVAL: Final = 0.1  # seconds between two updates of one call; a chatty tool must not flood its readers
MAX_RESULT_LENGTH: Final = 400_000  # characters of one result a model is given, however large its window
NO_SCHEMA: Final[Json] = {"type": "object", "properties": {}}


class TurnTools:
    """One turn's tools."""

    def __init__(self, turn: Turn, emit: EmitEvent, *, concurrency: int) -> None:
        self._turn = turn
        self._emit = emit
        self._slots = asyncio.Semaphore(concurrency)
        self._model_tools = _cached_tools(())

    async def list_tools(self) -> tuple[ModelTool, ...]:
        """What may be called now; it may have changed since the last answer."""
        if self._turn.tools is None:
            return ()
        self._model_tools = _cached_tools(await self._turn.tools.list(self._turn.caller))
        return self._model_tools.tools

    def api_name(self, name: str) -> str:
        """The name for a tool that the model called in an earlier turn, which may be gone by now."""
        return self._model_tools.api_names.get(name) or api_tool_names([name])[name]

    async def call_all(self, calls: Sequence[ToolCallPart], *, max_chars: int) -> tuple[ToolResultPart, ...]:
        """Make every call, at once as far as allowed; each result cut to `max_chars` characters.

        Cancelling the wait cancels them all and waits for their ends.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._call_one(call, max_chars)) for call in calls]
        return tuple(task.result() for task in tasks)

    async def _call_one(self, call: ToolCallPart, max_chars: int) -> ToolResultPart:
        async with self._slots:
            name = self._model_tools.real_names.get(call.name, call.name)
            arguments = _parse_arguments(call.arguments)
            self._emit(ToolUse(call.id, name, arguments or {}))
            result = await self._call(call, name, arguments)
            content = tuple(msgspec.to_builtins(block) for block in result.content)
            self._emit(ToolOutcome(call.id, name, content, result.failed))
            parts = tuple(_result_parts(result, min(max_chars, MAX_RESULT_LENGTH)))
            return ToolResultPart(id=call.id, name=call.name, parts=parts, failed=result.failed)

    async def _call(self, call: ToolCallPart, name: str, arguments: Json | None) -> ToolResult:
        """Each failure is a result that the model can read."""
        if arguments is None:
            return text_result("the arguments are not a JSON object; send them again as one", failed=True)
        if self._turn.tools is None:
            return text_result(f"there is no tool {name}", failed=True)
        context = _ToolCallContext(call.id, name, self._emit)
        try:
            return await self._turn.tools.call(
                ToolCall(caller=self._turn.caller, name=name, arguments=arguments, context=context)
            )
        except OpenClawError as exc:
            return text_result(str(exc), failed=True)
        except Exception:  # the boundary: a tool's bug must not end the conversation
            logger.exception("run %s: the tool %s broke", self._turn.run_id, name)
            return text_result(f"{name} failed: an internal error, see the gateway's log", failed=True)


class _ModelTools:
    """Tools under the names a model's API takes."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.api_names = api_tool_names(spec.name for spec in specs)
        self.real_names = {wire: name for name, wire in self.api_names.items()}
        self.tools = tuple(
            ModelTool(self.api_names[spec.name], spec.description, _object_schema(spec.input_schema)) for spec in specs
        )


_cached_tools = LruCache[ToolSpec, _ModelTools](_ModelTools)


class _ToolCallContext(NullCallContext):
    """Reports a tool's progress as events of the run. No question can be asked here."""

    def __init__(self, id: str, name: str, emit: EmitEvent) -> None:
        self._id = id
        self._name = name
        self._emit = emit
        self._quiet_until = 0.0

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        self._update(message or (f"{value:g}" if total is None else f"{value:g} of {total:g}"))

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        if level != "debug":
            self._update(data if isinstance(data, str) else msgspec.json.encode(data, enc_hook=str).decode())

    def _update(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + UPDATE_INTERVAL
            self._emit(ToolUpdate(self._id, self._name, ({"type": "text", "text": text},)))


def _object_schema(schema: Json) -> Json:
    """As the tool gives it; the APIs insist on an object with properties."""
    return schema if "properties" in schema else {**NO_SCHEMA, **schema, "type": "object"}


def _parse_arguments(arguments: str) -> Json | None:
    try:
        value = decode_json(arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _result_parts(result: ToolResult, max_chars: int) -> "list[TextPart | ImagePart]":
    parts: list[TextPart | ImagePart] = []
    left = max_chars
    for block in result.content:
        part = _to_part(block)
        if isinstance(part, TextPart):
            part = shorten_text(part, left)
            left = max(0, left - len(part.text))
        parts.append(part)
    if not result.content and result.structured is not UNSET:
        parts.append(shorten_text(TextPart(msgspec.json.encode(result.structured).decode()), max_chars))
    return parts


def shorten_text(part: TextPart, max_chars: int) -> TextPart:
    if len(part.text) <= max_chars:
        return part
    return TextPart(f"{part.text[:max_chars]}\n[cut here: {len(part.text) - max_chars} more characters do not fit]")


def _to_part(block: model.ContentBlock) -> "TextPart | ImagePart":
    match block:
        case model.Text(text=text):
            return TextPart(text)
        case model.Image(data=data, mime_type=mime_type):
            return ImagePart(mime_type, data)
        case model.Embedded(resource=resource):
            if resource.blob is not None and (resource.mime_type or "").startswith("image/"):
                return ImagePart(resource.mime_type or "", resource.blob)
            return TextPart(resource.text if resource.text is not None else f"[a file: {resource.uri}]")
        case model.Link(uri=uri, name=name):
            return TextPart(f"[{name}: {uri}]")
        case model.Audio(mime_type=mime_type, data=data):
            return TextPart(f"[a sound, {mime_type}, {len(data)} bytes]")
