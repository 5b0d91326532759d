"""Our gateway with tools for its agents. Usage: furnished.py TOOLS, then the words of `openclaw`."""

import sys
from collections.abc import Sequence
from typing import Any

from openclaw_mcp.cli import main
from openclaw_mcp.core.model import Caller, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.gateway.wiring import assembly
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import PolicyDecision

COUNT = 0
WORDS = "Looks up what is known about a thing, in one of several ways, and says where it was found. " * 3
SCHEMA = {
    "type": "object",
    "properties": {
        name: {"type": "string", "description": f"The {name} of what is looked up, as people write it"}
        for name in ("name", "place", "kind", "language", "since")
    },
    "required": ["name"],
}


class Shelf:
    """Tools enough to weigh something."""

    def __init__(self, count: int) -> None:
        self.changed: Signal[None] = Signal()
        self._specs = [ToolSpec(name=f"look_up_{n}", description=WORDS, input_schema=SCHEMA) for n in range(count)]

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, call: ToolCall) -> ToolResult:
        return text_result("nothing")


class Furnished(GatewayServer):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, sources={"shelf": Shelf(COUNT)}, **more)
        self.dispatcher = ToolDispatcher(self.registry, policy=_open)


def _open(caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
    return PolicyDecision(True, "a benchmark's own tools")


if __name__ == "__main__":
    COUNT = int(sys.argv.pop(1))
    assembly.GatewayServer = Furnished  # type: ignore[attr-defined]  # all that differs from what users run
    sys.exit(main())
