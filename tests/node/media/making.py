"""Small things the node's tests are made of."""

from typing import Any

from openclaw_mcp.core.model import Caller, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT, CallContext

ANYBODY = Caller(kind="local", name="test", scopes=frozenset({"*"}))


def call(name: str, arguments: dict[str, Any] | None = None, *, line: CallContext = NULL_CONTEXT) -> ToolCall:
    return ToolCall(caller=ANYBODY, name=name, arguments=arguments or {}, context=line)
