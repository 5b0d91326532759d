"""A fake gateway as the tools see it: answers from a table, remembers what it was asked, fails on demand."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openclaw_mcp.claw.settings import ClawSettings
from openclaw_mcp.claw.tool_context import CALL_TIMEOUT, ClawContext, GatewayOffer
from openclaw_mcp.claw.toolbox import ClawToolbox, ClawTools
from openclaw_mcp.core.claw_methods import METHODS_BY_TOOL
from openclaw_mcp.core.model import LOCAL_CALLER, Json, Text, ToolCall, ToolResult
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.net.file_access import FileAccess
from openclaw_mcp.net.side_effects_file import EffectsFile
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry

OURS = frozenset(method for ways in METHODS_BY_TOOL.values() for method in ways[0]) | {"sessions.resolve"}
REAL = (OURS - {"sessions.spawn", "sessions.subagents"}) | {"sessions.create", "sessions.abort"}
"""What a real OpenClaw offers of it, and how it does the rest."""

HOME = {"channel": "local", "account": "default", "to": "room-1", "thread": "t7"}


class FakeGateway:
    """`answers`: method to its answer, to an exception to raise, or to a function of the parameters."""

    def __init__(
        self,
        folder: Path,
        *,
        offers: frozenset[str] = OURS,
        home: Mapping[str, Any] | None = None,
        files: FileAccess | None = None,
        near: bool = True,
    ) -> None:
        self.asked: list[tuple[str, Json]] = []
        self.again: dict[str, bool] = {}
        self.answers: dict[str, Any] = {}
        self.path = folder / "effects.ndjson"
        self._offers = offers
        self.offered: Signal[GatewayOffer] = Signal()
        received = {"url": "ws://x", "token": "t", "session_key": "agent:main:cli", "effects_file": str(self.path)}
        run = ClawSettings(**received | dict(home or {}))
        effects = EffectsFile(self.path, provider=run.channel, account=run.account)
        self.tools = ClawTools(ClawContext(self, run, effects, file_access=files or FileAccess(), is_local=near))
        self.front = ClawToolbox(ToolDispatcher(ToolRegistry({"claw": self.tools})))

    async def methods(self) -> frozenset[str]:
        self.offered.emit(GatewayOffer(self._offers))
        return self._offers

    async def call(self, method: str, params: Json, *, within: float = CALL_TIMEOUT, repeatable: bool = False) -> Any:
        assert method in self._offers | {"sessions.steer", "config.schema.lookup"}, method
        self.asked.append((method, params))
        self.again[method] = repeatable
        answer = self.answers.get(method, {})
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer(params) if isinstance(answer, Callable) else answer  # type: ignore[arg-type]  # a function, then

    def use(self, name: str, /, **arguments: Any) -> ToolResult:
        call = ToolCall(caller=LOCAL_CALLER, name=name, arguments=arguments, context=NULL_CONTEXT)
        return asyncio.run(self.front.call(call))

    def works(self, name: str, /, **arguments: Any) -> Json:
        """The tool's answer, which must not be a failure."""
        result = self.use(name, **arguments)
        assert not result.failed, result
        assert isinstance(result.structured, dict)
        return result.structured

    def fails(self, name: str, /, **arguments: Any) -> str:
        result = self.use(name, **arguments)
        assert result.failed, result
        (block,) = result.content
        assert isinstance(block, Text)
        return block.text

    def last(self, method: str) -> Json:
        return next(params for name, params in reversed(self.asked) if name == method)


def refused(words: str, **more: Any) -> RpcError:
    return RpcError(words, **more)
