"""The 29 tools as one source: which of them are available, how a call is made and how its result is shown."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from ..core.claw_catalogue import CLAW_TOOLS
from ..core.claw_methods import find_missing_method
from ..core.errors import InputRequired, OpenClawError, ToolNotFound, ToolUnavailable
from ..core.model import Caller, Text, ToolCall, ToolResult, ToolSpec, text_result
from ..core.ports import Toolbox
from ..core.signal import Signal
from . import admin, cron, messages, sessions
from .arguments import normalize_arguments
from .tool_context import ClawContext, GatewayOffer, ToolHandler

HANDLERS: Final[Mapping[str, ToolHandler]] = sessions.HANDLERS | messages.HANDLERS | cron.HANDLERS | admin.HANDLERS
SPECS: Final[tuple[ToolSpec, ...]] = tuple(tool.spec for tool in CLAW_TOOLS.values())


class ClawTools:
    """A `ToolSource` of all 29. Which of them this gateway and this run lack is known from the gateway's hello on;
    until then all count as available."""

    def __init__(self, context: ClawContext) -> None:
        self.changed: Signal[None] = Signal()
        self._context = context
        self._refusals: Mapping[str, str] | None = None
        context.gateway.offered.connect(self._on_offer)

    def specs(self) -> Sequence[ToolSpec]:
        return SPECS

    def refusal_reason(self, name: str) -> str | None:
        """Why a tool is not available here; None if it is, or if that is not known yet."""
        return None if self._refusals is None else self._refusals.get(name)

    def _on_offer(self, offer: GatewayOffer) -> None:
        refusals = {}
        for name in CLAW_TOOLS:
            missing = find_missing_method(name, offer.methods)
            if missing is not None:
                refusals[name] = _missing_reason(name, missing)
            elif offer.granted_tools is not None and name not in offer.granted_tools:
                refusals[name] = f"{name} is not among the tools the gateway grants this run"
        changed = refusals != (self._refusals or {})
        self._refusals = refusals
        if changed:
            self.changed.emit(None)

    async def call(self, call: ToolCall) -> ToolResult:
        if self._refusals is None:  # the first call: the policy could not know yet, since this is what connects
            missing = find_missing_method(call.name, await self._context.gateway.methods())
            if missing is not None:
                raise ToolUnavailable(_missing_reason(call.name, missing))
        return to_tool_result(await HANDLERS[call.name](self._context, call.arguments))


def _missing_reason(name: str, method: str) -> str:
    return f"the gateway this run is connected to has no {method}, which {name} needs"


def to_tool_result(answer: Any) -> ToolResult:
    """The gateway's answer as text an agent reads, and as the value itself."""
    text = Text(json.dumps(answer, indent=2, ensure_ascii=False))
    return ToolResult((text,), structured=answer if isinstance(answer, dict) else UNSET)


class ClawToolbox:
    """A `Toolbox` before the dispatcher: brings arguments into the schema's shape; its refusals name the tool."""

    def __init__(self, toolbox: Toolbox, *, before_list: Callable[[], Awaitable[None]] | None = None) -> None:
        """`before_list` is awaited before each list; without it, lists are given before the gateway is known."""
        self._toolbox = toolbox
        self._before_list = before_list
        self._was_listed = before_list is None
        self.changed: Signal[None] = Signal()
        toolbox.changed.connect(self._forward_change)

    def _forward_change(self, _: None) -> None:
        if self._was_listed:  # a client that has seen no list has none that is out of date
            self.changed.emit(None)

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        if self._before_list is not None:
            await self._before_list()
        self._was_listed = True
        return await self._toolbox.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        tool = CLAW_TOOLS.get(call.name)
        try:
            if tool is not None:
                call = replace(call, arguments=normalize_arguments(tool, call.arguments))
            return await self._toolbox.call(call)
        except (ToolNotFound, InputRequired):
            raise
        except OpenClawError as exc:
            return text_result(f"Tool error ({call.name}): {exc}", failed=True)
