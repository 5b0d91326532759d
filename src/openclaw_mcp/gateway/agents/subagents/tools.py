"""The gateway's own tools: adapters over its RPC methods, which they call inside this process."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from ....core.errors import ToolArguments, ToolNotFound
from ....core.json_values import drop_none
from ....core.lenient import read_struct
from ....core.model import Caller, Json, Text, ToolCall, ToolResult, ToolSpec, text_result
from ....core.rpc import ADMIN, READ, WRITE, RpcError
from ....core.signal import Signal
from .tool_specs import SPECS
from .transcript_excerpt import config_part, session_kind, trim_messages

MOST_MESSAGES: Final = 1000
ROW_FIELDS: Final = (
    "key", "kind", "classification", "label", "displayName", "derivedTitle", "lastMessagePreview", "channel", "agentId",
    "sessionId", "status", "updatedAt", "startedAt", "endedAt", "hasActiveRun", "messageCount", "modelProvider",
    "model", "inputTokens", "outputTokens", "totalTokens", "spawnedBy", "spawnDepth", "archived", "messages",
)  # fmt: skip

PASSED_ON: Final = {"sessions_spawn": "sessions.spawn", "subagents": "sessions.subagents"}
"""Tools whose arguments are the parameters of a method."""

GatewayMethodCall = Callable[[str, Json, Caller], Awaitable[Any]]
"""Call a method of the gateway as this caller."""


class GatewayToolArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of the tools, but those that are passed on as they are; its schema names those of a tool."""

    filter: str | None = None
    kinds: frozenset[str] = frozenset()
    limit: int | None = None
    active_minutes: int | None = None
    message_limit: int = 0
    session_key: str | None = None
    include_tools: bool = False
    label: str | None = None
    agent_id: str | None = None
    message: str | None = None
    timeout_seconds: float | None = None
    timeout: float | None = None
    model: str | None = None
    action: str = ""
    raw: str = ""
    base_hash: str = ""
    path: str = ""
    note: str | None = None
    reason: str | None = None


