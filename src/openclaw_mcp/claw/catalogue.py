"""The 29 tools as one source: what is listed, how arguments are taken, how answers are given."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from ..core.claw_methods import lacking
from ..core.errors import InputRequired, OpenClawError, ToolNotFound, ToolUnavailable
from ..core.model import Caller, Json, Text, ToolCall, ToolResult, ToolSpec, said
from ..core.ports import Toolbox
from ..core.signal import Bell
from . import admin, cron, messages, sessions
from .tool_context import Seat, Tool

TOOLS: Final[tuple[Tool, ...]] = (*sessions.TOOLS, *messages.TOOLS, *cron.TOOLS, *admin.TOOLS)
SPECS: Final[tuple[ToolSpec, ...]] = tuple(tool.spec for tool in TOOLS)
_BY_NAME: Final = {tool.spec.name: tool for tool in TOOLS}


class ClawTools:
    """A `ToolSource` of all 29. `refusal` knows which of them this gateway and this run do not have; before the gateway
    has said hello that is none."""

    def __init__(self, seat: Seat) -> None:
        self.changed: Bell[None] = Bell()
        self._seat = seat
        self._refused: Mapping[str, str] = {}

    def specs(self) -> Sequence[ToolSpec]:
        return SPECS

    def refusal(self, name: str) -> str | None:
        """Why a tool is not to be had here; None: it is."""
        return self._refused.get(name)

    def learn(self, methods: frozenset[str], permitted: frozenset[str] | None) -> None:
        """What the gateway said at its hello: its methods, and the tools the run's grant has, if it is under one."""
        refused = {}
        for spec in SPECS:
            missing = lacking(spec.name, methods)
            if missing is not None:
                refused[spec.name] = _lacks(spec.name, missing)
            elif permitted is not None and spec.name not in permitted:
                refused[spec.name] = f"{spec.name} is not among the tools the gateway grants this run"
        if refused != self._refused:
            self._refused = refused
            self.changed.ring(None)

    async def call(self, call: ToolCall) -> ToolResult:
        tool = _BY_NAME[call.name]
        missing = lacking(call.name, await self._seat.gateway.methods())
        if missing is not None:
            raise ToolUnavailable(_lacks(call.name, missing))
        return answered(await tool.work(self._seat, call.arguments))


def _lacks(name: str, method: str) -> str:
    return f"the gateway this run is connected to has no {method}, which {name} needs"


def answered(answer: Any) -> ToolResult:
    """The gateway's answer as text an agent reads, and as the value itself."""
    text = Text(json.dumps(answer, indent=2, ensure_ascii=False))
    return ToolResult((text,), structured=answer if isinstance(answer, dict) else UNSET)


class Front:
    """A `Toolbox` before the desk: other names for parameters are understood, and refusals name the tool."""

    def __init__(self, desk: Toolbox, *, look: Callable[[], Awaitable[None]] | None = None) -> None:
        """`look` is waited for before each list; None: lists are given before the gateway is known."""
        self._desk = desk
        self._look = look
        self._listed = look is None
        self._changed: Bell[None] = Bell()
        desk.changed.listen(self._tell)

    @property
    def changed(self) -> Bell[None]:
        return self._changed

    def _tell(self, _: None) -> None:
        if self._listed:  # who has seen no list has none that is out of date
            self._changed.ring(None)

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        if self._look is not None:
            await self._look()
        self._listed = True
        return await self._desk.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        tool = _BY_NAME.get(call.name)
        try:
            if tool is not None:
                arguments = understood(tool, call.arguments)
                call = ToolCall(caller=call.caller, name=call.name, arguments=arguments, line=call.line)
            return await self._desk.call(call)
        except (ToolNotFound, InputRequired):
            raise
        except OpenClawError as exc:
            return said(f"Tool error ({call.name}): {exc}", failed=True)


def understood(tool: Tool, arguments: Json) -> Json:
    """The arguments under the names the schema has. A name the schema has is never taken for another."""
    properties = tool.spec.input_schema["properties"]
    taken: Json = {}
    for name, value in arguments.items():
        own = name if name in properties else tool.aliases.get(name, name)
        if own != name and (own in arguments or own in taken):
            continue
        if value is not None:
            taken[own] = _mended(value, properties.get(own, {}).get("type"))
    return tool.mend(taken) if tool.mend is not None else taken


def _mended(value: Any, kind: Any) -> Any:
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
