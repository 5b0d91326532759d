"""The gateway's own tools: adapters over its RPC methods, which they call inside this process."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from ....core.errors import ToolArguments, ToolNotFound
from ....core.json_values import drop_none
from ....core.model import Caller, Json, Text, ToolCall, ToolResult, ToolSpec, text_result
from ....core.rpc import ADMIN, READ, WRITE, RpcError
from ....core.signal import Signal
from .tool_specs import SPECS
from .transcript_excerpt import config_part, session_kind, trim_messages

MOST_MESSAGES: Final = 1000
ROW_FIELDS: Final = (
    "key", "kind", "classification", "label", "displayName", "derivedTitle", "lastMessagePreview", "channel", "agentId",
    "sessionId", "status", "updatedAt", "startedAt", "endedAt", "hasActiveRun", "modelProvider", "model",
    "inputTokens", "outputTokens", "totalTokens", "spawnedBy", "spawnDepth", "archived", "messages",
)  # fmt: skip

GatewayMethodCall = Callable[[str, Json, Caller], Awaitable[Any]]
"""Call a method of the gateway as this caller."""


class GatewayTools:
    """A `ToolSource`. The dispatcher has applied the policy already; each tool calls with the least scope it needs."""

    def __init__(self, call_gateway: GatewayMethodCall, *, main_session: Callable[[], str]) -> None:
        self.changed: Signal[None] = Signal()
        self._call_gateway, self._main_session = call_gateway, main_session
        """The session of callers without one."""
        self._tools: dict[str, Callable[[Caller, Json], Awaitable[Any]]] = {
            "sessions_list": self._list,
            "sessions_history": self._history,
            "sessions_send": self._send,
            "sessions_spawn": self._spawn,
            "session_status": self._status,
            "agents_list": self._agents,
            "subagents": self._subagents,
            "gateway": self._gateway,
        }

    def specs(self) -> Sequence[ToolSpec]:
        return SPECS

    async def call(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        try:
            answer = await tool(call.caller, call.arguments)
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

    async def _list(self, caller: Caller, arguments: Json) -> Json:
        kinds = set(arguments.get("kinds") or ())
        limit = arguments.get("limit")
        params = {
            "search": arguments.get("filter"),
            "limit": None if kinds else limit,
            "activeMinutes": arguments.get("activeMinutes"),
            "includeDerivedTitles": True,
            "includeLastMessage": True,
        }
        listed = await self._call_as(caller, READ, "sessions.list", params)
        rows = [row for row in listed["sessions"] if not kinds or session_kind(row) in kinds][:limit]
        most = int(arguments.get("messageLimit") or 0)
        for row in rows if most else ():
            history = await self._call_as(caller, READ, "chat.history", {"sessionKey": row["key"], "limit": most})
            row["messages"] = trim_messages(history["messages"], tools=False)["messages"]
        return {"count": len(rows), "sessions": [_pick_row(row) for row in rows]}

    async def _history(self, caller: Caller, arguments: Json) -> Json:
        key = await self._resolve_key(caller, arguments["sessionKey"])
        limit = min(int(arguments.get("limit") or 200), MOST_MESSAGES)
        history = await self._call_as(caller, READ, "chat.history", {"sessionKey": key, "limit": limit})
        return {
            "sessionKey": key,
            **trim_messages(history["messages"], tools=bool(arguments.get("includeTools"))),
        }

    async def _resolve_key(self, caller: Caller, name: str) -> str:
        """The key itself, or the key of the session with that id. Raises RpcError when there is neither."""
        for how in ("sessionId", "key"):
            found = await self._call_as(caller, READ, "sessions.resolve", {how: name, "allowMissing": True})
            if found["ok"]:
                return str(found["key"])
        raise RpcError(f"there is no session {name}; sessions_list names those you may see")

    async def _send(self, caller: Caller, arguments: Json) -> Any:
        seconds = arguments.get("timeoutSeconds", arguments.get("timeout"))
        params = {name: arguments.get(name) for name in ("sessionKey", "label", "agentId", "message")}
        params |= {"timeoutSeconds": seconds, "sourceSessionKey": caller.session}
        return await self._call_as(caller, WRITE, "sessions.converse", params)

    async def _spawn(self, caller: Caller, arguments: Json) -> Any:
        return await self._call_as(
            caller, WRITE, "sessions.spawn", {**arguments, "sessionKey": self._session_key(caller)}
        )

    async def _status(self, caller: Caller, arguments: Json) -> Json:
        named = arguments.get("sessionKey")
        key = self._session_key(caller) if named is None else await self._resolve_key(caller, named)
        model = arguments.get("model")
        if model is not None:
            if not caller.is_owner:
                raise RpcError("only the owner sets a session's model", kind="FORBIDDEN")
            wanted = {"key": key, "model": None if model == "default" else model}
            await self._call_gateway("sessions.patch", wanted, structs.replace(caller, scopes=frozenset({ADMIN})))
        row = (await self._call_as(caller, READ, "sessions.describe", {"key": key}))["session"]
        if row is None:
            return {"sessionKey": key, "session": None, "status": "not started"}
        return {"sessionKey": key, "session": _pick_row(row)}

    async def _agents(self, caller: Caller, arguments: Json) -> Any:
        return await self._call_as(caller, READ, "agents.allowed", {"sessionKey": self._session_key(caller)})

    async def _subagents(self, caller: Caller, arguments: Json) -> Any:
        params = arguments | (arguments.get("params") or {})
        params.pop("params", None)
        return await self._call_as(
            caller, WRITE, "sessions.subagents", {**params, "sessionKey": self._session_key(caller)}
        )

    # ---- the gateway itself --------------------------------------------------------------------------------------

    async def _gateway(self, caller: Caller, arguments: Json) -> Any:
        action = arguments["action"]
        if action == "restart":
            return await self._call_as(caller, ADMIN, "gateway.restart.request", {"reason": arguments.get("reason")})
        if action == "config.get":
            got = await self._call_as(caller, READ, "config.get", {})
            return {"hash": got["hash"], "config": config_part(got["config"], arguments.get("path"))}
        if action == "config.schema":
            if arguments.get("path"):
                return await self._call_as(caller, READ, "config.schema.lookup", {"path": arguments["path"]})
            return await self._call_as(caller, READ, "config.schema", {})
        if not arguments.get("raw"):
            raise ToolArguments(f"{action} needs raw: the config, or a part of it, as JSON")
        base = arguments.get("baseHash") or (await self._call_as(caller, READ, "config.get", {}))["hash"]
        params = {"raw": arguments["raw"], "baseHash": base, "note": arguments.get("note")}
        return await self._call_as(caller, ADMIN, action, params)


def _pick_row(row: Json) -> Json:
    return {name: row[name] for name in ROW_FIELDS if row.get(name) is not None}