class GatewayTools:
    """A `ToolSource`. The dispatcher has applied the policy already; each tool calls with the least scope it needs."""

    def __init__(self, call_gateway: GatewayMethodCall, *, main_session: Callable[[], str]) -> None:
        self.changed: Signal[None] = Signal()
        self._call_gateway, self._main_session = call_gateway, main_session
        """The session of callers without one."""
        self._tools: dict[str, Callable[[Caller, GatewayToolArguments], Awaitable[Any]]] = {
            "sessions_list": self._list,
            "sessions_history": self._history,
            "sessions_send": self._send,
            "session_status": self._status,
            "agents_list": self._agents,
            "gateway": self._gateway,
        }

    def specs(self) -> Sequence[ToolSpec]:
        return SPECS

    async def call(self, call: ToolCall) -> ToolResult:
        try:
            if call.name in PASSED_ON:
                answer = await self._pass_on(call)
            elif call.name in self._tools:
                asked = read_struct(drop_none(call.arguments), GatewayToolArguments)
                answer = await self._tools[call.name](call.caller, asked)
            else:
                raise ToolNotFound(f"Unknown tool: {call.name}")
        except RpcError as exc:
            return text_result(str(exc), failed=True)
        failed = isinstance(answer, dict) and answer.get("status") in ("error", "forbidden")
        text = msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
        return ToolResult((Text(text),), structured=answer, failed=failed)

    async def _call_as(self, caller: Caller, scope: str, method: str, params: Json) -> Any:
        return await self._call_gateway(method, drop_none(params), structs.replace(caller, scopes=frozenset({scope})))

    def _session_key(self, caller: Caller) -> str:
        return caller.session or self._main_session()

    # ---- sessions ------------------------------------------------------------------------------------------------

    async def _list(self, caller: Caller, asked: GatewayToolArguments) -> Any:
        params = {
            "search": asked.filter,
            "limit": None if asked.kinds else asked.limit,
            "activeMinutes": asked.active_minutes,
            "includeDerivedTitles": True,
            "includeLastMessage": True,
        }
        listed = await self._call_as(caller, READ, "sessions.list", params)
        rows = [row for row in listed["sessions"] if not asked.kinds or session_kind(row) in asked.kinds][: asked.limit]
        for row in rows if asked.message_limit else ():
            params = {"sessionKey": row["key"], "limit": asked.message_limit}
            history = await self._call_as(caller, READ, "chat.history", params)
            row["messages"] = trim_messages(history["messages"], tools=False)["messages"]
        return {"count": len(rows), "sessions": [_pick_row(row) for row in rows]}

    async def _history(self, caller: Caller, asked: GatewayToolArguments) -> Any:
        key = await self._resolve_key(caller, asked.session_key or "")
        params = {"sessionKey": key, "limit": min(asked.limit or 200, MOST_MESSAGES)}
        history = await self._call_as(caller, READ, "chat.history", params)
        return {"sessionKey": key, **trim_messages(history["messages"], tools=asked.include_tools)}

    async def _resolve_key(self, caller: Caller, name: str) -> str:
        """The key itself, or the key of the session with that id. Raises RpcError when there is neither."""
        for how in ("sessionId", "key"):
            found = await self._call_as(caller, READ, "sessions.resolve", {how: name, "allowMissing": True})
            if found["ok"]:
                return str(found["key"])
        raise RpcError(f"there is no session {name}; sessions_list names those you may see")

    async def _send(self, caller: Caller, asked: GatewayToolArguments) -> Any:
        params = {
            "sessionKey": asked.session_key,
            "label": asked.label,
            "agentId": asked.agent_id,
            "message": asked.message,
            "timeoutSeconds": asked.timeout if asked.timeout_seconds is None else asked.timeout_seconds,
            "sourceSessionKey": caller.session,
        }
        return await self._call_as(caller, WRITE, "sessions.converse", params)

    async def _status(self, caller: Caller, asked: GatewayToolArguments) -> Any:
        key = self._session_key(caller)
        if asked.session_key is not None:
            key = await self._resolve_key(caller, asked.session_key)
        if asked.model is not None:
            if not caller.is_owner:
                raise RpcError("only the owner sets a session's model", kind="FORBIDDEN")
            wanted = {"key": key, "model": None if asked.model == "default" else asked.model}
            await self._call_gateway("sessions.patch", wanted, structs.replace(caller, scopes=frozenset({ADMIN})))
        row = (await self._call_as(caller, READ, "sessions.describe", {"key": key}))["session"]
        if row is None:
            return {"sessionKey": key, "session": None, "status": "not started"}
        return {"sessionKey": key, "session": _pick_row(row)}

    async def _agents(self, caller: Caller, asked: GatewayToolArguments) -> Any:
        return await self._call_as(caller, READ, "agents.allowed", {"sessionKey": self._session_key(caller)})

    async def _pass_on(self, call: ToolCall) -> Any:
        params = call.arguments | (call.arguments.get("params") or {}) if call.name == "subagents" else call.arguments
        params = {name: value for name, value in params.items() if name != "params"}
        own = {"sessionKey": self._session_key(call.caller)}  # last: no parameter can name another
        return await self._call_as(call.caller, WRITE, PASSED_ON[call.name], {**params, **own})

    # ---- the gateway itself --------------------------------------------------------------------------------------

    async def _gateway(self, caller: Caller, asked: GatewayToolArguments) -> Any:
        action = asked.action
        if action == "restart":
            return await self._call_as(caller, ADMIN, "gateway.restart.request", {"reason": asked.reason})
        if action == "config.get":
            got = await self._call_as(caller, READ, "config.get", {})
            return {"hash": got["hash"], "config": config_part(got["config"], asked.path)}
        if action == "config.schema":
            if asked.path:
                return await self._call_as(caller, READ, "config.schema.lookup", {"path": asked.path})
            return await self._call_as(caller, READ, "config.schema", {})
        if not asked.raw:
            raise ToolArguments(f"{action} needs raw: the config, or a part of it, as JSON")
        base = asked.base_hash or (await self._call_as(caller, READ, "config.get", {}))["hash"]
        return await self._call_as(caller, ADMIN, action, {"raw": asked.raw, "baseHash": base, "note": asked.note})


def _pick_row(row: Json) -> Json:
    return {name: row[name] for name in ROW_FIELDS if row.get(name) is not None}
