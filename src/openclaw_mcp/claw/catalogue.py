"""The 29 tools as one source: what is listed, how arguments are taken, how answers are given."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from ..core.claw_methods import find_missing_method
from ..core.errors import InputRequired, OpenClawError, ToolNotFound, ToolUnavailable
from ..core.model import Caller, Json, Text, ToolCall, ToolResult, ToolSpec, text_result
from ..core.ports import Toolbox
from ..core.signal import Signal
from . import admin, cron, messages, sessions
from .tool_context import ClawContext, ClawTool

TOOLS: Final[tuple[ClawTool, ...]] = (*sessions.TOOLS, *messages.TOOLS, *cron.TOOLS, *admin.TOOLS)
SPECS: Final[tuple[ToolSpec, ...]] = tuple(tool.spec for tool in TOOLS)
_BY_NAME: Final = {tool.spec.name: tool for tool in TOOLS}


class ClawTools:
    """A `ToolSource` of all 29. `refusal` knows which of them this gateway and this run do not have; before the gateway
    has said hello that is none."""

    def __init__(self, context: ClawContext) -> None:
        self.changed: Signal[None] = Signal()
        self._context = context
        self._refusals: Mapping[str, str] = {}

    def specs(self) -> Sequence[ToolSpec]:
        return SPECS

    def refusal_reason(self, name: str) -> str | None:
        """Why a tool is not to be had here; None: it is."""
        return self._refusals.get(name)

    def update_availability(self, methods: frozenset[str], granted_tools: frozenset[str] | None) -> None:
        """What the gateway said at its hello: its methods, and the tools the run's grant has, if it is under one."""
        refused = {}
        for spec in SPECS:
            missing = find_missing_method(spec.name, methods)
            if missing is not None:
                refused[spec.name] = _unavailable_reason(spec.name, missing)
            elif granted_tools is not None and spec.name not in granted_tools:
                refused[spec.name] = f"{spec.name} is not among the tools the gateway grants this run"
        if refused != self._refusals:
            self._refusals = refused
            self.changed.emit(None)

    async def call(self, call: ToolCall) -> ToolResult:
        tool = _BY_NAME[call.name]
        missing = find_missing_method(call.name, await self._context.gateway.methods())
        if missing is not None:
            raise ToolUnavailable(_unavailable_reason(call.name, missing))
        return to_tool_result(await tool.handler(self._context, call.arguments))


def _unavailable_reason(name: str, method: str) -> str:
    return f"the gateway this run is connected to has no {method}, which {name} needs"


def to_tool_result(answer: Any) -> ToolResult:
    """The gateway's answer as text an agent reads, and as the value itself."""
    text = Text(json.dumps(answer, indent=2, ensure_ascii=False))
    return ToolResult((text,), structured=answer if isinstance(answer, dict) else UNSET)


class ClawToolbox:
    """A `Toolbox` before the desk: other names for parameters are understood, and refusals name the tool."""

    def __init__(self, toolbox: Toolbox, *, before_list: Callable[[], Awaitable[None]] | None = None) -> None:
        """`look` is waited for before each list; None: lists are given before the gateway is known."""
        self._toolbox = toolbox
        self._before_list = before_list
        self._was_listed = before_list is None
        self._changed: Signal[None] = Signal()
        toolbox.changed.connect(self._forward_change)

    @property
    def changed(self) -> Signal[None]:
        return self._changed

    def _forward_change(self, _: None) -> None:
        if self._was_listed:  # who has seen no list has none that is out of date
            self._changed.emit(None)

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        if self._before_list is not None:
            await self._before_list()
        self._was_listed = True
        return await self._toolbox.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        tool = _BY_NAME.get(call.name)
        try:
            if tool is not None:
                arguments = normalize_arguments(tool, call.arguments)
                call = ToolCall(caller=call.caller, name=call.name, arguments=arguments, context=call.context)
            return await self._toolbox.call(call)
        except (ToolNotFound, InputRequired):
            raise
        except OpenClawError as exc:
            return text_result(f"Tool error ({call.name}): {exc}", failed=True)


def normalize_arguments(tool: ClawTool, arguments: Json) -> Json:
    """The arguments under the names the schema has. A name the schema has is never taken for another."""
    properties = tool.spec.input_schema["properties"]
    taken: Json = {}
    for name, value in arguments.items():
        own = name if name in properties else tool.aliases.get(name, name)
        if own != name and (own in arguments or own in taken):
            continue
        if value is not None:
            taken[own] = _repair_value(value, properties.get(own, {}).get("type"))
    return tool.repair_arguments(taken) if tool.repair_arguments is not None else taken


def _repair_value(value: Any, kind: Any) -> Any:
    """Agents sometimes give an object or a list as its JSON text, and a list of one as that one."""
    if not isinstance(value, str) or kind not in ("object", "array"):
        return value
    try:
        read = json.loads(value)
    except ValueError:
        read = None
    if isinstance(read, dict) or (isinstance(read, list) and kind in ("array", "object")):
        return read
    return [value] if kind == "array" else value
