"""Tools over the intercom: `tools.catalog`, `tools.effective`, `tools.invoke`. The desk decides, as everywhere."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, to_builtins

from ..core.errors import ToolArguments, ToolDenied, ToolError, ToolNotFound
from ..core.model import Caller, Json, ToolCall, ToolResult
from ..core.ports import SILENCE, Toolbox
from ..core.rpc import READ, WRITE, Method, RpcCall, read_params

Text = Annotated[str, Meta(min_length=1)]

NOT_OVER_THE_WIRE: Final = frozenset({
    "exec", "spawn", "shell", "fs_write", "fs_delete", "fs_move", "apply_patch", "sessions_spawn", "sessions_send",
    "cron", "automations", "gateway", "nodes",
})  # fmt: skip
"""Tools with a reach of their own: for agents under their policy, not for whoever holds the gateway's token."""


class _Invoke(Struct, frozen=True, rename="camel"):
    name: Text
    args: dict[str, Any] | None = None
    session_key: Text | None = None


class ToolMethods:
    """A `Room`."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    def methods(self) -> Sequence[Method]:
        return (
            Method("tools.catalog", READ, self._catalog),
            Method("tools.effective", READ, self._effective),
            Method("tools.invoke", WRITE, self._invoke),
        )

    async def _catalog(self, call: RpcCall) -> Json:
        tools = await self._shown()
        profiles = [{"id": "full", "label": "Full"}]
        groups = [{"id": "openclaw", "label": "OpenClaw", "source": "core", "tools": tools}] if tools else []
        return {"agentId": "main", "profiles": profiles, "groups": groups}

    async def _effective(self, call: RpcCall) -> Json:
        tools = await self._shown()
        group = {"id": "core", "label": "Core", "source": "core", "tools": tools}
        return {"agentId": "main", "profile": "full", "groups": [group] if tools else []}

    async def _invoke(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Invoke, call.method)
        caller = operator(call.caller.name, session=wanted.session_key)
        try:
            result = await invoke(self._toolbox, wanted.name, wanted.args or {}, caller)
        except ToolError as exc:
            return {"ok": False, "toolName": wanted.name, "error": {"code": kind_of(exc), "message": str(exc)}}
        return {"ok": True, "toolName": wanted.name, "output": result, "source": "core"}

    async def _shown(self) -> list[Json]:
        return [
            {
                "id": spec.name,
                "label": spec.title or spec.name,
                "description": spec.description,
                "source": "core",
                "defaultProfiles": ["full"],
            }
            for spec in await self._toolbox.list(operator("catalog"))
        ]


def operator(name: str, *, session: str | None = None) -> Caller:
    """Whoever holds the gateway's own credential: every tool of the house."""
    return Caller(kind="operator", name=name, scopes=frozenset({"*"}), session=session)


async def invoke(toolbox: Toolbox, name: str, arguments: Json, caller: Caller) -> Json:
    """The tool's output as the gateway's wire shows it. Raises ToolError."""
    if name in NOT_OVER_THE_WIRE:
        raise ToolNotFound(f"Tool not available: {name}")
    try:
        result = await toolbox.call(ToolCall(caller=caller, name=name, arguments=arguments, line=SILENCE))
    except ToolNotFound:
        raise ToolNotFound(f"Tool not available: {name}") from None
    if result.failed:
        raise ToolError(_text(result) or f"{name} failed")
    output: Json = {"content": to_builtins(result.content)}
    if result.structured is not UNSET:
        output["details"] = result.structured
    return output


def kind_of(error: ToolError) -> str:
    """The wire's word for an error."""
    if isinstance(error, ToolNotFound):
        return "not_found"
    if isinstance(error, ToolArguments):
        return "invalid_request"
    return "forbidden" if isinstance(error, ToolDenied) else "tool_error"


def _text(result: ToolResult) -> str:
    return "\n".join(block.text for block in result.content if hasattr(block, "text"))


__all__ = ["ToolMethods", "invoke", "kind_of", "operator"]
