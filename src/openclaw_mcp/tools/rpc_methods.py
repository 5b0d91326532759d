"""Tools over RPC: `tools.catalog`, `tools.effective`, `tools.invoke`. The dispatcher decides, as everywhere."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, structs, to_builtins

from ..core.errors import ToolArguments, ToolDenied, ToolError, ToolNotFound
from ..core.model import Caller, EntryPoint, Grant, Json, ToolCall, ToolResult
from ..core.ports import NULL_CONTEXT, Toolbox
from ..core.rpc import READ, WRITE, RpcCall, RpcMethod, read_params
from ..core.session_target import ALL_SCOPES, SessionAddress, SessionResolver, UnstoredSessions
from .tool_names import PROFILES

RequiredText = Annotated[str, Meta(min_length=1)]


class _EffectiveToolsParams(Struct, frozen=True, kw_only=True, rename="camel"):
    session_key: RequiredText | None = None
    agent_id: RequiredText | None = None


class _ToolInvokeParams(_EffectiveToolsParams, frozen=True):
    name: RequiredText
    args: Json | None = None


class ToolMethods:
    """An `RpcModule`."""

    def __init__(self, toolbox: Toolbox, sessions: SessionResolver = UnstoredSessions()) -> None:
        self._toolbox = toolbox
        self._sessions = sessions

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("tools.catalog", READ, self._catalog),
            RpcMethod("tools.effective", READ, self._effective),
            RpcMethod("tools.invoke", WRITE, self._invoke),
        )

    async def _catalog(self, call: RpcCall) -> Json:
        tools = await self._list_tools(to_tool_caller(call.caller))
        profiles = [{"id": name, "label": name.capitalize()} for name in PROFILES]
        groups = [{"id": "openclaw", "label": "OpenClaw", "source": "core", "tools": tools}] if tools else []
        return {"agentId": "main", "profiles": profiles, "groups": groups}

    async def _effective(self, call: RpcCall) -> Json:
        asked = read_params(call.params, _EffectiveToolsParams, call.method)
        if call.caller.kind == "agent":
            caller = to_tool_caller(call.caller)
        else:
            caller = await self._sessions.agent_caller(asked.session_key, asked.agent_id)
        tools = await self._list_tools(caller)
        group = {"id": "core", "label": "Core", "source": "core", "tools": tools}
        agent = (caller.grant and caller.grant.agent) or "main"
        return {"agentId": agent, "profile": "full", "groups": [group] if tools else []}

    async def _invoke(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _ToolInvokeParams, call.method)
        caller = await self.resolve_session_caller(to_tool_caller(call.caller), wanted.session_key, wanted.agent_id)
        try:
            result = await invoke(self._toolbox, wanted.name, wanted.args or {}, caller)
        except ToolError as exc:
            return {"ok": False, "toolName": wanted.name, "error": {"code": error_kind(exc), "message": str(exc)}}
        return {"ok": True, "toolName": wanted.name, "output": result, "source": "core"}

    async def resolve_session_caller(self, caller: Caller, session: str | None, agent: str | None) -> Caller:
        """The caller in the session it names. One that is a session's agent already stays in that session, and
        what it names is ignored. Raises RpcError for a session of no agent here."""
        key = self._sessions.resolve_key(session, agent)
        if key is None or caller.acts_in_session:
            return caller
        return await self._sessions.bind(caller, SessionAddress(session=key))

    async def _list_tools(self, caller: Caller) -> list[Json]:
        return [
            {
                "id": spec.name,
                "label": spec.title or spec.name,
                "description": spec.description,
                "source": "core",
                "defaultProfiles": ["full"],
            }
            for spec in await self._toolbox.list(caller)
        ]


def to_tool_caller(caller: Caller) -> Caller:
    """An RPC caller as the dispatcher knows it."""
    if caller.kind == "agent":
        return structs.replace(caller, scopes=ALL_SCOPES, entry_point="rpc")
    return operator_caller(caller.name, entry_point="rpc", owner=caller.is_owner)


def operator_caller(name: str, *, entry_point: EntryPoint, owner: bool = True) -> Caller:
    """The caller with the gateway's own credential: every tool of the gateway, as far as the tool policy allows."""
    return Caller(
        kind="operator", name=name, scopes=ALL_SCOPES, entry_point=entry_point, grant=None if owner else Grant()
    )


async def invoke(toolbox: Toolbox, name: str, arguments: Json, caller: Caller) -> Json:
    """The tool's output as the gateway's wire shows it. Raises ToolError."""
    try:
        result = await toolbox.call(ToolCall(caller=caller, name=name, arguments=arguments, context=NULL_CONTEXT))
    except ToolNotFound:
        raise ToolNotFound(f"Tool not available: {name}") from None
    except ToolDenied as exc:
        if any(spec.name == name for spec in await toolbox.list(caller)):
            raise  # the tool itself, or a person it asked, refused
        raise ToolNotFound(f"Tool not available: {name} ({exc})") from None
    if result.failed:
        raise ToolError(_result_text(result) or f"{name} failed")
    output: Json = {"content": to_builtins(result.content)}
    if result.structured is not UNSET:
        output["details"] = result.structured
    return output


def error_kind(error: ToolError) -> str:
    """The name of an error on the wire."""
    if isinstance(error, ToolNotFound):
        return "not_found"
    if isinstance(error, ToolArguments):
        return "invalid_request"
    return "forbidden" if isinstance(error, ToolDenied) else "tool_error"


def _result_text(result: ToolResult) -> str:
    return "\n".join(block.text for block in result.content if hasattr(block, "text"))
