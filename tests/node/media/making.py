"""Small things the node's tests are made of."""

from typing import Any

from openclaw_mcp.core.model import Caller, ToolCall
from openclaw_mcp.core.ports import SILENCE, Line

ANYBODY = Caller(kind="local", name="test", scopes=frozenset({"*"}))


def call(name: str, arguments: dict[str, Any] | None = None, *, line: Line = SILENCE) -> ToolCall:
    return ToolCall(caller=ANYBODY, name=name, arguments=arguments or {}, line=line)
